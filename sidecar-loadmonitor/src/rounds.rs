//! Rounds: every worker polled at once on a fixed schedule, and snapshots of what they said.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use filter_core::report::{Snapshot, WorkerReport};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::{
    config::{Config, Worker},
    engine::Engine,
    fetch::Asker,
    outbox::Outbox,
    resolve::Names,
    spec::WorkerSpec,
};

/// A snapshot waits for slow workers only so long. Those still to answer get a second one in the same round, so that
/// an engine that stalls delays nobody's report.
const GRACE: Duration = Duration::from_millis(250);

/// Polls round after round and offers the snapshots to every outbox. Never returns.
pub(crate) async fn poll_for_ever(config: &Config, asker: &Asker, names: &Names, outboxes: &[Arc<Outbox>]) {
    let spec = |worker: &Worker| Arc::new(WorkerSpec { url: worker.url().to_owned(), ..WorkerSpec::default() });
    let engine = |worker: &Worker| Engine::new(spec(worker), worker.clone(), asker.clone(), names);
    let engines: Vec<_> = config.workers.iter().map(engine).collect();
    let mut numbered = Numbering::new(config.interval);
    let mut schedule = interval(config.interval);
    schedule.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        schedule.tick().await;
        let grace = Instant::now() + GRACE.min(config.interval / 4);
        let mut polls: FuturesUnordered<_> = engines.iter().map(|engine| report(engine, config.timeout)).collect();
        let mut reports = Vec::with_capacity(polls.len());
        let mut graceful = true;
        loop {
            tokio::select! {
                report = polls.next() => match report {
                    Some(report) => reports.push(report),
                    None => break,
                },
                () = sleep_until(grace), if graceful => {
                    graceful = false;
                    publish(&mut numbered, std::mem::take(&mut reports), outboxes);
                }
            }
        }
        publish(&mut numbered, reports, outboxes);
    }
}

/// One worker's part of a snapshot.
async fn report(engine: &Engine, timeout: Duration) -> WorkerReport {
    let polled = engine.poll(timeout).await;
    let load = polled.told.ok().map(|told| told.load);
    WorkerReport { url: engine.spec().url.clone(), address: polled.address, load, ..WorkerReport::default() }
}

fn publish(numbered: &mut Numbering, reports: Vec<WorkerReport>, outboxes: &[Arc<Outbox>]) {
    if reports.is_empty() {
        return;
    }
    let snapshot = numbered.snapshot(reports);
    tracing::debug!(
        sequence = snapshot.sequence,
        workers = snapshot.workers.len(),
        reporting = snapshot.workers.iter().filter(|worker| worker.load.is_some()).count(),
        "snapshot"
    );
    for outbox in outboxes {
        outbox.offer(snapshot.clone());
    }
}

/// Gives each snapshot its place in the order.
struct Numbering {
    epoch: u64,
    sequence: u64,
    interval_ms: u32,
}

impl Numbering {
    fn new(interval: Duration) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            epoch: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            sequence: 0,
            interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1),
        }
    }

    fn snapshot(&mut self, workers: Vec<WorkerReport>) -> Snapshot {
        self.sequence += 1;
        Snapshot::of(self.epoch, self.sequence, self.interval_ms, workers)
    }
}
