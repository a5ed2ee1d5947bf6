//! A sidecar that is told what to say: Envoys fetch from it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use filter_core::report::{Load, Scope, Snapshot, WorkerReport};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::upstream::Upstream;

/// What it wants to be shown.
pub const TOKEN: &str = "a-token-of-the-tests";

/// A sidecar that is told what to say.
pub struct Sidecar {
    upstream: Upstream,
    shared: Arc<Shared>,
}

struct Shared {
    said: watch::Sender<Said>,
    asked: Mutex<Vec<Asked>>,
}

/// What it has to say.
#[derive(Debug, Clone)]
struct Said {
    epoch: u64,
    /// 0 is nothing yet.
    sequence: u64,
    workers: Vec<WorkerReport>,
}

/// A request that has come.
#[derive(Debug, Clone)]
pub struct Asked {
    pub by: String,
    pub authorization: String,
    pub known: Option<(u64, u64)>,
    pub at: Instant,
}

impl Sidecar {
    /// One that has nothing to say yet of the workers with these URLs.
    pub async fn start(urls: &[String]) -> Self {
        let named = |url: &String| WorkerReport { url: url.clone(), ..WorkerReport::default() };
        let said = watch::Sender::new(Said { epoch: 1, sequence: 0, workers: urls.iter().map(named).collect() });
        let shared = Arc::new(Shared { said, asked: Mutex::default() });
        let router = Router::new().route("/v1/snapshot", axum::routing::get(answer)).with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { upstream: Upstream::on(listener, router), shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.upstream.address
    }

    /// Says from now on that a queue is at worker `number` only.
    pub fn say_busy(&self, number: usize) {
        self.say(|workers| {
            for (at, worker) in workers.iter_mut().enumerate() {
                let queued_tokens = if at == number { 1e9 } else { 0.0 };
                worker.load = Some(Load { queued_tokens, throughput: 100.0, ..Load::default() });
            }
        });
    }

    /// Says from now on where the workers are.
    pub fn say_addresses(&self, addresses: &[SocketAddr]) {
        self.say(|workers| {
            for (worker, address) in workers.iter_mut().zip(addresses) {
                worker.address = Some(address.to_string());
            }
        });
    }

    fn say(&self, change: impl FnOnce(&mut [WorkerReport])) {
        self.shared.said.send_modify(|said| {
            said.sequence += 1;
            change(&mut said.workers);
        });
    }

    /// Begins another life, with nothing to say yet.
    pub fn restart(&self) {
        self.shared.said.send_modify(|said| (said.epoch, said.sequence) = (said.epoch + 1, 0));
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The requests of one Envoy.
    pub fn asked_by(&self, name: &str) -> Vec<Asked> {
        self.asked().iter().filter(|asked| asked.by == name).cloned().collect()
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    Query(query): Query<HashMap<String, u64>>,
    headers: HeaderMap,
) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let known = query.get("epoch").copied().zip(query.get("sequence").copied());
    let authorization = header(header::AUTHORIZATION);
    let authorized = authorization == format!("Bearer {TOKEN}");
    let asked = Asked { by: header(header::HOST), authorization, known, at: Instant::now() };
    shared.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    if !authorized {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let mut said = shared.said.subscribe();
    let wait = Duration::from_millis(query["wait_ms"]);
    let news = said.wait_for(|said| said.sequence > 0 && known != Some((said.epoch, said.sequence)));
    let Ok(Ok(news)) = tokio::time::timeout(wait, news).await else { return StatusCode::NO_CONTENT.into_response() };
    let Said { epoch, sequence, workers } = news.clone();
    let scope = match known {
        Some((of, base)) if of == epoch => Scope::Since(base),
        _ => Scope::Full,
    };
    let snapshot = Snapshot { reporter: "rack".into(), scope, ..Snapshot::of(epoch, sequence, 600_000, workers) };
    snapshot.to_bytes().into_response()
}
