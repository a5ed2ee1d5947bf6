//! Shared data, queues and metrics in the emulated host.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use filter_core::store::Store as _;
use testbed::wasm::{Access, Metric, Request, Status};

use crate::guest::{noted, process};

/// Reads `k` and writes it back with the version that it saw.
const SWAPS: &str = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $note «k» (i32.const 1))
  (i32.const 1))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (local $status i32)
  (drop (call $get «k» (i32.const 0) (i32.const 4) (i32.const 8)))
  (local.set $status (call $set «k» (i32.load (i32.const 0)) (i32.const 4) (i32.load (i32.const 8))))
  (drop (call $set_header (i32.const 0) «x-status» (i32.const 0x200) (i32.const 1)))
  (call $note «status» (local.get $status))
  (i32.const 0))
"#;

#[test]
fn a_write_between_read_and_swap_is_a_conflict() {
    let process = process(SWAPS);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    vm.send(root, Request::get("/")).unwrap();
    assert_eq!(noted(&process, "status"), Status::Ok as u32);

    process.intercept(|access, store| {
        if matches!(access, Access::Set { key: "k", .. }) {
            store.set("k", &[9; 4], None).unwrap();
        }
        None
    });
    vm.send(root, Request::get("/")).unwrap();
    assert_eq!(noted(&process, "status"), Status::CasMismatch as u32);
    assert_eq!(process.store().get("k").unwrap().unwrap().value, [9; 4]);
}

#[test]
fn another_vm_can_act_between_read_and_swap() {
    let process = process(SWAPS);
    let (one, two) = (process.vm(), process.vm());
    let (root_one, root_two) = (one.configure("").unwrap(), two.configure("").unwrap());
    let statuses = Rc::new(RefCell::new(Vec::new()));
    let (inner, raced) = (Rc::clone(&statuses), Cell::new(false));
    let handle = process.clone();
    process.intercept(move |access, _| {
        if matches!(access, Access::Set { key: "k", .. }) && !raced.replace(true) {
            two.send(root_two, Request::get("/")).unwrap();
            inner.borrow_mut().push(noted(&handle, "status"));
        }
        None
    });
    one.send(root_one, Request::get("/")).unwrap();
    process.stop_intercepting();
    statuses.borrow_mut().push(noted(&process, "status"));
    assert_eq!(*statuses.borrow(), [Status::Ok as u32, Status::CasMismatch as u32]);
}

#[test]
fn the_store_can_be_made_to_fail() {
    let process = process(SWAPS);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    process.intercept(|access, _| matches!(access, Access::Set { key: "k", .. }).then_some(Status::InternalFailure));
    vm.send(root, Request::get("/")).unwrap();
    assert_eq!(noted(&process, "status"), Status::InternalFailure as u32);
    assert_eq!(noted(&process, "k"), 1);
}

/// Registers a queue; an exchange enqueues and notes whether it was called back meanwhile.
const QUEUES: &str = r#"
(func (export "proxy_on_configure") (param i32 i32) (result i32)
  (call $note «register» (call $register «q» (i32.const 0x20)))
  (call $note «called back» (i32.const 0))
  (i32.const 1))
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $note «resolve» (call $resolve «smg» «q» (i32.const 0x24)))
  (call $note «same id» (i32.eq (i32.load (i32.const 0x20)) (i32.load (i32.const 0x24))))
  (call $note «elsewhere» (call $resolve «other» «q» (i32.const 0x28)))
  (call $note «enqueue» (call $enqueue (i32.load (i32.const 0x24)) «news»))
  (drop (call $get «called back» (i32.const 0) (i32.const 4) (i32.const 8)))
  (call $note «called back at once» (i32.load (i32.load (i32.const 0))))
  (i32.const 0))
(func (export "proxy_on_queue_ready") (param $root i32) (param $queue i32)
  (call $note «called back» (i32.const 1))
  (call $note «consumer» (local.get $root))
  (call $note «dequeue» (call $dequeue (local.get $queue) (i32.const 0) (i32.const 4)))
  (call $note «size» (i32.load (i32.const 4)))
  (call $note «again» (call $dequeue (local.get $queue) (i32.const 0) (i32.const 4)))
  (drop (call $log (i32.const 2) «consumed»)))
"#;

#[test]
fn a_message_goes_to_the_last_root_context_that_registered() {
    let process = process(QUEUES);
    let (one, two) = (process.vm(), process.vm());
    let root_one = one.configure("").unwrap();
    two.configure("").unwrap();
    two.configure("another").unwrap();
    one.send(root_one, Request::get("/")).unwrap();
    assert_eq!([noted(&process, "register"), noted(&process, "resolve"), noted(&process, "enqueue")], [0; 3]);
    assert_eq!(noted(&process, "same id"), 1);
    assert_eq!(noted(&process, "elsewhere"), Status::NotFound as u32);
    assert_eq!(noted(&process, "called back at once"), 0, "posted, not called from inside");
    assert_eq!((noted(&process, "dequeue"), noted(&process, "size")), (0, 4));
    assert_eq!(noted(&process, "again"), Status::Empty as u32);
    assert_eq!(noted(&process, "consumer"), 2);
    assert_eq!((one.logs().len(), two.logs().len()), (0, 1));
}

#[test]
fn notices_can_be_kept_back() {
    let process = process(QUEUES);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    process.hold_queue_notices(true);
    vm.send(root, Request::get("/")).unwrap();
    assert_eq!((noted(&process, "called back"), process.queued("q")), (0, 1));
    process.hold_queue_notices(false);
    assert_eq!((noted(&process, "called back"), process.queued("q")), (1, 0));
}

#[test]
fn after_a_reload_a_notice_can_hit_a_stream() {
    let process = process(QUEUES);
    let vm = process.vm();
    vm.configure("").unwrap();
    // The second root context is the consumer; in the new VM its id will be a stream's.
    let consumer = vm.configure("another").unwrap();
    process.hold_queue_notices(true);
    vm.send(consumer, Request::get("/")).unwrap();
    vm.reload();
    let root = vm.configure("").unwrap();
    let stream = vm.send(root, Request::get("/")).unwrap();
    process.hold_queue_notices(false);
    assert_eq!(noted(&process, "consumer"), 1, "the last of two notices");
    assert_eq!(stream.counters().callbacks["proxy_on_queue_ready"], 1);
}

#[test]
fn metrics_add_up_over_vms_by_name() {
    let process = process(
        r#"
        (func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
          (call $note «define» (call $define_metric (i32.const 0) «requests» (i32.const 0x20)))
          (call $note «zero» (call $increment (i32.load (i32.const 0x20)) (i64.const 0)))
          (call $note «add» (call $increment (i32.load (i32.const 0x20)) (i64.const 2)))
          (call $note «unknown» (call $increment (i32.const 400) (i64.const 2)))
          (i32.const 0))
        "#,
    );
    for _ in 0..2 {
        let vm = process.vm();
        let root = vm.configure("").unwrap();
        vm.send(root, Request::get("/")).unwrap();
    }
    assert_eq!(process.metric("requests"), 4);
    assert_eq!(process.metrics()["requests"], Metric::Counter(4));
    assert_eq!([noted(&process, "define"), noted(&process, "add")], [0, 0]);
    assert_eq!(noted(&process, "zero"), Status::BadArgument as u32);
    assert_eq!(noted(&process, "unknown"), Status::NotFound as u32);
}
