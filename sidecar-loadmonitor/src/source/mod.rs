//! Where an engine can tell its load, and how each answer is read. Pure: a status and bytes in, a reading out.
//!
//! A new source is a variant of [`Source`] and a file.

mod loads;
mod metrics;
mod prometheus;
mod ranks;

use std::time::Duration;

use filter_core::report::Load;

use crate::engine::RankLoad;

pub(crate) use ranks::{Rank, together};

/// One way to ask an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// SGLang's JSON, one entry per data-parallel rank, where newer engines have it.
    Loads,
    /// The same where all of SGLang's releases have it.
    V1Loads,
    /// Prometheus text.
    Metrics,
    /// Prometheus text of TensorRT-LLM, whose `/metrics` is something else.
    TrtllmMetrics,
    /// The RPC of an engine that speaks gRPC.
    GetLoads,
}

/// What an answer told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reading {
    /// The load, all ranks together, and each by itself.
    Load(Load, Vec<RankLoad>),
    /// The engine itself shows that its load is not known, and another source would only hide that. Why.
    Unknown(String),
    /// Nothing this time; the next poll asks again. Why.
    Inconclusive(String),
    /// The engine does not have this source. Why.
    Absent(String),
}

/// Which snapshots of an engine are too old to go by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Freshness {
    /// The time in Unix seconds, for engines that do not tell theirs.
    pub(crate) now: f64,
    /// So old is too old.
    pub(crate) most: Duration,
}

impl Source {
    /// Those of an engine that speaks HTTP, best first.
    pub(crate) const HTTP: [Self; 3] = [Self::Loads, Self::V1Loads, Self::Metrics];

    /// What to GET, with the query.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Loads => "/loads?include=core,disagg,queues,memory",
            Self::V1Loads => "/v1/loads?include=core,disagg,queues,memory",
            Self::Metrics | Self::TrtllmMetrics | Self::GetLoads => self.name(),
        }
    }

    /// The name in logs and reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Loads => "/loads",
            Self::V1Loads => "/v1/loads",
            Self::Metrics => "/metrics",
            Self::TrtllmMetrics => "/prometheus/metrics",
            Self::GetLoads => "GetLoads",
        }
    }

    /// The bytes that are read of an answer at most. A page of metrics grows with the ranks: some 100 KB for each.
    pub(crate) const fn limit(self) -> usize {
        match self {
            Self::Metrics | Self::TrtllmMetrics => 4 << 20,
            Self::Loads | Self::V1Loads | Self::GetLoads => 1 << 20,
        }
    }

    /// What an answer with this `status` and `body` tells.
    pub(crate) fn read(self, status: u16, body: &[u8], freshness: Freshness) -> Reading {
        match (status, self) {
            (200, Self::Metrics | Self::TrtllmMetrics) => metrics::read(&String::from_utf8_lossy(body)),
            (200, _) => loads::read(body, freshness),
            (404 | 405 | 501, _) => Reading::Absent(format!("answered {status}")),
            (300..=399, _) => Reading::Inconclusive(format!("answered {status}, and redirects are not followed")),
            (401 | 403, _) => Reading::Inconclusive(format!("answered {status}: it wants another API key")),
            _ => Reading::Inconclusive(format!("answered {status}")),
        }
    }
}

/// Whether this is TensorRT-LLM's Prometheus page.
pub(crate) fn is_trtllm(page: &[u8]) -> bool {
    metrics::is_trtllm(&String::from_utf8_lossy(page))
}

/// Whether this is TensorRT-LLM's list of statistics, which is empty for the next reader.
pub(crate) fn is_drained(page: &[u8]) -> bool {
    page.trim_ascii_start().starts_with(b"[")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A reader at the time of the samples in these tests.
    pub(crate) const FRESH: Freshness = Freshness { now: 1_790_586_844.0, most: Duration::from_secs(30) };

    #[test]
    fn only_three_statuses_mean_that_the_route_is_absent() {
        for source in Source::HTTP {
            for status in [404, 405, 501] {
                assert!(matches!(source.read(status, b"x", FRESH), Reading::Absent(_)), "{status}");
            }
            for status in [204, 302, 400, 401, 403, 429, 500, 502, 503] {
                let reading = source.read(status, b"{\"loads\":[]}", FRESH);
                assert!(matches!(reading, Reading::Inconclusive(_)), "{status}");
            }
        }
    }
}
