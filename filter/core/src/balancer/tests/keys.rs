//! Distinct routing keys in flight per worker.

use super::counts::survives_lost_races;
use super::{Vm, config, url};
use crate::store::MemoryStore;

#[test]
fn a_worker_has_as_many_keys_as_are_in_flight_there() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    let mut tickets: Vec<_> = ["a", "a", "b"].into_iter().map(|key| vm.send_keyed(key)).collect();
    let mut keyless = vm.send("");
    assert_eq!((vm.keys(2), vm.in_flight(2)), (vec![2, 0], vec![4, 0]));
    vm.tick();
    assert_eq!(vm.metric(&format!("smg_worker_routing_keys_active;worker={}", url(0))), 2);
    vm.end(&mut tickets[0]);
    vm.end(&mut tickets[0]);
    assert_eq!(vm.keys(2), [2, 0], "another request of the key is in flight");
    vm.end(&mut tickets[1]);
    vm.end(&mut keyless);
    assert_eq!(vm.keys(2), [1, 0]);
    vm.end(&mut tickets[2]);
    assert_eq!((vm.keys(2), vm.in_flight(2)), (vec![0, 0], vec![0, 0]));
    vm.tick();
    assert_eq!(vm.metric(&format!("smg_worker_routing_keys_active;worker={}", url(0))), 0);
}

#[test]
fn a_key_moves_with_its_request_to_the_worker_that_answers() {
    let mut vm = Vm::alone(config("passthrough", 2, ""));
    let (mut moved, mut stays) = (vm.send_keyed("a"), vm.send_keyed("a"));
    vm.answer(&mut moved, 1, 2, 200);
    assert_eq!(vm.keys(2), [1, 1]);
    vm.end(&mut stays);
    assert_eq!(vm.keys(2), [0, 1]);
    vm.end(&mut moved);
    assert_eq!(vm.keys(2), [0, 0]);
}

#[test]
fn threads_share_the_keys() {
    let store = MemoryStore::default();
    let (mut one, mut two) = (
        Vm::new(config("passthrough", 1, ""), store.clone(), 0),
        Vm::new(config("passthrough", 1, ""), store.clone(), 1),
    );
    let (mut first, mut second) = (one.send_keyed("a"), two.send_keyed("a"));
    assert_eq!(one.keys(1), [1]);
    one.end(&mut first);
    assert_eq!(one.keys(1), [1]);
    two.end(&mut second);
    assert_eq!(one.keys(1), [0]);
}

#[test]
fn lost_races_leave_no_key_behind() {
    for kind in ['k', 'l'] {
        (0..3).for_each(|step| survives_lost_races(kind, step, Some("a")));
    }
}
