//! No input kills the module: bodies, headers, properties, and a host that refuses.

use serde_json::json;
use testbed::wasm::{Access, Decision, Request, Response, Status};

use crate::fleet::{Fleet, chat, chat_body, first};

/// Every request must be routed or answered with less than 500, and leave nothing in flight.
#[track_caller]
fn survives(fleet: &Fleet, what: &str, request: Request) {
    let exchange = fleet.send(0, request);
    match exchange.decision() {
        Decision::LocalReply(reply) => assert!(reply.status < 500, "{what}: {reply:?}"),
        Decision::Continued => {}
        Decision::Paused => panic!("{what}: still held"),
    }
    exchange.finish().unwrap_or_else(|error| panic!("{what}: {error}"));
}

#[test]
fn hostile_bodies() {
    let fleet = Fleet::new(1, 3, json!({}));
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
    let content = |value: &str| format!(r#"{{"model":"m","messages":[{{"role":"user","content":{value}}}]}}"#);
    let long = chat_body(&"é\\\"".repeat(1_000_000));
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("not JSON", b"hello".to_vec()),
        ("not UTF-8", b"{\"model\":\"\xff\xfe\",\"messages\":[{\"content\":\"\xc3\x28\"}]}".to_vec()),
        ("cut", chat_body("hello")[..30].into()),
        ("cut in an escape", br#"{"messages":[{"content":"a\u12"#.to_vec()),
        ("lone surrogates", content(r#""\ud800 \udc00 \ud83d""#).into()),
        ("NUL", content("\"a\\u0000b\0c\"").into()),
        ("arrays within arrays", deep("[", "]").into()),
        ("objects within objects", deep("{\"a\":", "}").into()),
        ("deep content", content(&deep("[", "]")).into()),
        ("numbers for text", br#"{"model":1,"messages":2,"prompt":3,"text":4}"#.to_vec()),
        ("null everywhere", br#"{"model":null,"messages":[null,{"content":null},{"content":[null]}]}"#.to_vec()),
        ("duplicate members", br#"{"model":"a","model":7,"messages":[],"messages":"x"}"#.to_vec()),
        ("huge numbers", br#"{"model":"m","prompt":[1e999,-1,99999999999999999999]}"#.to_vec()),
        ("two documents", br#"{"model":"m"}{"model":"n"}"#.to_vec()),
        ("white space", vec![b' '; 100_000]),
        ("long model", format!(r#"{{"model":"{}"}}"#, "m".repeat(300_000)).into()),
        ("megabytes", long.into()),
    ];
    for (what, body) in &bodies {
        for path in ["/v1/chat/completions", "/v1/completions", "/generate", "/v1/embeddings", "/v1/responses"] {
            survives(&fleet, &format!("{what} on {path}"), Request::post(path, body));
        }
        survives(&fleet, &format!("{what} in pieces"), Request::post("/v1/chat/completions", body).cut(65_537));
    }
    assert_eq!(fleet.in_flight_total(), 0);
}

#[test]
fn hostile_headers() {
    let fleet = Fleet::new(1, 3, json!({"clusters": ["engines"], "route_metadata": true}));
    let huge = vec![b'k'; 60_000];
    let values: [&[u8]; 7] = [b"", b"\xff\xfe", b"1,2,x,,-3,99999999999999999999", b",", b"\0", &huge, "é".as_bytes()];
    let names = [
        "x-smg-routing-key",
        "x-smg-routing-tokens",
        "x-smg-target-worker",
        "content-length",
        "content-type",
        "upgrade",
        "x-smg-routed-worker-id",
        "x-smg-error-code",
        ":path",
        ":method",
        ":authority",
    ];
    for name in names {
        for value in values {
            let request = chat("hello").without(name).header(name, value);
            survives(&fleet, &format!("{name}: {:?}", value.escape_ascii().to_string()), request);
        }
    }
    survives(&fleet, "no headers at all", Request::get("/").without(":path").without(":method").without(":authority"));
    survives(&fleet, "empty cluster", chat("a").property(&["xds", "cluster_name"], b"\xff"));
    let path = ["xds", "route_metadata", "filter_metadata", "smg", "enabled"];
    survives(&fleet, "odd metadata", chat("a").property(&["xds", "cluster_name"], "b").property(&path, b"\xff\xff"));
    assert_eq!(fleet.in_flight_total(), 0);
}

#[test]
fn hostile_responses() {
    let fleet = Fleet::new(1, 2, json!({}));
    let responses = [
        Response::from_engine(0, "\u{fffd}"),
        Response::from_engine(999, "not an address"),
        Response::from_engine(200, "").attempts(u64::MAX),
        Response::from_engine(200, "10.0.0.1:8000").attempts(0).header("x-smg-routed-worker-id", b"\xff"),
        Response::from_proxy(503, "").header(":status", b"\xff"),
    ];
    for response in responses {
        let mut exchange = fleet.send(0, chat("hello"));
        exchange.respond(response).unwrap();
        exchange.finish().unwrap();
    }
    assert_eq!(fleet.in_flight_total(), 0);
}

#[test]
fn a_store_that_refuses_everything_costs_the_choice_and_nothing_else() {
    for status in [Status::InternalFailure, Status::BadArgument, Status::NotFound, Status::Unimplemented] {
        let fleet = Fleet::new(1, 3, json!({}));
        let held = fleet.send(0, chat("before"));
        fleet.process.intercept(move |_: &Access<'_>, _| Some(status));
        let exchange = fleet.send(0, chat("meanwhile"));
        assert_eq!(exchange.decision(), Decision::Continued, "{status:?}");
        exchange.finish().unwrap();
        held.finish().unwrap();
        fleet.process.stop_intercepting();
        let mut after = fleet.send(0, chat("after"));
        let engine = first(&after);
        after.respond(Response::from_engine(200, &engine)).unwrap();
        after.finish().unwrap();
        assert_eq!(fleet.in_flight_total(), 0, "{status:?}");
    }
}
