//! What is no inference request passes untouched, to the fleet and to other clusters through the same listener.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt, stream};
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Filter, Worker, plain_cluster, prefix_route};
use testbed::fake_engine::{EngineOptions, FakeEngine};
use tokio_tungstenite::tungstenite::Message;

use crate::gate::Gate;
use crate::support::{CHAT, DESTINATION, WORKER_ID, chat, counts_become, no_vm_was_lost, post};

const MIB: usize = 1 << 20;

/// A fleet of two, and a cluster of another kind that `/other…` and what has the header `x-other` go to.
struct Bed {
    envoy: Envoy,
    fleet: [FakeEngine; 2],
    other: FakeEngine,
}

impl Bed {
    async fn start() -> Self {
        let engine = |name: &str| FakeEngine::start(EngineOptions::instant().named(name));
        let (fleet, other) = ([engine("a"), engine("b")], engine("other"));
        let addresses = fleet.each_ref().map(|engine| engine.address().parse().unwrap());
        let mut by_header = prefix_route("/", "other");
        by_header["match"]["headers"] = json!([{ "name": "x-other", "present_match": true }]);
        let options = EnvoyOptions {
            workers: vec![
                Worker::at(addresses[0]).with("model_ids", json!(["big", "small"])),
                Worker::at(addresses[1]).with("model_ids", json!(["small"])),
            ],
            routes: vec![by_header],
            clusters: vec![plain_cluster("other", &[other.address().parse().unwrap()])],
            ..EnvoyOptions::default()
        };
        Self { envoy: Envoy::start(options).await.unwrap(), fleet, other }
    }

    /// The engines that may serve: the other cluster's or the fleet's.
    fn of(&self, other: bool) -> Vec<&FakeEngine> {
        if other { vec![&self.other] } else { self.fleet.iter().collect() }
    }
}

fn request(other: bool) -> http::request::Builder {
    let builder = Request::builder();
    if other { builder.header("x-other", "1") } else { builder }
}

#[tokio::test]
async fn websockets_echo() {
    let bed = Bed::start().await;
    for other in [true, false] {
        let handshake = request(other)
            .uri(format!("ws://{}/ws", bed.envoy.address()))
            .header("host", "test")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", tokio_tungstenite::tungstenite::handshake::client::generate_key());
        let (mut socket, answer) = tokio_tungstenite::connect_async(handshake.body(()).unwrap()).await.unwrap();
        let engine = answer.headers()["x-engine"].to_str().unwrap().to_owned();
        assert!(bed.of(other).iter().any(|of| of.name() == engine), "{engine}");
        for text in ["one", "two", "three"] {
            socket.send(Message::text(text)).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::text(text));
        }
        if !other {
            counts_become(&bed.envoy, 1, "an open WebSocket").await;
        }
        socket.close(None).await.unwrap();
        drop(socket);
        counts_become(&bed.envoy, 0, "a closed WebSocket").await;
    }
    no_vm_was_lost(&bed.envoy).await;
}

#[tokio::test]
async fn gets_and_preflights_pass() {
    let bed = Bed::start().await;
    let mut connection = bed.envoy.connect().await;
    for other in [true, false] {
        let mut send = async |method: Method, path: &str| {
            let request = request(other).method(method).uri(path).header("origin", "http://a.test");
            let reply = connection.send(request.body(Full::default()).unwrap()).await.unwrap();
            let engine = reply.header("x-engine").unwrap_or_default();
            assert!(bed.of(other).iter().any(|of| of.name() == engine), "{path} was answered by {engine:?}");
            assert_eq!(reply.header(WORKER_ID).is_some(), !other, "{path}");
            reply
        };
        let events = send(Method::GET, "/events").await;
        assert_eq!(events.header("content-type"), Some("text/event-stream"));
        assert_eq!(events.text(), "event: tick\ndata: 0\n\nevent: tick\ndata: 1\n\nevent: tick\ndata: 2\n\n");
        for path in [CHAT, "/generate", "/anything"] {
            let preflight = send(Method::OPTIONS, path).await;
            assert_eq!(preflight.status, 204);
            assert_eq!(preflight.header("access-control-allow-origin"), Some("*"));
        }
        assert_eq!(send(Method::GET, "/health").await.status, 200);
        assert_eq!(send(Method::GET, "/nothing").await.status, 404);
    }
    let polls: u64 = bed.fleet.iter().map(|engine| engine.stats().health_polls).sum();
    assert_eq!((polls, bed.other.stats().health_polls), (1, 1));
    counts_become(&bed.envoy, 0, "at the end").await;
}

#[tokio::test]
async fn the_models_are_the_fleets() {
    let bed = Bed::start().await;
    let mut connection = bed.envoy.connect().await;
    let reply = connection.get("/v1/models").await.unwrap();
    let models: Value = serde_json::from_slice(&reply.body).unwrap();
    let ids: Vec<_> = models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((reply.status.as_u16(), ids), (200, vec!["big", "small"]));
    assert!(bed.fleet.iter().all(|engine| engine.stats().other_requests == 0));

    let request = request(true).uri("/v1/models").body(Full::default()).unwrap();
    let reply = connection.send(request).await.unwrap();
    assert!(reply.text().contains("fake-model"), "the other cluster's own: {}", reply.text());
}

#[tokio::test]
async fn uploads_of_50_mib_stream_through() {
    let bed = Bed::start().await;
    let client = reqwest::Client::new();
    for other in [true, false] {
        let pieces = stream::iter((0..50).map(|number| Ok::<_, std::io::Error>(Bytes::from(vec![number; MIB]))));
        let mut upload = client.post(bed.envoy.url() + "/upload").body(reqwest::Body::wrap_stream(pieces));
        if other {
            upload = upload.header("x-other", "1");
        }
        let answer = upload.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        assert_eq!(answer["bytes"], 50 * MIB);
        let taken: Vec<_> = bed.of(other).iter().map(|engine| engine.stats().uploaded_bytes).collect();
        assert_eq!(taken.iter().sum::<u64>(), 50 * MIB as u64);
    }
    // A chat body for another cluster is not held either.
    let body = chat("m", &"x".repeat(20 * MIB));
    let reply = bed.envoy.connect().await.send(post(body, &[("x-other", "1")])).await.unwrap();
    assert_eq!(reply.status, 200);
    assert_eq!(bed.other.stats().requests, 1);
    counts_become(&bed.envoy, 0, "at the end").await;
    assert_eq!(bed.envoy.stat("http.routing.downstream_rq_too_large").await, 0);
}

#[tokio::test]
async fn a_client_cannot_choose_its_endpoint() {
    for filter in [Filter::Built, Filter::Absent] {
        let gates = [Gate::start().await, Gate::start().await, Gate::start().await];
        let present = filter == Filter::Built;
        let options = EnvoyOptions {
            filter,
            plugin: json!({ "policy": "round_robin" }),
            clusters: vec![plain_cluster("other", &[gates[0].address()])],
            routes: vec![prefix_route("/other", "other")],
            ..EnvoyOptions::with_workers(gates.each_ref().map(Gate::address))
        };
        let envoy = Envoy::start(options).await.unwrap();
        let mut connection = envoy.connect().await;
        let wished = gates[2].address().to_string();
        for number in 0..30 {
            let request = post(chat("m", &number.to_string()), &[(DESTINATION, &wished)]);
            assert_eq!(connection.send(request).await.unwrap().status, 200);
        }
        let arrived = gates.each_ref().map(Gate::arrived);
        assert!(arrived.iter().all(|number| (1..30).contains(number)), "{arrived:?}");
        if present {
            assert_eq!(arrived, [10; 3]);
        }
        let all = gates.iter().flat_map(Gate::arrivals);
        assert!(all.clone().all(|arrival| arrival.destination() != wished));
        assert!(all.clone().all(|arrival| arrival.destination().is_empty() != present));

        let elsewhere = Request::post("/other").header(DESTINATION, &wished).body(Full::default()).unwrap();
        assert_eq!(connection.send(elsewhere).await.unwrap().status, 200);
        let last = gates[0].arrivals().pop().unwrap();
        assert_eq!((&*last.path, last.destination()), ("/other", ""));
    }
}
