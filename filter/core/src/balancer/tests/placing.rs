//! Who may be chosen, what Envoy is told, and what is refused.

use std::collections::BTreeSet;

use super::{Vm, config, listed, load, parse, picked, snapshot, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;

/// Workers 0 with model a, 1 with a and b, 2 with b.
const MIXED: &str = r#"{"policy":"least_load","max_workers":64,"workers":[
    {"url":"http://10.0.0.1:8000","models":["a"]},
    {"url":"http://10.0.0.1:8001","models":["a","b"]},
    {"url":"http://10.0.0.1:8002","models":["b"]}]}"#;

#[test]
fn a_model_that_nobody_serves_is_not_found() {
    let mut vm = Vm::alone(parse(MIXED));
    let refusal = vm.place(Prompt { model: "c", ..Prompt::default() }).unwrap_err();
    assert_eq!(refusal, Refusal::ModelNotFound("c".into()));
    assert_eq!((refusal.answer().status, vm.in_flight(3)), (404, vec![0, 0, 0]));
}

#[test]
fn all_out_is_unavailable_and_one_back_is_enough() {
    let mut vm = Vm::alone(config("cache_aware", 2, ""));
    vm.fail(0, 10);
    vm.pass(30_000);
    vm.fail(1, 10);
    let refusal = vm.place(Prompt::default()).unwrap_err();
    assert_eq!((refusal.clone(), refusal.answer().status), (Refusal::NoAvailableWorkers, 503));
    vm.pass(30_000);
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_model_is_served_by_its_workers_and_the_wildcard_by_all() {
    let mut vm = Vm::alone(parse(MIXED));
    let seen = |vm: &mut Vm, model| (0..60).map(|_| picked(&vm.send_to(model))).collect::<BTreeSet<_>>();
    assert_eq!(seen(&mut vm, "a"), BTreeSet::from([0, 1]));
    assert_eq!(seen(&mut vm, "b"), BTreeSet::from([1, 2]));
    for wildcard in ["", "unknown"] {
        assert_eq!(seen(&mut vm, wildcard), BTreeSet::from([0, 1, 2]));
    }
}

#[test]
fn a_worker_of_several_models_has_one_count() {
    let mut vm = Vm::alone(parse(MIXED));
    for _ in 0..2 {
        let mut ticket = vm.send_to("b");
        vm.answer(&mut ticket, 1, 1, 200);
    }
    assert_eq!(vm.in_flight(3), [0, 2, 0]);
    assert_eq!([picked(&vm.send_to("a")), picked(&vm.send_to("a"))], [0, 0], "busy with b is busy");
}

#[test]
fn the_list_is_as_long_as_the_attempts_and_stays_in_the_pool() {
    for policy in ["cache_aware", "least_load", "power_of_two", "round_robin", "random", "passthrough", "bucket"] {
        for attempts in [1, 2, 5, 16] {
            let text = MIXED.replace("least_load", policy).replacen('{', &format!("{{\"max_attempts\":{attempts},"), 1);
            let mut vm = Vm::alone(parse(&text));
            for _ in 0..20 {
                let ticket = vm.send_to("b");
                let list = listed(&ticket);
                assert_eq!(list.len(), attempts, "{policy}");
                assert_eq!(list[0], picked(&ticket));
                assert!(list.iter().enumerate().all(|(at, worker)| *worker == list[at % 2] && [1, 2].contains(worker)));
                assert!(attempts == 1 || list[0] != list[1], "{policy}: each worker once before any again");
            }
        }
    }
}

#[test]
fn the_list_names_no_worker_that_is_out_and_repeats_the_only_one_left() {
    for policy in ["cache_aware", "least_load", "power_of_two", "round_robin", "random", "passthrough", "bucket"] {
        let mut vm = Vm::alone(config(policy, 3, ""));
        vm.fail(0, 10);
        assert!(!listed(&vm.send("x")).contains(&0), "{policy}");
        vm.fail(2, 10);
        assert_eq!(listed(&vm.send("x")), [1; 5], "{policy}");
    }
}

#[test]
fn behind_the_pick_come_the_least_loaded() {
    let mut vm = Vm::alone(config("least_load", 4, r#""max_attempts":4,"#));
    // 3 requests at worker 3, 2 at worker 2, 1 at worker 1.
    for (worker, count) in [(1, 1), (2, 2), (3, 3)] {
        for _ in 0..count {
            let mut ticket = vm.send("");
            vm.answer(&mut ticket, worker, 1, 200);
        }
    }
    assert_eq!(vm.in_flight(4), [0, 1, 2, 3]);
    assert_eq!(listed(&vm.send("")), [0, 1, 2, 3]);
}

#[test]
fn requests_of_a_dead_worker_are_spread_over_the_others() {
    let mut vm = Vm::alone(config("cache_aware", 4, ""));
    let second: BTreeSet<usize> = (0..100).map(|_| listed(&vm.send("")).swap_remove(1)).collect();
    assert_eq!(second.len(), 4);
}

#[test]
fn what_is_no_inference_request_goes_to_the_least_loaded_of_all() {
    let mut vm = Vm::alone(parse(&MIXED.replace("least_load", "passthrough")));
    let rest = Prompt { any_worker: true, ..Prompt::default() };
    let picks: BTreeSet<usize> = (0..3).map(|_| picked(&vm.place(rest).unwrap())).collect();
    assert_eq!(picks, BTreeSet::from([0, 1, 2]));
    let selected =
        "smg_worker_selection_total;worker_type=regular;connection_mode=http;model=unknown;policy=least_load";
    assert_eq!(vm.metric(selected), 3);
}

#[test]
fn a_fleet_of_more_than_one_block_is_one_pool() {
    let workers: Vec<String> = (0..150).map(|number| format!("\"{}\"", url(number))).collect();
    let text = format!(r#"{{"policy":"least_load","max_workers":192,"workers":[{}]}}"#, workers.join(","));
    let mut vm = Vm::alone(parse(&text));
    let picks: BTreeSet<usize> = (0..150).map(|_| vm.pick()).collect();
    assert_eq!(picks.len(), 150);
    assert_eq!(vm.in_flight(150), vec![1; 150]);
}

#[test]
fn operators_tune_the_order_behind_the_pick_for_least_load_only() {
    // By default worker 1 waits 2 s and worker 2 1.35 s; with this weight 9 s.
    let reports = [(0, load(0.0, 0.0, 0.0, 100.0)), (1, load(200.0, 0.0, 0.0, 100.0)), (2, load(0.0, 0.0, 0.9, 100.0))];
    for (policy, behind) in [("least_load", [1, 2]), ("cache_aware", [2, 1]), ("power_of_two", [2, 1])] {
        let mut vm = Vm::alone(config(policy, 3, r#""max_attempts":3,"least_load_kv_pressure_weight":1.0,"#));
        let lists = (1..100).map(|sequence| {
            vm.take(&snapshot(sequence, &reports));
            listed(&vm.send(""))
        });
        let of_the_best = lists.filter(|list| list[0] == 0).collect::<BTreeSet<_>>();
        assert_eq!(of_the_best, BTreeSet::from([vec![0, behind[0], behind[1]]]), "{policy}");
    }
}
