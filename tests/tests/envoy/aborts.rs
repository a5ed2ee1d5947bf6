//! However a request ends, it is counted up once and down once.

use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Worker, eventually};
use testbed::fake_engine::{EngineOptions, FakeEngine, Fault};

use crate::gate::{Gate, HOLD};
use crate::support::{CHAT, Dead, Held, SOON, chat, counts_become, no_vm_was_lost, post, settles};
use crate::wire::{Http2, Raw, chat_head};

/// Two well-behaved engines with the model `m`, one with the model `faulty` that is told what to do wrong, none alive
/// with the model `dead`. Two streams stay open throughout, so that a count too low would show.
struct Bed {
    envoy: Envoy,
    gates: [Gate; 2],
    faulty: FakeEngine,
    _dead: Dead,
    open: Vec<Held>,
}

impl Bed {
    async fn start() -> Self {
        let gates = [Gate::start().await, Gate::start().await];
        let faulty = FakeEngine::start(EngineOptions::instant());
        let dead = Dead::new();
        let worker = |address, model: &str| Worker::at(address).with("model_ids", json!([model]));
        let mut workers: Vec<_> = gates.iter().map(|gate| worker(gate.address(), "m")).collect();
        workers.push(worker(faulty.address().parse().unwrap(), "faulty"));
        workers.push(worker(dead.address, "dead"));
        let options = EnvoyOptions {
            workers,
            // Above what Envoy holds, so that a large body is refused while the filter still waits for its end.
            plugin: json!({ "max_buffered_request_bytes": 64 << 20, "cb_failure_threshold": 3 }),
            routes: vec![
                variant("once", "0s", None),
                variant("impatient", "0.3s", None),
                variant("small", "0s", Some(1 << 20)),
            ],
            ..EnvoyOptions::default()
        };
        let envoy = Envoy::start(options).await.unwrap();
        let open = vec![Held::start(&envoy, "m", "One").await, Held::start(&envoy, "m", "Another").await];
        Self { envoy, gates, faulty, _dead: dead, open }
    }

    /// Checks that only the streams which stay open are in flight after `what`.
    async fn settles(&self, what: &str) {
        settles(&self.envoy, self.open.len() as u64, "m", what).await;
    }

    /// Waits until Envoy has so many requests under way beside those that stay open.
    async fn under_way(&self, number: u64) {
        let wanted = self.open.len() as u64 + number;
        eventually(SOON, "Envoy has the request", async || {
            self.envoy.stat("http.routing.downstream_rq_active").await == wanted
        })
        .await;
    }

    /// Sends a request for `model` and waits for the whole answer.
    async fn status(&self, model: &str, headers: &[(&str, &str)]) -> StatusCode {
        let mut connection = self.envoy.connect().await;
        connection.send(post(chat(model, "Well?"), headers)).await.unwrap().status
    }
}

/// The route to the engines for requests with the header `x-route: name`: no retries, and these limits.
fn variant(name: &str, timeout: &str, body: Option<u32>) -> Value {
    json!({
        "match": { "prefix": "/", "headers": [{ "name": "x-route", "string_match": { "exact": name } }] },
        "request_body_buffer_limit": body,
        "route": { "cluster": "engines", "timeout": timeout },
    })
}

#[tokio::test]
async fn requests_that_end_well_are_counted_once() {
    let bed = Bed::start().await;
    assert_eq!(bed.status("m", &[]).await, 200);
    bed.settles("a whole answer").await;

    let mut http2 = Http2::open(bed.envoy.address()).await;
    let mut stream = http2.start(&[]).await;
    stream.send(chat("m", "With trailers"));
    stream.end_with_trailers();
    let (status, piece) = stream.first_piece().await;
    assert_eq!(status, 200);
    assert!(bed.gates.iter().any(|gate| piece == gate.address().to_string()));
    bed.settles("an HTTP/2 request with trailers").await;

    let mut large = bed.envoy.connect().await;
    let body = chat("m", &"x".repeat(900_000));
    assert_eq!(large.post(CHAT, body).await.unwrap().status, 200);
    bed.settles("a large request").await;

    bed.gates.iter().for_each(Gate::open);
    for held in bed.open {
        assert!(held.finish().await.ends_with(b"[DONE]\n\n"));
    }
    counts_become(&bed.envoy, 0, "streams that end").await;
    no_vm_was_lost(&bed.envoy).await;
}

#[tokio::test]
async fn requests_that_their_client_breaks_off_are_counted_down() {
    let bed = Bed::start().await;
    let address = bed.envoy.address();

    drop(Raw::sending(address, format!("POST {CHAT} HTTP/1.1\r\nhost: te")).await);
    bed.settles("half a head").await;

    for reset in [false, true] {
        let mut raw = Raw::sending(address, chat_head("content-length: 1000\r\n")).await;
        raw.send("{\"model\": \"m\", ").await;
        bed.under_way(1).await;
        if reset {
            raw.reset()
        } else {
            drop(raw)
        }
        bed.under_way(0).await;
        bed.settles("half a body").await;

        let body = chat("m", "Held before the head of the answer");
        let head = chat_head(&format!("{HOLD}: head\r\ncontent-length: {}\r\n", body.len()));
        let mut raw = Raw::sending(address, head).await;
        raw.send(body).await;
        counts_become(&bed.envoy, 3, "an engine has the request").await;
        if reset {
            raw.reset()
        } else {
            drop(raw)
        }
        bed.settles("no answer yet").await;
    }

    let held = Held::start(&bed.envoy, "m", "To be left in mid-stream").await;
    counts_become(&bed.envoy, 3, "the answer has begun").await;
    drop(held);
    bed.settles("an answer in mid-stream").await;

    let mut http2 = Http2::open(address).await;
    let mut on_body = http2.start(&[]).await;
    on_body.send("{\"model\": \"m\", ");
    bed.under_way(1).await;
    on_body.reset();
    bed.under_way(0).await;
    bed.settles("an HTTP/2 stream that is reset in its body").await;

    let mut on_answer = http2.start(&[(HOLD, "body")]).await;
    on_answer.send(chat("m", "To be reset"));
    on_answer.end_with_trailers();
    assert_eq!(on_answer.first_piece().await.0, 200);
    counts_become(&bed.envoy, 3, "the answer has begun").await;
    on_answer.reset();
    bed.settles("an HTTP/2 stream that is reset in its answer").await;
    // The connection is still good.
    let mut next = http2.start(&[]).await;
    next.send(chat("m", "Next"));
    next.end_with_trailers();
    assert_eq!(next.first_piece().await.0, 200);

    // Everybody leaves at once.
    let crowd = futures_util::future::join_all((0..50).map(|_| Held::start(&bed.envoy, "m", "We leave"))).await;
    counts_become(&bed.envoy, 52, "a crowd").await;
    drop(crowd);
    bed.settles("a crowd that leaves").await;
    no_vm_was_lost(&bed.envoy).await;
}

#[tokio::test]
async fn requests_that_an_engine_breaks_off_are_counted_down() {
    let bed = Bed::start().await;

    // All attempts fail: five of them, the engine being the only one of its pool.
    bed.faulty.fault(Fault::Reset);
    assert_eq!(bed.status("faulty", &[]).await, 503);
    assert_eq!(bed.faulty.stats().requests, 5);
    bed.settles("resets before the head, with retries").await;
    bed.faulty.clear_faults();

    bed.faulty.fault_next(1, Fault::Reset);
    assert_eq!(bed.status("faulty", &[("x-route", "once")]).await, 503);
    bed.settles("a reset before the head").await;

    bed.faulty.fault_next(1, Fault::Reset);
    assert_eq!(bed.status("faulty", &[]).await, 200);
    bed.settles("a reset, and an answer at the second attempt").await;

    for fault in [Fault::ResetStream { after_chunks: 1 }, Fault::CloseStream { after_chunks: 1 }] {
        bed.faulty.fault_next(1, fault.clone());
        let body = json!({ "model": "faulty", "stream": true, "messages": [{ "role": "user", "content": "x" }] });
        let reply = bed.envoy.connect().await.post(CHAT, body.to_string()).await;
        assert!(reply.is_err(), "{reply:?}");
        bed.settles(&format!("{fault:?}")).await;
    }

    bed.faulty.fault_next(1, Fault::Stall);
    assert_eq!(bed.status("faulty", &[("x-route", "impatient")]).await, 504);
    bed.settles("a route's timeout").await;

    bed.faulty.fault_next(1, Fault::StallStream { after_chunks: 1 });
    let body = json!({ "model": "faulty", "stream": true, "messages": [{ "role": "user", "content": "x" }] });
    let request = post(body.to_string(), &[("x-route", "impatient")]);
    let reply = bed.envoy.connect().await.send(request).await;
    assert!(reply.is_err(), "{reply:?}");
    bed.settles("a route's timeout in mid-stream").await;
    no_vm_was_lost(&bed.envoy).await;
}

#[tokio::test]
async fn requests_that_no_engine_sees_are_not_counted() {
    let bed = Bed::start().await;
    let mut connection = bed.envoy.connect().await;

    let reply = connection.post(CHAT, chat("nobody's", "Well?")).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("x-smg-error-code")), (404, Some("model_not_found")));
    let error: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(error["error"]["message"], "No worker available for model 'nobody's'");
    assert_eq!(error["error"]["type"], "invalid_request_error");
    bed.settles("an unknown model").await;

    let too_large = chat("m", &"x".repeat(8 << 20));
    let head = chat_head(&format!("x-route: small\r\ncontent-length: {}\r\n", too_large.len()));
    let mut raw = Raw::sending(bed.envoy.address(), head).await;
    raw.send(too_large).await;
    assert_eq!(raw.status().await, Some(413));
    bed.settles("a body above what Envoy holds").await;

    // Nobody listens there: three requests open the breaker.
    for _ in 0..3 {
        let reply = connection.post(CHAT, chat("dead", "Well?")).await.unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header("x-smg-error-code"), None, "this one is Envoy's answer");
    }
    let reply = connection.post(CHAT, chat("dead", "Well?")).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("x-smg-error-code")), (503, Some("no_available_workers")));
    assert_eq!(reply.header("retry-after"), Some("1"));
    bed.settles("a fleet that is down").await;

    let reply = connection.get("/v1/models").await.unwrap();
    let models: Value = serde_json::from_slice(&reply.body).unwrap();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["dead", "faulty", "m"]);
    bed.settles("the list of models").await;
    no_vm_was_lost(&bed.envoy).await;
}
