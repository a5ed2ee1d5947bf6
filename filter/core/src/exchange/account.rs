//! What is counted of an exchange, and under which labels.

use super::Http;
use super::verdict::{SILENT_WORKER, WORKERS_FAULT};
use crate::balancer::{Asked, Balancer, FROM_WORKER, Told};
use crate::breaker::Outcome;
use crate::fleet::ConnectionMode;
use crate::request::{Endpoint, Facts, Parsed};

/// What is known of an exchange for the metrics.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The label `endpoint`; none for what is no inference request.
    endpoint: Option<&'static str>,
    /// Why the body was waited for.
    held_for: Option<&'static str>,
    asked: Option<Asked>,
    /// When the request was let go, by the host's clock; 0 is never.
    let_go_ns: u64,
}

/// Who has given an answer, and what it says of the worker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    /// What it says of the worker that was tried last; none when it is no worker's fault.
    pub(super) outcome: Option<Outcome>,
    /// [`FROM_WORKER`], or Envoy's reason to answer itself.
    pub(super) code: &'static str,
}

impl Verdict {
    /// Whether a worker has given it.
    pub(super) fn is_from_worker(self) -> bool {
        self.code == FROM_WORKER
    }

    /// Whether a worker has not answered in time.
    fn is_late(self) -> bool {
        self.outcome == Some(Outcome::Failure) && LATE.contains(&self.code)
    }
}

/// Envoy's reasons that are time limits.
const LATE: [&str; 5] = [
    "upstream_response_timeout",
    "upstream_per_try_timeout",
    "response_timeout",
    "stream_idle_timeout",
    "upstream_per_try_idle_timeout",
];

/// Envoy's reason as a label: one of the few that name a worker's fault, or `other`.
pub(super) fn code(details: &[u8]) -> &'static str {
    let known = WORKERS_FAULT.iter().chain(SILENT_WORKER).find(|known| details.starts_with(known));
    known.and_then(|known| std::str::from_utf8(known).ok()).unwrap_or("other")
}

impl Account {
    /// An inference request has come.
    pub(super) fn open(&mut self, endpoint: Endpoint) {
        self.endpoint = Some(endpoint.label());
    }

    /// Its body is waited for, for this `reason`.
    pub(super) fn hold(&mut self, reason: &'static str) {
        self.held_for = Some(reason);
    }

    /// It comes to a decision, for `model` and with these facts of its body.
    pub(super) fn decide(&mut self, balancer: &mut Balancer, model: &str, facts: &Facts) {
        let Some(endpoint) = self.endpoint else { return };
        let streaming = match facts.end {
            Parsed::NotRead => "unknown",
            _ if facts.stream => "true",
            _ => "false",
        };
        self.asked = Some(balancer.asked(model, endpoint, streaming));
        let (path, reason) = match (self.held_for, facts.end) {
            (None, _) => ("stream", "pure_forward"),
            (Some(_), Parsed::NotRead) => ("stream", "no_body"),
            (Some(_), Parsed::Cut) => ("stream", "too_large"),
            (Some(reason), _) => ("buffer", reason),
        };
        balancer.count_body(path, reason);
    }

    /// Nobody could be chosen for it.
    pub(super) fn refuse(&self, balancer: &mut Balancer) {
        if let Some(asked) = self.asked {
            balancer.count_request(asked);
            balancer.count_refusal(asked);
        }
    }

    /// It is let go, to a worker that is spoken to in this way.
    pub(super) fn let_go(&mut self, balancer: &mut Balancer, http: &mut dyn Http, mode: Option<ConnectionMode>) {
        if let Some(asked) = &mut self.asked {
            *asked = mode.map_or(*asked, |mode| asked.with_mode(mode));
            balancer.count_request(*asked);
            self.let_go_ns = http.now_nanos();
        }
    }

    /// An answer has come, after so many attempts.
    pub(super) fn answer(
        &self,
        balancer: &mut Balancer,
        http: &mut dyn Http,
        status: u16,
        verdict: Verdict,
        attempts: Option<u64>,
    ) {
        let Some(asked) = self.asked else { return };
        let good = (200..300).contains(&status) && verdict.is_from_worker();
        let first_byte_ns = (good && self.let_go_ns > 0).then(|| http.now_nanos().saturating_sub(self.let_go_ns));
        let told = Told {
            status,
            code: verdict.code,
            outcome: verdict.outcome,
            late: verdict.is_late(),
            retries: attempts.unwrap_or(1).saturating_sub(1),
            first_byte_ns,
        };
        balancer.count_answer(asked, told);
    }
}
