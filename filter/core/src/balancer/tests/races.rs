//! Several VMs at once: every store call of one may be followed by any of another.

use rand::Rng;

use super::stores::interleaved;
use super::{Vm, config, picked};
use crate::store::MemoryStore;

/// No seed goes round, the others are drawn.
fn schedules() -> impl Iterator<Item = Option<u64>> {
    std::iter::once(None).chain((0..8).map(Some))
}

/// How often each of `workers` was picked.
fn counts(picks: &[usize], workers: usize) -> Vec<usize> {
    (0..workers).map(|worker| picks.iter().filter(|pick| **pick == worker).count()).collect()
}

#[test]
fn sixty_four_requests_give_eight_idle_workers_eight_each() {
    for vms in [2, 4] {
        for seed in schedules() {
            let store = MemoryStore::default();
            let picks = interleaved(vms, seed, &store, |me, turned| {
                let mut vm = Vm::new(config("least_load", 8, ""), turned.clone(), me as u64);
                let mut pick = || {
                    turned.work(vm.world.rng.random_range(0..6));
                    picked(&vm.send(""))
                };
                (0..64 / vms).map(|_| pick()).collect::<Vec<_>>()
            });
            assert_eq!(counts(&picks.concat(), 8), [8; 8], "{vms} VMs, schedule {seed:?}");
            let mut observer = Vm::new(config("least_load", 8, ""), store, 99);
            assert_eq!(observer.in_flight(8), [8; 8], "{vms} VMs, schedule {seed:?}");
        }
    }
}

#[test]
fn no_request_is_counted_twice_or_forgotten() {
    for seed in schedules() {
        let store = MemoryStore::default();
        interleaved(4, seed, &store, |me, turned| {
            let mut vm = Vm::new(config("cache_aware", 3, ""), turned, me as u64);
            let mut held = Vec::new();
            for number in 0..20 {
                held.push(vm.send(&"a prompt that all of them have in common ".repeat(4)));
                if number % 3 == 0 {
                    let mut ticket = held.remove(0);
                    vm.answer(&mut ticket, number % 2, 1 + number as u64 % 2, 200);
                    vm.end(&mut ticket);
                }
            }
            held.iter_mut().for_each(|ticket| vm.end(ticket));
            while vm.world.ledger.waiting() > 0 {
                vm.tick();
            }
        });
        let mut observer = Vm::new(config("cache_aware", 3, ""), store, 99);
        assert_eq!(observer.in_flight(3), [0; 3], "schedule {seed:?}");
    }
}

#[test]
fn round_robin_gives_each_worker_its_third() {
    for seed in schedules() {
        let store = MemoryStore::default();
        let picks = interleaved(4, seed, &store, |me, turned| {
            let mut vm = Vm::new(config("round_robin", 3, ""), turned.clone(), me as u64);
            let mut pick = || {
                turned.work(vm.world.rng.random_range(0..6));
                vm.pick()
            };
            (0..75).map(|_| pick()).collect::<Vec<_>>()
        });
        assert_eq!(counts(&picks.concat(), 3), [100; 3], "schedule {seed:?}");
    }
}

#[test]
fn vms_that_start_at_once_agree_on_the_tables() {
    for seed in schedules() {
        let store = MemoryStore::default();
        // Two configurations with workers of their own share the tables.
        let slots = interleaved(4, seed, &store, |me, turned| {
            let workers = format!(r#"{{"max_workers":64,"workers":["http://10.0.0.{}:1"]}}"#, me % 2);
            let vm = Vm::new(super::parse(&workers), turned, me as u64);
            (vm.balancer.fleet.workers()[0].id, vm.balancer.seed)
        });
        assert_eq!(slots[0], slots[2], "schedule {seed:?}");
        assert_eq!(slots[1], slots[3], "schedule {seed:?}");
        assert_ne!(slots[0].0, slots[1].0, "schedule {seed:?}");
        assert_eq!(slots[0].1, slots[1].1, "schedule {seed:?}");
    }
}

#[test]
fn simultaneous_prompts_of_one_beginning_are_matched_from_then_on() {
    let prompt = "the same system prompt for everybody ".repeat(40);
    for seed in schedules() {
        let store = MemoryStore::default();
        interleaved(4, seed, &store, |me, turned| {
            let mut vm = Vm::new(config("cache_aware", 4, ""), turned, me as u64);
            let mut ticket = vm.send(&prompt);
            vm.end(&mut ticket);
        });
        let mut later = Vm::new(config("cache_aware", 4, ""), store, 99);
        later.send(&prompt);
        assert_eq!(later.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 1, "schedule {seed:?}");
    }
}
