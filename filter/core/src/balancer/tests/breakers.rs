//! The circuit breakers as answers feed them.

use super::{Answered, Vm, config, listed, parse};
use crate::breaker::Outcome;
use crate::state::load::BreakerState;
use crate::store::MemoryStore;

#[test]
fn a_dead_first_host_is_charged_once_a_request_and_out_after_ten() {
    let mut vm = Vm::alone(config("passthrough", 3, r#""max_attempts":3,"#));
    for number in 0..20 {
        let mut ticket = vm.send("");
        let list = listed(&ticket);
        if list[0] == 0 {
            vm.answer(&mut ticket, list[1], 2, 200);
        } else {
            vm.answer(&mut ticket, list[0], 1, 200);
        }
        vm.end(&mut ticket);
        let expected = if number < 9 { BreakerState::Closed } else { BreakerState::Open };
        assert_eq!(vm.slot(0).breaker, expected, "after {} requests", number + 1);
    }
    assert_eq!(vm.slot(0).failures, 10);
    assert_eq!((vm.slot(1).failures, vm.slot(1).breaker), (0, BreakerState::Closed));
    let opened = format!("smg_worker_cb_transitions_total;worker={};from=closed;to=open", super::url(0));
    assert_eq!(vm.metric(&opened), 1);
}

#[test]
fn twenty_failures_of_two_attempts_charge_each_entry_once_and_open_at_ten() {
    let mut vm = Vm::alone(config("random", 2, ""));
    let mut charged = [0_u16; 2];
    for number in 1..=20 {
        let Ok(mut ticket) = vm.place(super::Prompt::default()) else {
            assert_eq!(number, 11, "both are out after ten");
            break;
        };
        let list = listed(&ticket);
        vm.answer(&mut ticket, list[1], 2, 503);
        vm.end(&mut ticket);
        charged[0] += 1;
        charged[1] += 1;
        assert_eq!([vm.slot(0).failures, vm.slot(1).failures], charged);
    }
    assert_eq!(charged, [10, 10]);
    assert!([0, 1].into_iter().all(|worker| vm.slot(worker).breaker == BreakerState::Open));
}

#[test]
fn attempts_on_one_worker_are_one_failure() {
    let mut vm = Vm::alone(config("cache_aware", 1, ""));
    let mut ticket = vm.send("");
    vm.answer(&mut ticket, 0, 5, 503);
    assert_eq!(vm.slot(0).failures, 1);
    let mut saved = vm.send("");
    vm.answer(&mut saved, 0, 5, 200);
    assert_eq!(vm.slot(0).failures, 0, "what it said last is what counts");
}

#[test]
fn more_attempts_than_the_list_is_long_charge_the_list() {
    let mut vm = Vm::alone(config("passthrough", 3, r#""max_attempts":2,"#));
    let mut ticket = vm.send("");
    let nobody = Answered { attempts: Some(u64::MAX), address: None, status: 503, outcome: None };
    assert_eq!(vm.answered(&mut ticket, nobody), None);
    assert_eq!([vm.slot(0).failures, vm.slot(1).failures, vm.slot(2).failures], [1, 1, 0]);
}

#[test]
fn statuses_count_as_specified() {
    let mut vm = Vm::alone(config("passthrough", 1, ""));
    vm.fail(0, 9);
    for status in [429, 429, 429] {
        let mut ticket = vm.send("");
        vm.answer(&mut ticket, 0, 1, status);
    }
    assert_eq!(vm.slot(0).failures, 9, "full is neither");
    let mut ticket = vm.send("");
    vm.answer(&mut ticket, 0, 1, 404);
    assert_eq!((vm.slot(0).failures, vm.slot(0).breaker), (0, BreakerState::Closed));
}

#[test]
fn what_envoy_answers_itself_is_no_workers_fault() {
    let mut vm = Vm::alone(config("passthrough", 1, ""));
    let own = super::address(0);
    for _ in 0..20 {
        let mut ticket = vm.send("");
        vm.answered(&mut ticket, Answered { attempts: Some(1), address: Some(&own), status: 503, outcome: None });
        vm.end(&mut ticket);
    }
    assert_eq!((vm.slot(0).failures, vm.slot(0).breaker), (0, BreakerState::Closed));
}

#[test]
fn an_open_breaker_is_half_open_after_its_time_and_closes_on_three_successes() {
    let store = MemoryStore::default();
    let mut vms = [0, 1].map(|vm| Vm::new(config("passthrough", 2, ""), store.clone(), vm));
    vms[0].fail(0, 10);
    assert_eq!(vms[1].pick(), 1, "what one VM has seen, all know");
    vms[1].pass(59_999);
    assert_eq!(vms[1].pick(), 1);
    vms[1].pass(1);
    for successes in 1..=3 {
        let mut ticket = vms[1].send("");
        assert_eq!(vms[1].slot(0).breaker, BreakerState::HalfOpen);
        assert_eq!(vms[1].answer(&mut ticket, 0, 1, 200), Some(0));
        assert_eq!(vms[1].slot(0).breaker == BreakerState::Closed, successes == 3);
    }
}

#[test]
fn a_failure_while_half_open_starts_the_time_again() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    vm.fail(0, 10);
    vm.pass(60_000);
    for status in [200, 200, 503] {
        let mut ticket = vm.send("");
        vm.answer(&mut ticket, 0, 1, status);
    }
    assert_eq!(vm.slot(0).breaker, BreakerState::Open);
    vm.pass(59_000);
    assert_eq!(vm.pick(), 1);
    vm.pass(1_000);
    assert_eq!(vm.pick(), 0);
}

#[test]
fn a_disabled_breaker_never_takes_a_worker_out() {
    let mut vm = Vm::alone(config("passthrough", 2, r#""disable_circuit_breaker":true,"#));
    vm.fail(0, 50);
    assert_eq!(vm.pick(), 0);
}

#[test]
fn gauges_are_set_by_the_leader_alone() {
    let store = MemoryStore::default();
    let text = r#"{"max_workers":64,"workers":[{"url":"http://10.0.0.1:8000","models":["m"]}]}"#;
    let mut vms = [0, 1].map(|vm| Vm::new(parse(text), store.clone(), vm));
    let _held = vms[1].send_to("m");
    vms[0].fail(0, 10);
    for vm in &mut vms {
        vm.tick();
    }
    let worker = super::url(0);
    let gauges = ["smg_worker_requests_active", "smg_worker_cb_state", "smg_worker_health"];
    let of = |vm: &mut Vm| gauges.map(|gauge| vm.metric(&format!("{gauge};worker={worker}")));
    assert_eq!(of(&mut vms[0]), [1, 1, 1]);
    assert_eq!(of(&mut vms[1]), [0, 0, 0]);
    (0..6).for_each(|_| vms[1].tick());
    assert_eq!(of(&mut vms[1]), [1, 1, 1], "another VM leads when the first one stands still");
}

#[test]
fn full_workers_are_nobodys_failure_over_several_attempts_either() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    let mut ticket = vm.send("");
    let second = super::address(1);
    let outcome = Some(Outcome::Capacity);
    vm.answered(&mut ticket, Answered { attempts: Some(2), address: Some(&second), status: 429, outcome });
    assert_eq!([vm.slot(0).failures, vm.slot(1).failures], [0, 0]);
}

#[test]
fn hosts_that_envoy_chose_by_itself_are_counted_told_of_once_and_nobodys_failure() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    for _ in 0..2 {
        let mut ticket = vm.send("");
        let outcome = Some(Outcome::Failure);
        let stranger = "[::1]:80";
        vm.answered(&mut ticket, Answered { attempts: Some(5), address: Some(stranger), status: 503, outcome });
        vm.end(&mut ticket);
    }
    assert_eq!([vm.slot(0).failures, vm.slot(1).failures], [0, 0]);
    assert_eq!(vm.metric("smg_destination_unknown_total"), 2);
    let told = vm.world.log.0.iter().filter(|(_, line)| line.contains("[::1]:80")).count();
    assert_eq!(told, 1);
}

#[test]
fn a_worker_has_settings_of_its_own() {
    let own = r#"{"cb_failure_threshold":2,"cb_success_threshold":1,"cb_timeout_secs":5}"#;
    let text = format!(
        r#"{{"policy":"passthrough","max_workers":64,"workers":[{{"url":"{}","resilience":{own}}},"{}"]}}"#,
        super::url(0),
        super::url(1)
    );
    let mut vm = Vm::alone(parse(&text));
    vm.fail(0, 1);
    assert_eq!(vm.pick(), 0);
    vm.fail(0, 1);
    assert_eq!(vm.pick(), 1);
    vm.pass(4_000);
    assert_eq!(vm.pick(), 1);
    vm.pass(1_000);
    let mut ticket = vm.send("");
    assert_eq!(super::picked(&ticket), 0, "half open after 5 s");
    vm.answer(&mut ticket, 0, 1, 200);
    assert_eq!(vm.slot(0).breaker, BreakerState::Closed, "one success suffices");
    vm.fail(1, 9);
    assert_eq!(vm.slot(1).breaker, BreakerState::Closed);
}
