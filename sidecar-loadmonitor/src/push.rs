//! Delivery of snapshots to one Envoy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use filter_core::report::Snapshot;
use reqwest::{
    Client,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use tokio::time::{Instant, sleep};
use url::Url;

use crate::{backoff::Backoff, config::ApiKey, fetch::exchange, outbox::Outbox};

/// Of a refusal's body so much is read, and a part of it logged, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// See [`MAX_ANSWER_BYTES`], in characters.
const MAX_LOGGED_CHARS: usize = 300;
/// While an Envoy stays away, one line in so long a time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// One Envoy that gets everything.
#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) url: Url,
    /// What it has not yet received.
    pub(crate) outbox: Arc<Outbox>,
    /// How many snapshots have arrived there, and how many tries have failed.
    pub(crate) arrived: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Envoy {
    /// One that has received nothing.
    pub(crate) fn new(url: Url) -> Self {
        Self { url, outbox: Arc::default(), arrived: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }
}

/// How snapshots are delivered.
#[derive(Debug, Clone)]
pub(crate) struct Manner {
    pub(crate) client: Client,
    pub(crate) token: Option<ApiKey>,
    /// What one push may take.
    pub(crate) timeout: Duration,
    /// Between two tries at most.
    pub(crate) longest_pause: Duration,
}

/// Delivers what comes into the outbox of `envoy`, one snapshot at a time and always the newest; a failed one is tried
/// again after a growing pause, unless a newer one has replaced it by then. Never returns.
pub(crate) async fn deliver(manner: Manner, envoy: Arc<Envoy>) {
    let mut backoff = Backoff::new(manner.longest_pause);
    let mut trouble = Trouble::new(&envoy.url);
    loop {
        let snapshot = envoy.outbox.take().await;
        match post(&manner, &envoy.url, &snapshot).await {
            Ok(()) => {
                backoff.reset();
                envoy.arrived.fetch_add(1, Ordering::Relaxed);
                trouble.over(snapshot.sequence);
            }
            Err(reason) => {
                envoy.failed.fetch_add(1, Ordering::Relaxed);
                trouble.more(&reason);
                envoy.outbox.put_back(snapshot);
                let pause = backoff.pause(&mut rand::rng());
                sleep(pause).await;
            }
        }
    }
}

async fn post(manner: &Manner, url: &Url, snapshot: &Snapshot) -> Result<(), String> {
    let mut request = manner.client.post(url.clone()).header(CONTENT_TYPE, "application/json");
    if let Some(token) = &manner.token {
        request = request.header(AUTHORIZATION, token.header());
    }
    let request = request.body(snapshot.to_bytes());
    let deadline = Instant::now() + manner.timeout;
    let answer = exchange(request, MAX_ANSWER_BYTES, deadline).await.map_err(|e| e.to_string())?;
    if (200..300).contains(&answer.status) {
        return Ok(());
    }
    let body: String = String::from_utf8_lossy(&answer.body).chars().take(MAX_LOGGED_CHARS).collect();
    Err(format!("answered {}: {:?}", answer.status, body.trim()))
}

/// The log of an Envoy that takes no snapshots: its beginning, its end, and little in between.
struct Trouble<'a> {
    url: &'a Url,
    failures: u64,
    logged: Option<Instant>,
    /// Whether the log's last word is that snapshots arrive; `None` before its first.
    arriving: Option<bool>,
}

impl<'a> Trouble<'a> {
    const fn new(url: &'a Url) -> Self {
        Self { url, failures: 0, logged: None, arriving: None }
    }

    fn more(&mut self, reason: &str) {
        self.failures += 1;
        let (url, failures) = (self.url.as_str(), self.failures);
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            (self.logged, self.arriving) = (Some(Instant::now()), Some(false));
            tracing::warn!(url, reason, failures, "snapshots do not arrive");
        } else {
            tracing::debug!(url, reason, failures, "push failed");
        }
    }

    fn over(&mut self, sequence: u64) {
        let (url, failures) = (self.url.as_str(), std::mem::take(&mut self.failures));
        if self.arriving.replace(true) == Some(true) {
            tracing::trace!(url, sequence, failures, "pushed");
        } else {
            tracing::info!(url, sequence, failures, "snapshots arrive");
        }
    }
}
