//! What is known of one worker, and what makes it the worker it is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Load;

/// What is known of one worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The worker's URL, byte for byte as whoever named it wrote it: its name everywhere.
    pub url: String,
    /// Where the URL's host is reached: `ip:port`, IPv6 in brackets. Absent if it did not resolve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Its health; absent if nobody probes it: then it may be chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// The load, or absent if the poll failed or told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Tells the poll that brought the load from others of this worker: in an epoch it grows from poll to poll. The same
    /// number again is the same answer told again, between whatever news. 0: not said, then each report counts as a poll
    /// of its own.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub poll: u64,
    /// What the worker is. Absent: as it was last told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info: Option<Box<Info>>,
}

/// A worker's health as probes have found it (SMG: worker states). Only `Ready` ones may be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Registered, never proven.
    Pending,
    /// May be chosen.
    Ready,
    /// Left rotation after failed probes; may return.
    NotReady,
    /// Given up.
    Failed,
    /// Being removed: it ends what it has and is sent nothing more.
    Draining,
}

/// What a worker is, as far as anybody has said: its operator, or the engine itself. A configuration that names the
/// worker goes before it, member by member.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Info {
    /// The models that it serves, adapters too. None: any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
    /// What part of a request it does: `regular` (also if empty), `prefill` or `decode`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub leg: String,
    /// The engine (`sglang`, `vllm`, …); empty if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub runtime: String,
    /// Its data-parallel ranks; 0 if not known.
    #[serde(skip_serializing_if = "is_zero")]
    pub dp_size: u32,
    /// The port of SGLang's bootstrap server on a prefill worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_port: Option<u16>,
    /// Free labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The Envoy cluster that has the host, if it was found there: only requests routed to that cluster can reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Its own circuit breaker settings.
    #[serde(skip_serializing_if = "Resilience::is_default")]
    pub resilience: Resilience,
    /// Its own limits of overload protection.
    #[serde(skip_serializing_if = "Overload::is_default")]
    pub overload: Overload,
}

/// A worker's own circuit breaker settings, by SMG's names; what is absent is as in the filter's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resilience {
    /// So many failures in a row open it, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_failure_threshold: Option<u32>,
    /// So many successes in a row close a half-open one, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_success_threshold: Option<u32>,
    /// An open one is tried again after so many seconds, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cb_timeout_secs: Option<u32>,
    /// Whether it never opens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_circuit_breaker: Option<bool>,
    /// Statuses that say neither good nor ill of the worker; replaces the default (429).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_status_codes: Option<Vec<u16>>,
    /// Statuses that count as failures; replaces the default (408, 429, 500, 502, 503, 504).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retryable_status_codes: Option<Vec<u16>>,
}

/// A worker's own limits of overload protection (SMG: overload protection); either one enables it for this worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Overload {
    /// Vetoed from so many waiting requests on, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_requests: Option<u32>,
    /// Vetoed from this KV usage on, above 0 and at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_usage: Option<f64>,
}

impl Resilience {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Overload {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

// The signature is serde's.
fn is_zero<N: Copy + Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}
