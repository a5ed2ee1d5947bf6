//! Keys that stay with their workers: `manual`, and the override on top of any other policy.

use std::collections::{BTreeMap, BTreeSet};

use super::stores::{Faulty, interleaved};
use super::{Level, Vm, config, load, picked, snapshot, url};
use crate::answer::Refusal;
use crate::balancer::{KeySource, Prompt, StickyKey, Ticket};
use crate::config::Config;
use crate::policy::Branch;
use crate::store::MemoryStore;

const MANUAL: &str = r#""assignment_mode":"min_load","#;
const STICKY: &str = r#""sticky_sessions":true,"#;

fn place(vm: &mut Vm, key: &str, text: &str) -> Result<Ticket, Refusal> {
    let sticky = Some(StickyKey { key: key.as_bytes(), source: KeySource::Header });
    let counted = Some(vm.balancer.key_hash(key.as_bytes()));
    let (text, text_bytes) = (text.as_bytes(), text.len() as u64);
    vm.place(Prompt { manual_key: sticky, sticky_key: sticky, key: counted, text, text_bytes, ..Prompt::default() })
}

fn send(vm: &mut Vm, key: &str) -> Ticket {
    place(vm, key, "").unwrap()
}

/// Where a request of `key` goes that ends at once.
fn ask(vm: &mut Vm, key: &str) -> usize {
    let mut ticket = send(vm, key);
    vm.end(&mut ticket);
    picked(&ticket)
}

fn branch(vm: &mut Vm, branch: Branch) -> u64 {
    vm.metric(&format!("smg_manual_policy_branch_total;branch={}", branch.as_str()))
}

const BREAKER_MS: u64 = 60_000;

#[test]
fn a_key_stays_where_it_is_under_manual_whatever_the_load() {
    let mut vm = Vm::alone(config("manual", 3, MANUAL));
    let (first, second) = (send(&mut vm, "k1"), send(&mut vm, "k2"));
    assert_ne!(picked(&first), picked(&second), "the least loaded takes a new key");
    let held: Vec<Ticket> = (0..20).map(|_| send(&mut vm, "k1")).collect();
    assert!(held.iter().all(|ticket| picked(ticket) == picked(&first)));
    assert_eq!((branch(&mut vm, Branch::Vacant), branch(&mut vm, Branch::OccupiedHit)), (2, 20));
    vm.pick();
    assert_eq!(branch(&mut vm, Branch::NoRoutingId), 1, "without a key nothing is remembered");
}

#[test]
fn a_key_goes_back_to_its_worker_under_manual() {
    let mut vm = Vm::alone(config("manual", 3, MANUAL));
    let home = ask(&mut vm, "k");
    vm.fail(home, 10);
    let stand_in = ask(&mut vm, "k");
    assert_ne!(stand_in, home);
    assert_eq!(ask(&mut vm, "k"), stand_in);
    assert_eq!((branch(&mut vm, Branch::OccupiedMiss), branch(&mut vm, Branch::OccupiedHit)), (1, 1));
    vm.pass(BREAKER_MS);
    assert_eq!(ask(&mut vm, "k"), home);
}

#[test]
fn the_override_makes_the_stand_in_the_first() {
    let mut vm = Vm::alone(config("least_load", 3, STICKY));
    let home = ask(&mut vm, "k");
    vm.fail(home, 10);
    let stand_in = ask(&mut vm, "k");
    assert_ne!(stand_in, home);
    vm.pass(BREAKER_MS);
    assert_eq!(ask(&mut vm, "k"), stand_in);
    vm.fail(stand_in, 10);
    assert_eq!(ask(&mut vm, "k"), home, "the former one is still remembered");
}

#[test]
fn a_worker_that_comes_back_under_its_url_has_its_keys() {
    let store = MemoryStore::default();
    let homes = |workers: usize, vm: u64| -> Vec<usize> {
        let mut vm = Vm::new(config("manual", workers, MANUAL), store.clone(), vm);
        (0..40).map(|key| ask(&mut vm, &format!("key {key}"))).collect()
    };
    let before = homes(3, 0);
    let without = homes(2, 1);
    assert!(without.iter().all(|home| *home < 2));
    assert_eq!(homes(3, 2), before);
}

#[test]
fn a_pinned_request_asks_neither_policy_nor_tree() {
    let mut vm = Vm::alone(config("cache_aware", 2, STICKY));
    let prompt = "a prompt of some length ".repeat(20);
    let mut first = place(&mut vm, "k", &prompt).unwrap();
    let home = picked(&first);
    vm.end(&mut first);
    let tally = vm.slot(home).tally_requests;
    let other = "something else altogether ".repeat(20);
    let mut second = place(&mut vm, "k", &other).unwrap();
    vm.end(&mut second);
    assert_eq!((picked(&second), vm.slot(home).tally_requests), (home, tally), "no credit");
    assert_eq!(vm.metric("smg_cache_aware_match_ratio_count"), 1, "no sample");
    let before = vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match");
    vm.send(&other);
    assert_eq!(vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), before, "no holder");
    assert_eq!(vm.metric("smg_routing_key_source_total;source=header"), 2);
    let sticky = "Sticky routing decision source=header key=\"k\" branch=occupied_hit";
    assert!(vm.world.log.0.iter().any(|(level, line)| *level == Level::Debug && line.starts_with(sticky)));
}

#[test]
fn the_third_request_of_a_key_at_once_is_placed_again() {
    let mut vm = Vm::alone(config("least_load", 3, STICKY));
    let home = picked(&send(&mut vm, "k"));
    assert_eq!(picked(&send(&mut vm, "k")), home);
    let third = picked(&send(&mut vm, "k"));
    assert_ne!(third, home, "the policy goes by load");
    assert_eq!(branch(&mut vm, Branch::CapRespill), 1);
    assert_eq!(picked(&send(&mut vm, "k")), third, "it is the first now");
}

#[test]
fn a_refusal_under_the_override_is_counted_as_what_it_is() {
    let capped = r#""sticky_sessions":true,"least_load_max_waiting_requests":1,"cb_failure_threshold":1,"#;
    let mut vm = Vm::alone(config("least_load", 1, capped));
    let mut first = send(&mut vm, "k");
    send(&mut vm, "k");
    vm.take(&snapshot(1, &[(0, load(0.0, 5.0, 0.1, 100.0))]));
    assert_eq!(place(&mut vm, "k", "").unwrap_err(), Refusal::NoAvailableWorkers);
    assert_eq!(branch(&mut vm, Branch::CapRespill), 1);
    vm.answer(&mut first, 0, 1, 503);
    assert_eq!(place(&mut vm, "k", "").unwrap_err(), Refusal::NoAvailableWorkers);
    assert_eq!(vm.metric("smg_manual_policy_branch_total;branch=no_healthy_workers"), 1);
}

#[test]
fn a_thousand_new_keys_at_once_have_one_worker_each() {
    for seed in (0..6).map(Some) {
        let store = MemoryStore::default();
        let seen = interleaved(4, seed, &store, |me, turned| {
            let mut vm = Vm::new(config("manual", 5, ""), turned, me as u64);
            (0..50).map(|key| (key, ask(&mut vm, &format!("key {key}")))).collect::<Vec<_>>()
        });
        let pairs: BTreeSet<(i32, usize)> = seen.concat().into_iter().collect();
        assert_eq!(pairs.len(), 50, "schedule {seed:?}");
        let mut observer = Vm::new(config("manual", 5, ""), store, 99);
        assert_eq!(observer.in_flight(5), [0; 5]);
    }
}

#[test]
fn lost_races_and_failures_of_the_store_lose_no_count() {
    for times in [1, 3, 15, 16, 40] {
        let store = Faulty::default();
        let mut vm = Vm::new(config("manual", 3, MANUAL), store.clone(), 0);
        store.lose('q', times);
        let mut ticket = send(&mut vm, "k");
        vm.end(&mut ticket);
        store.heal();
        assert_eq!(vm.in_flight(3), [0; 3], "{times} lost races");
    }
    let store = Faulty::default();
    let mut vm = Vm::new(config("manual", 3, MANUAL), store.clone(), 0);
    store.fail(0..u64::MAX / 2);
    let ticket = place(&mut vm, "k", "");
    assert!(ticket.is_ok(), "a failing store refuses nobody");
}

fn idle(secs: u64) -> Config {
    config("manual", 3, &format!(r#""max_idle_secs":{secs},"eviction_interval":1,"max_sticky_keys":1000,"#))
}

#[test]
fn idle_keys_are_forgotten_and_counted() {
    let mut vm = Vm::alone(idle(10));
    let mut homes = BTreeMap::new();
    for key in 0..30 {
        homes.insert(key, ask(&mut vm, &format!("key {key}")));
    }
    let entries = |vm: &mut Vm| {
        vm.pass(1000);
        for _ in 0..40 {
            vm.tick();
        }
        vm.metric("smg_manual_policy_cache_entries")
    };
    assert_eq!(entries(&mut vm), 30);
    vm.pass(5000);
    for key in 0..10 {
        assert_eq!(ask(&mut vm, &format!("key {key}")), homes[&key]);
    }
    vm.pass(5000);
    assert_eq!(entries(&mut vm), 10, "those that were used meanwhile stay");
    let told = |(level, line): &(Level, String)| {
        *level == Level::Info && line == "ManualPolicy TTL eviction evicted=20 remaining=10 max_idle=10"
    };
    assert!(vm.world.log.0.iter().any(told));
    let mut never = Vm::alone(idle(0));
    ask(&mut never, "k");
    never.pass(1_000_000_000);
    assert_eq!(entries(&mut never), 1);
}

#[test]
fn models_have_keys_of_their_own_under_the_override() {
    let workers = format!(
        r#"{{"policy":"random","sticky_sessions":true,"workers":[{{"url":"{}","models":["a"]}},{{"url":"{}","models":["b"]}}]}}"#,
        url(0),
        url(1)
    );
    let mut vm = Vm::alone(super::parse(&workers));
    let sticky_key = Some(StickyKey { key: b"k", source: KeySource::Rid });
    for _ in 0..5 {
        for (model, worker) in [("a", 0), ("b", 1)] {
            let ticket = vm.place(Prompt { model, sticky_key, ..Prompt::default() }).unwrap();
            assert_eq!(picked(&ticket), worker);
        }
    }
    assert_eq!(branch(&mut vm, Branch::Vacant), 2);
}

#[test]
fn how_many_keys_there_are_is_seen_at_the_next_ticks() {
    let store = MemoryStore::default();
    let keyed = || config("manual", 3, r#""max_sticky_keys":1000,"eviction_interval":1,"#);
    let (mut leader, mut other) = (Vm::new(keyed(), store.clone(), 0), Vm::new(keyed(), store, 1));
    leader.tick();
    let entries = |leader: &mut Vm| leader.metric("smg_manual_policy_cache_entries");
    for key in 0..40 {
        ask(if key % 4 == 0 { &mut leader } else { &mut other }, &format!("key {key}"));
        ask(&mut other, "key 0");
    }
    other.tick();
    leader.tick();
    assert_eq!(entries(&mut leader), 40);
    // What a crash has left uncounted is mended when nobody comes for the time of a sweep.
    ask(&mut other, "another");
    other.balancer.new_keys = 0;
    leader.tick();
    assert_eq!(entries(&mut leader), 40);
    leader.pass(1000);
    leader.sweep();
    assert_eq!(entries(&mut leader), 41);
    // A sweep that sees keys before they are counted does not count them twice.
    leader.pass(1000);
    ask(&mut other, "one more");
    leader.tick();
    other.tick();
    for _ in 0..20 {
        leader.tick();
        assert_eq!(entries(&mut leader), 42);
    }
}

#[test]
fn a_key_in_use_stays_on_a_full_page_and_an_unused_one_makes_room() {
    let mut vm = Vm::alone(config("manual", 3, r#""max_sticky_keys":1000,"#));
    for key in ["busy", "idle"] {
        ask(&mut vm, key);
    }
    for round in 0..110 {
        // 53 pages: one of these comes to a page, on the average.
        for number in 0..53 {
            ask(&mut vm, &format!("passer-by {round} {number}"));
        }
        ask(&mut vm, "busy");
    }
    assert_eq!((branch(&mut vm, Branch::Vacant), branch(&mut vm, Branch::OccupiedHit)), (5832, 110));
    ask(&mut vm, "idle");
    assert_eq!(branch(&mut vm, Branch::Vacant), 5833, "it has been forgotten");
    vm.tick();
    assert_eq!(vm.metric("smg_manual_policy_cache_entries"), 1696, "as many as there is room for");
}
