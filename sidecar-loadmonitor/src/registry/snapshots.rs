//! What the book tells its readers: everything, what is new, or what has changed since they last asked.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use filter_core::report::{Scope, Snapshot};

use super::{book::Book, entry::Entry};

/// What all snapshots of one process have in common.
#[derive(Debug, Clone)]
pub(crate) struct Stamp {
    pub(crate) reporter: String,
    /// The start of the process in Unix milliseconds.
    pub(crate) epoch: u64,
    pub(crate) interval_ms: u32,
}

impl Stamp {
    /// The stamp of a process that starts now and tells something new at least once in `interval`.
    pub(crate) fn new(reporter: String, interval: Duration) -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            reporter,
            epoch: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
            interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX).max(1),
        }
    }

    fn snapshot(&self, sequence: u64, scope: Scope) -> Snapshot {
        let empty = Snapshot::of(self.epoch, sequence, self.interval_ms, Vec::new());
        Snapshot { reporter: self.reporter.clone(), scope, ..empty }
    }
}

impl Book {
    /// The next snapshot, with everybody. Unless the book is complete it does not claim that there is nobody else, and
    /// as long as it could name nobody there is none.
    pub(crate) fn publish_all(&mut self, stamp: &Stamp) -> Option<Snapshot> {
        if !self.complete() && !self.entries.values().any(Entry::visible) {
            return None;
        }
        self.sequence += 1;
        Some(self.all(stamp))
    }

    /// The next snapshot, with what has changed since the last one; none if nothing has.
    pub(crate) fn publish_news(&mut self, stamp: &Stamp) -> Option<Snapshot> {
        let last = self.sequence;
        let mut news = stamp.snapshot(last + 1, Scope::Some);
        self.changes_since(last, &mut news);
        let anything = !news.workers.is_empty() || !news.removed.is_empty();
        self.sequence += u64::from(anything);
        anything.then_some(news)
    }

    /// For a reader that has taken snapshot `sequence` of `epoch`: what has changed since, or everything if that cannot
    /// be told any more. None if there is nothing that it does not know.
    pub(crate) fn since(&self, stamp: &Stamp, taken: Option<(u64, u64)>) -> Option<Snapshot> {
        match taken {
            _ if self.sequence == 0 => None,
            Some((epoch, sequence)) if epoch == stamp.epoch && sequence == self.sequence => None,
            Some((epoch, sequence))
                if epoch == stamp.epoch && self.complete() && (self.floor..self.sequence).contains(&sequence) =>
            {
                let mut delta = stamp.snapshot(self.sequence, Scope::Since(sequence));
                self.changes_since(sequence, &mut delta);
                Some(delta)
            }
            _ => Some(self.all(stamp)),
        }
    }

    fn all(&self, stamp: &Stamp) -> Snapshot {
        let scope = if self.complete() { Scope::Full } else { Scope::Some };
        let mut snapshot = stamp.snapshot(self.sequence, scope);
        let visible = self.entries.values().filter(|entry| entry.visible());
        snapshot.workers = visible.map(|entry| entry.report(true)).collect();
        snapshot
    }

    fn changes_since(&self, sequence: u64, snapshot: &mut Snapshot) {
        let changed = self.entries.values().filter(|entry| entry.visible() && entry.changed > sequence);
        snapshot.workers = changed.map(|entry| entry.report(entry.described > sequence)).collect();
        let gone = self.gone.iter().rev().take_while(|(when, _)| *when > sequence);
        let back = |url: &str| self.entries.values().any(|entry| entry.visible() && entry.spec.url == url);
        snapshot.removed = gone.filter(|(_, url)| !back(url)).map(|(_, url)| url.clone()).collect();
        snapshot.removed.sort_unstable();
        snapshot.removed.dedup();
    }
}
