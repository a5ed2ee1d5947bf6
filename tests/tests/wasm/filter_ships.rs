//! What ships and what only tests may run are two modules.

use std::collections::BTreeSet;
use std::path::Path;

use testbed::wasm::{crashable_wasm, filter_wasm, responses_wasm};
use wasmtime::{Engine, ExternType, Module};

/// What a module that a request can crash asks the host for. (Words that are only compared can be optimised away.)
const NAMES: [&str; 3] = ["x-crash-for-tests", "crash-leader", "crash-everyone"];

fn code(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

fn holds(code: &[u8], word: &str) -> bool {
    code.windows(word.len()).any(|window| window == word.as_bytes())
}

/// What a module gives and what it needs, functions with their types.
fn interface(code: &[u8]) -> BTreeSet<String> {
    let named = |name: &str, kind: ExternType| match kind.func() {
        Some(function) => format!("{name} {function}"),
        None => name.to_owned(),
    };
    let module = Module::new(&Engine::default(), code).unwrap();
    let exports = module.exports().map(|export| named(export.name(), export.ty()));
    let imports = module.imports().map(|import| named(&format!("{}.{}", import.module(), import.name()), import.ty()));
    exports.chain(imports).collect()
}

#[test]
fn only_the_callbacks_that_are_needed_are_exported() {
    let module = Module::new(&Engine::default(), code(&filter_wasm())).unwrap();
    let callbacks: BTreeSet<_> =
        module.exports().filter_map(|export| export.name().strip_prefix("proxy_on_")).collect();
    // Envoy calls each exported one wherever it applies. What is called for a stream costs every stream; an answer to a
    // call of our own belongs to none.
    let expected = [
        "configure",
        "context_create",
        "done",
        "http_call_response",
        "memory_allocate",
        "queue_ready",
        "request_body",
        "request_headers",
        "request_trailers",
        "response_headers",
        "tick",
        "vm_start",
    ];
    assert_eq!(callbacks.into_iter().collect::<Vec<_>>(), expected);
}

/// The module that reads answers is called for each part of each: nothing else tells the two apart.
#[test]
fn the_module_that_remembers_responses_is_told_of_their_bodies_and_else_the_same() {
    let (usual, reading) = (interface(&code(&filter_wasm())), interface(&code(&responses_wasm())));
    let more: Vec<_> = reading.difference(&usual).collect();
    assert!(matches!(more[..], [only] if only.starts_with("proxy_on_response_body ")), "{more:?}");
    assert!(usual.is_subset(&reading));
    assert!(NAMES.iter().all(|name| !holds(&code(&responses_wasm()), name)));
}

#[test]
fn no_request_can_crash_the_module_that_ships() {
    let (ships, crashable) = (code(&filter_wasm()), code(&crashable_wasm()));
    for name in NAMES {
        assert!(holds(&crashable, name), "{name} is not in the module that can be crashed");
        assert!(!holds(&ships, name), "{name} is in the module that ships");
    }
    assert_eq!(interface(&ships), interface(&crashable), "apart from that they are one");
}
