//! What one Envoy has not yet received: at most one report per worker, the newest.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use filter_core::report::{Scope, Snapshot};
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

/// One snapshot that says what `older` and then `newer` would have said.
fn supersede(older: Snapshot, mut newer: Snapshot) -> Snapshot {
    if newer.scope == Scope::Full {
        return newer;
    }
    let mut older_workers: HashMap<_, _> =
        older.workers.into_iter().map(|worker| (worker.url.clone(), worker)).collect();
    for worker in &mut newer.workers {
        let before = older_workers.remove(&worker.url);
        worker.info = worker.info.take().or_else(|| before.and_then(|before| before.info));
    }
    let named: HashSet<_> = newer.workers.iter().map(|worker| worker.url.as_str()).collect();
    let removed: Vec<_> = older.removed.into_iter().filter(|url| !named.contains(url.as_str())).collect();
    for url in &newer.removed {
        older_workers.remove(url);
    }
    newer.workers.extend(older_workers.into_values());
    newer.removed.extend(removed);
    newer.scope = older.scope;
    newer
}

#[cfg(test)]
mod tests {
    use filter_core::report::{Info, Load, WorkerReport};

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
        let mut taken = outbox.take().await;
        taken.workers.sort_by(|one, other| one.url.cmp(&other.url));
        assert_eq!(taken, snapshot(3, &[("a", 3.0), ("b", 1.0), ("c", 2.0)]));
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
    async fn news_on_top_of_everything_is_everything() {
        let outbox = Outbox::default();
        outbox.offer(snapshot(1, &[("x", 1.0)]));
        let mut all = Snapshot { scope: Scope::Full, ..snapshot(2, &[("a", 1.0), ("b", 1.0), ("c", 1.0)]) };
        all.workers[0].info = Some(Box::new(Info { models: vec!["m".into()], ..Info::default() }));
        outbox.offer(all);
        outbox.offer(Snapshot { removed: vec!["b".into()], ..snapshot(3, &[("a", 2.0)]) });
        outbox.offer(Snapshot { removed: vec!["c".into()], ..snapshot(4, &[]) });
        let mut taken = outbox.take().await;
        taken.removed.sort();
        let urls: Vec<_> = taken.workers.iter().map(|worker| worker.url.as_str()).collect();
        assert_eq!((taken.scope, taken.sequence, urls), (Scope::Full, 4, vec!["a"]));
        assert_eq!(taken.workers[0].load.unwrap().waiting, 2.0);
        assert_eq!(taken.workers[0].info.as_deref().unwrap().models, ["m"]);
        assert_eq!(taken.removed, ["b", "c"]);
    }

    #[tokio::test]
    async fn who_returns_before_the_delivery_is_not_removed() {
        let outbox = Outbox::default();
        outbox.offer(Snapshot { removed: vec!["a".into(), "b".into()], ..snapshot(1, &[]) });
        outbox.offer(snapshot(2, &[("a", 2.0)]));
        let taken = outbox.take().await;
        assert_eq!((taken.removed, taken.workers.len()), (vec!["b".to_owned()], 1));
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
