//! Configurations and workers that come and go.

use super::stores::Faulty;
use super::{START_MS, Vm, config, load, parse, picked, snapshot, url};
use crate::config::Config;
use crate::state::load::BreakerState;
use crate::store::MemoryStore;

const MINUTE_MS: u64 = 61_000;

/// A configuration of `cache_aware` with these workers.
fn with(workers: &[usize]) -> Config {
    let urls: Vec<String> = workers.iter().map(|worker| format!("\"{}\"", url(*worker))).collect();
    parse(&format!(r#"{{"max_workers":64,"workers":[{}]}}"#, urls.join(",")))
}

fn prompt() -> String {
    "a prompt that will be known ".repeat(40)
}

#[test]
fn a_changed_configuration_keeps_tree_counts_and_breakers() {
    let store = MemoryStore::default();
    let mut old = Vm::new(config("cache_aware", 3, ""), store.clone(), 0);
    let mut held = old.send(&prompt());
    let holder = picked(&held);
    let out = (holder + 1) % 3;
    old.fail(out, 10);
    let more = r#""cache_threshold":0.5,"balance_abs_threshold":10,"max_attempts":2,"#;
    let mut new = Vm::new(config("cache_aware", 4, more), store, 1);
    assert_eq!(new.slot(out).breaker, BreakerState::Open);
    assert_eq!(new.slot(holder).in_flight, 1);
    assert_eq!(picked(&new.send(&prompt())), holder);
    assert_eq!(new.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 1);
    old.answer(&mut held, holder, 1, 200);
    old.end(&mut held);
    assert_eq!(new.slot(holder).in_flight, 1);
}

#[test]
fn another_policy_and_another_order_keep_counts_too() {
    let store = MemoryStore::default();
    let mut old = Vm::new(with(&[0, 1, 2]), store.clone(), 0);
    let mut held = old.send("");
    let busy = picked(&held);
    let mut new = Vm::new(with(&[2, 1, 0]), store, 1);
    assert_eq!(new.slot(busy).in_flight, 1);
    old.end(&mut held);
    assert_eq!(new.in_flight(3), [0; 3]);
}

#[test]
fn another_number_of_slots_starts_with_an_empty_tree_and_mixes_up_no_keys() {
    let store = MemoryStore::default();
    let some = |workers: &str, max_workers: u32| {
        parse(&format!(r#"{{"policy":"cache_aware","max_workers":{max_workers},"workers":[{workers}]}}"#))
    };
    let all = format!("\"{}\",\"{}\",\"{}\"", url(0), url(1), url(2));
    // The slots of the first table are in the order 0, 1, 2, those of the second in the order 2, 1.
    let mut old = Vm::new(some(&all, 64), store.clone(), 0);
    let mut new = Vm::new(some(&format!("\"{}\",\"{}\"", url(2), url(1)), 128), store, 1);
    old.send(&prompt());
    new.send(&prompt());
    assert_eq!(new.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 0, "slots are other workers there");
    let (mut one, mut two) = (old.send_keyed("a"), new.send_keyed("a"));
    let keys = |vm: &mut Vm, workers: &[usize]| workers.iter().map(|&worker| vm.slot(worker).keys).sum::<i32>();
    for _ in 0..20 {
        old.tick();
        new.tick();
        assert_eq!((keys(&mut old, &[0, 1, 2]), keys(&mut new, &[1, 2])), (1, 1));
    }
    old.end(&mut one);
    new.end(&mut two);
    assert_eq!((keys(&mut old, &[0, 1, 2]), keys(&mut new, &[1, 2])), (0, 0));
}

#[test]
fn instances_share_nothing() {
    let store = MemoryStore::default();
    let mut one = Vm::new(config("cache_aware", 2, r#""instance":"one","#), store.clone(), 0);
    let mut two = Vm::new(config("cache_aware", 2, r#""instance":"two","#), store, 1);
    one.send(&prompt());
    one.fail(0, 10);
    two.send(&prompt());
    assert_eq!(two.metric("smg_cache_aware_policy_branch_total;branch=expected_wait_fallback"), 1);
    assert_eq!(two.in_flight(2).iter().sum::<u32>(), 1);
    assert_eq!(two.slot(0).breaker, BreakerState::Closed);
}

/// Worker 0 serves a prompt, reports and fails; then a configuration without it runs for a minute, and another worker
/// takes its slot. Returns the VM of the last configuration, workers 1 and 2.
fn succeeded(store: &MemoryStore) -> Vm {
    let mut first = Vm::new(with(&[0]), store.clone(), 0);
    let mut ticket = first.send(&prompt());
    first.take(&snapshot(1, &[(0, load(1e6, 0.0, 0.0, 0.0))]));
    first.end(&mut ticket);
    first.fail(0, 5);
    let mut second = Vm::at(with(&[1]), store.clone(), 1, START_MS + MINUTE_MS);
    second.sweep();
    let third = Vm::at(with(&[1, 2]), store.clone(), 2, START_MS + MINUTE_MS);
    assert_eq!(third.balancer.fleet.workers()[1].id, first_slot(1), "the successor stands where worker 0 stood");
    third
}

fn first_slot(generation: u16) -> crate::state::load::SlotId {
    crate::state::load::SlotId { slot: 0, generation }
}

#[test]
fn a_removed_workers_slot_goes_to_another_without_its_past() {
    let store = MemoryStore::default();
    let mut vm = succeeded(&store);
    let slot = vm.slot(2);
    assert_eq!((slot.in_flight, slot.failures, slot.tally_tokens), (0, 0, 0));
    vm.send(&prompt());
    assert_eq!(
        vm.metric("smg_cache_aware_policy_branch_total;branch=expected_wait_fallback"),
        1,
        "what worker 0 held is not taken for its successor's"
    );
    assert_eq!(picked(&vm.send("")) + picked(&vm.send("")), 3, "nor is its report");
}

#[test]
fn a_vm_that_has_not_noticed_does_not_choose_the_successor() {
    let store = MemoryStore::default();
    let mut late = Vm::at(with(&[0, 1]), store.clone(), 7, START_MS);
    let mut successor = succeeded(&store);
    let picks: std::collections::BTreeSet<usize> = (0..20).map(|_| late.pick()).collect();
    assert_eq!(picks, [1].into(), "slot 0 is not worker 0's any more");
    assert_eq!(successor.slot(2).in_flight, 0);
}

#[test]
fn a_worker_that_returns_after_its_slot_was_given_up_starts_anew() {
    let store = MemoryStore::default();
    drop(succeeded(&store));
    let mut vm = Vm::at(with(&[0]), store, 3, START_MS + MINUTE_MS);
    vm.send(&prompt());
    assert_eq!(vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 0);
    assert_eq!((vm.in_flight(1), vm.slot(0).failures), (vec![1], 0));
}

#[test]
fn a_worker_that_returns_within_a_minute_keeps_everything() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(with(&[0, 1]), store.clone(), 0);
    let mut ticket = vm.send(&prompt());
    let holder = picked(&ticket);
    vm.end(&mut ticket);
    let mut without = Vm::at(with(&[1 - holder]), store.clone(), 1, START_MS + 59_000);
    without.tick();
    let mut again = Vm::at(with(&[0, 1]), store, 2, START_MS + 59_000);
    assert_eq!(picked(&again.send(&prompt())), holder);
}

#[test]
fn a_slot_with_requests_in_flight_is_kept_until_they_end() {
    let store = MemoryStore::default();
    let mut old = Vm::new(with(&[0]), store.clone(), 0);
    let mut ticket = old.send("");
    let mut new = Vm::at(with(&[1]), store.clone(), 1, START_MS + MINUTE_MS);
    for _ in 0..40 {
        new.tick();
        old.live();
    }
    let third = Vm::at(with(&[1, 2]), store.clone(), 2, START_MS + MINUTE_MS);
    assert_eq!(third.balancer.fleet.workers()[1].id.slot, 2, "slot 0 is still taken");
    old.end(&mut ticket);
    new.sweep();
    let fourth = Vm::at(with(&[1, 2, 3]), store, 3, START_MS + MINUTE_MS);
    assert_eq!(fourth.balancer.fleet.workers()[2].id, first_slot(1));
}

#[test]
fn a_worker_that_returns_late_is_not_given_up_under_its_new_configuration() {
    let store = MemoryStore::default();
    let mut old = Vm::new(with(&[0, 1]), store.clone(), 0);
    old.tick();
    let mut without = Vm::at(with(&[1]), store.clone(), 0, START_MS + MINUTE_MS);
    let mut again = Vm::at(with(&[0, 1]), store, 0, START_MS + MINUTE_MS);
    // The configuration that knows nothing of worker 0 ticks first and leads.
    without.tick();
    assert_eq!(again.place(super::Prompt::default()).map(|_| ()), Ok(()));
    let seen: std::collections::BTreeSet<usize> = (0..20).map(|_| again.pick()).collect();
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_release_that_breaks_off_is_finished_later() {
    for call in 0..8 {
        let store = Faulty::default();
        drop(Vm::new(with(&[0]), store.clone(), 0));
        let mut leader = Vm::at(with(&[1]), store.clone(), 1, START_MS + MINUTE_MS);
        store.fail(call..call + 1);
        leader.tick();
        store.heal();
        leader.tick();
        let mut again = Vm::at(with(&[0, 1]), store.clone(), 2, START_MS + MINUTE_MS);
        let seen: std::collections::BTreeSet<usize> = (0..20).map(|_| again.pick()).collect();
        assert_eq!(seen.len(), 2, "failing call {call}");
    }
}

#[test]
fn a_worker_that_returns_in_the_middle_of_its_release_is_healed_by_ticks() {
    for call in 0..8 {
        let store = Faulty::default();
        drop(Vm::new(with(&[0]), store.clone(), 0));
        let mut leader = Vm::at(with(&[1]), store.clone(), 1, START_MS + MINUTE_MS);
        store.fail(call..call + 1);
        leader.tick();
        store.heal();
        let mut again = Vm::at(with(&[0, 1]), store.clone(), 1, START_MS + MINUTE_MS);
        (0..4).for_each(|_| again.tick());
        let seen: std::collections::BTreeSet<usize> = (0..20).map(|_| again.pick()).collect();
        assert_eq!(seen.len(), 2, "failing call {call}");
    }
}

#[test]
fn a_full_table_leaves_the_rest_out_and_says_so() {
    let store = MemoryStore::default();
    let first: Vec<usize> = (0..60).collect();
    let second: Vec<usize> = (60..70).collect();
    drop(Vm::new(with(&first), store.clone(), 0));
    let mut vm = Vm::new(with(&second), store, 1);
    vm.tick();
    let seen: std::collections::BTreeSet<usize> = (0..100).map(|_| vm.pick()).collect();
    assert_eq!(seen, (60..64).collect());
    assert!(vm.world.log.0.iter().any(|(_, line)| line.contains(&url(64)) && line.contains("max_workers")));
}
