//! A store that fails: requests are served, and nothing is left in flight.

use super::stores::Faulty;
use super::{Level, Vm, config, listed, load, snapshot};

/// Runs a request during which `calls` of the store fail; what it cost in calls.
fn run(policy: &str, calls: std::ops::Range<u64>) -> u64 {
    let store = Faulty::default();
    let mut vm = Vm::new(config(policy, 3, ""), store.clone(), 0);
    let mut first = vm.send(&"a prompt that is known ".repeat(20));
    let before = store.calls();
    store.fail(calls.clone());
    let mut ticket = vm.send(&"a prompt that is known ".repeat(30));
    assert_eq!(listed(&ticket).len(), 5, "{policy}: placed whatever fails");
    vm.answer(&mut ticket, 1, 2, 200);
    vm.end(&mut ticket);
    let cost = store.calls() - before;
    store.heal();
    vm.end(&mut first);
    vm.tick();
    assert_eq!(vm.in_flight(3), [0; 3], "{policy}, failing calls {calls:?}");
    assert!(vm.world.ledger.waiting() == 0, "{policy}, failing calls {calls:?}");
    cost
}

#[test]
fn no_single_failure_loses_a_request_or_leaves_it_in_flight() {
    for policy in ["cache_aware", "least_load", "round_robin", "random"] {
        let calls = run(policy, 0..0);
        for call in 0..calls {
            run(policy, call..call + 1);
        }
    }
}

#[test]
fn no_outage_loses_a_request_or_leaves_it_in_flight() {
    for policy in ["cache_aware", "least_load", "round_robin", "random"] {
        let calls = run(policy, 0..0);
        for call in 0..calls {
            run(policy, call..u64::MAX);
            run(policy, 0..call);
        }
    }
}

#[test]
fn an_outage_is_told_and_spreads_requests_at_random() {
    let store = Faulty::default();
    let mut vm = Vm::new(config("passthrough", 3, ""), store.clone(), 0);
    store.fail(0..u64::MAX);
    let mut firsts = [0; 3];
    for _ in 0..300 {
        firsts[listed(&vm.send(""))[0]] += 1;
    }
    assert!(firsts.iter().all(|count| *count > 50), "{firsts:?}");
    assert_eq!(vm.metric("smg_store_errors_total"), 300);
    assert!(vm.world.log.0.iter().any(|(level, line)| *level == Level::Error && line.contains("status 10")));
}

#[test]
fn a_tick_in_an_outage_changes_nothing_and_the_next_one_works() {
    let store = Faulty::default();
    let mut vm = Vm::new(config("passthrough", 1, ""), store.clone(), 0);
    let mut ticket = vm.send("");
    store.fail(0..u64::MAX);
    vm.end(&mut ticket);
    vm.tick();
    assert_eq!(vm.world.ledger.waiting(), 1);
    store.heal();
    vm.tick();
    assert_eq!((vm.in_flight(1), vm.world.ledger.waiting()), (vec![0], 0));
}

#[test]
fn a_report_that_claims_to_hold_for_ever_is_superseded_all_the_same() {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    let mut forged = snapshot(u64::MAX, &[(0, load(1e6, 0.0, 0.0, 0.0))]);
    (forged.epoch, forged.interval_ms) = (u64::MAX, u32::MAX);
    vm.take(&forged);
    vm.pass(31 * 60 * 1000);
    vm.take(&snapshot(1, &[(0, load(0.0, 0.0, 0.0, 0.0))]));
    assert_eq!(vm.metric("smg_load_reports_total;outcome=taken"), 2);
}
