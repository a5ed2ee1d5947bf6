//! Policies of models, by their workers' labels.

use super::{Level, Vm, parse, picked, url};
use crate::balancer::Prompt;
use crate::report::{Info, Scope, Snapshot, WorkerReport};

/// Two workers of model `m` and one of model `n`; the labels of the first two.
fn labelled(policy: &str, labels: [&str; 2]) -> Vm {
    let worker = |number: usize, model: &str, label: &str| {
        let labels = if label.is_empty() { "{}".to_owned() } else { format!(r#"{{"policy":"{label}"}}"#) };
        format!(r#"{{"url":"{}","models":["{model}"],"labels":{labels}}}"#, url(number))
    };
    let workers =
        [worker(0, "m", labels[0]), worker(1, "m", labels[1]), worker(2, "n", ""), worker(3, "n", "")].join(",");
    Vm::alone(parse(&format!(r#"{{"policy":"{policy}","workers":[{workers}]}}"#)))
}

fn policies(vm: &mut Vm, model: &str) -> Vec<String> {
    vm.send_to(model);
    let start = format!("smg_worker_selection_total;worker_type=regular;connection_mode=http;model={model};policy=");
    vm.metrics().keys().filter_map(|name| name.strip_prefix(&start)).map(str::to_owned).collect()
}

#[test]
fn the_first_worker_decides_for_its_model() {
    let mut vm = labelled("round_robin", ["least_load", "random"]);
    assert_eq!(policies(&mut vm, "m"), ["least_load"]);
    assert_eq!(policies(&mut vm, "n"), ["round_robin"]);
    let mut vm = labelled("round_robin", ["", "random"]);
    assert_eq!(policies(&mut vm, "m"), ["round_robin"], "no label decides for the default");
    for spelled in ["PowerOfTwo", "power_of_two", "POWEROFTWO"] {
        assert_eq!(policies(&mut labelled("round_robin", [spelled, ""]), "m"), ["power_of_two"]);
    }
}

#[test]
fn a_request_without_a_model_has_the_default_policy() {
    let mut vm = labelled("passthrough", ["random", "random"]);
    assert_eq!((0..50).map(|_| vm.pick()).max(), Some(0));
}

#[test]
fn an_unknown_label_is_warned_of_and_changes_nothing() {
    let mut vm = labelled("round_robin", ["fastest", ""]);
    assert_eq!(policies(&mut vm, "m"), ["round_robin"]);
    vm.tick();
    vm.tick();
    let warned = |(level, line): &&(Level, String)| *level == Level::Warn && line.contains("\"fastest\"");
    assert_eq!(vm.world.log.0.iter().filter(warned).count(), 1);
}

#[test]
fn another_policy_than_the_configurations_has_built_in_settings() {
    // 65 of 130 requests above the mean: too much for the built-in 32, not for what the flags say.
    let hot = |policy: &str, label: &str| {
        let worker =
            |number: usize| format!(r#"{{"url":"{}","models":["m"],"labels":{{"policy":"{label}"}}}}"#, url(number));
        let mut vm = Vm::alone(parse(&format!(
            r#"{{"policy":"{policy}","balance_abs_threshold":64,"workers":[{},{}]}}"#,
            worker(0),
            worker(1)
        )));
        let text = "a prompt of some length ".repeat(20);
        let prompt = Prompt { model: "m", text: text.as_bytes(), text_bytes: text.len() as u64, ..Prompt::default() };
        let home = picked(&vm.place(prompt).unwrap());
        (0..100).filter(|_| picked(&vm.place(prompt).unwrap()) != home).count()
    };
    assert_eq!(hot("cache_aware", "cache_aware"), 0);
    assert!(hot("random", "cache_aware") > 0);
}

/// What a sidecar says: workers of one model with these policies.
fn told(sequence: u64, workers: &[(usize, &str)]) -> Snapshot {
    let report = |&(number, label): &(usize, &str)| {
        let labels = [("policy".to_owned(), label.to_owned())].into();
        let info = Info { models: vec!["m".to_owned()], labels, ..Info::default() };
        WorkerReport {
            url: url(number),
            address: Some(super::address(number)),
            info: Some(Box::new(info)),
            ..WorkerReport::default()
        }
    };
    let workers = workers.iter().map(report).collect();
    Snapshot { scope: Scope::Full, ..Snapshot::of(1, sequence, 10_000, workers) }
}

#[test]
fn a_model_keeps_its_policy_until_its_last_worker_leaves() {
    let mut vm = Vm::alone(parse(r#"{"policy":"round_robin"}"#));
    let now = |vm: &mut Vm, sequence: u64, workers: &[(usize, &str)]| {
        vm.take(&told(sequence, workers));
        vm.tick();
        let pool = vm.balancer.fleet().pool("m");
        pool.policy.map(|policy| policy.name.as_str())
    };
    assert_eq!(now(&mut vm, 1, &[(0, "least_load"), (1, "random")]), Some("least_load"));
    assert_eq!(now(&mut vm, 2, &[(1, "random")]), Some("least_load"));
    assert_eq!(now(&mut vm, 3, &[]), None);
    assert_eq!(now(&mut vm, 4, &[(1, "random")]), Some("random"));
}
