//! Rounds: everybody polled at once on a fixed schedule, and snapshots of what is known: all of it once a round, and
//! news in between.

use std::{sync::Arc, time::Duration};

use filter_core::report::Snapshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::{outbox::Outbox, registry::Registry};

/// A snapshot waits for slow workers only so long. What they say later goes out as news, so that an engine that stalls
/// delays nobody's report.
const GRACE: Duration = Duration::from_millis(250);
/// News waits so long for more: workers seldom come, go or answer alone.
const GATHER: Duration = Duration::from_millis(20);

/// Starts round after round and offers the snapshots to every outbox. Never returns.
pub(crate) async fn run_for_ever(registry: &Arc<Registry>, every: Duration, outboxes: &[Arc<Outbox>]) {
    let grace = GRACE.min(every / 4);
    let mut schedule = interval(every);
    schedule.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // When everybody is told, at the latest; and when news is.
    let mut all_by = None;
    let mut news_by: Option<Instant> = None;
    let mut next_leave = None;
    loop {
        tokio::select! {
            _ = schedule.tick() => {
                registry.begin_round();
                all_by = Some(Instant::now() + grace);
            }
            () = registry.news() => news_by = news_by.or(Some(Instant::now() + GATHER)),
            () = at(all_by) => {}
            () = at(news_by) => {}
            () = at(next_leave) => {}
        }
        next_leave = registry.reap();
        if registry.completes() {
            all_by = Some(Instant::now() + grace);
        }
        let now = Instant::now();
        let past = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if all_by.is_some() && (registry.round_is_over() || past(all_by)) {
            (all_by, news_by) = (None, None);
            offer(registry.publish_all(), outboxes);
        } else if past(news_by) {
            news_by = None;
            offer(registry.publish_news(), outboxes);
        }
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn offer(snapshot: Option<Snapshot>, outboxes: &[Arc<Outbox>]) {
    let Some(snapshot) = snapshot else { return };
    tracing::debug!(
        sequence = snapshot.sequence,
        scope = ?snapshot.scope,
        workers = snapshot.workers.len(),
        reporting = snapshot.workers.iter().filter(|worker| worker.load.is_some()).count(),
        "snapshot"
    );
    for outbox in outboxes {
        outbox.offer(snapshot.clone());
    }
}
