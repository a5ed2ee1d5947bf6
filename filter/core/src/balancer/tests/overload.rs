//! Overload protection: the specification's vectors, what clears a veto, and what a shed request is told.

use super::{Vm, config, listed, load, parse, snapshot, url};
use crate::answer::Refusal;
use crate::balancer::Prompt;
use crate::report::Load;

const WAITING_16: &str = r#""worker_overload_waiting_requests":16,"#;
const USAGE_90: &str = r#""worker_overload_protection":true,"#;

fn waiting(number: f64) -> Option<Load> {
    load(0.0, number, 0.0, 0.0)
}

fn usage(share: f64) -> Option<Load> {
    load(0.0, 0.0, share, 0.0)
}

fn refusal(vm: &mut Vm) -> Refusal {
    vm.place(Prompt { model: "m", ..Prompt::default() }).unwrap_err()
}

fn is_shed(vm: &mut Vm) -> bool {
    vm.place(Prompt::default()).is_err_and(|refusal| matches!(refusal, Refusal::Overloaded { .. }))
}

#[test]
fn limits_are_inclusive() {
    for (more, said, expected) in [
        (WAITING_16, waiting(15.0), false),
        (WAITING_16, waiting(16.0), true),
        (WAITING_16, usage(1.0), false),
        (USAGE_90, usage(0.9), true),
        (USAGE_90, usage(0.8999), false),
        (USAGE_90, waiting(1e6), false),
        // The mean of two ranks, 0.95 and 0.85.
        (USAGE_90, usage((0.95 + 0.85) / 2.0), true),
        ("", load(0.0, 1e6, 1.0, 0.0), false),
    ] {
        for policy in ["cache_aware", "least_load", "round_robin"] {
            let mut vm = Vm::alone(config(policy, 1, more));
            vm.take(&snapshot(1, &[(0, said)]));
            assert_eq!(is_shed(&mut vm), expected, "{policy} {more} {said:?}");
        }
    }
}

#[test]
fn vetoed_workers_are_in_no_list() {
    let mut vm = Vm::alone(config("random", 3, WAITING_16));
    vm.take(&snapshot(1, &[(0, waiting(0.0)), (1, waiting(99.0)), (2, None)]));
    for _ in 0..40 {
        let mut ticket = vm.send("");
        assert!(!listed(&ticket).contains(&1));
        vm.end(&mut ticket);
    }
}

#[test]
fn a_poll_without_a_report_clears_the_veto_and_so_does_silence() {
    let mut vm = Vm::alone(config("least_load", 1, WAITING_16));
    vm.take(&snapshot(1, &[(0, waiting(16.0))]));
    assert!(is_shed(&mut vm));
    vm.take(&snapshot(2, &[(0, None)]));
    assert!(!is_shed(&mut vm));
    vm.take(&snapshot(3, &[(0, waiting(16.0))]));
    vm.pass(30_000);
    assert!(is_shed(&mut vm));
    vm.pass(1);
    assert!(!is_shed(&mut vm), "three intervals of 10 s are over");
}

#[test]
fn a_shed_request_is_told_when_to_come_again() {
    let mut vm = Vm::alone(config("cache_aware", 2, WAITING_16));
    vm.take(&snapshot(1, &[(0, waiting(16.0)), (1, waiting(17.0))]));
    let answer = refusal(&mut vm).answer();
    assert_eq!(answer.status, 503);
    let header = |name: &str| answer.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
    assert_eq!(header("retry-after"), Some("10"));
    assert_eq!(header("x-smg-error-code"), Some("worker_overload_protection_shed"));
    assert!(answer.body.contains("All workers for model 'm' are overloaded"), "{}", answer.body);
    assert_eq!(vm.metric("smg_worker_overload_shed_total;stage=selection"), 1);
    vm.tick();
    assert_eq!(vm.metric("smg_workers_overloaded;model=unknown"), 2);
    // What is no inference request is not shed.
    assert!(vm.place(Prompt { any_worker: true, ..Prompt::default() }).is_err());
    assert_eq!(vm.metric("smg_worker_overload_shed_total;stage=selection"), 1);
}

#[test]
fn a_mixture_of_reasons_is_no_shed() {
    use crate::report::Health;
    let mut vm = Vm::alone(config("random", 2, WAITING_16));
    vm.fail(1, 10);
    vm.take(&snapshot(1, &[(0, waiting(16.0))]));
    assert_eq!(refusal(&mut vm), Refusal::NoAvailableWorkers, "one vetoed, one breaker open");
    let mut vm = Vm::alone(config("random", 2, WAITING_16));
    let mut said = snapshot(1, &[(0, waiting(16.0)), (1, waiting(16.0))]);
    said.workers[1].health = Some(Health::NotReady);
    vm.take(&said);
    assert_eq!(refusal(&mut vm), Refusal::NoAvailableWorkers, "one vetoed, one not ready");
    assert_eq!(vm.metric("smg_worker_overload_shed_total;stage=selection"), 0);
}

#[test]
fn a_workers_own_limits_go_before_and_suffice() {
    let text = format!(
        r#"{{"policy":"random","worker_overload_waiting_requests":16,"workers":[
            {{"url":"{}","models":["a"],"overload":{{"waiting_requests":5}}}},
            {{"url":"{}","models":["b"]}},{{"url":"{}","models":["c"],"overload":{{"token_usage":0.5}}}}]}}"#,
        url(0),
        url(1),
        url(2)
    );
    let mut vm = Vm::alone(parse(&text));
    let said = load(0.0, 5.0, 0.5, 0.0);
    vm.take(&snapshot(1, &[(0, said), (1, said), (2, said)]));
    let mut shed = |model| vm.place(Prompt { model, ..Prompt::default() }).is_err();
    assert_eq!(["a", "b", "c"].map(&mut shed), [true, false, true]);
    vm.tick();
    assert_eq!(
        ["a", "b", "c", "unknown"].map(|model| vm.metric(&format!("smg_workers_overloaded;model={model}"))),
        [1, 0, 1, 2]
    );
}
