//! Finding and compiling the module, once per test binary.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result};
use wasmtime::{Config, Engine, Module};

/// The filter as it ships. `FILTER_WASM` names another file.
///
/// # Panics
/// When the file is missing: a test that needs it must fail, not be skipped.
pub fn filter_wasm() -> PathBuf {
    let path = std::env::var_os("FILTER_WASM").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wasm32-wasip1/wasm/filter.wasm"),
        PathBuf::from,
    );
    assert!(path.is_file(), "{} is missing: run `make wasm` first (or set FILTER_WASM)", path.display());
    path
}

/// The module beside [`filter_wasm`] that a request can crash (`filter/crash`).
///
/// # Panics
/// When the file is missing.
pub fn crashable_wasm() -> PathBuf {
    let path = filter_wasm().with_file_name("filter_crash_for_tests.wasm");
    assert!(path.is_file(), "{} is missing: run `make wasm` first", path.display());
    path
}

/// The module beside [`filter_wasm`] that remembers which worker holds which response (`filter/responses`).
///
/// # Panics
/// When the file is missing.
pub fn responses_wasm() -> PathBuf {
    let path = filter_wasm().with_file_name("filter_responses.wasm");
    assert!(path.is_file(), "{} is missing: run `make wasm` first", path.display());
    path
}

/// The engine of the test binary: fuel on, nothing that differs between machines.
pub(super) fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut config = Config::new();
        config.consume_fuel(true);
        Engine::new(&config).expect("the configuration is a constant")
    })
}

/// The module at `path`, compiled on the first call of this test binary.
pub(super) fn load(path: &Path) -> Result<Module> {
    static MODULES: OnceLock<Mutex<HashMap<PathBuf, Module>>> = OnceLock::new();
    let mut modules = MODULES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = modules.get(path) {
        return Ok(module.clone());
    }
    let code = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let module = compile(&code).with_context(|| format!("compiling {}", path.display()))?;
    modules.insert(path.to_owned(), module.clone());
    Ok(module)
}

/// A module from its binary or text form.
pub(super) fn compile(code: &[u8]) -> Result<Module> {
    Module::new(engine(), code).map_err(|error| anyhow::anyhow!("{error:?}"))
}
