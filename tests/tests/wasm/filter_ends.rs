//! However an exchange ends, nothing stays in flight.

use serde_json::json;
use testbed::wasm::{Decision, Exchange, Request, Response};

use crate::fleet::{Fleet, chat, chat_body, first, prompt, worker_url};

/// Runs exchanges to an end each and checks that counts go up while they are placed and back to 0.
#[track_caller]
fn check(request: Request, placed: bool, end: impl Fn(Exchange)) {
    let fleet = Fleet::new(2, 3, json!({}));
    for vm in 0..2 {
        // Bodies have come before: a request whose body does not come is then waited for.
        fleet.complete(vm, chat("the first of all"));
        let exchanges: Vec<_> = (0..3).map(|_| fleet.send(vm, request.clone())).collect();
        assert_eq!(fleet.in_flight_total(), if placed { 3 } else { 0 });
        exchanges.into_iter().for_each(&end);
        assert_eq!(fleet.in_flight_total(), 0);
        assert_eq!(fleet.vm(vm).open_exchanges(), 0);
    }
}

fn answered(mut exchange: Exchange, response: Response) -> Exchange {
    exchange.respond(response).unwrap();
    exchange
}

#[test]
fn a_normal_end() {
    check(chat("a"), true, |exchange| {
        let engine = first(&exchange);
        answered(exchange, Response::from_engine(200, &engine).empty()).finish().unwrap();
    });
}

#[test]
fn the_end_of_a_stream() {
    check(chat("a"), true, |exchange| {
        let engine = first(&exchange);
        let mut exchange = answered(exchange, Response::from_engine(200, &engine));
        for chunk in 0..100 {
            exchange.response_body("data: {}\n\n", chunk == 99).unwrap();
        }
        exchange.finish().unwrap();
    });
}

#[test]
fn an_abort_while_the_body_is_awaited() {
    check(Request::new("POST", "/v1/chat/completions").unfinished(), false, |exchange| {
        exchange.abort().unwrap();
    });
}

#[test]
fn an_abort_in_the_middle_of_the_body() {
    let body = chat_body("never finished");
    let request = Request::new("POST", "/v1/chat/completions").chunk(&body[..20]).unfinished();
    check(request, false, |exchange| {
        assert_eq!(exchange.decision(), Decision::Paused);
        exchange.abort().unwrap();
    });
}

#[test]
fn an_abort_before_and_after_the_response() {
    check(chat("a"), true, |exchange| {
        exchange.abort().unwrap();
    });
    check(chat("a"), true, |exchange| {
        let engine = first(&exchange);
        let mut exchange = answered(exchange, Response::from_engine(200, &engine));
        exchange.response_body("data: {}\n\n", false).unwrap();
        exchange.abort().unwrap();
    });
}

#[test]
fn answers_of_the_proxy_itself() {
    for (status, details) in [
        (503, "no_healthy_upstream"),
        (503, "upstream_reset_before_response_started{connection_termination}"),
        (504, "response_timeout"),
    ] {
        check(chat("a"), true, |exchange| {
            answered(exchange, Response::from_proxy(status, details).attempts(1)).finish().unwrap();
        });
    }
    let held = Request::new("POST", "/v1/chat/completions").chunk("{").unfinished();
    check(held, false, |exchange| {
        answered(exchange, Response::from_proxy(413, "request_payload_too_large")).finish().unwrap();
    });
}

#[test]
fn retries_that_end_at_another_worker_or_at_none_we_know() {
    check(chat("a"), true, |exchange| {
        let destination = exchange.destination().unwrap();
        let third = destination.split(',').nth(2).unwrap();
        answered(exchange, Response::from_engine(200, third).attempts(3)).finish().unwrap();
    });
    check(chat("a"), true, |exchange| {
        answered(exchange, Response::from_engine(200, "192.0.2.1:1")).finish().unwrap();
    });
}

#[test]
fn an_answer_of_the_filter() {
    let workers = json!([{"url": worker_url(0), "models": ["x"]}, {"url": worker_url(1), "models": ["y"]}]);
    let fleet = Fleet::new(1, 0, json!({"workers": workers}));
    let exchange = fleet.send(0, chat("a"));
    assert!(matches!(exchange.decision(), Decision::LocalReply(_)));
    exchange.finish().unwrap();
    assert_eq!((fleet.in_flight_total(), fleet.vm(0).open_exchanges()), (0, 0));
}

#[test]
fn many_interleaved_exchanges_of_all_kinds() {
    let fleet = Fleet::new(4, 5, json!({}));
    let mut open: Vec<Exchange> = Vec::new();
    for number in 0..400 {
        open.push(fleet.send(number % 4, chat(&prompt(number % 37, 300 + number))));
        if number % 3 != 0 {
            let exchange = open.swap_remove(number * 7 % open.len());
            match number % 5 {
                0 => exchange.abort().unwrap(),
                1 => answered(exchange, Response::from_proxy(504, "response_timeout").attempts(2)).finish().unwrap(),
                _ => {
                    let engine = first(&exchange);
                    answered(exchange, Response::from_engine(200, &engine)).finish().unwrap()
                }
            };
        }
    }
    assert_eq!(fleet.in_flight_total(), open.len() as u64);
    for exchange in open {
        exchange.finish().unwrap();
    }
    assert_eq!(fleet.in_flight_total(), 0);
}
