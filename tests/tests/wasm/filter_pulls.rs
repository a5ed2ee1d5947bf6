//! Snapshots that the filter fetches itself.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use testbed::wasm::{SideCall, Vm};

use crate::fleet::{Fleet, chat, worker_url};

const TICK: Duration = Duration::from_millis(250);

fn fleet(vms: usize) -> Fleet {
    Fleet::new(vms, 2, json!({"policy": "least_load", "reports": {"cluster": "sidecar", "token": "secret"}}))
}

/// The only side call that is under way in any of the VMs, and whose it is.
#[track_caller]
fn only_call(fleet: &Fleet, vms: usize) -> (usize, SideCall) {
    let mut calls: Vec<_> =
        (0..vms).flat_map(|vm| fleet.vm(vm).side_calls().into_iter().map(move |call| (vm, call))).collect();
    assert_eq!(calls.len(), 1, "{calls:?}");
    calls.remove(0)
}

fn answer(vm: &Vm, call: &SideCall, status: u16, body: &str) {
    vm.answer_side_call(call, Some((status, body.as_bytes()))).unwrap();
}

/// A snapshot in which only worker `idle` has no queue.
fn snapshot(sequence: u64, idle: usize) -> String {
    let workers: Vec<_> = (0..2)
        .map(
            |worker| json!({"url": worker_url(worker), "load": [if worker == idle { 0.0 } else { 1e9 }, 0, 0, 0, 100]}),
        )
        .collect();
    json!({"version": 2, "reporter": "rack", "epoch": 7, "sequence": sequence, "interval_ms": 600_000,
           "scope": "full", "workers": workers})
    .to_string()
}

#[test]
fn the_leader_fetches_for_all_vms_and_asks_again_at_once() {
    let fleet = fleet(3);
    let (leader, call) = only_call(&fleet, 3);
    assert_eq!((call.cluster.as_str(), call.timeout_ms), ("sidecar", 5000));
    assert_eq!(call.header(":path"), "/v1/snapshot?wait_ms=1000");
    assert_eq!((call.header(":authority"), call.header("authorization")), ("sidecar".into(), "Bearer secret".into()));
    for (sequence, idle) in [(1, 1), (2, 0), (3, 1)] {
        let (of, call) = only_call(&fleet, 3);
        assert_eq!(of, leader);
        answer(fleet.vm(leader), &call, 200, &snapshot(sequence, idle));
        for vm in 0..3 {
            let (engine, _) = fleet.complete(vm, chat("hello"));
            assert_eq!(format!("http://{engine}"), worker_url(idle));
        }
    }
    let (_, call) = only_call(&fleet, 3);
    assert_eq!(call.header(":path"), "/v1/snapshot?wait_ms=1000&epoch=7&sequence=3");
    fleet.settle();
    assert_eq!(fleet.process.metric("smg_report_pulls_total;outcome=news"), 3);
    assert_eq!(fleet.process.metric("smg_load_reports_total;outcome=taken"), 6);
}

#[test]
fn another_vm_goes_on_when_the_leader_dies() {
    let fleet = fleet(2);
    let (leader, call) = only_call(&fleet, 2);
    answer(fleet.vm(leader), &call, 200, &snapshot(5, 1));
    fleet.vm(leader).kill();
    let other = 1 - leader;
    for _ in 0..10 {
        fleet.process.advance(TICK);
        fleet.tick(other);
    }
    let calls = fleet.vm(other).side_calls();
    assert_eq!(
        calls.iter().map(|call| call.header(":path")).collect::<Vec<_>>(),
        ["/v1/snapshot?wait_ms=1000&epoch=7&sequence=5"]
    );
}

#[test]
fn what_is_no_snapshot_changes_nothing_and_kills_nobody() {
    let fleet = fleet(1);
    let (_, call) = only_call(&fleet, 1);
    answer(fleet.vm(0), &call, 200, &snapshot(1, 1));
    let huge = " ".repeat((4 << 20) + 1);
    let answers: [Option<(u16, &[u8])>; 9] = [
        None,
        Some((200, b"")),
        Some((200, b"\xff\xfe")),
        Some((200, br#"{"version":1}"#)),
        Some((200, huge.as_bytes())),
        Some((401, b"who are you?")),
        Some((404, b"")),
        Some((503, b"")),
        Some((204, b"")),
    ];
    for answer in answers {
        let call = (0..200).find_map(|_| {
            fleet.process.advance(TICK);
            fleet.tick(0);
            fleet.vm(0).side_calls().pop()
        });
        fleet.vm(0).answer_side_call(&call.expect("it is asked again"), answer).unwrap();
        let (engine, _) = fleet.complete(0, chat("hello"));
        assert_eq!(format!("http://{engine}"), worker_url(1), "{answer:?}");
    }
    fleet.settle();
    let outcomes: BTreeSet<_> = fleet
        .process
        .metrics()
        .into_keys()
        .filter_map(|name| Some(name.strip_prefix("smg_report_pulls_total;outcome=")?.to_owned()))
        .collect();
    let expected = ["malformed", "news", "not_found", "status", "unauthorized", "unchanged", "unreachable", "version"];
    assert_eq!(outcomes.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn without_a_cluster_nothing_is_fetched() {
    let fleet = Fleet::new(1, 2, json!({}));
    fleet.settle();
    assert_eq!(fleet.vm(0).side_calls(), []);
}
