//! What is said of one worker: by the command line, a file or whatever else finds workers.

use std::collections::BTreeMap;

use filter_core::report::{Info, Overload, Resilience};
use serde::Deserialize;

/// One worker as somebody describes it, in SMG's words (its `WorkerSpec`); what is left out is asked from the engine or
/// has SMG's default.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WorkerSpec {
    /// The worker's name everywhere, byte for byte: `http`, `https`, `grpc` or `grpcs`, host and port.
    pub(crate) url: String,
    /// `ip:port`, where the URL's host is not to be looked up.
    pub(crate) address: Option<String>,
    /// The ids of the models that it serves. None: the engine is asked.
    pub(crate) models: Vec<String>,
    /// What part of a request it does: `regular` (also if empty), `prefill` or `decode`.
    #[serde(alias = "worker_type")]
    pub(crate) leg: String,
    /// The engine (`sglang`, `vllm`, …). Empty: it is asked.
    #[serde(alias = "runtime_type")]
    pub(crate) runtime: String,
    /// Free labels; `dp_size` among them counts as the number of data-parallel ranks.
    pub(crate) labels: BTreeMap<String, String>,
    /// Sent to the engine as bearer token, in place of the key that all engines get.
    pub(crate) api_key: Option<String>,
    /// The port of SGLang's bootstrap server on a prefill worker.
    pub(crate) bootstrap_port: Option<u16>,
    /// How it is probed.
    pub(crate) health: HealthSpec,
    /// Its own circuit breaker settings.
    pub(crate) resilience: Resilience,
    /// Its own limits of overload protection.
    pub(crate) overload: Overload,
    /// Seconds from one poll to the next, at least 1.
    pub(crate) load_monitor_interval_secs: Option<u64>,
    /// The Envoy cluster that has the host, if it was found there.
    pub(crate) cluster: Option<String>,
}

/// How a worker is probed; what is absent is as for all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HealthSpec {
    /// Seconds that one probe may take.
    pub(crate) timeout_secs: Option<u64>,
    /// Seconds from one probe to the next.
    pub(crate) check_interval_secs: Option<u64>,
    /// So many successes in a row bring it into rotation.
    pub(crate) success_threshold: Option<u32>,
    /// So many failures in a row take it out of rotation.
    pub(crate) failure_threshold: Option<u32>,
    /// It is not probed and counts as ready.
    pub(crate) disable_health_check: Option<bool>,
    /// Seconds that it drains before it is removed.
    pub(crate) drain_settle_secs: Option<u64>,
}

impl WorkerSpec {
    /// What is said of it, to be completed by what the engine says.
    pub(crate) fn info(&self) -> Info {
        Info {
            models: self.models.clone(),
            leg: self.leg.clone(),
            runtime: self.runtime.clone(),
            dp_size: self.labels.get("dp_size").and_then(|size| size.parse().ok()).unwrap_or(0),
            bootstrap_port: self.bootstrap_port,
            labels: self.labels.clone(),
            cluster: self.cluster.clone(),
            resilience: self.resilience.clone(),
            overload: self.overload,
        }
    }
}
