//! The module that remembers which worker holds which response: what it costs.

use serde_json::json;
use testbed::wasm::{Counters, Request, Response, responses_wasm};

use crate::fleet::{Fleet, chat, first};

/// A request, answered in these parts; the first worker named, and the cost.
fn answered(fleet: &Fleet, request: Request, parts: &[&str]) -> (String, Counters) {
    let mut exchange = fleet.send(0, request);
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine)).unwrap();
    for (at, part) in parts.iter().enumerate() {
        exchange.response_body(part, at + 1 == parts.len()).unwrap();
    }
    (engine, exchange.finish().unwrap())
}

fn responses(body: serde_json::Value) -> Request {
    Request::post("/v1/responses", body.to_string())
}

#[test]
fn only_the_beginning_of_an_answer_that_makes_a_response_is_read() {
    let fleet = Fleet::of(&responses_wasm(), 1, 4, json!({ "policy": "random" }));
    let usual = Fleet::new(1, 4, json!({ "policy": "random" }));
    let parts = ["{\"id\":\"resp_1\",", "\"object\":\"response\",", "\"status\":\"completed\"}"];

    let plain = answered(&usual, chat("hello"), &parts).1.host_calls_total();
    let chatted = answered(&fleet, chat("hello"), &parts).1;
    assert_eq!(chatted.host_calls_total(), plain, "nobody reads a chat's answer");

    let new = |fleet: &Fleet| answered(fleet, responses(json!({ "input": "Hello", "model": "m" })), &parts);
    let (usual_cost, (holder, cost)) = (new(&usual).1.host_calls_total(), new(&fleet));
    eprintln!("a new response: {usual_cost} host calls, {} where it is remembered", cost.host_calls_total());
    // The request's body; a piece of the answer; the page of its id, read and written.
    assert_eq!(cost.host_calls_total(), usual_cost + 4);

    for _ in 0..10 {
        let next = responses(json!({ "input": "Well?", "model": "m", "previous_response_id": "resp_1" }));
        let (engine, cost) = answered(&fleet, next, &["{\"id\":\"resp_2\"}"]);
        assert_eq!(engine, holder);
        assert_eq!(cost.host_calls_total(), usual_cost + 5, "and the page of the one it refers to");
        let (engine, cost) = answered(&fleet, Request::get("/v1/responses/resp_1"), &["{}"]);
        assert_eq!(engine, holder);
        eprintln!("a response by its id: {} host calls", cost.host_calls_total());
    }
    assert_eq!(fleet.in_flight_total(), 0);
}
