//! `round_robin` and `passthrough` with workers that come and go.

use super::{Level, Vm, config, parse, picked, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;
use crate::state::fleet::FORGOTTEN_AFTER_SECS;
use crate::store::MemoryStore;

fn picks(vm: &mut Vm, count: usize) -> Vec<usize> {
    (0..count).map(|_| vm.pick()).collect()
}

const BREAKER_MS: u64 = 60_000;

#[test]
fn workers_take_turns_in_the_order_of_the_configuration() {
    let mut vm = Vm::alone(config("round_robin", 3, ""));
    assert_eq!(picks(&mut vm, 5), [0, 1, 2, 0, 1]);
    assert_eq!(picks(&mut Vm::alone(config("round_robin", 1, "")), 3), [0, 0, 0]);
}

#[test]
fn all_vms_share_the_turns() {
    let store = MemoryStore::default();
    let mut vms: Vec<Vm> = (0..3).map(|vm| Vm::new(config("round_robin", 3, ""), store.clone(), vm)).collect();
    let picks: Vec<usize> = (0..9).map(|number| vms[number % 2 + number / 5].pick()).collect();
    assert_eq!(picks, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_worker_that_is_out_makes_a_set_of_its_own_and_the_old_one_resumes() {
    let mut vm = Vm::alone(config("round_robin", 3, ""));
    assert_eq!(picks(&mut vm, 1), [0]);
    vm.fail(1, 10);
    assert_eq!(picks(&mut vm, 3), [2, 0, 2], "the second new set starts at its second member");
    vm.pass(BREAKER_MS);
    assert_eq!(picks(&mut vm, 2), [1, 2], "the first set goes on where it was");
}

#[test]
fn interleaved_pools_stay_even() {
    let worker = |number: usize, model: &str| format!(r#"{{"url":"{}","models":["{model}"]}}"#, url(number));
    let workers: Vec<String> = (0..8).map(|number| worker(number, if number < 4 { "a" } else { "b" })).collect();
    let mut vm = Vm::alone(parse(&format!(r#"{{"policy":"round_robin","workers":[{}]}}"#, workers.join(","))));
    let mut counts = [0; 8];
    for _ in 0..40 {
        for model in ["a", "b"] {
            counts[picked(&vm.send_to(model))] += 1;
        }
    }
    assert_eq!(counts, [10; 8]);
}

#[test]
fn a_worker_registered_again_makes_a_new_set() {
    let store = MemoryStore::default();
    let mut vm = Vm::new(config("round_robin", 2, ""), store.clone(), 0);
    for expected in [0, 1] {
        let mut ticket = vm.send("");
        assert_eq!(picked(&ticket), expected);
        vm.end(&mut ticket);
    }
    let now = vm.world.now_ms + 1000 * u64::from(2 * FORGOTTEN_AFTER_SECS);
    let other = format!(r#"{{"policy":"round_robin","max_workers":64,"workers":["{}"]}}"#, url(1));
    let mut without = Vm::at(parse(&other), store.clone(), 1, now);
    without.sweep();
    let mut again = Vm::at(config("round_robin", 2, ""), store, 2, now);
    assert_eq!(picks(&mut again, 3), [1, 0, 1], "the old set would have gone on with 0");
    assert_eq!(again.balancer.fleet.workers()[0].id.generation, 1);
}

#[test]
fn nobody_takes_a_turn_in_an_empty_pool() {
    let mut vm = Vm::alone(config("round_robin", 0, r#""discovered_workers":false,"#));
    assert_eq!(vm.place(Prompt::default()).unwrap_err(), Refusal::ModelNotFound("unknown".into()));
}

#[test]
fn passthrough_takes_the_first_that_is_available() {
    let mut vm = Vm::alone(config("passthrough", 3, ""));
    assert_eq!(picks(&mut vm, 3), [0, 0, 0]);
    vm.fail(0, 10);
    assert_eq!(picks(&mut vm, 3), [1, 1, 1]);
    vm.pass(BREAKER_MS);
    assert_eq!(picks(&mut vm, 1), [0]);
}

#[test]
fn passthrough_warns_once_of_several_workers() {
    let warnings = |workers: usize| {
        let store = MemoryStore::default();
        let mut vms: Vec<Vm> =
            (0..3).map(|vm| Vm::new(config("passthrough", workers, ""), store.clone(), vm)).collect();
        for _ in 0..5 {
            for vm in &mut vms {
                vm.tick();
                vm.pick();
            }
        }
        let lines = vms.iter().flat_map(|vm| &vm.world.log.0);
        lines.filter(|(level, line)| *level == Level::Warn && line.contains("passthrough")).count()
    };
    assert_eq!(warnings(1), 0);
    assert_eq!(warnings(3), 1);
}

#[test]
fn random_never_takes_a_worker_that_is_out() {
    let mut vm = Vm::alone(config("random", 3, ""));
    vm.fail(1, 10);
    let picks = picks(&mut vm, 300);
    assert!(!picks.contains(&1) && picks.contains(&0) && picks.contains(&2));
}

#[test]
fn bucket_without_buckets_takes_anybody_and_warns_once_a_second() {
    let mut vm = Vm::alone(config("bucket", 3, ""));
    vm.fail(1, 10);
    let picks = picks(&mut vm, 300);
    assert!(!picks.contains(&1) && picks.contains(&0) && picks.contains(&2));
    for _ in 0..8 {
        vm.tick();
        vm.pick();
        vm.pass(250);
    }
    vm.pass(1000);
    vm.tick();
    vm.pass(1000);
    vm.tick();
    let told: Vec<u64> = vm
        .world
        .log
        .0
        .iter()
        .filter(|(level, line)| *level == Level::Warn && line.contains("bucket"))
        .filter_map(|(_, line)| line.split_once(": ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(told, [300, 4, 4], "every request is told of, and nothing without one");
    let selected = "smg_worker_selection_total;worker_type=regular;connection_mode=http;model=unknown;policy=bucket";
    assert_eq!(vm.metric(selected), 308);
}
