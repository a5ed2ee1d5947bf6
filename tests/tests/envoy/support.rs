//! What several tests do: requests that are held, and the two counts of what is in flight.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::json;
use testbed::envoy::{Connection, Envoy, eventually};
use tokio::net::TcpSocket;

use crate::gate::{FIRST_PIECE, HOLD};

/// Long enough for a machine that does many other things as well.
pub const SOON: Duration = Duration::from_secs(60);

/// An address to listen on later, and again. Its port can be lost to no connection that is made meanwhile: those to
/// 127.0.0.1 and its neighbours begin at 127.0.0.1.
pub fn address_for_later() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap()
}

pub const CHAT: &str = "/v1/chat/completions";
pub const WORKER_ID: &str = "x-smg-routed-worker-id";
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// A chat request's body.
pub fn chat(model: &str, text: &str) -> Bytes {
    json!({ "model": model, "messages": [{ "role": "user", "content": text }] }).to_string().into()
}

/// A chat request.
pub fn post(body: impl Into<Bytes>, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::post(CHAT).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).unwrap()
}

/// A chat request under way whose answer an engine of kind `Gate` holds after the first piece.
#[derive(Debug)]
pub struct Held {
    // The connection is closed with it.
    _connection: Connection,
    answer: Response<Incoming>,
}

impl Held {
    /// Sends the request and waits for the first piece of the answer.
    pub async fn start(envoy: &Envoy, model: &str, text: &str) -> Self {
        Self::start_with(envoy, post(chat(model, text), &[(HOLD, "body")])).await
    }

    /// The same with a request of the caller's, which has the header that makes the engine hold the body.
    pub async fn start_with(envoy: &Envoy, request: Request<Full<Bytes>>) -> Self {
        let mut connection = envoy.connect().await;
        let mut answer = connection.start(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.frame().await.unwrap().unwrap().into_data().unwrap(), FIRST_PIECE);
        Self { _connection: connection, answer }
    }

    /// Reads the answer to its end.
    pub async fn finish(self) -> Bytes {
        self.answer.into_body().collect().await.unwrap().to_bytes()
    }
}

/// Requests in flight as the filter counts them. The gauges are set on ticks.
pub async fn counted(envoy: &Envoy) -> f64 {
    envoy.metrics().await.sum("smg_worker_requests_active", &[])
}

/// Waits until the filter's count and Envoy's of the cluster `engines` are both `number`.
pub async fn counts_become(envoy: &Envoy, number: u64, what: &str) {
    let what = format!("{what}: the filter and Envoy count {number} in flight");
    let mut seen = (0.0, 0);
    let deadline = std::time::Instant::now() + SOON;
    eventually(SOON + Duration::from_secs(1), &what, async || {
        seen = (counted(envoy).await, envoy.upstream_rq_active("engines").await);
        let late = std::time::Instant::now() > deadline;
        assert!(!late || seen == (number as f64, number), "{what}, but they count {seen:?}");
        seen == (number as f64, number)
    })
    .await;
}

/// Checks that exactly `held` requests are in flight by both counts. A gauge can be as old as a tick, so it is seen to
/// go up by one more request and down again: a count that was one too high or too low could not do both.
pub async fn settles(envoy: &Envoy, held: u64, model: &str, what: &str) {
    let probe = Held::start(envoy, model, "Is anything still under way?").await;
    counts_become(envoy, held + 1, what).await;
    drop(probe);
    counts_become(envoy, held, what).await;
}

/// Checks that no thread has lost its VM.
pub async fn no_vm_was_lost(envoy: &Envoy) {
    let stats = envoy.admin().get("/stats?filter=vm_reload").await.unwrap();
    let reloads: Vec<_> = stats.lines().filter(|line| line.starts_with("wasm.")).collect();
    assert!(!reloads.is_empty(), "Envoy has other names for its counters:\n{stats}");
    assert!(reloads.iter().all(|line| line.ends_with(": 0")), "{reloads:?}\n{}", envoy.log());
}

/// An address that refuses connections, and that nobody else is given, until [`Dead::revive`].
#[derive(Debug)]
pub struct Dead {
    socket: TcpSocket,
    pub address: SocketAddr,
}

impl Dead {
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        Self { socket, address }
    }

    /// Takes connections from now on.
    pub fn revive(self) -> tokio::net::TcpListener {
        self.socket.listen(1024).unwrap()
    }
}
