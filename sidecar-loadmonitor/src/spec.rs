//! What is said of one worker: by the command line, a file or whatever else finds workers.

use std::{collections::BTreeMap, net::SocketAddr, ops::RangeInclusive};

use filter_core::report::{Info, Overload, Resilience};
use serde::Deserialize;

use crate::config::Worker;

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

/// Seconds that anything about a worker may be set to: nobody waits for a day.
const SECONDS: RangeInclusive<u64> = 1..=86_400;
/// See `--health-failure-threshold`.
const PROBES: RangeInclusive<u32> = 1..=1000;

impl WorkerSpec {
    /// The worker that this describes, if it makes sense.
    ///
    /// # Errors
    /// Names what is wrong, and what is allowed.
    pub(crate) fn check(&self) -> Result<Worker, String> {
        let worker = Worker::parse(&self.url).map_err(|error| error.to_string())?;
        let wrong = |what: &str, value: String, allowed: &str| Err(format!("{what} {value} must be {allowed}"));
        // The filter compares URLs byte by byte, and knows no such scheme.
        if self.url.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().any(|byte| byte.is_ascii_uppercase())) {
            return wrong("url", format!("{:?}", self.url), "of a scheme in lower case");
        }
        if !matches!(self.leg.as_str(), "" | "regular" | "prefill" | "decode") {
            return wrong("leg", format!("{:?}", self.leg), "regular, prefill or decode");
        }
        if let Some(address) = self.address.as_ref().filter(|address| address.parse::<SocketAddr>().is_err()) {
            return wrong("address", format!("{address:?}"), "an ip:port");
        }
        if let Some(usage) = self.overload.token_usage.filter(|usage| !(*usage > 0.0 && *usage <= 1.0)) {
            return wrong("overload.token_usage", usage.to_string(), "above 0 and at most 1");
        }
        let HealthSpec { timeout_secs, check_interval_secs, success_threshold, failure_threshold, .. } = self.health;
        for (what, value) in [
            ("health.timeout_secs", timeout_secs),
            ("health.check_interval_secs", check_interval_secs),
            ("load_monitor_interval_secs", self.load_monitor_interval_secs),
        ] {
            if let Some(value) = value.filter(|value| !SECONDS.contains(value)) {
                return wrong(what, value.to_string(), &format!("{} to {}", SECONDS.start(), SECONDS.end()));
            }
        }
        if let Some(value) = self.health.drain_settle_secs.filter(|value| value > SECONDS.end()) {
            return wrong("health.drain_settle_secs", value.to_string(), &format!("at most {}", SECONDS.end()));
        }
        for (what, value) in
            [("health.success_threshold", success_threshold), ("health.failure_threshold", failure_threshold)]
        {
            if let Some(value) = value.filter(|value| !PROBES.contains(value)) {
                return wrong(what, value.to_string(), &format!("{} to {}", PROBES.start(), PROBES.end()));
            }
        }
        for (what, value) in [
            ("overload.waiting_requests", self.overload.waiting_requests),
            ("resilience.cb_failure_threshold", self.resilience.cb_failure_threshold),
            ("resilience.cb_success_threshold", self.resilience.cb_success_threshold),
            ("resilience.cb_timeout_secs", self.resilience.cb_timeout_secs),
        ] {
            if value == Some(0) {
                return wrong(what, "0".to_owned(), "at least 1");
            }
        }
        Ok(worker)
    }

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
