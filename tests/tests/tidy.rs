//! What the documents say of the tree is true, and the tree keeps its own rules.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below `folder` whose name ends like this.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.ends_with("target") {
            found.extend(files(&entry, ending));
        } else if entry.to_string_lossy().ends_with(ending) {
            found.push(entry);
        }
    }
    found
}

/// The words in back-quotes that look like a path of this tree.
fn paths(document: &str) -> Vec<String> {
    let quoted = document.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        !word.contains(char::is_whitespace)
            && !word.contains(['*', ':', '{', '=', '(', '<'])
            && !word.starts_with(['/', 'v'])
            && (word.contains('/') || word.ends_with(".rs") || word.ends_with(".md") || word.ends_with(".yml"))
    };
    quoted.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn paths_in_the_documents_exist() {
    let known: Vec<String> = files(&root(), "").iter().map(|path| path.to_string_lossy().into_owned()).collect();
    for document in ["README.md", "ARCHITECTURE.md"] {
        for path in paths(&read(document)) {
            let built = path.starts_with("target/");
            let exists = root().join(&path).exists()
                || known
                    .iter()
                    .any(|known| known.ends_with(&format!("/{path}")) || known.contains(&format!("/{path}/")));
            assert!(built || exists, "{document} names {path}, which does not exist");
        }
    }
}

#[test]
fn each_policy_is_in_the_readme() {
    let readme = read("README.md");
    for policy in filter_core::config::PolicyName::ALL {
        assert!(readme.contains(&format!("| `{policy}` |")), "{policy}");
    }
}

#[test]
fn only_one_file_calls_the_host() {
    for file in files(&root().join("filter"), ".rs") {
        let calls = std::fs::read_to_string(&file).unwrap().contains("proxy_get_shared_data");
        assert_eq!(calls, file.ends_with("filter/src/host.rs"), "{}", file.display());
    }
}

#[test]
fn no_file_holds_too_much() {
    for folder in ["filter", "sidecar-loadmonitor", "tests"] {
        for file in files(&root().join(folder), ".rs") {
            let lines = std::fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= 500, "{} has {lines} lines", file.display());
        }
    }
}

#[test]
fn the_core_stays_pure() {
    let manifest = read("filter/core/Cargo.toml");
    let dependencies = manifest.split("[dependencies]").nth(1).unwrap().split("\n[").next().unwrap();
    let names = dependencies.lines().filter_map(|line| Some(line.split_once('=')?.0.trim()));
    for name in names {
        let allowed = ["memchr", "rand", "serde", "serde_json", "xxhash-rust"];
        assert!(allowed.contains(&name), "filter-core must not depend on {name}");
    }
}
