//! The registry: every worker that any source names, each with one task of its own, and snapshots of them all.

mod book;
mod entry;
mod life;
mod snapshots;
#[cfg(test)]
mod tests;
mod view;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use filter_core::report::Snapshot;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::Instant,
};

use self::book::{Book, Outcome};
pub(crate) use self::{book::Rules, snapshots::Stamp, view::WorkerView};
use crate::{discovery::Found, fetch::Asker, resolve::Names};

/// How the workers' tasks go about it.
#[derive(Debug, Clone)]
pub(crate) struct Paces {
    /// From one round of polls to the next.
    pub(crate) interval: Duration,
    /// What one poll may take.
    pub(crate) timeout: Duration,
    /// From one probe to the next.
    pub(crate) probe_interval: Duration,
    /// What one probe may take.
    pub(crate) probe_timeout: Duration,
    /// What is asked.
    pub(crate) probe_path: String,
}

/// See the module.
pub(crate) struct Registry {
    paces: Paces,
    stamp: Stamp,
    asker: Asker,
    names: Names,
    book: Mutex<Book>,
    tasks: Mutex<HashMap<String, Task>>,
    /// Something has happened that readers should hear of before the round is over.
    urgent: Notify,
    /// The last round of polls that has begun.
    rounds: watch::Sender<u64>,
    /// The number of the last snapshot.
    published: watch::Sender<u64>,
    started: Instant,
}

/// A task that ends when this is dropped.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Registry {
    /// An empty registry that so many sources are going to fill.
    pub(crate) fn new(
        rules: Rules,
        paces: Paces,
        stamp: Stamp,
        sources: usize,
        asker: Asker,
        names: Names,
    ) -> Arc<Self> {
        Arc::new(Self {
            paces,
            stamp,
            asker,
            names,
            book: Mutex::new(Book::new(rules, sources)),
            tasks: Mutex::default(),
            urgent: Notify::new(),
            rounds: watch::Sender::new(0),
            published: watch::Sender::new(0),
            started: Instant::now(),
        })
    }

    /// Takes all that `source` names now.
    pub(crate) fn named(self: &Arc<Self>, source: usize, found: Vec<Found>) {
        let outcome = self.book().named(source, found, Instant::now());
        self.carry_out(outcome);
        // Also for a source that names nobody: now that is known.
        self.urgent.notify_one();
    }

    /// Drains the worker of `url` until it is named anew; false if there is none.
    pub(crate) fn dismiss(self: &Arc<Self>, url: &str) -> bool {
        let outcome = self.book().dismiss(url, Instant::now());
        outcome.map(|outcome| self.carry_out(outcome)).is_some()
    }

    /// Removes the workers that have drained; when the next one goes.
    pub(crate) fn reap(self: &Arc<Self>) -> Option<Instant> {
        let (outcome, next) = {
            let mut book = self.book();
            (book.reap(Instant::now()), book.next_leave())
        };
        self.carry_out(outcome);
        next
    }

    /// Starts a round of polls.
    pub(crate) fn begin_round(&self) {
        self.book().begin_round();
        self.rounds.send_modify(|round| *round += 1);
    }

    /// Whether all polls of the round have ended.
    pub(crate) fn round_is_over(&self) -> bool {
        self.book().round_is_over()
    }

    /// Whether all that was to be known at the start has become known since this was last asked; true once.
    pub(crate) fn completes(&self) -> bool {
        self.book().completes()
    }

    /// Completes when there is news; also the end of a round is.
    pub(crate) async fn news(&self) {
        self.urgent.notified().await;
    }

    /// The next snapshot, with everybody; none as long as nobody is known.
    pub(crate) fn publish_all(&self) -> Option<Snapshot> {
        let snapshot = self.book().publish_all(&self.stamp)?;
        self.published.send_replace(snapshot.sequence);
        Some(snapshot)
    }

    /// The next snapshot, with what is new, if anything is.
    pub(crate) fn publish_news(&self) -> Option<Snapshot> {
        let snapshot = self.book().publish_news(&self.stamp)?;
        self.published.send_replace(snapshot.sequence);
        Some(snapshot)
    }

    /// For a reader that has taken a snapshot, given by epoch and sequence: what it does not know yet, as soon as there
    /// is anything.
    pub(crate) async fn unknown_to(&self, taken: Option<(u64, u64)>) -> Snapshot {
        let mut published = self.published.subscribe();
        loop {
            published.borrow_and_update();
            if let Some(snapshot) = self.book().since(&self.stamp, taken) {
                return snapshot;
            }
            // The sender is in `self`.
            let _ = published.changed().await;
        }
    }

    /// The number of the last snapshot.
    pub(crate) fn sequence(&self) -> u64 {
        *self.published.borrow()
    }

    /// Whether it knows what it can know: all sources have said whom they name, and all of those have been asked; or
    /// that has taken `patience`.
    pub(crate) fn is_ready(&self, patience: Duration) -> bool {
        self.book().complete() || self.started.elapsed() >= patience
    }

    /// Ends the tasks of all workers, which keep the registry until then.
    pub(crate) fn stop(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn carry_out(self: &Arc<Self>, outcome: Outcome) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for key in outcome.stop {
            tasks.remove(&key);
        }
        for start in outcome.start {
            let key = start.key.clone();
            tasks.insert(key, Task(tokio::spawn(life::live(Arc::downgrade(self), start)).abort_handle()));
        }
        drop(tasks);
        if outcome.urgent {
            self.urgent.notify_one();
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
