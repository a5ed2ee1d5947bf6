//! Workers that only a sidecar names: they come, change, leave and come back.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::stores::{Faulty, interleaved};
use super::{Vm, address, load, parse, picked, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;
use crate::config::Config;
use crate::report::{Health, Info, Scope, Snapshot, WorkerReport};
use crate::store::MemoryStore;

fn discovering() -> Config {
    parse(r#"{"policy":"least_load","max_workers":64}"#)
}

fn report(number: usize) -> WorkerReport {
    WorkerReport { url: url(number), address: Some(address(number)), ..WorkerReport::default() }
}

fn full(sequence: u64, workers: &[usize]) -> Snapshot {
    let workers = workers.iter().map(|&number| report(number)).collect();
    Snapshot { scope: Scope::Full, ..Snapshot::of(1, sequence, 10_000, workers) }
}

fn urls(vm: &Vm) -> Vec<String> {
    vm.balancer.fleet().workers().iter().map(|worker| worker.url.clone()).collect()
}

#[test]
fn every_vm_has_them_on_its_next_tick_and_loses_them_as_fast() {
    let store = MemoryStore::default();
    let mut vms = [0, 1, 2].map(|vm| Vm::new(discovering(), store.clone(), vm));
    let nobody = Refusal::NoAvailableWorkers;
    assert_eq!(vms[0].place(Prompt { model: "m", ..Prompt::default() }).unwrap_err(), nobody, "nobody has spoken yet");
    vms[1].take(&full(1, &[0, 1]));
    assert_eq!(vms[1].metric("smg_load_reports_total;outcome=taken"), 2, "the first report counts");
    vms.iter_mut().for_each(Vm::tick);
    assert!(vms.iter().all(|vm| urls(vm) == [url(0), url(1)]));
    vms[2].take(&full(2, &[1, 2]));
    vms.iter_mut().for_each(Vm::tick);
    assert!(vms.iter().all(|vm| urls(vm) == [url(1), url(2)]));
    let late = Vm::new(discovering(), store, 9);
    assert_eq!(urls(&late), [url(1), url(2)], "whoever starts later knows at once");
}

#[test]
fn a_removed_worker_keeps_its_counts_and_attaches_again() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(discovering(), store.clone(), 0);
    vm.take(&full(1, &[0]));
    vm.tick();
    let mut held = vm.send("");
    let id = vm.balancer.fleet().workers()[0].id;
    vm.take(&full(2, &[1]));
    vm.tick();
    assert_eq!(vm.pick(), 1);
    assert_eq!(vm.balancer.in_flight(vm.world.store.as_mut(), id), Ok(1));
    assert_eq!(vm.metric(&format!("smg_worker_requests_active;worker={}", url(0))), 0);
    vm.take(&full(3, &[0, 1]));
    vm.tick();
    assert_eq!(vm.in_flight(2)[0], 1, "it is where it was");
    vm.end(&mut held);
    assert_eq!(vm.in_flight(1), [0]);
}

#[test]
fn slots_of_named_workers_are_kept_and_those_of_removed_ones_given_up() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(discovering(), store, 0);
    vm.take(&full(1, &[0, 1]));
    vm.tick();
    let before = vm.balancer.fleet().workers()[1].id;
    vm.take(&full(2, &[1]));
    for _ in 0..20 {
        vm.pass(10_000);
        vm.sweep();
    }
    assert_eq!(vm.balancer.fleet().workers()[0].id, before, "silent for minutes, but nobody has removed it");
    assert_eq!(picked(&vm.send("")), 1);
    vm.take(&full(3, &[1, 5]));
    vm.tick();
    let new = vm.balancer.fleet().workers()[1].id;
    assert_eq!((new.slot, new.generation), (0, 1), "worker 0's slot is somebody else's");
}

#[test]
fn the_first_health_that_is_told_counts() {
    let mut vm = Vm::alone(discovering());
    let mut said = full(1, &[0, 1]);
    said.workers[0].health = Some(Health::Pending);
    said.workers[1].load = load(1e6, 0.0, 0.9, 1.0);
    vm.take(&said);
    vm.tick();
    assert_eq!(vm.pick(), 1);
}

#[test]
fn only_who_has_named_a_worker_takes_it_away() {
    let mut vm = Vm::alone(discovering());
    let by = |reporter: &str, snapshot: Snapshot| Snapshot { reporter: reporter.into(), ..snapshot };
    vm.take(&by("a", full(1, &[0, 1])));
    vm.take(&by("b", full(2, &[1])));
    vm.take(&by("a", full(3, &[])));
    vm.tick();
    assert_eq!(urls(&vm), [url(1)]);
    vm.take(&by("b", full(4, &[])));
    vm.tick();
    assert_eq!(vm.place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers);
}

#[test]
fn a_replaced_worker_is_reached_at_its_new_address() {
    let mut vm = Vm::alone(discovering());
    let at = |sequence, address: String| {
        let worker =
            WorkerReport { url: "http://engine:8000".into(), address: Some(address), ..WorkerReport::default() };
        Snapshot::of(1, sequence, 10_000, vec![worker])
    };
    vm.take(&at(1, address(0)));
    vm.tick();
    let before = vm.send("");
    vm.take(&at(2, address(1)));
    vm.tick();
    let after = vm.send("");
    assert_ne!(before.destination(), after.destination());
    assert!(after.destination().starts_with(&address(1)));
    assert_eq!(before.counted(), after.counted(), "the URL is who it is");
}

#[test]
fn a_listed_fleet_takes_in_nobody_and_loses_nobody() {
    let text = format!(r#"{{"policy":"random","max_workers":64,"workers":["{}"]}}"#, url(0));
    let mut vm = Vm::alone(parse(&text));
    vm.take(&full(1, &[0, 1]));
    vm.tick();
    assert_eq!(urls(&vm), [url(0)]);
    assert_eq!(vm.metric("smg_load_reports_total;outcome=foreign"), 1);
    vm.take(&Snapshot { removed: vec![url(0)], ..full(2, &[1]) });
    vm.tick();
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_root_context_beside_one_with_a_list_has_them_whoever_takes_the_snapshot() {
    let store = MemoryStore::default();
    let listed = parse(&format!(r#"{{"max_workers":64,"workers":["{}"]}}"#, url(0)));
    let mut one = Vm::new(listed, store.clone(), 0);
    let mut two = Vm::new(discovering(), store, 1);
    let mut said = full(1, &[0, 1]);
    said.workers[1].health = Some(Health::NotReady);
    one.take(&said);
    one.tick();
    two.tick();
    assert_eq!((urls(&one), urls(&two)), (vec![url(0)], vec![url(0), url(1)]));
    assert_eq!(two.pick(), 0, "the report of the other one counts too");
}

#[test]
fn what_is_too_large_is_dropped_and_told_of_once() {
    let mut vm = Vm::alone(discovering());
    for sequence in 1..4 {
        let mut said = full(sequence, &[0, 1]);
        said.workers[1].info = Some(Box::new(Info { models: vec!["m".repeat(5000)], ..Info::default() }));
        vm.take(&said);
    }
    vm.tick();
    assert_eq!(urls(&vm), [url(0)]);
    assert_eq!(vm.metric("smg_load_reports_total;outcome=dropped"), 3);
    assert_eq!(
        vm.world.log.0.iter().filter(|(_, line)| line.contains("1 workers of a snapshot are not kept")).count(),
        1
    );
}

#[test]
fn a_thousand_named_workers_are_read_when_they_change_and_not_before() {
    let store = MemoryStore::default();
    let config = parse(r#"{"policy":"least_load"}"#);
    let mut vm = Vm::new(config, store, 0);
    let workers = (0..1000).map(report).collect();
    vm.take(&Snapshot { scope: Scope::Full, ..Snapshot::of(1, 1, 10_000, workers) });
    vm.tick();
    assert_eq!(vm.balancer.fleet().workers().len(), 1000);
    let fleet = std::rc::Rc::clone(vm.balancer.fleet());
    for sequence in 2..6 {
        let workers = (0..1000).map(report).collect();
        vm.take(&Snapshot { scope: Scope::Full, ..Snapshot::of(1, sequence, 10_000, workers) });
        vm.pass(20_000);
        vm.sweep();
        assert!(std::rc::Rc::ptr_eq(&fleet, vm.balancer.fleet()), "stamps alone make no other fleet");
    }
}

#[test]
fn a_trap_at_any_call_loses_nobody_once_the_snapshot_comes_again() {
    let mut traps = 0;
    for call in 0.. {
        let trapping = Faulty::default();
        let store = trapping.inner.clone();
        let mut living = Vm::new(discovering(), store.clone(), 1);
        let mut dying = Vm::new(discovering(), trapping.clone(), 0);
        dying.take(&full(1, &[0, 1]));
        trapping.trap(call);
        let trapped = catch_unwind(AssertUnwindSafe(move || dying.take(&full(2, &[1, 2])))).is_err();
        living.tick();
        assert!(urls(&living) == [url(0), url(1)] || urls(&living) == [url(1), url(2)], "call {call}: all or nothing");
        living.take(&full(3, &[1, 2]));
        living.tick();
        assert_eq!(urls(&living), [url(1), url(2)], "call {call}");
        assert_eq!(urls(&Vm::new(discovering(), store, 2)), [url(1), url(2)], "call {call}");
        if !trapped {
            break;
        }
        traps += 1;
    }
    assert!(traps > 6, "{traps} traps");
}

#[test]
fn snapshots_of_several_reporters_at_once_are_all_heeded() {
    for seed in 0..8 {
        let store = MemoryStore::default();
        interleaved(3, Some(seed), &store, |me, turned| {
            let mut vm = Vm::new(discovering(), turned, me as u64);
            for sequence in 1..6 {
                let workers = [me, 10 + me * 5 + sequence as usize];
                vm.take(&Snapshot { reporter: me.to_string(), ..full(sequence, &workers) });
                vm.tick();
            }
        });
        let observer = Vm::new(discovering(), store, 99);
        let known: BTreeSet<String> = urls(&observer).into_iter().collect();
        let last = (0..3).flat_map(|me| [url(me), url(10 + me * 5 + 5)]).collect();
        assert_eq!(known, last, "seed {seed}");
    }
}
