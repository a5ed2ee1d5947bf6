//! One engine as the rest of the sidecar sees it: what it can be asked, each question within a time limit.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use filter_core::report::{Info, Load};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::{ApiKey, Worker},
    fetch::{Asker, share},
    grpc::Grpc,
    http::Http,
    poll::Poller,
    resolve::{Names, Resolver},
    runtime::{Identity, Runtime},
    source::{Freshness, Reading, Source},
    spec::WorkerSpec,
};

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
    face: Face,
    resolver: Mutex<Resolver>,
    poller: Mutex<Poller>,
    interval: Duration,
}

/// What the engine speaks.
pub(crate) enum Face {
    Http(Http),
    Grpc(Grpc),
}

/// A snapshot that an engine keeps of itself counts for so many intervals, as a report does in the filter.
const FRESH_INTERVALS: u32 = 3;
/// However short the interval: an idle engine may look up only once a second.
const LEAST_FRESH: Duration = Duration::from_secs(3);

impl Engine {
    /// The engine of `spec`, which must be a valid one. Its own key goes before that of `asker`.
    pub(crate) fn new(spec: Arc<WorkerSpec>, worker: Worker, asker: Asker, names: &Names) -> Self {
        let resolver = Mutex::new(Resolver::new(worker.base(), names));
        let poller = Mutex::new(Poller::new(worker.url().to_owned()));
        let asker = match spec.api_key.as_deref().map(ApiKey::parse) {
            None => asker,
            Some(Ok(key)) => asker.with_key(key),
            Some(Err(error)) => {
                tracing::error!(worker = worker.url(), %error, "this engine is asked without a key");
                asker.with_key(None)
            }
        };
        let told = Runtime::parse(&spec.runtime);
        let face = if worker.is_grpc() {
            Face::Grpc(Grpc::new(worker, asker, told))
        } else {
            Face::Http(Http::new(worker, asker, told))
        };
        let interval = spec.load_monitor_interval_secs.map_or(Duration::from_secs(10), Duration::from_secs);
        Self { spec, face, resolver, poller, interval }
    }

    /// The same, polled every `interval` unless its spec says something else (10 s if nobody says anything). Snapshots
    /// of the engine's scheduler that are older than three intervals are not believed.
    pub(crate) fn every(mut self, interval: Duration) -> Self {
        self.interval = self.spec.load_monitor_interval_secs.map_or(interval, Duration::from_secs);
        self
    }

    /// What is said of it.
    pub(crate) fn spec(&self) -> &Arc<WorkerSpec> {
        &self.spec
    }

    /// Its load now.
    pub(crate) async fn poll(&self, timeout: Duration) -> Polled {
        let mut poller = self.poller.lock().await;
        let deadline = Instant::now() + timeout;
        let (address, told) = match self.locate(deadline).await {
            Ok(address) => {
                let most = LEAST_FRESH.max(self.interval * FRESH_INTERVALS);
                (Some(address.to_string()), poller.ask(&self.face, deadline, most).await)
            }
            Err(why) => (None, Err(why)),
        };
        poller.note(&told);
        Polled { address, told }
    }

    /// Where it is, for those who do not poll it.
    pub(crate) async fn address(&self, timeout: Duration) -> Result<String, String> {
        let answer = self.resolver.lock().await.refresh(Instant::now() + timeout).await;
        answer.map(|address| address.to_string())
    }

    /// Whether it works: an answer 2xx to `path` (SMG: `--health-check-endpoint`), or what its own HealthCheck says
    /// where it speaks gRPC.
    pub(crate) async fn probe(&self, path: &str, timeout: Duration) -> Result<(), String> {
        let deadline = Instant::now() + timeout;
        self.locate(deadline).await?;
        match &self.face {
            Face::Http(http) => http.probe(path, deadline).await,
            Face::Grpc(grpc) => grpc.probe(deadline).await,
        }
    }

    /// What its spec says, and where that says nothing, what the engine says it is: models (adapters too), runtime,
    /// data-parallel ranks, the labels of its KV connector. An error if the engine cannot be asked; what it does not
    /// tell stays empty.
    pub(crate) async fn identify(&self, timeout: Duration) -> Result<Info, String> {
        let found = self.identity(timeout).await?;
        let mut info = self.spec.info();
        if info.models.is_empty() {
            info.models = found.models;
        }
        if Runtime::parse(&info.runtime).is_none() {
            info.runtime = found.runtime.map(Runtime::name).unwrap_or_default().to_owned();
        }
        if info.dp_size == 0 {
            info.dp_size = found.dp_size.unwrap_or_default();
        }
        for (name, value) in found.labels {
            info.labels.entry(name.to_owned()).or_insert(value);
        }
        Ok(info)
    }

    /// What the engine says it is.
    pub(crate) async fn identity(&self, timeout: Duration) -> Result<Identity, String> {
        let deadline = Instant::now() + timeout;
        self.locate(deadline).await?;
        match &self.face {
            Face::Http(http) => http.identify(deadline).await,
            Face::Grpc(grpc) => grpc.identify(deadline).await,
        }
    }

    /// What it speaks.
    pub(crate) const fn face(&self) -> &Face {
        &self.face
    }

    async fn locate(&self, deadline: Instant) -> Result<SocketAddr, String> {
        // A slow name server must leave most of the time to the engine, whose last address is known.
        let address = self.resolver.lock().await.refresh(share(deadline, 4)).await?;
        if let Face::Grpc(grpc) = &self.face {
            grpc.is_at(address);
        }
        Ok(address)
    }
}

impl Face {
    /// Where its load may be told, best first.
    pub(crate) const fn sources(&self) -> &'static [Source] {
        match self {
            Self::Http(_) => &Source::HTTP,
            Self::Grpc(_) => &[Source::GetLoads],
        }
    }

    /// The source to ask in place of `source`, or why none.
    pub(crate) async fn settled(&self, source: Source, until: Instant) -> Result<Source, String> {
        match self {
            Self::Http(http) => http.settled(source, until).await,
            Self::Grpc(_) => Ok(source),
        }
    }

    /// What a settled source tells.
    pub(crate) async fn ask(&self, source: Source, until: Instant, freshness: Freshness) -> Reading {
        match self {
            Self::Http(http) => http.ask(source, until, freshness).await,
            Self::Grpc(grpc) => grpc.loads(until).await,
        }
    }

    /// What comes up in the place of an engine that is down may be another one.
    pub(crate) fn forget(&self) {
        match self {
            Self::Http(http) => http.forget(),
            Self::Grpc(grpc) => grpc.forget(),
        }
    }
}

#[cfg(test)]
mod tests;
