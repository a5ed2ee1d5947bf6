//! What the filter does with single requests: hold, place, answer, mark the response.

use serde_json::{Value, json};
use testbed::wasm::{DESTINATION, Decision, Process, Request, Response, VmError, filter_wasm};

use crate::fleet::{Fleet, chat, chat_body, first, worker_address, worker_url};

#[test]
fn a_request_is_held_until_its_body_has_ended_and_then_gets_its_endpoints() {
    let fleet = Fleet::new(1, 3, json!({"max_attempts": 4}));
    let body = chat_body("hello").into_bytes();
    let mut exchange = fleet.send(0, Request::new("POST", "/v1/chat/completions").unfinished());
    let (start, rest) = body.split_at(10);
    exchange.push(start, false).unwrap();
    assert_eq!((exchange.decision(), exchange.destination()), (Decision::Paused, None));
    exchange.push(rest, true).unwrap();
    assert_eq!(exchange.decision(), Decision::Continued);
    assert_eq!(exchange.forwarded(), body);
    let destination = exchange.destination().unwrap();
    let named: Vec<_> = destination.split(',').collect();
    assert_eq!(named.len(), 4);
    assert!(named.iter().all(|name| (0..3).any(|index| worker_address(index) == *name)), "{named:?}");
}

#[test]
fn trailers_and_late_ends_place_a_request_too() {
    let fleet = Fleet::new(1, 2, json!({}));
    for request in [chat("a").trailer("x-t", "1"), chat("b").end_apart(), chat("c").cut(3), chat("d").cut(1).http2()] {
        let exchange = fleet.send(0, request);
        assert_eq!(exchange.decision(), Decision::Continued);
        assert!(exchange.destination().is_some());
        exchange.finish().unwrap();
    }
}

#[test]
fn what_is_no_inference_request_is_placed_on_its_headers() {
    let fleet = Fleet::new(1, 2, json!({}));
    let requests = [
        Request::get("/health"),
        Request::new("OPTIONS", "/v1/chat/completions"),
        Request::post("/v1/files", "…").unfinished(),
        Request::get("/ws").header("upgrade", "websocket").unfinished(),
    ];
    for request in requests {
        let exchange = fleet.send(0, request);
        assert_eq!(exchange.decision(), Decision::Continued);
        assert!(exchange.destination().is_some());
        exchange.finish().unwrap();
    }
}

#[test]
fn other_clusters_are_left_alone_but_for_the_clients_own_destination() {
    let fleet = Fleet::new(1, 2, json!({"clusters": ["engines"]}));
    let request = chat("x").header(DESTINATION, "10.9.9.9:1").property(&["xds", "cluster_name"], "web");
    let exchange = fleet.send(0, request);
    assert_eq!((exchange.decision(), exchange.destination()), (Decision::Continued, None));
    let request = chat("x").header(DESTINATION, "10.9.9.9:1");
    assert_ne!(first(&fleet.send(0, request)), "10.9.9.9:1");
}

#[test]
fn the_response_names_the_worker_that_answered() {
    let fleet = Fleet::new(1, 3, json!({"max_attempts": 2}));
    let mut exchange = fleet.send(0, chat("hello"));
    let destination = exchange.destination().unwrap();
    let second = destination.split(',').nth(1).unwrap();
    let response = Response::from_engine(200, second).attempts(2).header("x-smg-error-code", "forged");
    let answer = exchange.respond(response).unwrap();
    assert_eq!(answer.headers.text("x-smg-routed-worker-id"), Some(format!("http://{second}")));
    assert_eq!(answer.headers.get("x-smg-error-code"), None, "only the gateway speaks with this header");
    exchange.finish().unwrap();
}

#[test]
fn an_unknown_model_is_answered() {
    let workers = json!([{"url": worker_url(0), "models": ["llama"]}, {"url": worker_url(1), "models": ["qwen"]}]);
    let fleet = Fleet::new(1, 0, json!({"workers": workers}));
    let exchange = fleet.send(0, chat("hello"));
    let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
    assert_eq!(reply.status, 404);
    assert_eq!(reply.headers.text("x-smg-error-code").as_deref(), Some("model_not_found"));
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["error"]["code"], "model_not_found");
    exchange.finish().unwrap();

    let models = fleet.send(0, Request::get("/v1/models"));
    let Decision::LocalReply(reply) = models.decision() else { panic!("{:?}", models.decision()) };
    assert_eq!(reply.status, 200);
    let body: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(body["data"].as_array().unwrap().len(), 2);
}

#[test]
fn a_wrong_configuration_is_refused_with_the_key_in_the_log() {
    let vm = Process::new(&filter_wasm()).unwrap().vm();
    let error = vm.configure(r#"{"polcy": "random"}"#).unwrap_err();
    assert!(matches!(error, VmError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("polcy"), "{error}");
    for garbage in [b"\xff\xfe".as_slice(), b"[", b"[]", b"{\"workers\":[\"ftp://x\"]}"] {
        assert!(matches!(vm.configure(garbage), Err(VmError::Refused { .. })));
    }
}
