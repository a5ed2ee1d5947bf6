//! Where an engine can tell its load, and how each answer is read. Pure: a status and bytes in, a reading out.
//!
//! A new source is a variant of [`Source`] and a file; [`Source::ALL`] is the order they are asked in.

mod loads;
mod metrics;

use filter_core::report::Load;

/// One way to ask an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// SGLang's JSON, one entry per data-parallel rank.
    Loads,
    /// Prometheus text of vLLM or SGLang.
    Metrics,
}

/// What an answer told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reading {
    /// The load.
    Load(Load),
    /// The engine has not computed anything yet. It would look idle, so nothing else is asked either.
    Starting,
    /// Nothing this time; the next poll asks again. Why.
    Inconclusive(String),
    /// The engine does not have this source. Why.
    Absent(String),
}

impl Source {
    /// Best first.
    pub(crate) const ALL: [Self; 2] = [Self::Loads, Self::Metrics];

    /// What to GET, with the query.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Loads => "/v1/loads?include=core,disagg,queues,memory",
            Self::Metrics => "/metrics",
        }
    }

    /// The name in log lines.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Loads => "/v1/loads",
            Self::Metrics => "/metrics",
        }
    }

    /// What an answer with this `status` and `body` tells.
    pub(crate) fn read(self, status: u16, body: &[u8]) -> Reading {
        match status {
            200 => match self {
                Self::Loads => loads::read(body),
                Self::Metrics => metrics::read(body),
            },
            404 | 405 | 501 => Reading::Absent(format!("answered {status}")),
            300..=399 => Reading::Inconclusive(format!("answered {status}, and redirects are not followed")),
            _ => Reading::Inconclusive(format!("answered {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_three_statuses_mean_that_the_route_is_absent() {
        for source in Source::ALL {
            for status in [404, 405, 501] {
                assert!(matches!(source.read(status, b"x"), Reading::Absent(_)), "{status}");
            }
            for status in [204, 302, 400, 401, 403, 429, 500, 502, 503] {
                assert!(matches!(source.read(status, b"{\"loads\":[]}"), Reading::Inconclusive(_)), "{status}");
            }
        }
    }
}
