//! What is counted of inference requests and their answers, as plain numbers: names are made on ticks.

use super::Balancer;
use crate::breaker::Outcome;
use crate::fleet::ConnectionMode;
use crate::metrics::Metrics;
use crate::state::load::SlotId;

/// SMG keeps the names of so many models; later ones are counted together.
const MAX_MODELS: usize = 1024;

/// Upper bounds of the time to a first byte, in milliseconds, and their labels in seconds.
const TTFT_BOUNDS: [(u64, &str); 13] = [
    (10, "0.01"),
    (25, "0.025"),
    (50, "0.05"),
    (100, "0.1"),
    (250, "0.25"),
    (500, "0.5"),
    (1000, "1.0"),
    (2500, "2.5"),
    (5000, "5.0"),
    (10_000, "10.0"),
    (30_000, "30.0"),
    (60_000, "60.0"),
    (120_000, "120.0"),
];

/// What a request is counted under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    model: u16,
    endpoint: &'static str,
    streaming: &'static str,
    mode: ConnectionMode,
}

impl Asked {
    /// The same for a worker that is spoken to in this way.
    #[must_use]
    pub fn with_mode(self, mode: ConnectionMode) -> Self {
        Self { mode, ..self }
    }
}

/// What the head of an answer says for the metrics.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// The response's status.
    pub status: u16,
    /// [`FROM_WORKER`], or Envoy's reason to answer itself.
    pub code: &'static str,
    /// What it says of the worker.
    pub outcome: Option<Outcome>,
    /// The worker has not answered in time.
    pub late: bool,
    /// Attempts before the last one.
    pub retries: u64,
    /// The time since the request was let go, in nanoseconds, where it means anything.
    pub first_byte_ns: Option<u64>,
}

/// Numbers by what they count.
#[derive(Debug)]
struct Counts<K>(Vec<(K, u64)>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: PartialEq> Counts<K> {
    fn add(&mut self, key: K, number: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, count)) => *count += number,
            None => self.0.push((key, number)),
        }
    }

    /// Those that have grown, from 0 again.
    fn take(&mut self) -> impl Iterator<Item = (&K, u64)> {
        self.0.iter_mut().filter(|(_, count)| *count > 0).map(|(key, count)| (&*key, std::mem::take(count)))
    }
}

/// Outcomes of one slot's owner.
#[derive(Debug, Clone, Copy, Default)]
struct Outcomes {
    generation: u16,
    successes: u32,
    failures: u32,
}

/// Counts since the last tick.
#[derive(Debug, Default)]
pub(super) struct Requests {
    models: Vec<String>,
    asked: Counts<Asked>,
    errors: Counts<(u16, &'static str, ConnectionMode, &'static str)>,
    answers: Counts<(u16, &'static str)>,
    retries: Counts<&'static str>,
    exhausted: Counts<&'static str>,
    worker_errors: Counts<(ConnectionMode, &'static str)>,
    paths: Counts<(&'static str, &'static str)>,
    /// By model.
    first_bytes: Vec<[u32; TTFT_BOUNDS.len() + 1]>,
    /// By slot.
    outcomes: Vec<Outcomes>,
}

impl Requests {
    fn model(&mut self, model: &str) -> u16 {
        let known = self.models.iter().position(|known| known == model);
        let at = known.unwrap_or_else(|| {
            if self.models.len() <= MAX_MODELS {
                self.models.push(if self.models.len() < MAX_MODELS { model } else { "other" }.to_owned());
            }
            self.models.len() - 1
        });
        u16::try_from(at).unwrap_or(0)
    }

    /// What the breaker of the owner of `id` has been told.
    pub(super) fn judged(&mut self, id: SlotId, failed: bool) {
        let slot = usize::from(id.slot);
        if self.outcomes.len() <= slot {
            self.outcomes.resize(slot + 1, Outcomes::default());
        }
        let Some(outcomes) = self.outcomes.get_mut(slot) else { return };
        if outcomes.generation != id.generation {
            *outcomes = Outcomes { generation: id.generation, ..Outcomes::default() };
        }
        outcomes.successes += u32::from(!failed);
        outcomes.failures += u32::from(failed);
    }

    fn first_byte(&mut self, model: u16, nanos: u64) {
        let millis = nanos / 1_000_000;
        let model = usize::from(model);
        if self.first_bytes.len() <= model {
            self.first_bytes.resize(model + 1, [0; TTFT_BOUNDS.len() + 1]);
        }
        // A bound is part of its own bucket, and a part of a millisecond above it is not worth another one.
        let bucket = TTFT_BOUNDS.iter().position(|(bound, _)| millis < *bound).unwrap_or(TTFT_BOUNDS.len());
        if let Some(count) = self.first_bytes.get_mut(model).and_then(|buckets| buckets.get_mut(bucket)) {
            *count += 1;
        }
    }

    /// Moves the counts into `metrics`. `url` names the owner of a slot.
    pub(super) fn publish<'a>(&mut self, metrics: &mut Metrics, url: impl Fn(SlotId) -> Option<&'a str>) {
        let Self { models, .. } = self;
        let name = |model: u16| models.get(usize::from(model)).map_or("unknown", String::as_str);
        for (&Asked { model, endpoint, streaming, mode }, count) in self.asked.take() {
            let mut labels = router(mode).to_vec();
            labels.extend([("model", name(model)), ("endpoint", endpoint), ("streaming", streaming)]);
            metrics.add("smg_router_requests_total", &labels, count);
        }
        for (&(model, endpoint, mode, error), count) in self.errors.take() {
            let mut labels = router(mode).to_vec();
            labels.extend([("model", name(model)), ("endpoint", endpoint), ("error_type", error)]);
            metrics.add("smg_router_request_errors_total", &labels, count);
        }
        for (&(status, code), count) in self.answers.take() {
            let labels = [("router_type", "http"), ("status_code", &*status.to_string()), ("error_code", code)];
            metrics.add("smg_router_upstream_responses_total", &labels, count);
        }
        for (&endpoint, count) in self.retries.take() {
            metrics.add("smg_worker_retries_total", &[WORKER, ("endpoint", endpoint)], count);
        }
        for (&endpoint, count) in self.exhausted.take() {
            metrics.add("smg_worker_retries_exhausted_total", &[WORKER, ("endpoint", endpoint)], count);
        }
        for (&(mode, error), count) in self.worker_errors.take() {
            let labels = [WORKER, ("connection_mode", mode.as_str()), ("error_type", error)];
            metrics.add("smg_worker_errors_total", &labels, count);
        }
        for (&(path, reason), count) in self.paths.take() {
            metrics.add("smg_router_request_body_path_total", &[("path", path), ("reason", reason)], count);
        }
        for (model, buckets) in self.first_bytes.iter_mut().enumerate() {
            let model = models.get(model).map_or("unknown", String::as_str);
            // Prometheus' buckets are cumulative: each counts everything up to its bound.
            let mut below = 0;
            let bounds = TTFT_BOUNDS.iter().map(|(_, label)| *label).chain(["+Inf"]);
            for (bound, count) in bounds.zip(buckets) {
                below += u64::from(std::mem::take(count));
                if below > 0 {
                    metrics.add("smg_router_ttft_seconds_bucket", &[("model", model), ("le", bound)], below);
                }
            }
            if below > 0 {
                metrics.add("smg_router_ttft_seconds_count", &[("model", model)], below);
            }
        }
        for (slot, outcomes) in (0..).zip(&mut self.outcomes) {
            let id = SlotId { slot, generation: outcomes.generation };
            let counts = [std::mem::take(&mut outcomes.successes), std::mem::take(&mut outcomes.failures)];
            for (count, outcome) in counts.into_iter().zip(["success", "failure"]) {
                // Of a worker that has gone meanwhile nobody asks any more.
                if count > 0
                    && let Some(worker) = url(id)
                {
                    let labels = [("worker", worker), ("outcome", outcome)];
                    metrics.add("smg_worker_cb_outcomes_total", &labels, u64::from(count));
                }
            }
        }
    }
}

const WORKER: (&str, &str) = ("worker_type", "regular");

fn router(mode: ConnectionMode) -> [(&'static str, &'static str); 3] {
    [("router_type", "http"), ("backend_type", "regular"), ("connection_mode", mode.as_str())]
}

impl Balancer {
    /// What an inference request of `model` is counted under, going by the pool as long as it has no worker.
    pub fn asked(&mut self, model: &str, endpoint: &'static str, streaming: &'static str) -> Asked {
        let first = self.fleet.pool(model).workers.first().and_then(|at| self.fleet.worker(*at));
        let mode = first.map_or(ConnectionMode::Http, |worker| worker.mode);
        let model = self.requests.model(self.fleet.model_label(model));
        Asked { model, endpoint, streaming, mode }
    }

    /// Counts an inference request.
    pub fn count_request(&mut self, asked: Asked) {
        self.requests.asked.add(asked, 1);
    }

    /// Counts how a request's body was treated, and why.
    pub fn count_body(&mut self, path: &'static str, reason: &'static str) {
        self.requests.paths.add((path, reason), 1);
    }

    /// Counts a refusal of our own.
    pub fn count_refusal(&mut self, asked: Asked) {
        self.requests.errors.add((asked.model, asked.endpoint, asked.mode, "no_workers"), 1);
    }

    /// Counts an answer.
    pub fn count_answer(&mut self, asked: Asked, told: Told) {
        let requests = &mut self.requests;
        requests.answers.add((told.status, told.code), 1);
        let failure = if told.late { "timeout" } else { "backend_error" };
        let error = match (told.outcome, told.status) {
            (Some(Outcome::Failure), _) => Some(failure),
            (None, _) => Some("internal_error"),
            (_, 500..) => Some("backend_error"),
            (_, 400..) => Some("validation_error"),
            _ => None,
        };
        if let Some(error) = error {
            requests.errors.add((asked.model, asked.endpoint, asked.mode, error), 1);
        }
        if told.retries > 0 {
            requests.retries.add(asked.endpoint, told.retries);
            // What was tried before a last 429 was most likely answered so as well, and nobody is charged for that.
            if told.outcome != Some(Outcome::Capacity) {
                requests.worker_errors.add((asked.mode, "backend_error"), told.retries);
            }
        }
        if told.outcome == Some(Outcome::Failure) {
            requests.worker_errors.add((asked.mode, failure), 1);
        }
        if matches!(told.outcome, Some(Outcome::Failure | Outcome::Capacity)) {
            requests.exhausted.add(asked.endpoint, 1);
        }
        if let Some(nanos) = told.first_byte_ns {
            requests.first_byte(asked.model, nanos);
        }
    }
}

/// The `error_code` of an answer that a worker has given.
pub const FROM_WORKER: &str = "none";
