//! Health as a sidecar reports it, and who may be chosen.

use std::collections::BTreeSet;

use super::{Vm, config, listed, load, picked, snapshot, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;
use crate::report::{Health, Snapshot};
use crate::state::load::Status;
use crate::store::MemoryStore;

/// A snapshot that says in which health workers are.
fn health(sequence: u64, workers: &[(usize, Option<Health>)]) -> Snapshot {
    let mut snapshot = snapshot(sequence, &workers.iter().map(|&(number, _)| (number, None)).collect::<Vec<_>>());
    for (report, (_, health)) in snapshot.workers.iter_mut().zip(workers) {
        report.health = *health;
    }
    snapshot
}

/// All that 40 requests have picked, or could have been tried on.
fn chosen(vm: &mut Vm) -> BTreeSet<usize> {
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let mut ticket = vm.send("");
        seen.extend(listed(&ticket));
        vm.end(&mut ticket);
    }
    seen
}

#[test]
fn only_workers_that_are_ready_or_that_nobody_probes_are_chosen() {
    let store = MemoryStore::default();
    let mut vms = [0, 1].map(|vm| Vm::new(config("random", 6, ""), store.clone(), vm));
    let all = [Health::Ready, Health::Pending, Health::NotReady, Health::Failed, Health::Draining].map(Some);
    let said: Vec<_> = all.into_iter().chain([None]).enumerate().collect();
    vms[0].take(&health(1, &said));
    for vm in &mut vms {
        assert_eq!(chosen(vm), BTreeSet::from([0, 5]), "the next request of every VM knows");
    }
    vms[0].take(&health(2, &[(0, Some(Health::NotReady)), (1, Some(Health::Ready)), (5, Some(Health::Draining))]));
    assert_eq!(chosen(&mut vms[1]), BTreeSet::from([1]));
    vms[0].take(&health(3, &[(1, Some(Health::NotReady))]));
    assert_eq!(vms[1].place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers);
    vms[0].take(&health(3, &[(1, Some(Health::Ready))]));
    assert_eq!(vms[1].place(Prompt::default()).unwrap_err(), Refusal::NoAvailableWorkers, "that was old news");
    vms[0].take(&health(4, &[(1, None)]));
    assert_eq!(chosen(&mut vms[1]), BTreeSet::from([1]), "nobody probes it any more");
}

#[test]
fn a_status_keeps_counts_and_breaker() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    let _held = vm.send("");
    vm.fail(0, 3);
    vm.take(&health(1, &[(0, Some(Health::Draining))]));
    let slot = vm.slot(0);
    assert_eq!((slot.in_flight, slot.failures, slot.status), (1, 3, Status::Draining));
    assert_eq!(vm.pick(), 1);
}

#[test]
fn statuses_open_when_whoever_told_them_falls_silent() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(config("random", 2, ""), store.clone(), 0);
    vm.take(&health(1, &[(0, Some(Health::Failed)), (1, Some(Health::Ready))]));
    vm.pass(30_000);
    vm.tick();
    assert_eq!(chosen(&mut vm), BTreeSet::from([1]));
    assert_eq!(vm.metric(&format!("smg_worker_health;worker={}", url(0))), 0);
    vm.take(&health(2, &[(1, Some(Health::Ready))]));
    vm.pass(1);
    vm.tick();
    assert_eq!(chosen(&mut vm), BTreeSet::from([0, 1]));
    assert_eq!([vm.slot(0).status, vm.slot(1).status], [Status::Unset, Status::Ready]);
    vm.tick();
    assert_eq!(vm.metric(&format!("smg_worker_health;worker={}", url(0))), 1);
}

#[test]
fn a_load_that_counts_goes_with_a_status_that_does_not() {
    let mut vm = Vm::alone(config("least_load", 2, ""));
    let mut said = health(1, &[(0, Some(Health::NotReady)), (1, Some(Health::Ready))]);
    said.workers[0].load = load(0.0, 0.0, 0.0, 100.0);
    said.workers[1].load = load(1e6, 0.0, 0.9, 100.0);
    vm.take(&said);
    for _ in 0..20 {
        let mut ticket = vm.send("");
        assert_eq!(picked(&ticket), 1);
        vm.end(&mut ticket);
    }
}
