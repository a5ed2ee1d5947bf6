//! Delivery of snapshots to one Envoy.

use std::{sync::Arc, time::Duration};

use filter_core::report::Snapshot;
use reqwest::{Client, header::CONTENT_TYPE};
use tokio::time::{Instant, sleep};
use url::Url;

use crate::{backoff::Backoff, fetch::exchange, outbox::Outbox};

/// Of a refusal's body so much is read, and a part of it logged, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// See [`MAX_ANSWER_BYTES`], in characters.
const MAX_LOGGED_CHARS: usize = 300;
/// While an Envoy stays away, one line in so long a time.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Delivers what comes into `outbox` to `url`, one snapshot at a time and always the newest; a failed one is tried
/// again after a growing pause of at most `longest_pause`, unless a newer one has replaced it by then. Never returns.
pub(crate) async fn deliver(client: Client, url: Url, outbox: Arc<Outbox>, timeout: Duration, longest_pause: Duration) {
    let mut backoff = Backoff::new(longest_pause);
    let mut trouble = Trouble::new(&url);
    loop {
        let snapshot = outbox.take().await;
        match post(&client, &url, &snapshot, timeout).await {
            Ok(()) => {
                backoff.reset();
                trouble.over(snapshot.sequence);
            }
            Err(reason) => {
                trouble.more(&reason);
                outbox.put_back(snapshot);
                let pause = backoff.pause(&mut rand::rng());
                sleep(pause).await;
            }
        }
    }
}

async fn post(client: &Client, url: &Url, snapshot: &Snapshot, timeout: Duration) -> Result<(), String> {
    let request = client.post(url.clone()).header(CONTENT_TYPE, "application/json").body(snapshot.to_bytes());
    let answer = exchange(request, MAX_ANSWER_BYTES, Instant::now() + timeout).await.map_err(|e| e.to_string())?;
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
