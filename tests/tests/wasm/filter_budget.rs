//! What a request may cost, counted in host calls.

use serde_json::json;
use testbed::wasm::{Counters, Response};

use crate::fleet::{Fleet, chat, first, prompt};

/// Host calls of a cold prompt of `size` bytes, and of the turn that extends it on another thread.
fn costs(workers: usize, size: usize) -> (Counters, Counters) {
    let fleet = Fleet::new(2, workers, json!({}));
    // Both threads have worked before.
    for vm in 0..2 {
        fleet.complete(vm, chat(&prompt(vm, 1000)));
    }
    let (_, cold) = fleet.complete(0, chat(&prompt(7, size)));
    let (_, turn) = fleet.complete(1, chat(&(prompt(7, size) + " and one more turn")));
    (cold, turn)
}

#[track_caller]
fn within(budget: u64, what: &str, counters: &Counters) {
    eprintln!("{what}: {} host calls, fuel {}, {:?}", counters.host_calls_total(), counters.fuel, counters.host_calls);
    assert!(counters.host_calls_total() <= budget, "{what}: more than {budget} host calls: {counters:?}");
}

#[test]
fn a_request_keeps_its_budget_of_host_calls_for_any_number_of_workers() {
    for (size, cold_budget) in [(4 << 10, 45), (48 << 10, 60)] {
        let (cold, turn) = costs(2, size);
        within(cold_budget, &format!("cold, {size} bytes, 2 workers"), &cold);
        within(26, &format!("turn, {size} bytes, 2 workers"), &turn);
        let (cold_of_many, turn_of_many) = costs(64, size);
        within(cold_budget, &format!("cold, {size} bytes, 64 workers"), &cold_of_many);
        within(26, &format!("turn, {size} bytes, 64 workers"), &turn_of_many);
        assert_eq!(cold.host_calls, cold_of_many.host_calls);
        assert_eq!(turn.host_calls, turn_of_many.host_calls);
    }
}

#[test]
fn a_good_answer_costs_one_property() {
    let (cold, turn) = costs(2, 4 << 10);
    for counters in [cold, turn] {
        assert_eq!(counters.host_calls.get("proxy_get_property"), Some(&1), "{:?}", counters.host_calls);
    }
}

#[test]
fn a_routing_key_costs_two_reads_and_two_writes() {
    let fleet = Fleet::new(2, 2, json!({}));
    let request = |keyed: bool| {
        let request = chat(&prompt(3, 4 << 10));
        if keyed { request.header("x-smg-routing-key", "user-1") } else { request }
    };
    let cost = |keyed| fleet.complete(0, request(keyed)).1.host_calls_total();
    cost(false);
    cost(true);
    assert_eq!(cost(true), cost(false) + 4);
}

#[test]
fn a_streamed_chunk_makes_no_call_into_the_module() {
    let fleet = Fleet::new(1, 2, json!({}));
    let mut exchange = fleet.send(0, chat("hello"));
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine)).unwrap();
    let before = exchange.counters();
    for _ in 0..400 {
        exchange.response_body("data: {}\n\n", false).unwrap();
    }
    assert_eq!(exchange.counters(), before);
    exchange.finish().unwrap();
}

#[test]
fn costs_are_the_same_in_every_run() {
    assert_eq!(costs(3, 4 << 10), costs(3, 4 << 10));
}
