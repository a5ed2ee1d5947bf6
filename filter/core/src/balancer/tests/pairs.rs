//! `power_of_two` with the tables it reads and writes.

use super::{Vm, config, listed, load, picked, snapshot};

/// The scores of the picks so far, from the log.
fn scores(vm: &mut Vm) -> Vec<String> {
    let lines = std::mem::take(&mut vm.world.log.0);
    let score = |line: &str| Some(line.strip_prefix("power_of_two selected ")?.split_once(" (")?.1.to_owned());
    lines.iter().filter_map(|(_, line)| score(line)).collect()
}

#[test]
fn the_better_of_two_is_credited_until_the_next_report() {
    let mut vm = Vm::alone(config("power_of_two", 2, r#""least_load_kv_pressure_weight":9,"#));
    let report =
        |sequence| snapshot(sequence, &[(0, load(1000.0, 0.0, 0.2, 100.0)), (1, load(2000.0, 0.0, 0.2, 100.0))]);
    vm.take(&report(1));
    assert_eq!([vm.pick(), vm.pick()], [0, 1]);
    assert_eq!((vm.slot(0).tally_tokens, vm.slot(1).tally_tokens), (1024, 1024));
    let expected = ["score 10.0375, in_flight 0)", "score 20.0375, in_flight 0)"];
    assert_eq!(scores(&mut vm), expected, "the flags of least_load do not apply");
    vm.take(&report(2));
    assert_eq!(vm.pick(), 0);
    vm.take(&snapshot(3, &[(0, None), (1, None)]));
    assert_eq!(vm.pick(), 1, "after a failed poll the last report counts on");
    assert_eq!(scores(&mut vm), ["score 10.0375, in_flight 1)", "score 20.0375, in_flight 1)"]);
}

#[test]
fn one_worker_is_taken_without_credit_or_line() {
    let mut vm = Vm::alone(config("power_of_two", 1, r#""discovered_workers":true,"#));
    assert_eq!(vm.pick(), 0);
    assert_eq!((vm.slot(0).tally_requests, vm.in_flight(1)), (0, vec![1]));
    assert!(scores(&mut vm).is_empty());
}

#[test]
fn the_least_requests_of_all_win_and_the_others_stand_behind() {
    let mut vm =
        Vm::alone(config("power_of_two", 4, r#""power_of_two_load_metric":"least_requests","max_attempts":4,"#));
    let mut picks: Vec<usize> = (0..8).map(|_| vm.pick()).collect();
    assert_eq!(vm.in_flight(4), [2, 2, 2, 2]);
    picks.sort_unstable();
    assert_eq!(picks, [0, 0, 1, 1, 2, 2, 3, 3]);
    let ticket = vm.send("");
    let mut list = listed(&ticket);
    assert_eq!(list[0], picked(&ticket));
    list.sort_unstable();
    assert_eq!(list, [0, 1, 2, 3]);
}
