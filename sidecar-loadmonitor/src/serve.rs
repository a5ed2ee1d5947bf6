//! The sidecar's own HTTP face: for filters that fetch what is known, for people, and for their tools.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use subtle::ConstantTimeEq;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};

use crate::{
    config::ApiKey,
    connections::{self, Bounds},
    metrics,
    push::Envoy,
    registry::Registry,
};

/// So many readers may wait for news at the same time; more are turned away.
const MAX_WAITING: usize = 1024;
/// Nobody waits longer than this for news, in milliseconds.
const MAX_WAIT_MS: u64 = 60_000;
/// Those of [`MAX_WAITING`] are among the connections, and whoever waits when a connection's time is over gets an answer.
const BOUNDS: Bounds = Bounds {
    connections: MAX_WAITING + 256,
    headers: Duration::from_secs(30),
    life: Duration::from_secs(600),
    grace: Duration::from_millis(MAX_WAIT_MS + 30_000),
};
/// A sidecar that does not get to know everything is ready all the same after so long a time.
const READY_AFTER: Duration = Duration::from_secs(30);

/// What the face shows.
pub(crate) struct Face {
    pub(crate) registry: Arc<Registry>,
    token: Option<ApiKey>,
    pub(crate) envoys: Vec<Arc<Envoy>>,
    waiting: Semaphore,
    pub(crate) pulls: Pulls,
}

/// What became of those who asked.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    answered: AtomicU64,
    nothing_new: AtomicU64,
    unauthorized: AtomicU64,
    too_many: AtomicU64,
}

impl Pulls {
    /// How many there were of each kind.
    pub(crate) fn all(&self) -> [(&'static str, u64); 4] {
        [
            ("answered", &self.answered),
            ("nothing_new", &self.nothing_new),
            ("unauthorized", &self.unauthorized),
            ("too_many", &self.too_many),
        ]
        .map(|(outcome, count)| (outcome, count.load(Ordering::Relaxed)))
    }
}

impl Face {
    /// The face of `registry`, and of what is pushed to `envoys`.
    pub(crate) fn new(registry: Arc<Registry>, token: Option<ApiKey>, envoys: Vec<Arc<Envoy>>) -> Arc<Self> {
        Arc::new(Self { registry, token, envoys, waiting: Semaphore::new(MAX_WAITING), pulls: Pulls::default() })
    }
}

/// Serves until it is dropped.
pub(crate) async fn serve(listener: TcpListener, face: Arc<Face>) {
    let open = Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics));
    let guarded = Router::new()
        .route("/v1/snapshot", get(snapshot))
        .route("/workers", get(workers))
        .route("/drain", post(drain))
        .layer(from_fn_with_state(Arc::clone(&face), authorize));
    connections::serve(listener, open.merge(guarded).with_state(face), BOUNDS).await;
}

/// Lets those pass who bring the token, if there is one.
async fn authorize(State(face): State<Arc<Face>>, request: Request, next: Next) -> Response {
    if let Some(token) = &face.token {
        let given = request.headers().get(header::AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        if !bool::from(given.ct_eq(token.header().as_bytes())) {
            face.pulls.unauthorized.fetch_add(1, Ordering::Relaxed);
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            return (StatusCode::UNAUTHORIZED, challenge, "send the token as \"Authorization: Bearer TOKEN\"\n")
                .into_response();
        }
    }
    next.run(request).await
}

async fn readyz(State(face): State<Arc<Face>>) -> (StatusCode, &'static str) {
    match face.registry.is_ready(READY_AFTER) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not all workers have been asked yet\n"),
    }
}

async fn metrics(State(face): State<Arc<Face>>) -> Response {
    match metrics::page(&face) {
        Ok(page) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response(),
        Err(fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[derive(Deserialize)]
struct Taken {
    epoch: Option<u64>,
    sequence: Option<u64>,
    #[serde(default)]
    wait_ms: u64,
}

/// What the reader does not know yet: at once, or as soon as there is anything within the time that it would wait.
async fn snapshot(State(face): State<Arc<Face>>, Query(taken): Query<Taken>) -> Response {
    let Ok(_place) = face.waiting.try_acquire() else {
        face.pulls.too_many.fetch_add(1, Ordering::Relaxed);
        return (StatusCode::SERVICE_UNAVAILABLE, "too many wait for news already\n").into_response();
    };
    let wait = Duration::from_millis(taken.wait_ms.min(MAX_WAIT_MS));
    match timeout(wait, face.registry.unknown_to(taken.epoch.zip(taken.sequence))).await {
        Ok(snapshot) => {
            face.pulls.answered.fetch_add(1, Ordering::Relaxed);
            ([(header::CONTENT_TYPE, "application/json")], snapshot.to_bytes()).into_response()
        }
        Err(_) => {
            face.pulls.nothing_new.fetch_add(1, Ordering::Relaxed);
            StatusCode::NO_CONTENT.into_response()
        }
    }
}

async fn workers(State(face): State<Arc<Face>>) -> Response {
    Json(face.registry.view()).into_response()
}

#[derive(Deserialize)]
struct Drain {
    worker: String,
}

async fn drain(State(face): State<Arc<Face>>, Query(Drain { worker }): Query<Drain>) -> (StatusCode, String) {
    if face.registry.dismiss(&worker) {
        (
            StatusCode::ACCEPTED,
            format!("{worker} drains; it stays away until it has left every source and is named anew\n"),
        )
    } else {
        (StatusCode::NOT_FOUND, format!("there is no worker {worker:?}; GET /workers lists them\n"))
    }
}
