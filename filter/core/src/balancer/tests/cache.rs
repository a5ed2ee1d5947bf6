//! `cache_aware` over the shared tree, seen from several VMs.

use super::{Vm, config, parse, picked};
use crate::balancer::{Prompt, Ticket};
use crate::config::Config;
use crate::store::MemoryStore;

fn branch(vm: &mut Vm, name: &str) -> u64 {
    vm.metric(&format!("smg_cache_aware_policy_branch_total;branch={name}"))
}

/// A prompt that shares nothing with those of other numbers.
fn prompt(number: usize) -> String {
    format!("prompt number {number} ").repeat(300)
}

#[test]
fn a_prefix_first_seen_by_one_vm_is_matched_on_another() {
    let store = MemoryStore::default();
    let mut vms: Vec<Vm> = (0..4).map(|vm| Vm::new(config("cache_aware", 4, ""), store.clone(), vm)).collect();
    for number in 0..100 {
        let first = picked(&vms[number % 4].send(&prompt(number)));
        for vm in &mut vms {
            let turn = prompt(number) + "and the next turn";
            assert_eq!(picked(&vm.send(&turn)), first);
        }
    }
    let matched: u64 = vms.iter_mut().map(|vm| branch(vm, "tree_match")).sum();
    assert_eq!(matched, 400);
}

#[test]
fn the_ratio_decides_and_the_chosen_worker_becomes_a_holder() {
    let mut vm = Vm::alone(config("cache_aware", 4, ""));
    let scaled = |text: &str| text.chars().flat_map(|unit| std::iter::repeat_n(unit, 64)).collect::<String>();
    let holder = picked(&vm.send(&scaled("hello world")));
    assert_eq!(branch(&mut vm, "expected_wait_fallback"), 1);
    assert_eq!(picked(&vm.send(&scaled("hello there"))), holder);
    assert_eq!(branch(&mut vm, "tree_match"), 1);
    let new = picked(&vm.send(&scaled("help me please")));
    assert_eq!(branch(&mut vm, "expected_wait_fallback"), 2);
    assert_ne!(new, holder, "by load, not by prefix");
    assert_eq!(picked(&vm.send(&scaled("help me please"))), new);
}

#[test]
fn a_holder_that_is_out_spills_and_is_found_again_when_it_is_back() {
    let mut vm = Vm::alone(config("cache_aware", 2, ""));
    let holder = picked(&vm.send(&prompt(0)));
    vm.fail(holder, 10);
    assert_eq!(picked(&vm.send(&prompt(0))), 1 - holder);
    assert_eq!(branch(&mut vm, "spill"), 1);
    let (above, below) = ("smg_cache_aware_match_ratio_bucket;le=1.0", "smg_cache_aware_match_ratio_bucket;le=0.6");
    assert_eq!((vm.metric(above), vm.metric(below)), (2, 1), "what was known of the prompt is sampled all the same");
    assert_eq!(picked(&vm.send(&prompt(0))), 1 - holder, "the other one holds it now");
    assert_eq!(branch(&mut vm, "tree_match"), 1);
}

#[test]
fn an_available_holder_of_a_shorter_prefix_serves_when_the_longest_ones_are_out() {
    let mut vm = Vm::alone(config("cache_aware", 8, ""));
    let shorter = picked(&vm.send(&prompt(0)));
    let longer = prompt(0) + &prompt(1);
    // A request that was sent elsewhere by its load, so that two workers hold two lengths of one prompt.
    let other = (shorter + 1) % 8;
    for worker in (0..8).filter(|worker| *worker != other) {
        vm.fail(worker, 10);
    }
    assert_eq!(picked(&vm.send(&longer)), other);
    vm.pass(60_000);
    vm.fail(other, 10);
    assert_eq!(picked(&vm.send(&longer)), shorter);
    assert_eq!(branch(&mut vm, "tree_match"), 1);
}

#[test]
fn a_hot_holder_spills_and_shares_its_prefix() {
    let mut vm = Vm::alone(config("cache_aware", 2, ""));
    let picks: Vec<usize> = (0..160).map(|_| picked(&vm.send(&prompt(0)))).collect();
    let first = picks[0];
    let spilled = picks.iter().position(|pick| *pick != first).unwrap();
    assert_eq!(spilled, 129, "hot is more than 64 above the mean of (129, 0)");
    assert_eq!(branch(&mut vm, "spill"), 1);
    assert_eq!(branch(&mut vm, "tree_match"), 158);
}

#[test]
fn partitions_and_models_do_not_share_prefixes() {
    let text = prompt(0);
    let workers = r#"{"max_workers":64,"workers":[{"url":"http://10.0.0.1:8000","models":["a","b"]},
        {"url":"http://10.0.0.1:8001","models":["a","b"]}]}"#;
    let mut vm = Vm::alone(parse(workers));
    for (model, namespace) in [("a", None), ("a", Some(1)), ("a", Some(2)), ("b", None), ("b", Some(1))] {
        let prompt =
            Prompt { model, namespace, text: text.as_bytes(), text_bytes: text.len() as u64, ..Prompt::default() };
        let first = picked(&vm.place(prompt).unwrap());
        assert_eq!(picked(&vm.place(prompt).unwrap()), first);
    }
    assert_eq!((branch(&mut vm, "expected_wait_fallback"), branch(&mut vm, "tree_match")), (5, 5));
}

#[test]
fn token_ids_win_over_text_and_match_in_pages() {
    let mut vm = Vm::alone(config("cache_aware", 4, ""));
    let ids: Vec<u32> = (0..40).collect();
    let send = |vm: &mut Vm, tokens: &[u32], text: &str| -> Ticket {
        let token_count = tokens.len() as u64;
        let text = text.as_bytes();
        vm.place(Prompt { tokens, token_count, text, text_bytes: text.len() as u64, ..Prompt::default() }).unwrap()
    };
    let first = picked(&send(&mut vm, &ids, &prompt(0)));
    assert_eq!(picked(&send(&mut vm, &ids, &prompt(1))), first);
    assert_eq!(branch(&mut vm, "tree_match"), 1);
    assert_eq!(vm.metric("smg_cache_aware_match_ratio_bucket;le=0.8"), 2, "32 of 40 ids");
    assert_eq!(vm.metric("smg_cache_aware_match_ratio_bucket;le=0.7"), 1);
    vm.send(&prompt(0));
    assert_eq!(branch(&mut vm, "expected_wait_fallback"), 2, "the text of a token prompt is not remembered");
}

#[test]
fn only_fresh_reports_make_kv_pressure() {
    use super::{load, snapshot};
    let full = load(0.0, 0.0, 0.95, 0.0);
    let idle = load(0.0, 0.0, 0.1, 0.0);
    let pressed = |vm: &mut Vm| {
        vm.world.log.0.clear();
        vm.send(&prompt(0));
        vm.world.log.0.iter().any(|(_, line)| line.contains("branch=kv_pressure_expected_wait"))
    };
    for more in [r#""overload_token_usage_threshold":0.9,"#, r#""balance_token_usage_threshold":0.3,"#] {
        let mut vm = Vm::alone(config("cache_aware", 2, more));
        assert!(!pressed(&mut vm), "nobody reports");
        vm.take(&snapshot(1, &[(0, full), (1, idle)]));
        assert!(pressed(&mut vm));
        let line = vm.world.log.0.iter().find(|(_, line)| line.starts_with("Cache-aware selection")).unwrap().1.clone();
        assert_eq!(
            line,
            "Cache-aware selection branch=kv_pressure_expected_wait worker=http://10.0.0.1:8001 model_id=unknown"
        );
        vm.take(&snapshot(2, &[(0, None), (1, idle)]));
        assert!(!pressed(&mut vm), "a poll has failed");
        vm.take(&snapshot(3, &[(0, full), (1, idle)]));
        vm.pass(29_999);
        assert!(pressed(&mut vm));
        vm.pass(2);
        assert!(!pressed(&mut vm), "three intervals have passed");
        let counted = ["tree_match", "spill", "expected_wait_fallback"].map(|name| branch(&mut vm, name));
        assert_eq!(counted.iter().sum::<u64>(), 3, "a bypass is not counted");
        assert_eq!(vm.metric("smg_cache_aware_match_ratio_count"), 3);
        assert_eq!(counted[0] + counted[1], 2, "who took the bypass holds the prompt");
    }
}

#[test]
fn partitions_of_token_prompts_do_not_match_either() {
    let mut vm = Vm::alone(config("cache_aware", 2, ""));
    let tokens: Vec<u32> = (0..64).collect();
    for namespace in [None, Some(1), Some(2)] {
        let prompt = Prompt { namespace, tokens: &tokens, token_count: 64, ..Prompt::default() };
        let first = picked(&vm.place(prompt).unwrap());
        assert_eq!(picked(&vm.place(prompt).unwrap()), first);
    }
    assert_eq!((branch(&mut vm, "expected_wait_fallback"), branch(&mut vm, "tree_match")), (3, 3));
}

#[test]
fn an_empty_prompt_goes_by_load() {
    let mut vm = Vm::alone(config("cache_aware", 4, ""));
    let mut picks: Vec<usize> = (0..4).map(|_| vm.pick()).collect();
    picks.sort_unstable();
    assert_eq!(picks, [0, 1, 2, 3]);
    assert_eq!(branch(&mut vm, "expected_wait_fallback"), 4);
}

#[test]
fn the_tree_is_bounded_whatever_is_sent() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(config("cache_aware", 4, r#""max_tree_size":200000,"#), store.clone(), 0);
    let others: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum::<usize>() + 64 * 200;
    for number in 0..2000 {
        let mut ticket = vm.send(&prompt(number));
        vm.end(&mut ticket);
    }
    let used: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum();
    assert!(used < 200_000 + others, "{used}");
}

#[test]
fn the_tree_is_counted_only_where_a_policy_has_one() {
    let label = r#""workers":[{"url":"http://10.0.0.1:8000","models":["m"],"labels":{"policy":"cache_aware"}}]"#;
    for (counted, configuration) in [
        (true, config("cache_aware", 2, "")),
        (true, config("random", 2, r#""route_metadata":true,"#)),
        (true, parse(&format!(r#"{{"policy":"random","max_workers":64,{label}}}"#))),
        (false, config("random", 2, "")),
        (false, config("prefix_hash", 2, "")),
        (false, config("cache_aware", 2, r#""cache_index":"hash","cache_boundaries":[16],"#)),
    ] {
        let name = format!("{} {:?}", configuration.policy, configuration.route_metadata);
        let mut vm = Vm::alone(Config { max_tree_size: 65_536, ..configuration });
        vm.sweep();
        let lines = vm.world.log.0.iter().filter(|(_, line)| line.starts_with("prefix tree: ")).count();
        assert_eq!(lines > 0, counted, "{name}");
    }
}
