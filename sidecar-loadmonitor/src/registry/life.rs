//! The task of one worker: probes, polls and questions, each at its own pace and with its own time limit.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::{Arc, Weak},
    time::Duration,
};

use filter_core::report::Health;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{Registry, book::Start};
use crate::engine::Engine;

/// After a success a worker that is not ready is probed again so soon: it takes two in a row.
const AGAIN_AFTER_SUCCESS: Duration = Duration::from_millis(100);
/// After a failure a worker that is not ready is probed again so soon, if its interval is not shorter.
const AGAIN_AFTER_FAILURE: Duration = Duration::from_secs(3);
/// A worker is asked so often what it is: adapters come and go.
const IDENTIFY_EVERY: Duration = Duration::from_secs(60);
/// One that has not said what it is, is asked again so soon, then after twice the time and so on.
const IDENTIFY_AGAIN: Duration = Duration::from_millis(500);
/// All workers begin a round within so long a time, or a tenth of the interval.
const MAX_SPREAD: Duration = Duration::from_millis(100);

/// The life of one worker, from when it is named until this is dropped.
///
/// The registry owns the task, which must not keep the registry.
pub(super) async fn live(registry: Weak<Registry>, start: Start) {
    let Some(registry) = registry.upgrade() else { return };
    let engine = Engine::new(Arc::clone(&start.spec), start.worker.clone(), registry.asker.clone(), &registry.names)
        .every(registry.paces.interval);
    let own = |seconds: Option<u64>, common: Duration| seconds.map_or(common, Duration::from_secs);
    let worker = One {
        probe_interval: own(start.spec.health.check_interval_secs, registry.paces.probe_interval),
        probe_timeout: own(start.spec.health.timeout_secs, registry.paces.probe_timeout),
        own_pace: start.spec.load_monitor_interval_secs.map(Duration::from_secs),
        phase: phase(&start.key),
        doubtful: Notify::new(),
        registry,
        start,
        engine,
    };
    let pollable = worker.pollable();
    tokio::join!(worker.probes(), worker.polls(pollable), worker.places(), worker.questions());
}

/// A number from 0 to 1 that is always the same for a worker.
fn phase(key: &str) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
    f64::from((hash >> 32) as u32) / f64::from(u32::MAX)
}

struct One {
    registry: Arc<Registry>,
    start: Start,
    engine: Engine,
    probe_interval: Duration,
    probe_timeout: Duration,
    /// From one poll to the next, where it is not polled with all others.
    own_pace: Option<Duration>,
    phase: f64,
    /// Told when what is known of what it is may be wrong.
    doubtful: Notify,
}

impl One {
    /// Its part of the time in which all workers begin what they do every `interval`.
    fn offset(&self, interval: Duration) -> Duration {
        (interval / 10).min(MAX_SPREAD).mul_f64(self.phase)
    }

    async fn probes(&self) {
        if !self.start.probed {
            self.identify().await;
            let outcome = self.registry.book().taken_as_ready(&self.start.key, self.start.life);
            return self.registry.carry_out(outcome);
        }
        sleep(self.offset(self.probe_interval)).await;
        let mut due = Instant::now();
        // A thousand workers that are named at once are not all probed at once for ever after.
        let mut next = self.probe_interval.mul_f64(self.phase);
        loop {
            let regular = Instant::now() >= due;
            if regular {
                due = Instant::now() + std::mem::replace(&mut next, self.probe_interval);
            }
            let probe = self.engine.probe(&self.registry.paces.probe_path, self.probe_timeout).await;
            if probe.is_ok() && self.registry.book().about_to_be_ready(&self.start.key, self.start.life) {
                // Nobody should be sent requests of a model that it does not have.
                self.identify().await;
            }
            let succeeded = probe.is_ok();
            let probed = self.registry.book().probed(&self.start.key, self.start.life, probe, regular);
            let Some((health, outcome)) = probed else { return };
            self.registry.carry_out(outcome);
            let soon = match health {
                Health::Failed => return,
                Health::Ready | Health::Draining => self.probe_interval,
                Health::Pending | Health::NotReady if succeeded => AGAIN_AFTER_SUCCESS,
                Health::Pending | Health::NotReady => AGAIN_AFTER_FAILURE,
            };
            sleep_until(due.min(Instant::now() + soon)).await;
        }
    }

    fn pollable(&self) -> watch::Receiver<bool> {
        let book = self.registry.book();
        // The task of an entry that has gone ends at once.
        book.entries
            .get(&self.start.key)
            .map_or_else(|| watch::Sender::new(false).subscribe(), |entry| entry.pollable.subscribe())
    }

    async fn polls(&self, mut pollable: watch::Receiver<bool>) {
        let mut rounds = self.registry.rounds.subscribe();
        let offset = self.offset(self.registry.paces.interval);
        let mut failed = false;
        loop {
            if pollable.wait_for(|pollable| *pollable).await.is_err() {
                return;
            }
            rounds.borrow_and_update();
            let began = Instant::now();
            let polled = self.engine.poll(self.registry.paces.timeout).await;
            let now = Instant::now();
            let seconds = (now - began).as_secs_f64();
            // Whoever answers again may be another one.
            if std::mem::replace(&mut failed, polled.told.is_err()) && !failed {
                self.doubtful.notify_one();
            }
            let outcome = self.registry.book().polled(&self.start.key, self.start.life, polled, seconds, now);
            self.registry.carry_out(outcome);
            match self.own_pace {
                Some(pace) => sleep_until(began + pace).await,
                None => {
                    if rounds.changed().await.is_err() {
                        return;
                    }
                    sleep(offset).await;
                }
            }
        }
    }

    /// Finds out where it is, where no poll does.
    async fn places(&self) {
        if self.registry.book().polling() {
            return;
        }
        let mut rounds = self.registry.rounds.subscribe();
        loop {
            match self.engine.address(self.registry.paces.timeout).await {
                Ok(address) => {
                    let outcome = self.registry.book().located(&self.start.key, self.start.life, address);
                    self.registry.carry_out(outcome);
                }
                Err(why) => tracing::debug!(worker = self.start.spec.url, why, "is nowhere"),
            }
            if rounds.changed().await.is_err() {
                return;
            }
        }
    }

    async fn questions(&self) {
        loop {
            let _ = timeout(IDENTIFY_EVERY + self.offset(IDENTIFY_EVERY), self.doubtful.notified()).await;
            let mut pause = IDENTIFY_AGAIN;
            while !self.ask().await && pause < IDENTIFY_EVERY {
                sleep(pause).await;
                pause *= 2;
            }
        }
    }

    /// Asks what it is, and has it asked again soon if it does not say.
    async fn identify(&self) {
        if !self.ask().await {
            self.doubtful.notify_one();
        }
    }

    /// Whether it says what it is.
    async fn ask(&self) -> bool {
        match self.engine.identify(self.probe_timeout).await {
            Ok(identity) => {
                let outcome = self.registry.book().identified(&self.start.key, self.start.life, identity);
                self.registry.carry_out(outcome);
                true
            }
            Err(why) => {
                tracing::debug!(worker = self.start.spec.url, why, "does not say what it is");
                false
            }
        }
    }
}
