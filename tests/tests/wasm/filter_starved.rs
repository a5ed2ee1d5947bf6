//! A proxy that does not hand bodies to held requests.

use std::time::Duration;

use serde_json::json;
use testbed::wasm::{Plugin, Process, filter_wasm};

use crate::fleet::{chat, prompt, worker_url};

#[test]
fn a_request_is_let_go_by_a_tick_and_the_next_one_does_not_wait() {
    let process = Process::new(&filter_wasm()).unwrap();
    let vm = process.vm();
    let config = json!({ "workers": [worker_url(0), worker_url(1)] }).to_string();
    let root = vm.configure(Plugin::new(config).without_stop_iteration()).unwrap();
    let held = vm.send(root, chat(&prompt(1, 4096))).unwrap();
    assert_eq!(held.destination(), None);
    for _ in 0..9 {
        process.advance(Duration::from_millis(250));
        vm.tick(root).unwrap();
    }
    assert!(held.destination().is_some(), "after two seconds it goes on");
    let next = vm.send(root, chat(&prompt(2, 4096))).unwrap();
    assert!(next.destination().is_some());
    for exchange in [held, next] {
        exchange.finish().unwrap();
    }
    vm.tick(root).unwrap();
    assert_eq!(process.metric("smg_degraded;reason=no_stop_iteration"), 1);
}
