//! What an engine's handlers share, and what tests can read of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::HeaderMap;
use bytes::Bytes;
use serde::Serialize;

use super::fault::Faults;
use super::options::EngineOptions;
use super::rank::Rank;
use super::responses::Kept;

/// What an engine has seen and done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Generation requests received, those hit by a fault included.
    pub requests: u64,
    /// Of these, answered to the end.
    pub completed: u64,
    /// Of these, left by their client (or reset by a fault) before the end.
    pub aborted: u64,
    /// Of these, answered with an error.
    pub failed: u64,
    /// Generation requests that are here now.
    pub in_flight: usize,
    /// The most that were here at once.
    pub peak_in_flight: usize,
    /// Prompt tokens of the requests that were admitted.
    pub prompt_tokens: u64,
    /// Of these, tokens that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Blocks in the prefix caches now.
    pub cached_blocks: usize,
    /// Reads of `/v1/loads`.
    pub loads_polls: u64,
    /// Reads of `/metrics`.
    pub metrics_polls: u64,
    /// Reads of TensorRT-LLM's `/metrics`, which others miss now.
    pub drained: u64,
    /// Reads of `/health`.
    pub health_polls: u64,
    /// All other requests.
    pub other_requests: u64,
    /// Bytes that `POST /upload` has read.
    pub uploaded_bytes: u64,
    /// Connections accepted.
    pub connections: u64,
}

/// One engine's insides.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) options: Arc<EngineOptions>,
    pub(crate) ranks: Vec<Arc<Rank>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) responses: Kept,
    next_rank: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    stats: EngineStats,
    last_headers: HeaderMap,
    last_body: Bytes,
}

impl Engine {
    pub(crate) fn new(options: EngineOptions) -> Arc<Self> {
        let options = Arc::new(options);
        Arc::new(Self {
            ranks: (0..options.dp_ranks).map(|_| Rank::new(Arc::clone(&options))).collect(),
            faults: Mutex::new(Faults::new(options.seed)),
            responses: Kept::default(),
            next_rank: AtomicUsize::new(0),
            seen: Mutex::default(),
            options,
        })
    }

    /// The rank asked for, or the next in turn.
    pub(crate) fn rank(&self, asked: Option<usize>) -> &Arc<Rank> {
        let index = asked.unwrap_or_else(|| self.next_rank.fetch_add(1, Ordering::Relaxed));
        &self.ranks[index % self.ranks.len()]
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let mut stats = self.seen().stats.clone();
        for rank in &self.ranks {
            let load = rank.load();
            stats.prompt_tokens += load.prompt_tokens;
            stats.cached_tokens += load.cached_tokens;
            stats.generated_tokens += load.generated_tokens;
            stats.cached_blocks += rank.cached_blocks();
        }
        stats
    }

    pub(crate) fn last_headers(&self) -> HeaderMap {
        self.seen().last_headers.clone()
    }

    pub(crate) fn last_body(&self) -> Bytes {
        self.seen().last_body.clone()
    }

    /// Forgets counts and the last request; caches and what is in flight stay.
    pub(crate) fn reset_stats(&self) {
        let mut seen = self.seen();
        let in_flight = seen.stats.in_flight;
        *seen = Seen::default();
        seen.stats.in_flight = in_flight;
        seen.stats.peak_in_flight = in_flight;
    }

    pub(crate) fn count(&self, add: impl FnOnce(&mut EngineStats)) {
        add(&mut self.seen().stats);
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a generation request in; it is counted out when the guard goes.
    pub(crate) fn arrived(self: &Arc<Self>, headers: HeaderMap, body: Bytes) -> InFlight {
        let mut seen = self.seen();
        seen.last_headers = headers;
        seen.last_body = body;
        seen.stats.requests += 1;
        seen.stats.in_flight += 1;
        seen.stats.peak_in_flight = seen.stats.peak_in_flight.max(seen.stats.in_flight);
        drop(seen);
        InFlight { engine: Arc::clone(self), end: End::Aborted }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a generation request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Failed,
    Aborted,
}

/// A generation request that is here; without a word about its end it counts as aborted.
#[derive(Debug)]
pub(crate) struct InFlight {
    engine: Arc<Engine>,
    end: End,
}

impl InFlight {
    pub(crate) fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let end = self.end;
        self.engine.count(|stats| {
            stats.in_flight -= 1;
            match end {
                End::Completed => stats.completed += 1,
                End::Failed => stats.failed += 1,
                End::Aborted => stats.aborted += 1,
            }
        });
    }
}
