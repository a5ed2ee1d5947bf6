//! An engine that speaks HTTP.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    config::Worker,
    fetch::{Answer, Asker, FetchError, share},
    runtime::{Identity, Runtime, listed, models, server_info},
    source::{Freshness, Reading, Source, is_drained, is_trtllm},
};

/// What is read of an answer that identifies an engine.
const IDENTITY_BYTES: usize = 1 << 20;

/// Asks one engine over HTTP.
pub(crate) struct Http {
    worker: Worker,
    asker: Asker,
    /// What the operator says it is.
    told: Option<Runtime>,
    found: Mutex<Found>,
}

/// What has been found of it, until something else is.
#[derive(Debug, Clone, Default)]
struct Found {
    runtime: Option<Runtime>,
    models: Vec<String>,
    dp_size: Option<u32>,
    /// Its `/metrics` has turned out to be TensorRT-LLM's, whatever anybody says.
    drains: bool,
    /// When it could not be told which engine this is.
    in_vain: Option<Instant>,
}

/// So long it is not asked again in vain which engine it is.
const ASK_AGAIN: Duration = Duration::from_secs(60);

impl Http {
    pub(crate) fn new(worker: Worker, asker: Asker, told: Option<Runtime>) -> Self {
        Self { worker, asker, told, found: Mutex::default() }
    }

    /// A status 2xx of `path`.
    pub(crate) async fn probe(&self, path: &str, until: Instant) -> Result<(), String> {
        match self.asker.status(&self.worker.route(path), until).await.map_err(|error| error.to_string())? {
            200..=299 => Ok(()),
            status => Err(format!("{path} answered {status}")),
        }
    }

    /// Which source to ask for Prometheus text. To read TensorRT-LLM's `/metrics` is to empty it for others, so an
    /// engine is asked for that page only once it is known to be another one.
    pub(crate) async fn settled(&self, source: Source, until: Instant) -> Result<Source, String> {
        if source != Source::Metrics {
            return Ok(source);
        }
        let found = self.found();
        let in_vain = found.in_vain.is_some_and(|when| when.elapsed() < ASK_AGAIN);
        let proven = found.drains.then_some(Runtime::Trtllm);
        let runtime = match proven.or(self.told).or(found.runtime) {
            Some(runtime) => Some(runtime),
            None if in_vain => None,
            None => self.identify(until).await.map_err(|why| format!("was not asked yet: {why}"))?.runtime,
        };
        let runtime = runtime.ok_or_else(|| {
            "was not asked: nothing tells that this is not TensorRT-LLM, whose page must be left alone".to_owned()
        })?;
        Ok(if runtime == Runtime::Trtllm { Source::TrtllmMetrics } else { source })
    }

    /// What a settled source tells.
    pub(crate) async fn ask(&self, source: Source, until: Instant, freshness: Freshness) -> Reading {
        let answer = match self.asker.get(&self.worker.route(source.path()), source.limit(), until).await {
            Ok(answer) => answer,
            Err(error) => return Reading::Inconclusive(error.to_string()),
        };
        if source == Source::Metrics && answer.status == 200 && is_drained(&answer.body) {
            self.change(|found| found.drains = true);
            return Reading::Absent("is TensorRT-LLM's list, which is emptied by reading it".into());
        }
        source.read(answer.status, &answer.body, freshness)
    }

    /// What comes up in the place of an engine that is down may be another one.
    pub(crate) fn forget(&self) {
        self.change(|found| *found = Found::default());
    }

    /// What it is: by the owner of its models, else by routes that only one kind of engine has.
    pub(crate) async fn identify(&self, until: Instant) -> Result<Identity, String> {
        let listing = self.get("/v1/models", share(until, 2)).await.map_err(|error| format!("/v1/models {error}"))?;
        let (ids, owner) = match listing.status {
            200 => listed(&listing.body).unwrap_or_default(),
            // vLLM keeps its models behind a key, but not its metrics.
            401 | 403 | 404 => Default::default(),
            status => return Err(format!("/v1/models answered {status}")),
        };
        let before = self.found();
        let same = before.models == ids && before.runtime.is_some();
        let named = self.told.or_else(|| Runtime::of_owner(&owner)).filter(|named| *named != Runtime::Other);
        let runtime = match named.or(before.runtime.filter(|_| same)) {
            None => self.by_routes(until).await,
            known => known,
        };
        let mut identity = Identity { runtime, models: ids, dp_size: before.dp_size.filter(|_| same), labels: vec![] };
        self.change(|found| {
            let in_vain = runtime.is_none().then(Instant::now);
            let models = identity.models.clone();
            let drains = found.drains && (found.models.is_empty() || found.models == models);
            *found = Found { runtime, models, dp_size: identity.dp_size, drains, in_vain };
        });
        if runtime == Some(Runtime::Sglang) && identity.dp_size.is_none() {
            let (dp_size, name) = self.server_info(until).await.unwrap_or_default();
            identity.dp_size = dp_size;
            if identity.models.is_empty() {
                identity.models = models(name.into_iter());
            }
            self.change(|found| found.dp_size = dp_size);
        }
        Ok(identity)
    }

    /// The kind of an engine whose models do not tell it. Nothing here disturbs TensorRT-LLM.
    async fn by_routes(&self, until: Instant) -> Option<Runtime> {
        let own = self.get(Source::TrtllmMetrics.path(), share(until, 3)).await.ok()?;
        if own.status == 200 && is_trtllm(&own.body) {
            return Some(Runtime::Trtllm);
        }
        if self.server_info(share(until, 2)).await.is_some() {
            return Some(Runtime::Sglang);
        }
        // TensorRT-LLM's page answers HEAD with 405, and is JSON.
        let text = self.asker.is_text(&self.worker.route(Source::Metrics.path()), until).await.ok()?;
        text.then_some(Runtime::Other)
    }

    /// Ranks and model of SGLang.
    async fn server_info(&self, until: Instant) -> Option<(Option<u32>, Option<String>)> {
        let mut answer = self.get("/server_info", until).await.ok()?;
        if answer.status == 404 {
            answer = self.get("/get_server_info", until).await.ok()?;
        }
        server_info(&answer.body).filter(|_| answer.status == 200)
    }

    async fn get(&self, path: &str, until: Instant) -> Result<Answer, FetchError> {
        self.asker.get(&self.worker.route(path), IDENTITY_BYTES, until).await
    }

    fn found(&self) -> Found {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut Found)) {
        change(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
