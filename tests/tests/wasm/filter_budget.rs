//! What a request may cost, counted in host calls and in instructions.

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
fn within(calls: u64, fuel: u64, what: &str, counters: &Counters) {
    eprintln!("{what}: {} host calls, fuel {}, {:?}", counters.host_calls_total(), counters.fuel, counters.host_calls);
    assert!(counters.host_calls_total() <= calls, "{what}: more than {calls} host calls: {counters:?}");
    assert!(counters.fuel <= fuel, "{what}: more than {fuel} of fuel: {counters:?}");
}

#[test]
fn a_request_keeps_its_budgets_of_host_calls_and_fuel() {
    // Fuel is about a seventh above what was measured: a compiler may spend a little more, a mistake spends much more.
    for (size, cold_calls, cold_fuel, turn_fuel) in
        [(4 << 10, 38, [101_000, 140_000], [72_000, 101_000]), (48 << 10, 52, [326_000, 366_000], [272_000, 301_000])]
    {
        let (cold, turn) = costs(2, size);
        within(cold_calls, cold_fuel[0], &format!("cold, {size} bytes, 2 workers"), &cold);
        within(18, turn_fuel[0], &format!("turn, {size} bytes, 2 workers"), &turn);
        let (cold_of_many, turn_of_many) = costs(64, size);
        within(cold_calls, cold_fuel[1], &format!("cold, {size} bytes, 64 workers"), &cold_of_many);
        within(18, turn_fuel[1], &format!("turn, {size} bytes, 64 workers"), &turn_of_many);
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
