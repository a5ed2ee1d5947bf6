//! When a gauge tells what is the case.

use std::time::Duration;

use serde_json::json;
use testbed::wasm::{Process, filter_wasm};

use crate::fleet::{chat, prompt, worker_url};

#[test]
fn a_gauge_is_as_old_as_the_tick_that_set_it_whichever_root_ticks_first() {
    let process = Process::new(&filter_wasm()).unwrap();
    let vm = process.vm();
    let ingest = vm.configure(json!({ "role": "ingest" }).to_string()).unwrap();
    let route = vm.configure(json!({ "workers": [worker_url(0)] }).to_string()).unwrap();
    let gauge = format!("smg_worker_requests_active;worker={}", worker_url(0));
    // Each root has a timer of its own: this one's is a tenth of a second behind the other's.
    let period = || {
        process.advance(Duration::from_millis(150));
        vm.tick(ingest).unwrap();
        process.advance(Duration::from_millis(100));
        vm.tick(route).unwrap();
    };
    period();
    period();
    let held = vm.send(route, chat(&prompt(1, 100))).unwrap();
    period();
    assert_eq!(process.metric(&gauge), 1);
    held.finish().unwrap();
    period();
    assert_eq!(process.metric(&gauge), 0);
}
