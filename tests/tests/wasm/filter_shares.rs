//! What the threads of one process share through the filter: the prefix tree, the load, the reports.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use filter_core::report::{Load, Snapshot, WorkerReport};
use serde_json::json;
use testbed::wasm::{Access, Decision, Process, Request, Response, filter_wasm};

use crate::fleet::{Fleet, chat, first, prompt, worker_address, worker_url};

#[test]
fn a_prefix_first_seen_by_one_thread_is_matched_on_the_other() {
    let fleet = Fleet::new(2, 4, json!({}));
    for seed in 0..30 {
        let (engine, _) = fleet.complete(0, chat(&prompt(seed, 2000)));
        let longer = prompt(seed, 2000) + " and some more";
        assert_eq!(fleet.complete(1, chat(&longer)).0, engine, "prompt {seed}");
    }
    assert_eq!(fleet.branch("tree_match"), 30);
}

#[test]
fn the_idle_worker_is_never_picked_by_two_at_once() {
    let fleet = Rc::new(Fleet::new(2, 2, json!({"policy": "least_load"})));
    for round in 0..10 {
        let nested = Rc::new(RefCell::new(None));
        let (slot, inner, raced) = (Rc::clone(&nested), Rc::clone(&fleet), Cell::new(false));
        // Between the first thread's pick and its write, the second thread picks and writes.
        fleet.process.intercept(move |access, _| {
            if matches!(access, Access::Set { version: Some(_), .. }) && !raced.replace(true) {
                *slot.borrow_mut() = Some(inner.send(1, chat("two")));
            }
            None
        });
        let one = fleet.send(0, chat("one"));
        fleet.process.stop_intercepting();
        let two = nested.borrow_mut().take().expect("the first thread wrote nothing");
        assert_ne!(first(&one), first(&two), "round {round}");
        assert!(fleet.in_flight().values().all(|count| *count == 1), "{:?}", fleet.in_flight());
        one.finish().unwrap();
        two.finish().unwrap();
    }
}

#[test]
fn requests_spread_evenly_over_idle_workers_whatever_thread_takes_them() {
    let fleet = Fleet::new(4, 8, json!({"policy": "least_load"}));
    let exchanges: Vec<_> = (0..64).map(|number| fleet.send(number % 4, chat(&prompt(number, 100)))).collect();
    let mut picks = BTreeMap::new();
    for exchange in &exchanges {
        *picks.entry(first(exchange)).or_insert(0) += 1;
    }
    assert_eq!(picks.values().copied().collect::<Vec<_>>(), [8; 8]);
    assert_eq!(fleet.in_flight().values().copied().collect::<Vec<_>>(), [8; 8]);
    for exchange in exchanges {
        exchange.finish().unwrap();
    }
    assert_eq!(fleet.in_flight_total(), 0);
}

#[test]
fn a_conflict_at_every_write_delays_nothing_and_loses_no_count() {
    let fleet = Fleet::new(1, 3, json!({}));
    fleet.process.intercept(|access, store| {
        use filter_core::store::Store as _;
        if let Access::Set { key, version: Some(_), .. } = access
            && let Some(current) = store.get(key).unwrap()
        {
            store.set(key, &current.value, None).unwrap();
        }
        None
    });
    let exchange = fleet.send(0, chat("hello"));
    assert_eq!(exchange.decision(), Decision::Continued);
    assert!(exchange.destination().is_some());
    fleet.process.stop_intercepting();
    assert_eq!(fleet.in_flight_total(), 1);
    exchange.finish().unwrap();
    assert_eq!(fleet.in_flight_total(), 0);
}

#[test]
fn a_posted_snapshot_steers_every_thread() {
    let fleet = Fleet::new(2, 2, json!({"policy": "least_load"}));
    let ingest = fleet.vm(1).configure(r#"{"role": "ingest"}"#).unwrap();
    let load = |queued_tokens| Some(Load { queued_tokens, throughput: 1000.0, ..Load::default() });
    let report = |index, queued| WorkerReport {
        url: worker_url(index),
        address: Some(worker_address(index)),
        load: load(queued),
        ..WorkerReport::default()
    };
    let snapshot = Snapshot::of(1, 1, 60_000, vec![report(0, 50_000.0), report(1, 0.0)]);
    let post = Request::post("/v1/reports", snapshot.to_bytes());
    let exchange = fleet.vm(1).send(ingest, post).unwrap();
    let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
    assert_eq!(reply.status, 202);
    exchange.finish().unwrap();
    for vm in [0, 1, 0, 1] {
        assert_eq!(fleet.complete(vm, chat("x")).0, worker_address(1));
    }
    fleet.settle();
    assert_eq!(fleet.process.metric("smg_load_reports_total;outcome=taken"), 2);

    for garbage in [b"\xff".as_slice(), b"{}", b"{\"version\":9}"] {
        let exchange = fleet.vm(1).send(ingest, Request::post("/v1/reports", garbage)).unwrap();
        let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
        assert_eq!(reply.status, 400);
    }
}

#[test]
fn snapshots_that_nobody_takes_do_not_pile_up() {
    let process = Process::new(&filter_wasm()).unwrap();
    let vm = process.vm();
    let ingest = vm.configure(json!({ "role": "ingest" }).to_string()).unwrap();
    for sequence in 1..=100 {
        let snapshot = Snapshot::of(1, sequence, 1000, Vec::new());
        let exchange = vm.send(ingest, Request::post("/v1/reports", snapshot.to_bytes())).unwrap();
        let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
        assert_eq!(reply.status, 202);
        exchange.finish().unwrap();
    }
    assert_eq!(process.queued("smg-reports-2"), 1);
    process.advance(Duration::from_millis(250));
    vm.tick(ingest).unwrap();
    assert_eq!(process.metric("smg_load_reports_total;outcome=unclaimed"), 99);
    let warned = process.logs().iter().filter(|line| line.message.contains("same vm_id")).count();
    assert_eq!(warned, 1, "once");
}

#[test]
fn a_new_vm_on_a_thread_finds_what_the_dead_one_knew() {
    let fleet = Fleet::new(2, 4, json!({}));
    let (engine, _) = fleet.complete(0, chat(&prompt(1, 2000)));
    fleet.vm(0).kill();
    fleet.vm(0).reload();
    let workers: Vec<_> = (0..4).map(worker_url).collect();
    let root = fleet.vm(0).configure(json!({"workers": workers}).to_string()).unwrap();
    let exchange = fleet.vm(0).send(root, chat(&prompt(1, 2100))).unwrap();
    assert_eq!(first(&exchange), engine);
}

#[test]
fn a_vm_that_dies_at_any_host_call_leaves_the_other_thread_working() {
    let fleet = Fleet::new(2, 3, json!({}));
    let calls = fleet.complete(0, chat(&prompt(1, 2000))).1.host_calls_total();
    let workers: Vec<_> = (0..3).map(worker_url).collect();
    for nth in 1..=calls {
        fleet.vm(0).reload();
        let root = fleet.vm(0).configure(json!({"workers": workers}).to_string()).unwrap();
        fleet.vm(0).trap_at_host_call(nth);
        let request = chat(&prompt(nth as usize + 1, 2000));
        let ended = fleet.vm(0).send(root, request.clone()).and_then(|mut exchange| {
            exchange.respond(Response::from_engine(200, &first(&exchange)))?;
            exchange.finish()
        });
        assert!(ended.is_err(), "call {nth} did not happen");
        fleet.complete(1, request);
    }
}

#[test]
fn each_configuration_of_a_thread_logs_at_its_own_level() {
    let fleet = Fleet::new(1, 2, json!({"log_level": "debug"}));
    // Another configuration of the same thread with another level, as the ingest listener has it.
    fleet.vm(0).configure(json!({"role": "ingest"}).to_string()).unwrap();
    fleet.complete(0, chat("hello"));
    let lines = fleet.process.logs();
    let decision = lines.iter().find(|line| line.message.starts_with("Cache-aware selection index=\"tree\""));
    assert_eq!(decision.map(|line| line.level), Some(1), "{lines:?}");
    let quiet = Fleet::new(1, 2, json!({}));
    quiet.complete(0, chat("hello"));
    assert!(!quiet.process.logs().iter().any(|line| line.message.contains("selection")));
}

#[test]
fn a_configuration_that_can_choose_nobody_is_warned_of() {
    for (config, warned) in [
        (json!({"workers": [], "discovered_workers": false}), true),
        (json!({"workers": []}), false),
        (json!({"discovered_workers": false}), false),
    ] {
        let fleet = Fleet::new(1, 1, config.clone());
        let line = fleet.process.logs().iter().any(|line| line.message.contains("every request will be answered 503"));
        assert_eq!(line, warned, "{config}");
    }
}
