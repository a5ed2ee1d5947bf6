//! Taking load snapshots: the ingest listener's requests, and what waits on the shared queue.

use crate::answer::{Answer, error};
use crate::balancer::{Balancer, Context, Level};
use crate::report::{MAX_SNAPSHOT_BYTES, Refused, Snapshot};
use crate::state::reporters::Verdict;

/// Where the sidecar posts its snapshots.
pub const PATH: &[u8] = b"/v1/reports";

/// The shared queue; its name changes with the format, so that old and new code never read each other's messages.
pub const QUEUE: &str = "smg-reports-2";

/// At most this many waiting snapshots are taken in one go: a callback must not hold its thread for long.
pub const MAX_DRAINED: usize = 16;

/// The answer to a request that cannot be a snapshot, by its head; none if its body must be seen.
#[must_use]
pub fn refuse_head(method: &[u8], path: &[u8], ends: bool) -> Option<Answer> {
    let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
    match (method, path, ends) {
        (b"POST", PATH, false) => None,
        (b"POST", PATH, true) => Some(error(400, "empty_snapshot", "a load snapshot is the body of the request")),
        (_, PATH, _) => Some(error(405, "method_not_allowed", "load snapshots are sent with POST")),
        _ => Some(error(404, "not_found", "load snapshots are sent to /v1/reports")),
    }
}

/// The answer to a body that has grown too large to be a snapshot, already counted and logged.
#[must_use]
pub fn refuse_size(context: &mut Context<'_>, held: usize) -> Option<Answer> {
    (held > MAX_SNAPSHOT_BYTES).then(|| error(413, "snapshot_too_large", &refuse(context, &Refused::TooLarge(held))))
}

/// Checks a posted body before it is put on the queue.
///
/// # Errors
/// The answer to a body that is no snapshot, already counted and logged.
pub fn check(context: &mut Context<'_>, body: &[u8]) -> Result<(), Answer> {
    Snapshot::parse(body).map(drop).map_err(|refused| error(400, "malformed_snapshot", &refuse(context, &refused)))
}

/// Counts and logs a refusal, and returns its text.
fn refuse(context: &mut Context<'_>, refused: &Refused) -> String {
    count(context, "malformed", 1);
    let text = refused.to_string();
    context.log.line(Level::Warn, &format!("load snapshot refused: {text}"));
    text
}

/// The answer to a snapshot that is on the queue.
#[must_use]
pub fn accepted() -> Answer {
    Answer { status: 202, headers: Vec::new(), body: String::new() }
}

/// Takes one message of the queue into the tables of `balancer`.
///
/// Outcomes are counted per worker, but for `gap`: a whole snapshot whose silence on other workers means nothing.
pub fn take(context: &mut Context<'_>, balancer: &mut Balancer, message: &[u8]) {
    let snapshot = match Snapshot::parse(message) {
        Ok(snapshot) => snapshot,
        Err(refused) => {
            count(context, "malformed", 1);
            context.log.line(Level::Warn, &format!("load snapshot on the queue ignored: {refused}"));
            return;
        }
    };
    match balancer.apply(context, &snapshot) {
        Ok(applied) => {
            for (result, number) in [
                ("taken", applied.taken),
                ("old", applied.old),
                ("foreign", applied.foreign),
                ("lost", applied.lost),
                ("dropped", applied.dropped),
            ] {
                if number > 0 {
                    count(context, result, number);
                }
            }
            if applied.verdict == Verdict::Gap {
                count(context, "gap", 1);
                let line = "a load snapshot builds on one that was not taken: only the workers it names are updated";
                context.log.line(Level::Debug, line);
            }
            if applied.foreign > 0 {
                let line = format!("{} load reports are of workers that no configuration names", applied.foreign);
                context.log.line(Level::Debug, &line);
            }
        }
        Err(error) => {
            count(context, "lost", snapshot.workers.len() as u64);
            context.log.line(Level::Error, &format!("load snapshot lost: {error}"));
        }
    }
}

fn count(context: &mut Context<'_>, result: &str, number: u64) {
    context.metrics.add("smg_load_reports_total", &[("outcome", result)], number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_posts_of_snapshots_are_read() {
        assert_eq!(refuse_head(b"POST", b"/v1/reports?x", false), None);
        for (method, path, ends, status) in [
            ("POST", "/v1/reports", true, 400),
            ("GET", "/v1/reports", true, 405),
            ("POST", "/v1/chat/completions", false, 404),
        ] {
            assert_eq!(refuse_head(method.as_bytes(), path.as_bytes(), ends).map(|answer| answer.status), Some(status));
        }
    }
}
