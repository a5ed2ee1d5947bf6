//! Fetching load snapshots from a cluster: when to ask, what to ask for, and what an answer means.
//!
//! One [`Puller`] for each set of shared tables and cluster; the VM that leads drives it. Events go in, calls come out; the
//! caller makes them. A call cannot be taken back: whoever has stopped leading ignores nothing, since a snapshot that is
//! taken twice changes nothing.

mod outcome;
#[cfg(test)]
mod tests;

use rand::Rng;
use xxhash_rust::xxh3::xxh3_64;

pub use outcome::Outcome;

use crate::balancer::{Balancer, Context, Level};
use crate::report::{MAX_SNAPSHOT_BYTES, Refused, Scope, Snapshot};
use crate::state::named::reporter_hash;

/// The pause after the first failure, in milliseconds; it doubles with each further one ...
const FIRST_PAUSE_MS: u64 = 1000;
/// ... up to this.
const LONGEST_PAUSE_MS: u64 = 30_000;

/// So many calls may follow each other at once between two ticks: a sidecar that always has news must not keep a thread
/// busy.
const MAX_CALLS_PER_TICK: u32 = 4;

/// A call whose end has not been told for so long after its time limit never will be, in milliseconds.
const GRACE_MS: u64 = 2000;

/// A snapshot on the queue that no thread has taken within so long a time never will be, in milliseconds.
const PATIENCE_MS: u64 = 2000;

/// A request that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The Envoy cluster that it goes to.
    pub cluster: String,
    /// Its headers, pseudo-headers among them. It has no body.
    pub headers: Vec<(&'static str, String)>,
    /// How long it may last, in milliseconds.
    pub timeout_ms: u32,
}

/// A snapshot that is to be put on the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    reporter: u64,
    epoch: u64,
    sequence: u64,
}

/// Fetches snapshots for one set of tables from one cluster.
#[derive(Debug, Default)]
pub struct Puller {
    /// The host's number for the call that is under way.
    under_way: Option<u32>,
    /// What the last call said that is known: (epoch, sequence).
    asked: Option<(u64, u64)>,
    /// When the last call was made or the last pause began, by the VM's clock, and how long to wait from then on.
    since_ms: u64,
    pause_ms: u64,
    failures: u32,
    /// The next call asks for everything.
    everything: bool,
    /// A snapshot that another thread has taken off the queue but not yet into the tables, and since when it is waited for.
    awaited: Option<(Fetched, u64)>,
    calls_this_tick: u32,
    /// What the log has said last.
    said: Option<Outcome>,
}

impl Puller {
    /// Names the puller among those of a VM: whoever shares tables and cluster shares it. None if nothing is to be fetched.
    #[must_use]
    pub fn name(balancer: &Balancer) -> Option<String> {
        let cluster = balancer.config().reports.cluster.as_ref()?;
        Some(format!("{}\0{cluster}", balancer.tables()))
    }

    /// Time has passed: a call that is due.
    pub fn on_tick(&mut self, context: &mut Context<'_>, balancer: &Balancer) -> Option<Call> {
        self.calls_this_tick = 0;
        if let Some((fetched, since_ms)) = self.awaited {
            return self.look(context, balancer, fetched, since_ms);
        }
        let waited = context.now_ms.abs_diff(self.since_ms);
        if self.under_way.is_some() {
            let most = u64::from(balancer.config().reports.timeout_ms) + GRACE_MS;
            if waited > most {
                self.under_way = None;
                self.fail(context, balancer, Outcome::Unreachable, "the call has never ended");
            }
            return None;
        }
        if waited < self.pause_ms { None } else { self.ask(context, balancer) }
    }

    /// The host has taken a call, under this number, or refused it with this status.
    pub fn on_sent(&mut self, context: &mut Context<'_>, balancer: &Balancer, sent: Result<u32, u32>) {
        match sent {
            Ok(number) => (self.under_way, self.since_ms) = (Some(number), context.now_ms),
            Err(status) => {
                let why = format!("Envoy does not make the call (status {status}): is there such a cluster?");
                self.fail(context, balancer, Outcome::Unreachable, &why);
            }
        }
    }

    /// The call of this number has ended: with a status and a body of `size` bytes, or without an answer. Whether the body
    /// is to be read and handed to [`Puller::on_body`].
    pub fn on_head(
        &mut self,
        context: &mut Context<'_>,
        balancer: &Balancer,
        number: u32,
        status: Option<&[u8]>,
        size: usize,
    ) -> bool {
        if self.under_way != Some(number) {
            return false;
        }
        self.under_way = None;
        let text = |status: &[u8]| {
            let by_whom = if status == b"503" { ", as Envoy itself does where nobody can be reached" } else { "" };
            format!("it answers {}{by_whom}", String::from_utf8_lossy(status))
        };
        match status {
            Some(b"200") if size > MAX_SNAPSHOT_BYTES => {
                self.fail(context, balancer, Outcome::Malformed, &Refused::TooLarge(size).to_string());
            }
            Some(b"200") => return true,
            Some(b"204") => self.succeed(context, balancer, Outcome::Unchanged),
            Some(status @ (b"401" | b"403")) => {
                let why = format!("{}: is the token the sidecar's?", text(status));
                self.fail(context, balancer, Outcome::Unauthorized, &why);
            }
            Some(status @ b"404") => {
                let path = &balancer.config().reports.path;
                self.fail(context, balancer, Outcome::NotFound, &format!("{} to {path}", text(status)));
            }
            Some(status) => self.fail(context, balancer, Outcome::Status, &text(status)),
            None => self.fail(context, balancer, Outcome::Unreachable, "it does not answer"),
        }
        false
    }

    /// The body of an answer. What is returned is to be put on the queue, the queue to be drained, and then
    /// [`Puller::on_taken`] called.
    pub fn on_body(&mut self, context: &mut Context<'_>, balancer: &Balancer, body: &[u8]) -> Option<Fetched> {
        let snapshot = match Snapshot::parse(body) {
            Ok(snapshot) => snapshot,
            Err(refused) => {
                let outcome =
                    if matches!(refused, Refused::Version(_)) { Outcome::Version } else { Outcome::Malformed };
                self.fail(context, balancer, outcome, &refused.to_string());
                return None;
            }
        };
        // A delta on what was not said to be known. Whom it names is news all the same.
        self.everything = match (snapshot.scope, self.asked) {
            (Scope::Since(base), Some((epoch, known))) => snapshot.epoch != epoch || base > known,
            (Scope::Since(_), None) => true,
            _ => false,
        };
        let Snapshot { epoch, sequence, .. } = snapshot;
        Some(Fetched { reporter: reporter_hash(&snapshot.reporter), epoch, sequence })
    }

    /// A snapshot has been taken off the queue again, by this thread or by another one: the call that is to follow.
    pub fn on_taken(&mut self, context: &mut Context<'_>, balancer: &Balancer, fetched: Fetched) -> Option<Call> {
        let since_ms = context.now_ms;
        self.look(context, balancer, fetched, since_ms)
    }

    /// Looks what has become of a snapshot that was put on the queue at `since_ms`. The host announces it to another
    /// thread, which may have it in hands still: asked at once, the sidecar would be told that less is known, or nothing.
    fn look(
        &mut self,
        context: &mut Context<'_>,
        balancer: &Balancer,
        fetched: Fetched,
        since_ms: u64,
    ) -> Option<Call> {
        self.awaited = None;
        let known = balancer.fetched(context.store, fetched.reporter, cluster_hash(balancer)).ok().flatten();
        let named = (fetched.epoch, fetched.sequence);
        if known < Some(named) {
            if context.now_ms.abs_diff(since_ms) <= PATIENCE_MS {
                self.awaited = Some((fetched, since_ms));
            } else {
                self.fail(context, balancer, Outcome::Lost, "no thread has taken it off the shared queue");
            }
            return None;
        }
        if self.everything {
            if self.asked.is_none() {
                self.fail(context, balancer, Outcome::Gap, "asked for everything, it sends a delta");
                return None;
            }
            count(context, Outcome::Gap);
            return self.ask(context, balancer);
        }
        if known > Some(named) || self.asked == Some(named) {
            self.succeed(context, balancer, Outcome::Old);
            return None;
        }
        self.succeed(context, balancer, Outcome::News);
        self.ask(context, balancer)
    }

    /// A snapshot could not be put on the queue: the host's status.
    pub fn on_refused(&mut self, context: &mut Context<'_>, balancer: &Balancer, status: u32) {
        self.fail(context, balancer, Outcome::Lost, &format!("the shared queue refuses it (status {status})"));
    }

    /// The configuration that has made the call goes: its end will not be told.
    pub fn on_abandoned(&mut self) {
        (self.under_way, self.pause_ms) = (None, 0);
    }

    fn ask(&mut self, context: &mut Context<'_>, balancer: &Balancer) -> Option<Call> {
        if !balancer.leads() || self.under_way.is_some() || self.calls_this_tick >= MAX_CALLS_PER_TICK {
            return None;
        }
        self.calls_this_tick += 1;
        let reports = &balancer.config().reports;
        let cluster = reports.cluster.clone()?;
        self.asked = match self.everything {
            true => None,
            false => balancer.known_behind(context.store, cluster_hash(balancer)).ok().flatten(),
        };
        let mut path = format!("{}?wait_ms={}", reports.path, reports.wait_ms);
        if let Some((epoch, sequence)) = self.asked {
            path.push_str(&format!("&epoch={epoch}&sequence={sequence}"));
        }
        let mut headers = vec![
            (":method", "GET".to_owned()),
            (":path", path),
            (":authority", reports.authority.clone().unwrap_or_else(|| cluster.clone())),
            ("accept", "application/json".to_owned()),
        ];
        if let Some(token) = &reports.token {
            headers.push(("authorization", token.authorization()));
        }
        Some(Call { cluster, headers, timeout_ms: reports.timeout_ms })
    }

    fn succeed(&mut self, context: &mut Context<'_>, balancer: &Balancer, outcome: Outcome) {
        count(context, outcome);
        (self.failures, self.pause_ms) = (0, 0);
        if self.said.is_none_or(Outcome::is_failure) {
            self.said = Some(outcome);
            context.log.line(Level::Info, &format!("load snapshots come from cluster {}", cluster(balancer)));
        }
    }

    fn fail(&mut self, context: &mut Context<'_>, balancer: &Balancer, outcome: Outcome, why: &str) {
        count(context, outcome);
        let pause = FIRST_PAUSE_MS.saturating_mul(1 << self.failures.min(5));
        self.failures = self.failures.saturating_add(1);
        let jitter = context.rng.random_range(800..=1200_u64);
        (self.since_ms, self.pause_ms) = (context.now_ms, (pause * jitter / 1000).min(LONGEST_PAUSE_MS));
        if self.said != Some(outcome) {
            self.said = Some(outcome);
            let cluster = cluster(balancer);
            let line = format!(
                "load snapshots cannot be fetched from cluster {cluster}: {why}; workers without news count as not \
                 reporting; tried again with growing pauses of up to {} s",
                LONGEST_PAUSE_MS / 1000
            );
            context.log.line(Level::Warn, &line);
        }
    }
}

fn cluster(balancer: &Balancer) -> &str {
    balancer.config().reports.cluster.as_deref().unwrap_or_default()
}

fn cluster_hash(balancer: &Balancer) -> u64 {
    xxh3_64(cluster(balancer).as_bytes()).max(1)
}

fn count(context: &mut Context<'_>, outcome: Outcome) {
    context.metrics.add("smg_report_pulls_total", &[("outcome", outcome.as_str())], 1);
}
