//! VMs in the emulated host: configuration, death, costs.

use std::time::Duration;

use testbed::wasm::{Decision, Process, Request, Status, VmError};

use crate::guest::{noted, process};

/// Traps on a request whose path has one byte, counts the others; refuses an empty configuration.
const FRAGILE: &str = r#"
(func (export "proxy_on_configure") (param $root i32) (param $size i32) (result i32)
  (call $note «configuration» (call $buffer (i32.const 7) (i32.const 0) (i32.const 100) (i32.const 0) (i32.const 4)))
  (call $note «configuration size» (i32.load (i32.const 4)))
  (drop (call $log (i32.const 4) «workers: expected at least one»))
  (i32.ne (local.get $size) (i32.const 0)))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (drop (call $random (i32.const 0x40) (i32.const 8)))
  (drop (call $now (i32.const 0x48)))
  (drop (call $header (i32.const 0) «:path»))
  (if (i32.eq (i32.load (i32.const 4)) (i32.const 1)) (then (unreachable)))
  (call $note «random» (i32.load (i32.const 0x40)))
  (call $note «now» (i32.load (i32.const 0x48)))
  (call $note «configuration later» (call $buffer (i32.const 7) (i32.const 0) (i32.const 9) (i32.const 0) (i32.const 4)))
  (i32.const 0))
(func (export "proxy_on_done") (param i32) (result i32)
  (call $note «done» (local.get 0))
  (i32.const 1))
(func (export "proxy_on_delete") (param i32))
"#;

#[test]
fn a_refused_configuration_tells_why() {
    let process = process(FRAGILE);
    let vm = process.vm();
    let error = vm.configure("").unwrap_err();
    assert_eq!(error.to_string(), "configuration refused: workers: expected at least one");
    let root = vm.configure("{}").unwrap();
    assert_eq!((noted(&process, "configuration"), noted(&process, "configuration size")), (0, 2));
    vm.send(root, Request::get("/ab")).unwrap();
    assert_eq!(noted(&process, "configuration later"), Status::NotFound as u32);
}

#[test]
fn a_trap_kills_one_vm_and_all_its_exchanges() {
    let process = process(FRAGILE);
    let (one, two) = (process.vm(), process.vm());
    let (root_one, root_two) = (one.configure("{}").unwrap(), two.configure("{}").unwrap());
    let open = one.send(root_one, Request::get("/ab")).unwrap();
    assert_eq!(open.decision(), Decision::Continued);
    let error = one.send(root_one, Request::get("/")).err().unwrap();
    assert!(error.to_string().contains("proxy_on_request_headers"), "{error}");
    assert!(matches!(one.send(root_one, Request::get("/ab")), Err(VmError::Dead { .. })));
    assert!(matches!(open.finish(), Err(VmError::Dead { .. })));
    two.send(root_two, Request::get("/ab")).unwrap();

    one.reload();
    assert!(matches!(one.tick(root_one), Err(VmError::Dead { .. })), "a root context of the old VM");
    let root = one.configure("{}").unwrap();
    one.send(root, Request::get("/ab")).unwrap().finish().unwrap();
    assert_eq!((one.open_exchanges(), two.open_exchanges()), (0, 1));
}

#[test]
fn a_vm_can_be_killed_or_made_to_trap_at_any_host_call() {
    let process = process(FRAGILE);
    let vm = process.vm();
    let root = vm.configure("{}").unwrap();
    let calls = vm.send(root, Request::get("/ab")).unwrap().counters().host_calls_total();
    assert_eq!(calls, 7);
    for nth in 1..=calls + 1 {
        vm.reload();
        let root = vm.configure("{}").unwrap();
        vm.trap_at_host_call(nth);
        assert_eq!(vm.send(root, Request::get("/ab")).is_err(), nth <= calls, "call {nth}");
    }
    vm.reload();
    let root = vm.configure("{}").unwrap();
    vm.kill();
    assert_eq!(vm.death().as_deref(), Some("killed by the test"));
    assert!(vm.send(root, Request::get("/ab")).is_err());
}

#[test]
fn costs_are_the_same_every_time() {
    let run = || {
        let process = process(FRAGILE);
        let vm = process.vm();
        let root = vm.configure("{}").unwrap();
        let counters = vm.send(root, Request::get("/ab")).unwrap().finish().unwrap();
        (counters, noted(&process, "random"))
    };
    let (counters, random) = run();
    assert_eq!(run(), (counters.clone(), random));
    assert!(counters.fuel > 20);
    assert_eq!(counters.host_calls_of("random_get"), 1);
    assert_eq!(counters.callbacks_total(), 3, "headers, done, delete: {counters:?}");
}

#[test]
fn the_clock_stands_still_unless_moved() {
    let process = process(FRAGILE);
    let vm = process.vm();
    let root = vm.configure("{}").unwrap();
    process.set_now(Duration::from_nanos(7));
    vm.send(root, Request::get("/ab")).unwrap();
    assert_eq!(noted(&process, "now"), 7);
    process.advance(Duration::from_nanos(5));
    vm.send(root, Request::get("/ab")).unwrap();
    assert_eq!(noted(&process, "now"), 12);
}

#[test]
fn a_retired_root_context_may_ask_for_time() {
    let process = process(
        r#"
        (func (export "proxy_on_done") (param i32) (result i32) (i32.const 0))
        (func (export "proxy_on_delete") (param i32) (call $note «deleted» (local.get 0)))
        (func (export "proxy_on_tick") (param i32) (call $note «deleted» (i32.const 0)) (drop (call $done)))
        "#,
    );
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    vm.tick(root).unwrap();
    vm.retire(root).unwrap();
    assert_eq!(noted(&process, "deleted"), 0);
    vm.tick(root).unwrap();
    assert_eq!(noted(&process, "deleted"), 1);
}

#[test]
fn an_import_that_the_host_does_not_know_traps_by_name() {
    let process = Process::from_code(
        r#"(module
            (import "env" "proxy_get_log_level" (func $unknown (param i32) (result i32)))
            (memory (export "memory") 1)
            (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (call $unknown (i32.const 0))))"#,
    )
    .unwrap();
    let error = process.vm().configure("").unwrap_err();
    assert!(error.to_string().contains("proxy_get_log_level"), "{error}");
}
