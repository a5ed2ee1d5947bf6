//! Replays a workload against a gateway or against engines, open loop, and measures what a client can see.
//!
//! Requests start at their arrival times whatever the answers do, except that a turn waits for the end of the turn
//! before it, as a user would.

pub(crate) mod client;
mod report;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use report::{LoadReport, Percentiles, Sample, Summary};

use crate::workload::{Request, Workload};
use client::Client;

/// Where requests go.
pub trait Target: Send + Sync + 'static {
    /// The server for a request that is about to be sent.
    fn choose(&self, request: &Request) -> Destination;
}

/// The server chosen for one request.
pub struct Destination {
    /// `http://ip:port`
    pub base_url: Arc<str>,
    /// Dropped when the request has ended.
    pub until_end: Option<Box<dyn Any + Send>>,
}

/// One server for all requests.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<str>);

impl Gateway {
    /// The gateway at `base_url` (`http://ip:port`).
    pub fn new(base_url: impl Into<Arc<str>>) -> Self {
        Self(base_url.into())
    }
}

impl Target for Gateway {
    fn choose(&self, _: &Request) -> Destination {
        Destination { base_url: Arc::clone(&self.0), until_end: None }
    }
}

/// How a workload is replayed.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Model id in every request.
    pub model: String,
    /// Headers added to every request.
    pub headers: Vec<(String, String)>,
    /// Whether each request names its session in the routing-key header.
    pub session_keys: bool,
    /// Requests in flight at most; more wait, and their wait shows as lateness.
    pub max_in_flight: usize,
    /// Real time after which a request counts as an error.
    pub request_timeout: Duration,
    /// Real time after which the replay ends, with what is unfinished counted as errors.
    pub time_limit: Duration,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            model: "fake-model".to_owned(),
            headers: Vec::new(),
            session_keys: false,
            max_in_flight: 4096,
            request_timeout: Duration::from_secs(30),
            time_limit: Duration::from_secs(300),
        }
    }
}

/// Replays `workload` and returns when every request has ended or the time is up.
pub async fn run(workload: Arc<Workload>, target: Arc<dyn Target>, options: LoadOptions) -> LoadReport {
    let mut sessions: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, request) in workload.requests.iter().enumerate() {
        sessions.entry(request.session).or_default().push(index);
    }
    let begin = Instant::now();
    let replay = Arc::new(Replay {
        client: Client::new(&options),
        slots: Semaphore::new(options.max_in_flight),
        workload,
        target,
        options,
        begin,
        samples: Mutex::default(),
    });
    let mut running = JoinSet::new();
    for turns in sessions.into_values() {
        running.spawn(Arc::clone(&replay).session(turns));
    }
    let all = async { while running.join_next().await.is_some() {} };
    let _ = tokio::time::timeout_at(begin + replay.options.time_limit, all).await;
    running.shutdown().await;
    let samples = std::mem::take(&mut *replay.samples.lock().unwrap_or_else(PoisonError::into_inner));
    let unfinished = replay.workload.requests.len() - samples.len();
    LoadReport { samples, unfinished, elapsed: begin.elapsed() }
}

struct Replay {
    client: Client,
    slots: Semaphore,
    workload: Arc<Workload>,
    target: Arc<dyn Target>,
    options: LoadOptions,
    begin: Instant,
    samples: Mutex<Vec<Sample>>,
}

impl Replay {
    async fn session(self: Arc<Self>, turns: Vec<usize>) {
        for index in turns {
            let request = &self.workload.requests[index];
            let due = self.begin + request.arrival;
            tokio::time::sleep_until(due).await;
            let _slot = self.slots.acquire().await;
            let body = request.body(&self.options.model);
            let destination = self.target.choose(request);
            let key = self.options.session_keys.then(|| format!("session-{}", request.session));
            let mut sample = self.client.send(&destination.base_url, key.as_deref(), body).await;
            sample.session = request.session;
            sample.turn = request.turn;
            sample.late = sample.started.saturating_duration_since(due);
            self.samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_engine::{EngineOptions, FakeEngine, Fault};
    use crate::workload::{SessionOptions, bound};

    #[tokio::test]
    async fn one_big_engine_reaches_the_bound() {
        let options = EngineOptions { cache_tokens: 100_000_000, ..EngineOptions::default() };
        let engine = FakeEngine::start(
            EngineOptions { prefill_tokens_per_second: 1e7, decode_step: Duration::from_millis(1), ..options.clone() }
                .named("a"),
        );
        let sessions = SessionOptions { sessions: 20, requests_per_second: 200.0, ..SessionOptions::default() };
        let workload = Arc::new(sessions.generate());
        let requests = workload.requests.len();
        let bound = bound(&workload, &options);
        let report = run(workload, Arc::new(Gateway::new(engine.url())), LoadOptions::default()).await;
        let summary = report.summary();
        assert_eq!((summary.requests, summary.errors), (requests, 0), "{:?}", report.errors());
        assert_eq!(summary.requests_per_engine["a"], requests as u64);
        assert!((summary.hit_rate - bound.hit_rate()).abs() < 1e-3, "{} and {}", summary.hit_rate, bound.hit_rate());
        assert!(summary.ttft_ms.p50 > 0.0 && summary.ttft_ms.p50 <= summary.ttft_ms.p99);
        assert_eq!(engine.stats().completed, requests as u64);
    }

    #[tokio::test]
    async fn errors_are_counted_and_time_is_bounded() {
        let engine = FakeEngine::start(EngineOptions::instant());
        engine.fault_next(1, Fault::Status { status: 503 });
        engine.fault_next(1, Fault::CloseStream { after_chunks: 1 });
        engine.fault_next(1, Fault::Stall);
        let sessions = SessionOptions { sessions: 4, requests_per_second: 1000.0, ..SessionOptions::default() };
        let workload = Arc::new(sessions.generate());
        let requests = workload.requests.len();
        let options = LoadOptions { request_timeout: Duration::from_millis(500), ..LoadOptions::default() };
        let report = run(workload, Arc::new(Gateway::new(engine.url())), options).await;
        assert_eq!((report.summary().requests, report.summary().errors), (requests, 3), "{:?}", report.errors());
        assert!(report.errors().keys().any(|error| error.contains("503")), "{:?}", report.errors());

        engine.fault(Fault::Stall);
        let sessions = SessionOptions { sessions: 1, requests_per_second: 1000.0, ..SessionOptions::default() };
        let options = LoadOptions { time_limit: Duration::from_millis(300), ..LoadOptions::default() };
        let report = run(Arc::new(sessions.generate()), Arc::new(Gateway::new(engine.url())), options).await;
        assert_eq!(report.summary().errors, report.summary().requests, "what never ended is an error");
    }
}
