//! A VM that traps at any host call of anything it may be doing: the others set every count right.

mod bed;
mod fates;

use self::bed::{Bed, Past, WORKERS};
use self::fates::Fate;

/// Of the others' ticks. A dead VM is known by its counter, which must have stood still for five ticks after the first
/// look: the sixth. What it has left between two writes is seen by comparing on two further ticks; if it was the leader
/// itself, its follower takes one more.
const EXACT_AFTER: usize = 9;

/// Distinct keys are counted again once nothing has moved for four ticks.
const KEYS_AFTER: usize = EXACT_AFTER + 7;

const PASTS: [Past; 4] = [
    Past { seasoned: false, leads: false, reloads: false },
    Past { seasoned: true, leads: false, reloads: true },
    Past { seasoned: true, leads: true, reloads: false },
    Past { seasoned: true, leads: true, reloads: true },
];

/// Lets thread 0 trap at host call `call` of `fate` (reads not counted without `reads`); false if it makes fewer calls.
fn trap_at(fate: &Fate, call: u64, reads: bool, past: Past) -> bool {
    let what = format!("{}, {past:?}, call {call}", fate.name);
    let mut bed = Bed::new(&fate.config, past);
    (fate.before)(&mut bed);
    bed.arm(call, reads);
    // An error is the death that was asked for, seen below.
    let _ = (fate.run)(&mut bed);
    let trapped = bed.threads[0].vm.death().is_some();
    bed.threads[0].vm.never_trap();
    let mut living = vec![1, 2];
    if trapped && past.reloads {
        bed.reload();
        bed.threads[0].hold(Some("a")).unwrap();
    }
    if !trapped || past.reloads {
        living.push(0);
    }
    let (requests, keys) = bed.truth(&living);
    for tick in 1..=KEYS_AFTER {
        bed.tick(&living);
        if tick >= EXACT_AFTER {
            assert_eq!(bed.counted().0, requests, "{what}: after {tick} ticks");
        }
    }
    assert_eq!((bed.counted().1, bed.gauges()), (keys, requests), "{what}: keys and gauges at last");
    assert!(bed.tables.claimed() <= living.len(), "{what}: the dead still count as living");
    living.iter().for_each(|thread| bed.threads[*thread].finish().unwrap());
    assert_eq!(bed.counted(), (vec![0; WORKERS], vec![0; WORKERS]), "{what}: at the end");
    trapped
}

/// Lets thread 0 trap at every call of every one of `fates`.
fn trap_everywhere(fates: &[Fate], reads: bool) {
    for fate in fates {
        for past in PASTS {
            let traps = (1..).take_while(|call| trap_at(fate, *call, reads, past)).count();
            assert!(traps > 0, "{}, {past:?}: {traps} calls", fate.name);
        }
    }
}

#[test]
fn after_a_trap_at_any_call_of_any_request_every_count_comes_right() {
    trap_everywhere(&fates::of_requests(), true);
}

#[test]
fn after_a_trap_at_any_call_between_requests_every_count_comes_right() {
    trap_everywhere(&fates::of_vms(), true);
}

/// A burial reads thousands of pages. `make soak` lets the VM die at each of these reads, too.
#[test]
fn after_a_trap_in_taking_back_what_another_has_left_every_count_comes_right() {
    trap_everywhere(&fates::of_undertakers(), std::env::var_os("SOAK").is_some());
}
