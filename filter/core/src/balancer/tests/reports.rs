//! Load snapshots and what they do to picks: the specification's `least_load` vectors, age, order, strangers.

use std::collections::BTreeSet;

use super::stores::Faulty;
use super::{Vm, config, load, parse, picked, snapshot, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;
use crate::report::Load;
use crate::store::MemoryStore;

/// A VM of `least_load` with `workers`, and what they have reported.
fn reported(workers: usize, more: &str, loads: &[(usize, Option<Load>)]) -> Vm {
    let mut vm = Vm::alone(config("least_load", workers, more));
    vm.take(&snapshot(1, loads));
    vm
}

/// Every worker that some VM of the same state would pick.
fn tied(vm: &mut Vm) -> BTreeSet<usize> {
    (0..100)
        .map(|_| {
            let mut ticket = vm.send("");
            let pick = picked(&ticket);
            vm.end(&mut ticket);
            pick
        })
        .collect()
}

#[test]
fn a_new_report_zeroes_the_tally() {
    let a = load(1000.0, 0.0, 0.2, 100.0);
    let mut vm = reported(2, "", &[(0, a), (1, load(2000.0, 0.0, 0.2, 100.0))]);
    assert_eq!([vm.pick(), vm.pick()], [0, 1]);
    assert_eq!([vm.slot(0), vm.slot(1)].map(|slot| (slot.tally_tokens, slot.tally_requests)), [(1024, 1); 2]);
    vm.take(&snapshot(2, &[(0, a)]));
    assert_eq!([vm.slot(0), vm.slot(1)].map(|slot| slot.tally_tokens), [0, 1024]);
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_failed_poll_does_not_and_the_last_report_counts_on() {
    let mut vm = reported(2, "", &[(0, load(1000.0, 0.0, 0.2, 100.0)), (1, load(2000.0, 0.0, 0.2, 100.0))]);
    assert_eq!([vm.pick(), vm.pick()], [0, 1]);
    vm.take(&snapshot(2, &[(0, None)]));
    assert_eq!(vm.slot(0).tally_tokens, 1024);
    assert_eq!(vm.pick(), 0, "20.2775 against 30.2775");
}

#[test]
fn cache_aware_takes_a_failed_poll_for_silence() {
    let mut vm = Vm::alone(config("cache_aware", 2, ""));
    vm.take(&snapshot(1, &[(0, load(0.0, 0.0, 0.0, 0.0)), (1, load(4096.0, 0.0, 0.5, 0.0))]));
    let mut first = vm.send("");
    assert_eq!(picked(&first), 0);
    vm.take(&snapshot(2, &[(0, None)]));
    assert_eq!(vm.pick(), 1, "2.198 against 2.198 and one request in flight");
    vm.end(&mut first);
}

#[test]
fn a_silent_worker_is_the_best_reporter_plus_what_it_has_in_flight() {
    let text = format!(
        r#"{{"policy":"least_load","workers":[{{"url":"{}","models":["m"]}},{{"url":"{}","models":["m","own"]}}]}}"#,
        url(0),
        url(1)
    );
    let mut vm = Vm::alone(parse(&text));
    vm.take(&snapshot(1, &[(0, load(0.0, 0.0, 0.9, 0.0))]));
    let mut own: Vec<_> = (0..5).map(|_| vm.send_to("own")).collect();
    let mut busy = vm.send_to("m");
    assert_eq!(picked(&busy), 0, "1.35 against 3.91");
    vm.end(&mut busy);
    own.iter_mut().for_each(|ticket| vm.end(ticket));
    let mut seen = BTreeSet::new();
    for sequence in 2..60 {
        vm.take(&snapshot(sequence, &[(0, load(0.0, 0.0, 0.9, 0.0))]));
        let mut ticket = vm.send_to("m");
        seen.insert(picked(&ticket));
        vm.end(&mut ticket);
    }
    assert_eq!(seen, BTreeSet::from([0, 1]), "with none in flight it ties");
}

#[test]
fn when_nobody_reports_requests_in_flight_decide() {
    let mut vm = Vm::alone(config("least_load", 3, ""));
    for (worker, count) in [(0, 5), (1, 3), (2, 3)] {
        for _ in 0..count {
            let mut ticket = vm.send("");
            vm.answer(&mut ticket, worker, 1, 200);
        }
    }
    assert_eq!(vm.in_flight(3), [5, 3, 3]);
    assert_eq!(tied(&mut vm), BTreeSet::from([1, 2]));
}

const CAP_48: &str = r#""least_load_max_waiting_requests":48,"#;

#[test]
fn the_waiting_cap_refuses_workers() {
    let mut vm = reported(2, CAP_48, &[(0, load(0.0, 64.0, 0.0, 0.0)), (1, load(1e6, 0.0, 0.0, 0.0))]);
    assert_eq!(vm.pick(), 1);
    let mut vm = reported(2, CAP_48, &[(0, load(0.0, 48.0, 0.0, 0.0)), (1, load(0.0, 48.0, 0.0, 0.0))]);
    assert_eq!(vm.place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers);
    let mut vm = reported(2, CAP_48, &[(0, load(0.0, 47.0, 0.0, 0.0)), (1, load(0.0, 48.0, 0.0, 0.0))]);
    assert_eq!(vm.pick(), 0);
}

#[test]
fn what_was_sent_since_the_report_counts_against_the_cap_until_the_next_one() {
    let cap = r#""least_load_max_waiting_requests":2,"#;
    let loads = [(0, load(10.0, 1.0, 0.0, 0.0)), (1, load(1e6, 0.0, 0.0, 0.0))];
    let mut vm = reported(2, cap, &loads);
    let mut tickets: Vec<_> = (0..3).map(|_| vm.send("")).collect();
    assert_eq!(tickets.iter().map(picked).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!(vm.place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers);
    tickets.iter_mut().for_each(|ticket| vm.end(ticket));
    assert_eq!(vm.place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers, "an end lowers no tally");
    vm.take(&snapshot(2, &loads));
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_single_worker_is_chosen_without_credit_and_still_capped() {
    let mut vm = reported(1, "", &[(0, load(0.0, 48.0, 0.0, 0.0))]);
    assert_eq!((vm.pick(), vm.slot(0).tally_requests), (0, 0));
    let mut vm = reported(1, CAP_48, &[(0, load(0.0, 48.0, 0.0, 0.0))]);
    assert_eq!(vm.place(Prompt::default()).unwrap_err().answer().status, 503);
}

#[test]
fn equals_share_alike() {
    let same = load(100.0, 0.0, 0.3, 500.0);
    let loads: Vec<_> = (0..4).map(|worker| (worker, same)).collect();
    let mut vm = reported(4, "", &loads);
    let mut wins = [0; 4];
    for sequence in 2..2002 {
        let mut ticket = vm.send("");
        wins[picked(&ticket)] += 1;
        vm.end(&mut ticket);
        vm.take(&snapshot(sequence, &loads));
    }
    assert!(wins.iter().all(|wins| (400..600).contains(wins)), "{wins:?}");
}

#[test]
fn a_request_of_known_size_is_credited_by_its_tokens() {
    let mut vm = reported(2, "", &[(0, load(4096.0, 0.0, 0.5, 0.0)), (1, load(1e6, 0.0, 0.0, 0.0))]);
    let ids = [7; 512];
    vm.place(Prompt { tokens: &ids, token_count: 512, ..Prompt::default() }).unwrap();
    assert_eq!(vm.slot(0).tally_tokens, 512);
    assert_eq!(vm.pick(), 0);
    let line = vm.world.log.0.last().unwrap().1.clone();
    assert_eq!(line, format!("least_load selected {} (score 2.4540, in_flight 1)", url(0)));
}

#[test]
fn a_report_counts_for_three_intervals() {
    let mut vm = reported(2, "", &[(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))]);
    vm.pass(30_000);
    assert_eq!(tied(&mut vm), BTreeSet::from([1]));
    vm.pass(1);
    assert_eq!(tied(&mut vm), BTreeSet::from([0, 1]), "nobody reports any more");
    vm.take(&snapshot(2, &[(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))]));
    assert_eq!(tied(&mut vm), BTreeSet::from([1]));
}

#[test]
fn failed_polls_do_not_keep_a_report_alive() {
    let mut vm = reported(2, "", &[(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))]);
    for sequence in 2..5 {
        vm.pass(10_000);
        vm.take(&snapshot(sequence, &[(0, None), (1, None)]));
    }
    assert_eq!(tied(&mut vm), BTreeSet::from([1]));
    vm.pass(1);
    assert_eq!(tied(&mut vm), BTreeSet::from([0, 1]));
}

fn outcome(vm: &mut Vm, outcome: &str) -> u64 {
    vm.metric(&format!("smg_load_reports_total;outcome={outcome}"))
}

#[test]
fn old_duplicate_and_foreign_reports_are_ignored_and_counted() {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    let (idle, busy) = (load(0.0, 0.0, 0.0, 0.0), load(1e6, 0.0, 0.0, 0.0));
    vm.take(&snapshot(5, &[(0, busy), (1, idle)]));
    for stale in [5, 4, 1] {
        vm.take(&snapshot(stale, &[(0, idle), (1, busy)]));
    }
    vm.take(&snapshot(6, &[(77, idle), (78, idle)]));
    vm.take(&snapshot(7, &[(1, idle), (1, busy)]));
    assert_eq!(["taken", "old", "foreign"].map(|name| outcome(&mut vm, name)), [3, 7, 2]);
    assert_eq!(tied(&mut vm), BTreeSet::from([1]));
    let next = crate::report::Snapshot { epoch: 2, ..snapshot(0, &[(0, idle), (1, busy)]) };
    vm.take(&next);
    assert_eq!(tied(&mut vm), BTreeSet::from([0]), "a sidecar that started later is heard");
}

#[test]
fn garbage_on_the_queue_is_counted_and_changes_nothing() {
    let mut vm = reported(2, "", &[(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))]);
    for message in [&b""[..], b"\xff\xfe", b"{}", br#"{"version":9}"#, &vec![b'['; 100_000]] {
        let Vm { balancer, world } = &mut vm;
        world.run(|context, _| crate::ingest::take(context, balancer, message));
    }
    assert_eq!(outcome(&mut vm, "malformed"), 5);
    assert_eq!(tied(&mut vm), BTreeSet::from([1]));
}

#[test]
fn what_one_vm_takes_all_vms_know() {
    let store = MemoryStore::default();
    let mut vms = [0, 1].map(|vm| Vm::new(config("least_load", 2, ""), store.clone(), vm));
    vms[0].take(&snapshot(1, &[(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))]));
    assert_eq!(tied(&mut vms[1]), BTreeSet::from([1]));
    vms[1].take(&snapshot(2, &[(0, load(0.0, 0.0, 0.0, 0.0)), (1, load(1e6, 0.0, 0.0, 0.0))]));
    assert_eq!(tied(&mut vms[0]), BTreeSet::from([0]));
}

#[test]
fn a_snapshot_that_loses_every_race_is_counted_and_the_next_one_is_taken() {
    for kind in ['p', 'l'] {
        let store = Faulty::default();
        let mut vm = Vm::new(config("least_load", 2, ""), store.clone(), 0);
        let loads = [(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))];
        store.lose(kind, 16);
        vm.take(&snapshot(1, &loads));
        assert_eq!(outcome(&mut vm, "lost"), 2, "{kind}");
        vm.take(&snapshot(2, &loads));
        assert_eq!(outcome(&mut vm, "taken"), 2, "{kind}");
        assert_eq!(tied(&mut vm), BTreeSet::from([1]), "{kind}");
    }
}

#[test]
fn a_host_name_becomes_an_address_by_a_snapshot() {
    let text = r#"{"policy":"passthrough","workers":["http://engine-0:8000","http://10.0.0.1:8001"]}"#;
    let mut vm = Vm::alone(parse(text));
    assert_eq!(vm.pick(), 1);
    vm.tick();
    assert!(vm.world.log.0.iter().any(|(_, line)| line.contains("http://engine-0:8000")));
    let mut named = snapshot(1, &[(0, load(0.0, 0.0, 0.0, 0.0))]);
    named.workers[0].url = "http://engine-0:8000".into();
    for (address, expected) in [("not an address", 1), ("10.0.0.1:8000", 0)] {
        named.sequence += 1;
        named.workers[0].address = Some(address.into());
        vm.take(&named);
        vm.tick();
        assert_eq!(vm.pick(), expected, "{address}");
    }
}
