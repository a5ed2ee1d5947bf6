//! An engine that holds its answers open until it is told: what is in flight is then known exactly.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

use crate::upstream::Upstream;

/// Request header: `head` holds the whole answer, `body` everything after the first piece of the body.
pub const HOLD: &str = "x-hold";
/// What a held body begins with.
pub const FIRST_PIECE: &[u8] = b"data: first\n\n";
/// What [`Gate::pulse`] sends.
pub const NEXT_PIECE: &[u8] = b"data: next\n\n";
const LAST_PIECE: &[u8] = b"data: [DONE]\n\n";

/// See the module. Requests without [`HOLD`] are answered at once, with the engine's address.
pub struct Gate {
    upstream: Upstream,
    shared: Arc<Shared>,
}

/// A request that has reached the engine, its body read to the end.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub path: String,
    pub headers: HeaderMap,
    pub bytes: usize,
}

impl Arrival {
    /// The list of hosts that the filter named.
    pub fn destination(&self) -> &str {
        self.headers.get("x-gateway-destination-endpoint").and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// What held answers wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Stage {
    open: bool,
    pulses: u64,
}

struct Shared {
    name: Mutex<String>,
    arrivals: Mutex<Vec<Arrival>>,
    stage: watch::Sender<Stage>,
}

impl Gate {
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        // Thousands of connections at once must not meet a full queue.
        Self::on(socket.listen(4096).unwrap())
    }

    pub fn on(listener: TcpListener) -> Self {
        let shared =
            Arc::new(Shared { name: Mutex::default(), arrivals: Mutex::default(), stage: watch::Sender::default() });
        let router = Router::new().fallback(answer).layer(DefaultBodyLimit::disable()).with_state(Arc::clone(&shared));
        let upstream = Upstream::on(listener, router);
        *shared.name.lock().unwrap_or_else(PoisonError::into_inner) = upstream.address.to_string();
        Self { upstream, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.upstream.address
    }

    /// What has arrived so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of [`Gate::arrivals`].
    pub fn arrived(&self) -> usize {
        self.shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Lets every held answer go, and holds none any more.
    pub fn open(&self) {
        self.shared.stage.send_modify(|stage| stage.open = true);
    }

    /// Sends one more piece of every held body.
    pub fn pulse(&self) {
        self.shared.stage.send_modify(|stage| stage.pulses += 1);
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else { return "the body broke off".into_response() };
    let hold = head.headers.get(HOLD).map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    let arrival = Arrival { path: head.uri.path().to_owned(), headers: head.headers, bytes: body.len() };
    shared.arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
    let name = shared.name.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut stage = shared.stage.subscribe();
    match hold.as_slice() {
        b"head" => {
            // An error means that the engine is gone, and this connection with it.
            let _ = stage.wait_for(|stage| stage.open).await;
            name.into_response()
        }
        b"body" => {
            let seen = Some(stage.borrow().pulses);
            let rest = stream::unfold((stage, seen), |(mut stage, seen)| async move {
                let seen = seen?;
                // An error means that the engine is gone, and this connection with it.
                let now = stage.wait_for(|stage| stage.open || stage.pulses > seen).await.map(|stage| *stage).ok()?;
                match now.pulses > seen {
                    true => Some((Ok(Bytes::from_static(NEXT_PIECE)), (stage, Some(seen + 1)))),
                    false => Some((Ok(Bytes::from_static(LAST_PIECE)), (stage, None))),
                }
            });
            let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(FIRST_PIECE))]);
            let body = Body::from_stream(first.chain(rest));
            ([("content-type", "text/event-stream"), ("x-engine", &name)], body).into_response()
        }
        _ => name.into_response(),
    }
}
