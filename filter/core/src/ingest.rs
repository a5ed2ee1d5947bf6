//! Taking load snapshots: the ingest listener's requests, and what waits on the shared queue.

use crate::answer::{Answer, error};
use crate::balancer::{Balancer, Context, Level};
use crate::report::{MAX_SNAPSHOT_BYTES, Refused, Snapshot};
use crate::state::reporters::Verdict;
use crate::token::Token;

/// Where the sidecar posts its snapshots.
pub const PATH: &[u8] = b"/v1/reports";

/// The shared queue; its name changes with the format, so that old and new code never read each other's messages.
pub const QUEUE: &str = "smg-reports-2";

/// At most this many waiting snapshots are taken in one go: a callback must not hold its thread for long.
pub const MAX_DRAINED: usize = 16;

/// The head of a request to the ingest listener.
#[derive(Debug, Clone, Copy, Default)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a [u8],
    /// Its path, with a query if there is one.
    pub path: &'a [u8],
    /// The header `authorization`, empty if there is none.
    pub authorization: &'a [u8],
    /// No body follows.
    pub ends: bool,
}

/// The answer to a request that cannot be a snapshot, or does not present `token`, by its head; none if its body must be
/// seen.
#[must_use]
pub fn refuse_head(context: &mut Context<'_>, token: Option<&Token>, head: Head<'_>) -> Option<Answer> {
    if token.is_some_and(|token| !token.is_presented_by(head.authorization)) {
        count(context, "unauthorized", 1);
        let message = "load snapshots need the header `authorization: Bearer …` with the token of `reports.token`";
        let mut answer = error(401, "unauthorized", message);
        answer.headers.push(("www-authenticate", "Bearer".to_owned()));
        return Some(answer);
    }
    let path = head.path.split(|&byte| byte == b'?').next().unwrap_or_default();
    match (head.method, path, head.ends) {
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

/// The snapshots in a row that were put on the queue and that nobody has taken since.
#[derive(Debug, Default)]
pub struct Unclaimed(u32);

impl Unclaimed {
    /// One or two may only have come before another thread had the time: a VM that has just been replaced does not
    /// balance until its first request.
    const PATIENCE: u32 = 3;

    /// The one before the one that has just come has been taken, or this VM takes it itself.
    pub fn claimed(&mut self) {
        self.0 = 0;
    }

    /// The one before had to be thrown away: counts it, and says once if it goes on like that.
    pub fn dropped(&mut self, context: &mut Context<'_>) {
        count(context, "unclaimed", 1);
        self.0 = self.0.saturating_add(1);
        if self.0 == Self::PATIENCE {
            let line = "no routing listener takes the load snapshots that the ingest listener is sent: give both the same \
                        vm_id, the same code and the same vm configuration";
            context.log.line(Level::Warn, line);
        }
    }
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
    use crate::balancer::tests::{Vm, config};

    fn refused(token: Option<&str>, head: Head<'_>) -> Option<u16> {
        let mut vm = Vm::alone(config("random", 1, ""));
        let token = token.and_then(Token::new);
        vm.world.run(|context, _| refuse_head(context, token.as_ref(), head)).map(|answer| answer.status)
    }

    fn post<'a>(authorization: &'a str) -> Head<'a> {
        Head { method: b"POST", path: b"/v1/reports?x", authorization: authorization.as_bytes(), ends: false }
    }

    #[test]
    fn only_posts_of_snapshots_are_read() {
        assert_eq!(refused(None, post("")), None);
        for (method, path, ends, status) in [
            ("POST", "/v1/reports", true, 400),
            ("GET", "/v1/reports", true, 405),
            ("POST", "/v1/chat/completions", false, 404),
        ] {
            let head = Head { method: method.as_bytes(), path: path.as_bytes(), ends, ..Head::default() };
            assert_eq!(refused(None, head), Some(status));
        }
    }

    #[test]
    fn a_token_is_demanded_where_there_is_one() {
        assert_eq!(refused(None, post("Bearer anything")), None);
        assert_eq!(refused(Some("secret"), post("Bearer secret")), None);
        for wrong in ["", "Bearer", "Bearer other", "secret", "Basic secret"] {
            assert_eq!(refused(Some("secret"), post(wrong)), Some(401), "{wrong}");
        }
        let elsewhere = Head { path: b"/", ..post("") };
        assert_eq!(refused(Some("secret"), elsewhere), Some(401), "strangers are told nothing else");
    }

    #[test]
    fn snapshots_that_nobody_takes_are_told_of_once() {
        let mut vm = Vm::alone(config("random", 1, ""));
        let mut unclaimed = Unclaimed::default();
        let mut told = |drops: u32| {
            (0..drops).for_each(|_| vm.world.run(|context, _| unclaimed.dropped(context)));
            unclaimed.claimed();
            vm.world.log.0.iter().filter(|(_, line)| line.contains("no routing listener takes")).count()
        };
        assert_eq!([told(2), told(2), told(9), told(3)], [0, 0, 1, 2]);
        assert_eq!(vm.metric("smg_load_reports_total;outcome=unclaimed"), 16);
    }
}
