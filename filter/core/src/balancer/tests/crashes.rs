//! VMs that die, or seem to.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::stores::Faulty;
use super::{Ticket, Vm, config, url};
use crate::store::MemoryStore;

/// Ticks of the others after which a dead VM's counts are back: five to be sure of its death, and two to mend what its
/// last step has left half done.
const RECOVERY: usize = 8;

fn vms(store: &MemoryStore) -> [Vm; 2] {
    [0, 1].map(|number| Vm::new(config("passthrough", 2, ""), store.clone(), number))
}

fn ticks(vm: &mut Vm, count: usize) {
    (0..count).for_each(|_| vm.tick());
}

#[test]
fn what_a_dead_vm_had_in_flight_is_taken_back() {
    let store = MemoryStore::default();
    let [mut dead, mut living] = vms(&store);
    living.tick();
    let _held = [dead.send_keyed("a"), dead.send_keyed("b"), dead.send("")];
    let mut kept = living.send_keyed("b");
    drop(dead);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![4, 0], vec![2, 0]));
    ticks(&mut living, RECOVERY);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![1, 0], vec![1, 0]));
    assert_eq!(living.metric("smg_vm_reaped_total"), 1);
    living.end(&mut kept);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![0, 0], vec![0, 0]));
    assert_eq!(living.metric("smg_in_flight_corrections_total"), 0);
}

#[test]
fn the_leader_can_die_too() {
    let store = MemoryStore::default();
    let [mut dead, mut living] = vms(&store);
    dead.tick();
    let _held = dead.send("");
    drop(dead);
    ticks(&mut living, RECOVERY);
    assert_eq!(living.in_flight(2), [0, 0]);
    assert_eq!(living.metric(&format!("smg_worker_requests_active;worker={}", url(0))), 0, "it has a new leader");
}

#[test]
fn who_goes_with_nothing_counted_is_not_taken_for_dead() {
    let store = MemoryStore::default();
    let [mut going, mut living] = vms(&store);
    let mut held = going.send_keyed("a");
    going.world.ledger.resign(going.world.store.as_mut());
    assert!(going.world.ledger.row.is_some(), "it has something counted");
    going.end(&mut held);
    going.world.ledger.resign(going.world.store.as_mut());
    assert_eq!(going.world.ledger.row, None);
    let mut kept = living.send_keyed("b");
    assert_eq!(living.world.ledger.row, Some(0), "the row is free");
    // It has come back.
    let more = going.send_keyed("a");
    ticks(&mut living, 2);
    going.tick();
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![2, 0], vec![2, 0]));
    drop((going, more));
    ticks(&mut living, RECOVERY);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![1, 0], vec![1, 0]));
    assert_eq!(living.metric("smg_vm_reaped_total"), 1);
    living.end(&mut kept);
    assert_eq!(living.in_flight(2), [0, 0]);
}

#[test]
fn who_was_buried_alive_adds_its_streams_again() {
    let store = MemoryStore::default();
    let [mut frozen, mut living] = vms(&store);
    let mut held = [frozen.send_keyed("a"), frozen.send_keyed("a"), frozen.send("")];
    ticks(&mut living, RECOVERY);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![0, 0], vec![0, 0]));
    for _ in 0..RECOVERY {
        frozen.tick();
        living.tick();
    }
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![3, 0], vec![1, 0]));
    frozen.answer(&mut held[0], 1, 2, 200);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![2, 1], vec![1, 1]));
    held.iter_mut().for_each(|ticket| frozen.end(ticket));
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![0, 0], vec![0, 0]));
    assert_eq!(frozen.metric("smg_vm_returned_total"), 1);
    for _ in 0..RECOVERY {
        frozen.tick();
        living.tick();
    }
    assert_eq!(living.metric("smg_vm_reaped_total"), 1, "it is not buried again");
}

#[test]
fn streams_that_end_before_the_buried_notices_come_right() {
    let store = MemoryStore::default();
    let [mut frozen, mut living] = vms(&store);
    let mut held: Vec<Ticket> = (0..4).map(|_| frozen.send_keyed("a")).collect();
    let _others = [living.send("a"), living.send("b")];
    ticks(&mut living, RECOVERY);
    // It wakes up and goes on before its first tick.
    frozen.end(&mut held[0]);
    frozen.end(&mut held[1]);
    let _more = frozen.send("");
    for _ in 0..RECOVERY {
        frozen.tick();
        living.tick();
    }
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![5, 0], vec![1, 0]));
}

#[test]
fn a_row_that_one_who_was_buried_alive_has_overwritten_is_written_again() {
    let store = MemoryStore::default();
    let [mut frozen, mut living] = vms(&store);
    let mut held = [frozen.send(""), frozen.send("")];
    ticks(&mut living, RECOVERY);
    let mut heir = Vm::new(config("passthrough", 2, ""), store.clone(), 2);
    let _kept = [heir.send(""), living.send("")];
    assert_eq!(heir.world.ledger.row, Some(0), "the row of the buried");
    // It goes on before it has noticed. From then on nobody has anything to write.
    frozen.end(&mut held[0]);
    for _ in 0..RECOVERY {
        frozen.tick();
        heir.tick();
        living.tick();
    }
    assert_eq!(living.in_flight(2), [3, 0]);
    drop(heir);
    for _ in 0..RECOVERY {
        frozen.tick();
        living.tick();
    }
    assert_eq!(living.in_flight(2), [2, 0]);
}

/// Lets a VM trap at store call `call` of step `step` (0: placing, 1: the answer of another worker, 2: the end, 3: a
/// tick); false if the step makes fewer calls.
fn trap_at(step: usize, call: u64, seasoned: bool) -> bool {
    let trapping = Faulty::default();
    let store = trapping.inner.clone();
    let mut living = Vm::new(config("passthrough", 2, ""), store.clone(), 1);
    living.tick();
    let mut kept = living.send_keyed("a");
    let mut dying = Vm::new(config("passthrough", 2, ""), trapping.clone(), 0);
    if seasoned {
        dying.tick();
        let _held = [dying.send_keyed("a"), dying.send_keyed("b"), dying.send("")];
    }
    let trapped = catch_unwind(AssertUnwindSafe(move || {
        let arm = |at: usize| if at == step { trapping.trap(call) } else { trapping.heal() };
        arm(0);
        let mut ticket = dying.send_keyed("c");
        arm(1);
        dying.answer(&mut ticket, 1, 2, 200);
        arm(2);
        dying.end(&mut ticket);
        arm(3);
        dying.tick();
    }));
    ticks(&mut living, RECOVERY);
    assert_eq!(living.in_flight(2), [1, 0], "step {step}, call {call}, seasoned: {seasoned}");
    // Distinct keys are counted again once nothing has moved for a second.
    ticks(&mut living, 6);
    assert_eq!(living.keys(2), [1, 0], "step {step}, call {call}, seasoned: {seasoned}");
    living.end(&mut kept);
    assert_eq!((living.in_flight(2), living.keys(2)), (vec![0, 0], vec![0, 0]));
    trapped.is_err()
}

#[test]
fn a_trap_at_any_call_of_any_step_leaves_exact_counts() {
    let mut traps = 0;
    for seasoned in [false, true] {
        for step in 0..4 {
            traps += (0..).take_while(|&call| trap_at(step, call, seasoned)).count();
        }
    }
    assert!(traps > 40, "{traps}");
}

#[test]
fn a_wrong_count_comes_right_under_traffic_too() {
    for wrong in [-2_i32, 3] {
        let mut vm = Vm::alone(config("passthrough", 1, ""));
        let _held: Vec<Ticket> = (0..5).map(|_| vm.send("")).collect();
        let id = vm.balancer.fleet.workers()[0].id;
        let spoil = |slot: &mut crate::state::load::Slot| {
            slot.in_flight = slot.in_flight.saturating_add_signed(wrong);
            true
        };
        vm.balancer.load.change(vm.world.store.as_mut(), id, spoil).unwrap();
        let mut last = vm.send("");
        for _ in 0..20 {
            let next = vm.send("");
            vm.end(&mut last);
            last = next;
            let mut short = vm.send("");
            vm.tick();
            vm.end(&mut short);
        }
        assert_eq!(vm.in_flight(1), [6], "{wrong}");
    }
}
