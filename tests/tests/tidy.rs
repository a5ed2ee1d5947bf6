//! What the documents say of the tree is true, and the tree keeps its own rules.

use std::path::{Path, PathBuf};

use filter_core::config::{Config, TOKEN_VARIABLE};
use serde::Deserialize;
use serde_json::Value;

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
        let allowed = ["blake3", "memchr", "rand", "serde", "serde_json", "subtle", "xxhash-rust"];
        assert!(allowed.contains(&name), "filter-core must not depend on {name}");
    }
}

/// The resources of one file of `envoy/kubernetes`.
fn manifests(path: &str) -> Vec<Value> {
    let text = read(&format!("envoy/kubernetes/{path}"));
    let documents = serde_norway::Deserializer::from_str(&text);
    documents.map(|document| Value::deserialize(document).unwrap_or_else(|error| panic!("{path}: {error}"))).collect()
}

fn spec(path: &str, kind: &str) -> Value {
    let mut all = manifests(path).into_iter();
    all.find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("{path}: no {kind}"))["spec"].take()
}

/// The values of a key anywhere below.
fn values<'a>(value: &'a Value, key: &str) -> Vec<&'a Value> {
    match value {
        Value::Object(members) => {
            let own = members.get(key).into_iter();
            own.chain(members.values().flat_map(|member| values(member, key))).collect()
        }
        Value::Array(items) => items.iter().flat_map(|item| values(item, key)).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn manifests_for_kubernetes_are_resources() {
    for file in files(&root().join("envoy/kubernetes"), "") {
        let path = file.strip_prefix(root().join("envoy/kubernetes")).unwrap().to_string_lossy().into_owned();
        for one in manifests(&path) {
            for key in ["/apiVersion", "/kind", "/metadata/name", "/metadata/namespace"] {
                assert!(one.pointer(key).is_some_and(Value::is_string), "{path}: a resource without {key}");
            }
        }
    }
}

/// That they also work is shown by the tests through Envoy, `tests/tests/envoy/shapes`.
#[test]
fn manifests_for_kubernetes_are_consistent() {
    let alone: Value = serde_norway::from_str(&read("envoy/envoy.yaml")).unwrap();
    let tags = alone["stats_config"]["stats_tags"].clone();
    let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
    let gateway = spec("envoy-gateway/smg.yaml", "EnvoyExtensionPolicy")["wasm"][0]["config"].clone();
    let filter = values(&manifests("istio/smg.yaml").into(), "configuration")[0]["value"].clone();
    let istio: Value = serde_json::from_str(&text(&filter)).unwrap();
    let plugin = spec("istio/wasmplugin.yaml", "WasmPlugin")["pluginConfig"].clone();
    let retries = spec("envoy-gateway/smg.yaml", "BackendTrafficPolicy")["retry"]["numRetries"].clone();
    let attempts = spec("istio/gateway.yaml", "VirtualService")["http"][0]["retries"]["attempts"].clone();
    for (config, retries) in [(&gateway, &retries), (&istio, &attempts), (&plugin, &attempts)] {
        let parsed = Config::parse(config.to_string().as_bytes()).unwrap();
        assert_eq!(parsed.workers.len(), 2);
        assert_eq!(config["max_attempts"].as_u64(), retries.as_u64().map(|retries| retries + 1));
    }

    for (control, config) in [("envoy-gateway", &gateway), ("istio", &istio)] {
        let (proxy, filter) = (format!("{control}/gateway.yaml"), format!("{control}/smg.yaml"));
        let (proxy, filter) = (Value::from(manifests(&proxy)), Value::from(manifests(&filter)));
        // Labels.
        let found = match control {
            "istio" => values(&filter, "stats_tags")[0].clone(),
            _ => spec("envoy-gateway/gateway.yaml", "EnvoyProxy")["bootstrap"]["jsonPatches"][0]["value"].clone(),
        };
        assert_eq!(found, tags, "{control}");
        // The sidecar polls the filter's workers and is where the filter asks, with the token that it wants.
        let args: Vec<_> = values(&proxy, "args")[0].as_array().unwrap().iter().map(text).collect();
        let polled = args.iter().filter_map(|arg| arg.strip_prefix("--worker="));
        let routed = config["workers"].as_array().unwrap().iter().map(|worker| text(&worker["url"]));
        assert_eq!(polled.map(str::to_owned).collect::<Vec<_>>(), routed.collect::<Vec<_>>(), "{control}");
        let asked = values(&filter, "socket_address")[0].clone();
        assert!(args.contains(&format!("--listen=0.0.0.0:{}", asked["port_value"])), "{control}: {args:?}");
        let services = proxy.as_array().unwrap().iter().filter(|one| one["kind"] == "Service");
        let names = services.map(|one| format!("{}.inference.svc.cluster.local", text(&one["metadata"]["name"])));
        assert!(names.into_iter().any(|name| asked["address"] == name), "{control}: {asked}");
        let cluster = Config::parse(config.to_string().as_bytes()).unwrap().reports.cluster;
        assert!(values(&filter, "cluster_name").iter().any(|name| name.as_str() == cluster.as_deref()), "{control}");
        let passed = values(&filter, "host_env_keys");
        assert_eq!(passed, [&Value::from(vec![TOKEN_VARIABLE])], "{control}");
        let variables = values(&proxy, "env")[0].as_array().unwrap();
        assert!(variables.iter().any(|one| one["name"] == TOKEN_VARIABLE), "{control}: {variables:?}");
        // The cluster follows the same header as in the stand-alone configuration.
        let policy = |value: &Value| values(value, "override_host_sources")[0].clone();
        assert_eq!(policy(&filter), policy(&alone), "{control}");
        // One module.
        let hashes = values(&filter, "sha256");
        assert!(!hashes.is_empty() && hashes.iter().all(|hash| **hash == hashes[0].clone()), "{control}: {hashes:?}");
    }
}
