//! `cache_aware` with `cache_index: hash`, over one store.

use super::stores::Faulty;
use super::{Vm, config, parse, picked};
use crate::balancer::{Prompt, Ticket};
use crate::store::MemoryStore;

const HASH: &str = r#""cache_index":"hash","cache_boundaries":[4,16,64],"#;

fn ids(first: u32, count: u32) -> Vec<u32> {
    (first * 1000..first * 1000 + count).collect()
}

fn send(vm: &mut Vm, tokens: &[u32]) -> Ticket {
    vm.place(Prompt { tokens, token_count: tokens.len() as u64, ..Prompt::default() }).unwrap()
}

/// Branch and level of each decision so far, from the log.
fn decisions(vm: &mut Vm) -> Vec<(String, u64)> {
    let lines = std::mem::take(&mut vm.world.log.0);
    let member = |line: &str, name: &str| Some(line.split_once(name)?.1.split(' ').next()?.to_owned());
    let of = |line: &str| Some((member(line, " branch=")?, member(line, " level=")?.parse().ok()?));
    let hashed = lines.iter().filter(|(_, line)| line.contains("Cache-aware selection index=\"hash\""));
    hashed.filter_map(|(_, line)| of(line)).collect()
}

fn named(decisions: &[(&str, u64)]) -> Vec<(String, u64)> {
    decisions.iter().map(|(branch, level)| ((*branch).to_owned(), *level)).collect()
}

#[test]
fn who_was_sent_a_beginning_first_gets_all_that_share_it_on_every_vm() {
    let store = MemoryStore::default();
    let mut vms: Vec<Vm> = (0..4).map(|vm| Vm::new(config("cache_aware", 4, HASH), store.clone(), vm)).collect();
    for number in 0..100 {
        let first = picked(&send(&mut vms[number % 4], &ids(number as u32, 20)));
        for vm in &mut vms {
            let longer = [ids(number as u32, 16), ids(500 + number as u32, 100)].concat();
            assert_eq!(picked(&send(vm, &longer)), first);
        }
    }
}

#[test]
fn the_deepest_boundary_decides_and_the_log_names_it() {
    let mut vm = Vm::alone(config("cache_aware", 4, HASH));
    let first = picked(&send(&mut vm, &ids(1, 70)));
    let other = [ids(1, 16), ids(2, 70)].concat();
    let branches = [ids(1, 70), other.clone(), ids(1, 5), other];
    let picks: Vec<usize> = branches.iter().map(|tokens| picked(&send(&mut vm, tokens))).collect();
    assert_eq!(picks, [first; 4]);
    send(&mut vm, &ids(1, 3));
    vm.send("a text without ids");
    send(&mut vm, &ids(9, 100));
    let expected = [
        ("expected_wait_fallback", 0),
        ("hash_hit", 64),
        ("hash_hit", 16),
        ("hash_hit", 4),
        ("hash_hit", 64),
        ("short_request", 0),
        ("expected_wait_fallback", 0),
        ("expected_wait_fallback", 0),
    ];
    assert_eq!(decisions(&mut vm), named(&expected));
    let counted = vm.metrics();
    assert!(!counted.keys().any(|name| name.starts_with("smg_cache_aware")), "logged, not counted: {counted:?}");
}

#[test]
fn short_requests_and_texts_leave_nothing_behind() {
    let (store, mut places) = (MemoryStore::default(), Vec::new());
    let mut vm = Vm::new(config("cache_aware", 4, HASH), store.clone(), 0);
    for _ in 0..8 {
        places.push(picked(&send(&mut vm, &ids(1, 3))));
        places.push(picked(&vm.send(&"text ".repeat(100))));
    }
    places.sort_unstable();
    assert_eq!(places, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], "by load alone");
    assert!(!store.sizes().iter().any(|(key, _)| key.starts_with(['h', 't'])));
}

#[test]
fn a_holder_that_is_out_gives_way_to_an_available_one_of_a_shorter_beginning() {
    let mut vm = Vm::alone(config("cache_aware", 3, HASH));
    let long = picked(&send(&mut vm, &ids(1, 70)));
    let others: Vec<usize> = (0..3).filter(|worker| *worker != long).collect();
    vm.fail(long, 10);
    vm.fail(others[0], 10);
    assert_eq!(picked(&send(&mut vm, &ids(1, 20))), others[1], "nobody who holds it is available");
    decisions(&mut vm);
    assert_eq!(picked(&send(&mut vm, &ids(1, 70))), others[1]);
    assert_eq!(decisions(&mut vm), named(&[("hash_hit", 16)]));
}

#[test]
fn a_hot_holder_spills_and_shares() {
    let mut vm = Vm::alone(config("cache_aware", 2, HASH));
    let picks: Vec<usize> = (0..131).map(|_| picked(&send(&mut vm, &ids(1, 20)))).collect();
    assert_eq!(picks.iter().position(|pick| *pick != picks[0]), Some(129));
    let decisions = decisions(&mut vm);
    assert_eq!(decisions[129..], named(&[("hash_spill", 16), ("hash_hit", 16)]));
    assert_eq!(picks[130], picks[129], "the idle one holds it too now");
}

#[test]
fn kv_pressure_overrides_and_the_chosen_worker_is_noted_all_the_same() {
    use super::{load, snapshot};
    let pressed = format!(r#"{HASH}"overload_token_usage_threshold":0.9,"#);
    let mut vm = Vm::alone(config("cache_aware", 2, &pressed));
    vm.take(&snapshot(1, &[(0, load(0.0, 0.0, 0.95, 0.0)), (1, load(0.0, 0.0, 0.1, 0.0))]));
    assert_eq!(picked(&send(&mut vm, &ids(1, 20))), 1);
    vm.take(&snapshot(2, &[(0, load(0.0, 0.0, 0.5, 0.0)), (1, load(9e9, 0.0, 0.5, 0.0))]));
    assert_eq!(picked(&send(&mut vm, &ids(1, 20))), 1, "however long its queue is");
    assert_eq!(decisions(&mut vm), named(&[("kv_pressure_expected_wait", 0), ("hash_hit", 16)]));
}

#[test]
fn a_holder_is_forgotten_after_its_time() {
    let mut vm = Vm::alone(config("cache_aware", 4, &format!(r#"{HASH}"cache_ttl_secs":10,"#)));
    send(&mut vm, &ids(1, 20));
    for (pass_ms, branch) in
        [(10_000, ("hash_hit", 16)), (10_000, ("hash_hit", 16)), (11_000, ("expected_wait_fallback", 0))]
    {
        decisions(&mut vm);
        vm.pass(pass_ms);
        send(&mut vm, &ids(1, 20));
        assert_eq!(decisions(&mut vm), named(&[branch]));
    }
}

#[test]
fn partitions_and_models_do_not_share_beginnings() {
    let workers = format!(
        r#"{{{HASH}"max_workers":64,"workers":[{{"url":"http://10.0.0.1:8000","models":["a","b"]}},
        {{"url":"http://10.0.0.1:8001","models":["a","b"]}}]}}"#
    );
    let mut vm = Vm::alone(parse(&workers));
    let tokens = ids(1, 20);
    for (model, namespace) in [("a", None), ("a", Some(1)), ("a", Some(2)), ("b", None), ("b", Some(1))] {
        let prompt = Prompt { model, namespace, tokens: &tokens, token_count: 20, ..Prompt::default() };
        vm.place(prompt).unwrap();
        vm.place(prompt).unwrap();
        assert_eq!(
            decisions(&mut vm),
            named(&[("expected_wait_fallback", 0), ("hash_hit", 16)]),
            "{model} {namespace:?}"
        );
    }
    for _ in 0..2 {
        // With the default size some ten thousand pages, 64 a tick.
        for _ in 0..300 {
            vm.tick();
        }
    }
    assert_eq!(vm.metric("smg_cache_placement_entries;model=a"), 6, "two boundaries for each of three partitions");
    assert_eq!(vm.metric("smg_cache_placement_entries;model=b"), 4);
    vm.pass(181_000);
    for _ in 0..600 {
        vm.tick();
    }
    assert_eq!(vm.metric("smg_cache_placement_entries;model=a"), 0);
}

#[test]
fn memory_is_bounded_whatever_is_sent() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(config("cache_aware", 4, &format!(r#"{HASH}"max_tree_size":100000,"#)), store.clone(), 0);
    let others: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum::<usize>() + 64 * 100;
    for number in 0..5000 {
        let mut ticket = send(&mut vm, &ids(number, 64));
        vm.end(&mut ticket);
    }
    let used: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum();
    assert!(used < 100_000 + others, "{used}");
    assert!(vm.metric("smg_cache_placement_evictions_total") > 10_000);
    assert_eq!(vm.metric("smg_cache_tree_evictions_total"), 0);
}

#[test]
fn a_boundary_costs_a_read_and_a_write_and_a_text_nothing() {
    let calls = |policy: &str, more: &str, tokens: &[u32]| {
        let store = Faulty::default();
        let mut vm = Vm::new(config(policy, 4, more), store.clone(), 0);
        send(&mut vm, &ids(9, 64));
        let before = store.calls();
        send(&mut vm, tokens);
        store.calls() - before
    };
    let least = calls("least_load", "", &ids(1, 100));
    for (count, boundaries) in [(0, 0), (3, 0), (4, 1), (63, 2), (100, 3)] {
        let of_hash = calls("cache_aware", HASH, &ids(1, count));
        assert_eq!(of_hash, least + 2 * boundaries, "{count} ids");
    }
    assert_eq!(calls("cache_aware", HASH, &ids(9, 64)), least + 3, "what was noted this second is not written again");
}
