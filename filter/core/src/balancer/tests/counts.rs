//! In-flight counts: once up and once down for every fate of a request.

use super::stores::Faulty;
use super::{Answered, Vm, config, picked, url};
use crate::store::MemoryStore;

#[test]
fn a_request_counts_until_it_ends_whatever_ends_it() {
    let mut vm = Vm::alone(config("least_load", 1, ""));
    let mut answered = vm.send("");
    let mut aborted = vm.send("");
    let mut refused = vm.send("");
    assert_eq!(vm.in_flight(1), [3]);
    assert_eq!(vm.answer(&mut answered, 0, 1, 200), Some(0));
    let local = Answered { attempts: None, address: None, status: 413, outcome: None };
    assert_eq!(vm.answered(&mut refused, local), None);
    assert_eq!(vm.in_flight(1), [3], "an answer's head is not the end");
    for ticket in [&mut answered, &mut aborted, &mut refused] {
        vm.end(ticket);
        vm.end(ticket);
    }
    assert_eq!(vm.in_flight(1), [0], "twice the end is one end");
    assert!(vm.world.ledger.waiting() == 0);
}

#[test]
fn the_count_moves_to_the_worker_that_answers() {
    let mut vm = Vm::alone(config("passthrough", 3, ""));
    let mut ticket = vm.send("");
    assert_eq!(vm.in_flight(3), [1, 0, 0]);
    assert_eq!(vm.answer(&mut ticket, 1, 2, 200), Some(1));
    assert_eq!(vm.in_flight(3), [0, 1, 0]);
    vm.end(&mut ticket);
    assert_eq!(vm.in_flight(3), [0, 0, 0]);
    assert_eq!(vm.metric("smg_destination_unknown_total"), 0);
}

#[test]
fn an_answer_from_elsewhere_is_noticed() {
    let mut vm = Vm::alone(config("passthrough", 3, ""));
    let mut ticket = vm.send("");
    vm.answer(&mut ticket, 2, 1, 200);
    assert_eq!((vm.in_flight(3), vm.metric("smg_destination_unknown_total")), (vec![0, 0, 1], 1));
    let stranger = Answered { attempts: Some(1), address: Some("192.168.0.1:1"), status: 200, outcome: None };
    let mut other = vm.send("");
    assert_eq!(vm.answered(&mut other, stranger), None);
    assert_eq!((vm.in_flight(3), vm.metric("smg_destination_unknown_total")), (vec![1, 0, 1], 2));
    vm.end(&mut ticket);
    vm.end(&mut other);
    assert_eq!(vm.in_flight(3), [0, 0, 0]);
}

/// Whether the counts of a request of `key` come out right when all races for tables of `kind` are lost during `step`.
#[track_caller]
pub(super) fn survives_lost_races(kind: char, step: usize, key: Option<&str>) {
    let store = Faulty::default();
    let mut vm = Vm::new(config("passthrough", 2, ""), store.clone(), 0);
    let lose = |at: usize| if at == step { store.lose(kind, 1000) } else { store.heal() };
    let send = |vm: &mut Vm| match key {
        Some(key) => vm.send_keyed(key),
        None => vm.send(""),
    };
    lose(0);
    let mut ticket = send(&mut vm);
    lose(1);
    vm.answer(&mut ticket, 1, 2, 200);
    lose(2);
    vm.end(&mut ticket);
    store.heal();
    vm.tick();
    assert_eq!(vm.world.ledger.waiting(), 0, "{kind} {step}");
    assert_eq!((vm.in_flight(2), vm.keys(2)), (vec![0, 0], vec![0, 0]), "{kind} {step}");
    let mut next = send(&mut vm);
    let keys = vec![i32::from(key.is_some()), 0];
    assert_eq!((vm.in_flight(2), vm.keys(2)), (vec![1, 0], keys), "{kind} {step}: the counts go on from nought");
    vm.end(&mut next);
}

#[test]
fn lost_races_are_made_up_for_on_the_next_tick() {
    (0..3).for_each(|step| survives_lost_races('l', step, None));
}

#[test]
fn a_request_that_ends_before_its_count_got_through_leaves_nothing() {
    let store = Faulty::default();
    let mut vm = Vm::new(config("passthrough", 1, ""), store.clone(), 0);
    store.lose('l', 1000);
    let mut ticket = vm.send("");
    assert_eq!(picked(&ticket), 0, "placed all the same");
    store.heal();
    vm.end(&mut ticket);
    vm.tick();
    assert_eq!(vm.in_flight(1), [0]);
    assert!(vm.world.ledger.waiting() == 0);
}

#[test]
fn waiting_changes_survive_ticks_that_lose_too() {
    let store = Faulty::default();
    let mut vm = Vm::new(config("passthrough", 1, ""), store.clone(), 0);
    let (mut one, mut two) = (vm.send(""), vm.send(""));
    store.lose('l', 1000);
    vm.end(&mut one);
    vm.end(&mut two);
    vm.tick();
    assert_eq!(vm.world.ledger.waiting(), 1, "one entry for both");
    store.heal();
    vm.tick();
    assert_eq!((vm.in_flight(1), vm.world.ledger.waiting()), (vec![0], 0));
}

#[test]
fn a_worker_that_left_the_configuration_is_still_counted_down() {
    let store = MemoryStore::default();
    let mut old = Vm::new(config("passthrough", 2, ""), store.clone(), 0);
    let mut ticket = old.send("");
    let smaller = super::parse(&format!(r#"{{"policy":"passthrough","max_workers":64,"workers":["{}"]}}"#, url(1)));
    let mut new = Vm::new(smaller, store, 1);
    assert_eq!(picked(&new.send("")), 1);
    old.answer(&mut ticket, 0, 1, 200);
    old.end(&mut ticket);
    assert_eq!(old.in_flight(2), [0, 1]);
}
