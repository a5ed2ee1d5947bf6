//! What a replay measured.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

/// One request as its client saw it.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The session it belongs to.
    pub session: usize,
    /// Its number in the session.
    pub turn: usize,
    /// When it was sent.
    pub started: Instant,
    /// How much later than its arrival time it was sent.
    pub late: Duration,
    /// HTTP status; 0 when no answer came.
    pub status: u16,
    /// The engine that answered, by its own word.
    pub engine: Option<String>,
    /// The worker that answered, by the gateway's word.
    pub routed_worker: Option<String>,
    /// Time to the first event of the stream.
    pub ttft: Option<Duration>,
    /// Time to the end of the answer.
    pub total: Duration,
    /// Prompt tokens, from the usage of the answer.
    pub prompt_tokens: u64,
    /// Of these, tokens from the engine's cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// What went wrong.
    pub error: Option<String>,
}

impl Sample {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            session: 0,
            turn: 0,
            started,
            late: Duration::ZERO,
            status: 0,
            engine: None,
            routed_worker: None,
            ttft: None,
            total: Duration::ZERO,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            error: None,
        }
    }
}

/// The outcome of a replay.
#[derive(Clone, Debug)]
pub struct LoadReport {
    /// The requests that ended, in no order.
    pub samples: Vec<Sample>,
    /// Requests that had not ended, or not begun, when the time was up.
    pub unfinished: usize,
    /// Real time of the replay.
    pub elapsed: Duration,
}

/// Percentiles of a duration in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// 99 of 100 are below.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

/// A replay in numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Requests of the workload.
    pub requests: usize,
    /// Of these, requests without a complete good answer.
    pub errors: usize,
    /// Cached over all prompt tokens of the complete answers, 0 to 1.
    pub hit_rate: f64,
    /// Prompt tokens of the complete answers.
    pub prompt_tokens: u64,
    /// Of these, tokens from engines' caches.
    pub cached_tokens: u64,
    /// Time to the first token of the complete answers.
    pub ttft_ms: Percentiles,
    /// Time to the end of the complete answers.
    pub total_ms: Percentiles,
    /// How late requests were sent: the load generator's own trouble, and turns that waited for the turn before.
    pub late_ms: Percentiles,
    /// Complete answers of each engine.
    pub requests_per_engine: BTreeMap<String, u64>,
    /// Prompt tokens that each engine computed.
    pub uncached_tokens_per_engine: BTreeMap<String, u64>,
    /// Seconds of real time.
    pub seconds: f64,
}

impl LoadReport {
    /// The replay in numbers.
    pub fn summary(&self) -> Summary {
        let good: Vec<&Sample> = self.samples.iter().filter(|sample| sample.error.is_none()).collect();
        let requests = self.samples.len() + self.unfinished;
        let prompt_tokens: u64 = good.iter().map(|sample| sample.prompt_tokens).sum();
        let cached_tokens: u64 = good.iter().map(|sample| sample.cached_tokens).sum();
        let mut requests_per_engine = BTreeMap::new();
        let mut uncached_tokens_per_engine = BTreeMap::new();
        for sample in &good {
            let engine = sample.engine.clone().unwrap_or_default();
            *requests_per_engine.entry(engine.clone()).or_default() += 1;
            *uncached_tokens_per_engine.entry(engine).or_default() += sample.prompt_tokens - sample.cached_tokens;
        }
        Summary {
            requests,
            errors: requests - good.len(),
            hit_rate: cached_tokens as f64 / prompt_tokens.max(1) as f64,
            prompt_tokens,
            cached_tokens,
            ttft_ms: Percentiles::of(good.iter().filter_map(|sample| sample.ttft)),
            total_ms: Percentiles::of(good.iter().map(|sample| sample.total)),
            late_ms: Percentiles::of(self.samples.iter().map(|sample| sample.late)),
            requests_per_engine,
            uncached_tokens_per_engine,
            seconds: self.elapsed.as_secs_f64(),
        }
    }

    /// What went wrong, and how often.
    pub fn errors(&self) -> BTreeMap<&str, usize> {
        let mut errors = BTreeMap::new();
        for error in self.samples.iter().filter_map(|sample| sample.error.as_deref()) {
            *errors.entry(error).or_default() += 1;
        }
        if self.unfinished > 0 {
            errors.insert("not finished when the time was up", self.unfinished);
        }
        errors
    }
}

impl Percentiles {
    /// The percentiles of some durations; zeros if there are none.
    pub fn of(durations: impl Iterator<Item = Duration>) -> Self {
        let mut sorted: Vec<Duration> = durations.collect();
        sorted.sort_unstable();
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).map_or(0.0, |value| value.as_secs_f64() * 1000.0)
        };
        Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let hundred = Percentiles::of((1..=100).map(Duration::from_millis));
        assert_eq!((hundred.p50, hundred.p90, hundred.p99, hundred.max), (50.0, 90.0, 99.0, 100.0));
        assert_eq!(Percentiles::of(std::iter::once(Duration::from_millis(7))).p50, 7.0);
        assert_eq!(Percentiles::of(std::iter::empty()), Percentiles::default());
    }
}
