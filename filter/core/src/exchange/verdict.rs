//! What an answer says of the worker that was tried last, and who has given it.

use super::Http;
use super::account::{Verdict, code};
use crate::balancer::FROM_WORKER;
use crate::breaker::{Outcome, status_of_grpc};
use crate::fleet::Worker;

/// What a status says of the worker that Envoy names as the last one tried, and whether that worker gave it.
///
/// Envoy's own answers are told apart by their details, whatever the status. The details need not be asked for where a
/// host was tried and the status is a success: only to a gRPC client does Envoy call its own errors so, and then with a
/// `grpc-status` beside it.
pub(super) fn judge(http: &mut dyn Http, status: u16, tried: bool, worker: Option<&Worker>) -> Verdict {
    let says = |status| worker.map_or_else(|| Outcome::of_status(status), |worker| worker.outcome(status));
    let grpc_status = (200..300).contains(&status).then(|| http.response_header("grpc-status")).flatten();
    let grpc_status = grpc_status.filter(|code| !code.is_empty());
    if tried && (200..300).contains(&status) && grpc_status.is_none() {
        return Verdict { outcome: Some(says(status)), code: FROM_WORKER };
    }
    let details = http.property(&["response", "code_details"]).unwrap_or_default();
    match details.as_slice() {
        b"via_upstream" | b"" => {
            let status = grpc_status.map_or(status, |code| status_of_grpc(&code));
            Verdict { outcome: Some(says(status)), code: FROM_WORKER }
        }
        details => {
            let outcome = is_workers_fault(details, status).then_some(Outcome::Failure);
            Verdict { outcome, code: code(details) }
        }
    }
}

/// The attempts that Envoy has made, if it says.
pub(super) fn attempts(http: &mut dyn Http) -> Option<u64> {
    let raw = http.property(&["upstream", "request_attempt_count"])?;
    raw.first_chunk::<8>().map(|raw| u64::from_le_bytes(*raw))
}

/// Whether Envoy's own answer with these details tells of a worker that was not reached, broke off or took too long.
fn is_workers_fault(details: &[u8], status: u16) -> bool {
    // The cluster's connection limits; the worker was not asked.
    if details.starts_with(b"upstream_reset_before_response_started{overflow") {
        return false;
    }
    // Who has been idle: 504 where the request was complete, 408 where the client was still to send.
    let silent = status == 504 && SILENT_WORKER.contains(&details);
    silent || WORKERS_FAULT.iter().any(|prefix| details.starts_with(prefix))
}

/// Details that are a worker's fault whatever the status; some go on with a reason in braces.
pub(super) const WORKERS_FAULT: &[&[u8]] = &[
    b"upstream_reset_before_response_started",
    b"upstream_response_timeout",
    b"upstream_per_try_timeout",
    b"upstream_per_try_idle_timeout",
    b"response_timeout",
];

/// Details of time limits that either side can run into. Without a route timeout, as LLM traffic needs it, the idle
/// timeout is what ends a request to a worker that hangs.
pub(super) const SILENT_WORKER: &[&[u8]] = &[b"stream_idle_timeout", b"upstream_max_stream_duration_reached"];
