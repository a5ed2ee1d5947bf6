//! What one Envoy has not yet received: at most one report per worker, the newest.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use filter_core::report::Snapshot;
use tokio::sync::Notify;

/// Holds the snapshot that is to be delivered next.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pending: Mutex<Option<Snapshot>>,
    filled: Notify,
}

impl Outbox {
    /// Makes `newer` the next snapshot to deliver. Workers that only the undelivered one names are kept in it.
    pub(crate) fn offer(&self, newer: Snapshot) {
        let mut pending = self.pending();
        *pending = Some(match pending.take() {
            Some(older) => supersede(older, newer),
            None => newer,
        });
        drop(pending);
        self.filled.notify_one();
    }

    /// Puts back what could not be delivered, beneath what has been offered since.
    pub(crate) fn put_back(&self, older: Snapshot) {
        let mut pending = self.pending();
        *pending = Some(match pending.take() {
            Some(newer) => supersede(older, newer),
            None => older,
        });
        drop(pending);
        self.filled.notify_one();
    }

    /// The snapshot to deliver, as soon as there is one.
    pub(crate) async fn take(&self) -> Snapshot {
        loop {
            if let Some(snapshot) = self.pending().take() {
                return snapshot;
            }
            self.filled.notified().await;
        }
    }

    fn pending(&self) -> MutexGuard<'_, Option<Snapshot>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `newer` with the workers that only `older` names.
fn supersede(older: Snapshot, mut newer: Snapshot) -> Snapshot {
    let named: HashSet<_> = newer.workers.iter().map(|worker| worker.url.clone()).collect();
    newer.workers.extend(older.workers.into_iter().filter(|worker| !named.contains(&worker.url)));
    newer
}

#[cfg(test)]
mod tests {
    use filter_core::report::{Load, WorkerReport};

    use super::*;

    fn snapshot(sequence: u64, workers: &[(&str, f64)]) -> Snapshot {
        let report = |&(url, waiting): &(&str, f64)| WorkerReport {
            url: url.into(),
            load: Some(Load { waiting, ..Load::default() }),
            ..WorkerReport::default()
        };
        Snapshot::of(1, sequence, 1, workers.iter().map(report).collect())
    }

    #[tokio::test]
    async fn the_newest_report_of_each_worker_is_delivered_once() {
        let outbox = Outbox::default();
        outbox.offer(snapshot(1, &[("a", 1.0), ("b", 1.0)]));
        outbox.offer(snapshot(2, &[("c", 2.0)]));
        outbox.offer(snapshot(3, &[("a", 3.0)]));
        assert_eq!(outbox.take().await, snapshot(3, &[("a", 3.0), ("c", 2.0), ("b", 1.0)]));
        assert!(outbox.pending().is_none());
    }

    #[tokio::test]
    async fn what_is_put_back_never_hides_what_is_newer() {
        let outbox = Outbox::default();
        outbox.offer(snapshot(1, &[("a", 1.0), ("b", 1.0)]));
        let failed = outbox.take().await;
        outbox.offer(snapshot(2, &[("a", 2.0)]));
        outbox.put_back(failed);
        assert_eq!(outbox.take().await, snapshot(2, &[("a", 2.0), ("b", 1.0)]));
        outbox.put_back(snapshot(2, &[("a", 2.0)]));
        assert_eq!(outbox.take().await, snapshot(2, &[("a", 2.0)]));
    }

    #[tokio::test]
    async fn a_taker_waits_for_an_offer() {
        let outbox = std::sync::Arc::new(Outbox::default());
        let taker = tokio::spawn({
            let outbox = std::sync::Arc::clone(&outbox);
            async move { outbox.take().await }
        });
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(!taker.is_finished());
        outbox.offer(snapshot(1, &[("a", 1.0)]));
        assert_eq!(taker.await.unwrap().sequence, 1);
    }
}
