//! One poll of one worker, and what is remembered of it until the next.

use std::time::Duration;

use filter_core::report::Load;
use tokio::time::Instant;

use crate::{
    config::Worker,
    engine::{Polled, Told},
    fetch::{Asker, share},
    resolve::{Names, Resolver},
    source::{Reading, Source},
};

/// So long a source found absent is not asked for again. It would do no harm to ask, but fills the engine's log.
const ABSENT_FOR: Duration = Duration::from_secs(600);

/// Polls one worker.
pub(crate) struct Poller {
    worker: Worker,
    resolver: Resolver,
    absent: Vec<(Source, Instant)>,
    state: Option<State>,
}

/// What the last poll made of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Reporting(Source),
    Silent,
}

impl Poller {
    pub(crate) fn new(worker: Worker, names: &Names) -> Self {
        let resolver = Resolver::new(worker.base(), names);
        Self { worker, resolver, absent: Vec::new(), state: None }
    }

    /// What the worker says now; complete within `timeout`, whatever the worker does.
    pub(crate) async fn poll(&mut self, asker: &Asker, timeout: Duration) -> Polled {
        let deadline = Instant::now() + timeout;
        // A slow name server must leave most of the time to the engine, whose last address is known.
        let (address, outcome) = match self.resolver.refresh(share(deadline, 4)).await {
            Ok(address) => (Some(address.to_string()), self.ask(asker, deadline).await),
            Err(why) => (None, Err(why)),
        };
        self.note(&outcome);
        let told = outcome.map(|(source, load)| Told { load, ranks: Vec::new(), source: source.name() });
        Polled { address, told }
    }

    /// The first load that a source tells, or why none does.
    async fn ask(&mut self, asker: &Asker, deadline: Instant) -> Result<(Source, Load), String> {
        let now = Instant::now();
        self.absent.retain(|(_, until)| *until > now);
        let sources: Vec<_> =
            Source::ALL.into_iter().filter(|source| self.absent.iter().all(|(absent, _)| absent != source)).collect();

        let mut reasons = Vec::new();
        for (done, &source) in sources.iter().enumerate() {
            // A source that stalls leaves the next one its share.
            let until = share(deadline, sources.len() - done);
            let reading = match asker.get(&self.worker.route(source.path()), until).await {
                Ok(answer) => source.read(answer.status, &answer.body),
                Err(error) => Reading::Inconclusive(error.to_string()),
            };
            match reading {
                Reading::Load(load) => return Ok((source, load)),
                Reading::Starting => return Err(format!("{} has only zeros: the engine is starting", source.name())),
                Reading::Inconclusive(why) => reasons.push(format!("{} {why}", source.name())),
                Reading::Absent(why) => {
                    reasons.push(format!("{} {why}", source.name()));
                    self.absent.push((source, now + ABSENT_FOR));
                }
            }
        }
        // The engine is down, and what comes up in its place may be another one.
        self.absent.clear();
        Err(reasons.join("; "))
    }

    /// Logs a change of state, once.
    fn note(&mut self, outcome: &Result<(Source, Load), String>) {
        let worker = self.worker.url();
        let state = match outcome {
            Ok((source, _)) => State::Reporting(*source),
            Err(_) => State::Silent,
        };
        let changed = self.state.replace(state) != Some(state);
        match outcome {
            Ok((source, _)) if changed => tracing::info!(worker, source = source.name(), "worker reports"),
            Ok((source, load)) => tracing::trace!(worker, source = source.name(), ?load, "polled"),
            Err(reason) if changed => tracing::warn!(worker, reason, "worker does not report"),
            Err(reason) => tracing::debug!(worker, reason, "worker still does not report"),
        }
    }
}
