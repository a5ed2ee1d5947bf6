//! What is asked of one worker in a poll, and what is remembered of it until the next.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::{
    engine::{Face, Told},
    fetch::share,
    source::{Freshness, Reading, Source},
};

/// So long a source found absent is not asked for again. It would do no harm to ask, but fills the engine's log.
const ABSENT_FOR: Duration = Duration::from_secs(600);

/// Polls one worker.
pub(crate) struct Poller {
    worker: String,
    absent: Vec<(Source, Instant)>,
    state: Option<State>,
}

/// What the last poll made of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reporting(&'static str),
    Silent,
}

impl Poller {
    pub(crate) const fn new(worker: String) -> Self {
        Self { worker, absent: Vec::new(), state: None }
    }

    /// The first load that a source tells, or why none does; snapshots of an engine that are older than `most` are
    /// not believed.
    pub(crate) async fn ask(&mut self, face: &Face, deadline: Instant, most: Duration) -> Result<Told, String> {
        let now = Instant::now();
        self.absent.retain(|(_, until)| *until > now);
        let sources = face.sources();
        let freshness = Freshness { now: unix_seconds(), most };

        let (mut reasons, mut in_doubt) = (Vec::new(), false);
        for (done, &source) in sources.iter().enumerate() {
            if self.is_absent(source) {
                continue;
            }
            // A source that stalls leaves the next one its share.
            let until = share(deadline, sources.len() - done);
            let (source, reading) = match face.settled(source, until).await {
                Ok(settled) if self.is_absent(settled) => continue,
                Ok(settled) => (settled, face.ask(settled, until, freshness).await),
                Err(why) => {
                    reasons.push(format!("{} {why}", source.name()));
                    continue;
                }
            };
            let name = source.name();
            match reading {
                Reading::Load(load, ranks) => return Ok(Told { load, ranks, source: name }),
                Reading::Unknown(why) => return Err(format!("{name} {why}")),
                Reading::Inconclusive(why) => {
                    reasons.push(format!("{name} {why}"));
                    in_doubt = true;
                }
                Reading::Absent(why) => {
                    reasons.push(format!("{name} {why}"));
                    self.absent.push((source, now + ABSENT_FOR));
                }
            }
        }
        if in_doubt {
            // The engine is down, and what comes up in its place may be another one.
            self.absent.clear();
            face.forget();
        }
        if reasons.is_empty() {
            reasons.push("none of the ways to ask for its load is there".to_owned());
        }
        Err(reasons.join("; "))
    }

    fn is_absent(&self, source: Source) -> bool {
        self.absent.iter().any(|(absent, _)| *absent == source)
    }

    /// Logs a change of state, once.
    pub(crate) fn note(&mut self, outcome: &Result<Told, String>) {
        let worker = self.worker.as_str();
        let state = match outcome {
            Ok(told) => State::Reporting(told.source),
            Err(_) => State::Silent,
        };
        let changed = self.state.replace(state) != Some(state);
        match outcome {
            Ok(told) if changed => tracing::info!(worker, source = told.source, "worker reports"),
            Ok(told) => tracing::trace!(worker, source = told.source, load = ?told.load, "polled"),
            Err(reason) if changed => tracing::warn!(worker, reason, "worker does not report"),
            Err(reason) => tracing::debug!(worker, reason, "worker still does not report"),
        }
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
