//! One engine as the rest of the sidecar sees it: what it can be asked, each question within a time limit.

use std::{sync::Arc, time::Duration};

use filter_core::report::{Info, Load};
use tokio::time::Instant;

use crate::{config::Worker, fetch::Asker, poll::Poller, resolve::Names, spec::WorkerSpec};

/// What a poll has found.
#[derive(Debug, Clone)]
pub(crate) struct Polled {
    /// Where the engine is reached, `ip:port`; none if its name does not resolve.
    pub(crate) address: Option<String>,
    /// What it said, or why it said nothing.
    pub(crate) told: Result<Told, String>,
}

/// What an engine said of its load.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    /// All ranks together.
    pub(crate) load: Load,
    /// Each data-parallel rank by itself, where the engine tells them apart: for metrics.
    pub(crate) ranks: Vec<RankLoad>,
    /// Which way of asking has answered, such as `/v1/loads`.
    pub(crate) source: &'static str,
}

/// One data-parallel rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RankLoad {
    /// 0-based.
    pub(crate) dp_rank: u32,
    /// Its load.
    pub(crate) load: Load,
    /// Share of prompt tokens found in the prefix cache, 0 to 1, where told.
    pub(crate) cache_hit_rate: Option<f64>,
}

/// One engine. Its questions may be asked at the same time; each has its own time limit, whatever the engine does.
pub(crate) struct Engine {
    spec: Arc<WorkerSpec>,
    worker: Worker,
    asker: Asker,
    poller: tokio::sync::Mutex<Poller>,
}

impl Engine {
    /// The engine of `spec`, which must be a valid one.
    pub(crate) fn new(spec: Arc<WorkerSpec>, worker: Worker, asker: Asker, names: &Names) -> Self {
        let poller = tokio::sync::Mutex::new(Poller::new(worker.clone(), names));
        Self { spec, worker, asker, poller }
    }

    /// What is said of it.
    pub(crate) fn spec(&self) -> &Arc<WorkerSpec> {
        &self.spec
    }

    /// Its load now.
    pub(crate) async fn poll(&self, timeout: Duration) -> Polled {
        self.poller.lock().await.poll(&self.asker, timeout).await
    }

    /// Whether it works: an answer 2xx to `path` (SMG: `--health-check-endpoint`).
    pub(crate) async fn probe(&self, path: &str, timeout: Duration) -> Result<(), String> {
        let answer = self.asker.get(&self.worker.route(path), Instant::now() + timeout).await;
        match answer.map_err(|error| error.to_string())?.status {
            200..=299 => Ok(()),
            status => Err(format!("{path} answered {status}")),
        }
    }

    /// What it says it is: models, runtime, data-parallel ranks.
    pub(crate) async fn identify(&self, _timeout: Duration) -> Result<Info, String> {
        Err("nothing is asked yet".to_owned())
    }
}
