//! Deltas: what a snapshot says of workers that it does not name.

use super::stores::Faulty;
use super::{Vm, config, load, parse, snapshot, url};
use crate::report::{Health, Load, Scope, Snapshot};
use crate::store::MemoryStore;

const BUSY: Option<Load> =
    Some(Load { queued_tokens: 1e6, waiting: 9.0, running: 1.0, kv_usage: 0.5, throughput: 1.0 });

fn idle() -> Option<Load> {
    load(0.0, 0.0, 0.0, 0.0)
}

/// A snapshot of reporter `a`.
fn scoped(scope: Scope, sequence: u64, workers: &[(usize, Option<Load>)]) -> Snapshot {
    Snapshot { scope, reporter: "a".into(), ..snapshot(sequence, workers) }
}

fn outcome(vm: &mut Vm, outcome: &str) -> u64 {
    vm.metric(&format!("smg_load_reports_total;outcome={outcome}"))
}

/// A VM of two workers of which the first has reported a long queue, with one request at the second.
fn busy_and_idle() -> Vm {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    vm.take(&scoped(Scope::Full, 1, &[(0, BUSY), (1, idle())]));
    assert_eq!((vm.pick(), vm.slot(1).tally_requests), (1, 1));
    vm
}

#[test]
fn who_is_not_named_stays_fresh_with_what_was_sent_to_it_on_top() {
    let mut vm = busy_and_idle();
    for sequence in 2..12 {
        vm.pass(10_000);
        vm.take(&scoped(Scope::Since(sequence - 1), sequence, &[]));
    }
    assert_eq!(vm.slot(1).tally_requests, 1, "nobody has asked it since");
    assert_eq!(vm.pick(), 1, "the queue is remembered");
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (22, 0));
    vm.pass(30_001);
    let picks: Vec<_> = (0..40).map(|_| vm.pick()).collect();
    assert!(picks.contains(&0), "silence of the sidecar itself makes everything old: {picks:?}");
}

#[test]
fn only_another_poll_has_what_was_sent_since() {
    let polled = |scope, sequence, poll| {
        let mut snapshot = scoped(scope, sequence, &[(0, BUSY), (1, idle())]);
        snapshot.workers.iter_mut().for_each(|worker| worker.poll = poll);
        snapshot
    };
    let mut vm = Vm::alone(config("least_load", 2, ""));
    vm.take(&polled(Scope::Full, 1, 1));
    assert_eq!((vm.pick(), vm.slot(1).tally_requests), (1, 1));
    // The same answer told again, for whatever else is new.
    vm.take(&polled(Scope::Full, 2, 1));
    vm.take(&polled(Scope::Since(2), 3, 1));
    assert_eq!((vm.pick(), vm.slot(1).tally_requests), (1, 2));
    // The next poll fails; what comes late is no news.
    vm.take(&scoped(Scope::Since(3), 4, &[(1, None)]));
    vm.take(&polled(Scope::Some, 5, 1));
    assert_eq!(vm.slot(1).tally_requests, 2);
    vm.take(&polled(Scope::Since(4), 6, 6));
    assert_eq!(vm.slot(1).tally_requests, 0, "the same numbers, but asked anew");
    // A sidecar that begins anew counts anew.
    assert_eq!(vm.pick(), 1);
    vm.take(&Snapshot { epoch: 2, ..polled(Scope::Full, 1, 1) });
    assert_eq!(vm.slot(1).tally_requests, 0);
}

#[test]
fn a_failed_poll_stays_a_failed_poll() {
    let mut vm = busy_and_idle();
    vm.take(&scoped(Scope::Since(1), 2, &[(0, None)]));
    for sequence in 3..7 {
        vm.pass(10_000);
        vm.take(&scoped(Scope::Since(sequence - 1), sequence, &[]));
    }
    let picks: Vec<_> = (0..40).map(|_| vm.pick()).collect();
    assert!(picks.contains(&0), "its load was last told four intervals ago: {picks:?}");
}

#[test]
fn after_a_silence_everything_must_be_told_again() {
    let mut vm = busy_and_idle();
    vm.pass(30_001);
    vm.take(&scoped(Scope::Since(1), 2, &[]));
    vm.take(&scoped(Scope::Since(2), 3, &[]));
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (2, 2));
    vm.take(&scoped(Scope::Full, 4, &[(0, BUSY), (1, idle())]));
    vm.take(&scoped(Scope::Since(4), 5, &[]));
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (6, 2));
}

#[test]
fn who_was_passed_over_for_too_long_must_be_told_of_again() {
    let mut vm = busy_and_idle();
    for sequence in 2..6 {
        vm.pass(10_000);
        vm.take(&scoped(Scope::Some, sequence, &[(0, BUSY)]));
    }
    vm.take(&scoped(Scope::Since(1), 6, &[]));
    vm.take(&scoped(Scope::Since(1), 7, &[]));
    assert_eq!(outcome(&mut vm, "gap"), 1, "the first one has found out that the second worker's report has expired");
}

#[test]
fn a_status_outlives_deltas_that_do_not_name_the_worker() {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    let mut first = scoped(Scope::Full, 1, &[(0, BUSY), (1, idle())]);
    first.workers[1].health = Some(Health::NotReady);
    vm.take(&first);
    for sequence in 2..12 {
        vm.pass(10_000);
        vm.take(&scoped(Scope::Since(sequence - 1), sequence, &[]));
        vm.tick();
        assert_eq!(vm.pick(), 0);
    }
}

#[test]
fn an_older_base_will_do() {
    let mut vm = busy_and_idle();
    vm.take(&scoped(Scope::Since(1), 2, &[(0, idle())]));
    vm.take(&scoped(Scope::Since(1), 3, &[(0, idle())]));
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (6, 0));
}

#[test]
fn a_delta_on_what_was_missed_counts_for_those_it_names_only() {
    let mut vm = busy_and_idle();
    vm.pass(20_000);
    vm.take(&scoped(Scope::Since(2), 3, &[(0, idle())]));
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (3, 1));
    assert_eq!(vm.slot(1).tally_requests, 1, "nothing was said of it");
    vm.take(&scoped(Scope::Since(3), 4, &[(0, idle())]));
    assert_eq!(outcome(&mut vm, "gap"), 2, "one gap does not close another");
    vm.take(&scoped(Scope::Full, 5, &[(0, idle()), (1, idle())]));
    vm.take(&scoped(Scope::Since(5), 6, &[]));
    assert_eq!(outcome(&mut vm, "gap"), 2);
}

#[test]
fn another_life_and_another_reporter_are_gaps() {
    let mut vm = busy_and_idle();
    vm.take(&Snapshot { epoch: 2, ..scoped(Scope::Since(1), 2, &[]) });
    vm.take(&Snapshot { reporter: "b".into(), ..scoped(Scope::Since(1), 2, &[]) });
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (2, 2));
}

#[test]
fn replays_and_reordering_change_nothing() {
    let mut vm = busy_and_idle();
    vm.take(&scoped(Scope::Since(1), 2, &[(1, BUSY)]));
    vm.take(&scoped(Scope::Since(2), 3, &[(0, idle())]));
    assert_eq!((vm.pick(), vm.slot(0).tally_requests), (0, 1));
    for replay in [
        scoped(Scope::Full, 1, &[(0, BUSY), (1, idle())]),
        scoped(Scope::Since(1), 2, &[(1, idle())]),
        scoped(Scope::Since(2), 3, &[(0, BUSY)]),
        scoped(Scope::Since(1), 3, &[]),
        Snapshot { epoch: 0, ..scoped(Scope::Full, 99, &[(0, BUSY), (1, idle())]) },
    ] {
        vm.take(&replay);
    }
    assert_eq!(vm.slot(0).tally_requests, 1);
    assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "old")), (6, 6));
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_worker_that_a_configuration_names_later_is_no_part_of_the_base() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(config("least_load", 1, ""), store.clone(), 0);
    vm.take(&scoped(Scope::Full, 1, &[(0, idle()), (1, BUSY)]));
    assert_eq!(outcome(&mut vm, "foreign"), 1);
    let mut later = Vm::new(config("least_load", 2, ""), store, 1);
    later.take(&scoped(Scope::Since(1), 2, &[]));
    assert_eq!(outcome(&mut later, "gap"), 1, "it was passed over when all were named");
    later.take(&scoped(Scope::Full, 3, &[(0, idle()), (1, BUSY)]));
    assert_eq!(later.pick(), 0);
}

#[test]
fn what_was_lost_is_no_base() {
    for kind in ['p', 'l'] {
        let store = Faulty::default();
        let mut vm = Vm::new(config("least_load", 2, ""), store.clone(), 0);
        store.lose(kind, 16);
        vm.take(&scoped(Scope::Full, 1, &[(0, BUSY), (1, idle())]));
        assert_eq!(outcome(&mut vm, "lost"), 2, "{kind}");
        vm.take(&scoped(Scope::Since(1), 2, &[]));
        assert_eq!((outcome(&mut vm, "taken"), outcome(&mut vm, "gap")), (0, 1), "{kind}");
    }
}

#[test]
fn a_worker_of_two_reporters_is_refreshed_by_the_one_that_was_heard() {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    let other = |scope, sequence, workers: &[_]| Snapshot { reporter: "b".into(), ..scoped(scope, sequence, workers) };
    vm.take(&scoped(Scope::Full, 5, &[(0, BUSY), (1, idle())]));
    vm.take(&other(Scope::Full, 1, &[(1, BUSY)]));
    assert_eq!(outcome(&mut vm, "old"), 1);
    vm.take(&other(Scope::Since(1), 2, &[]));
    assert_eq!(outcome(&mut vm, "gap"), 1, "its word on that worker did not count, so it must be said again");
    assert_eq!(vm.pick(), 1);
}

#[test]
fn a_thousand_unnamed_workers_are_refreshed() {
    let urls: Vec<String> = (0..1000).map(|number| format!("\"{}\"", url(number))).collect();
    let mut vm = Vm::alone(parse(&format!(r#"{{"policy":"least_load","workers":[{}]}}"#, urls.join(","))));
    let all: Vec<_> = (0..1000).map(|number| (number, BUSY)).collect();
    vm.take(&scoped(Scope::Full, 1, &all));
    vm.take(&scoped(Scope::Since(1), 2, &[(7, idle())]));
    assert_eq!(outcome(&mut vm, "taken"), 2000);
    assert_eq!(vm.pick(), 7);
}

#[test]
fn who_was_taken_away_is_not_refreshed() {
    // The configuration names both, so that their slots stay whatever the reporter says.
    let mut vm = busy_and_idle();
    vm.take(&Snapshot { removed: vec![url(0)], ..scoped(Scope::Since(1), 2, &[]) });
    for sequence in 3..8 {
        vm.pass(10_000);
        vm.take(&scoped(Scope::Since(sequence - 1), sequence, &[]));
    }
    let picks: Vec<_> = (0..40).map(|_| vm.pick()).collect();
    assert!(picks.contains(&0), "its queue was told four intervals ago: {picks:?}");
    assert_eq!(outcome(&mut vm, "gap"), 0);
}

#[test]
fn a_delta_that_names_a_new_worker_is_no_gap_to_the_next() {
    let mut vm = Vm::alone(parse(r#"{"policy":"least_load","max_workers":64}"#));
    vm.take(&scoped(Scope::Full, 1, &[(0, BUSY)]));
    vm.take(&scoped(Scope::Since(1), 2, &[(1, idle())]));
    vm.take(&scoped(Scope::Since(2), 3, &[]));
    vm.tick();
    assert_eq!((outcome(&mut vm, "gap"), outcome(&mut vm, "foreign")), (0, 0));
    assert_eq!(vm.pick(), 1);
    vm.take(&Snapshot { removed: vec![url(1)], ..scoped(Scope::Since(3), 4, &[]) });
    vm.take(&scoped(Scope::Full, 3, &[(0, BUSY), (1, idle())]));
    vm.tick();
    assert_eq!((vm.pick(), outcome(&mut vm, "old")), (0, 2), "what comes late brings nobody back");
}
