//! All workers that anybody names, what is known of them, and in which snapshot it became known. Pure.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use filter_core::report::{Health, Info};
use tokio::time::Instant;

use super::entry::{Entry, Naming};
use crate::{
    config::{MAX_WORKERS, Worker},
    discovery::Found,
    engine::Polled,
    health::{Machine, Thresholds},
    spec::WorkerSpec,
};

/// So many departures are remembered for readers that ask what has changed; who has missed more gets everything.
const MAX_GONE: usize = MAX_WORKERS;

/// Rules for all workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Whether workers are probed, unless they say otherwise.
    pub(crate) probing: bool,
    pub(crate) thresholds: Thresholds,
    pub(crate) drain_settle: Duration,
    pub(crate) remove_failed: bool,
    /// Whether workers are polled at all.
    pub(crate) polling: bool,
}

/// A worker whose task is to be started; an earlier task of the same key ends.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) key: String,
    pub(crate) life: u64,
    pub(crate) spec: Arc<WorkerSpec>,
    pub(crate) worker: Worker,
    pub(crate) probed: bool,
}

/// What has to be done after a change.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Readers should hear of it now.
    pub(crate) urgent: bool,
    pub(crate) start: Vec<Start>,
    /// Keys of tasks to end.
    pub(crate) stop: Vec<String>,
}

/// The registry's contents. Workers are found by a key that does not depend on how their URL is written.
#[derive(Debug)]
pub(crate) struct Book {
    rules: Rules,
    sources: usize,
    delivered: BTreeSet<usize>,
    complete: bool,
    full_workers_warned: bool,
    lives: u64,
    pub(super) entries: HashMap<String, Entry>,
    /// The number of the last snapshot.
    pub(super) sequence: u64,
    /// Workers that have left, with the number of the first snapshot that says so, oldest first.
    pub(super) gone: VecDeque<(u64, String)>,
    /// Who has no snapshot as new as this needs everything.
    pub(super) floor: u64,
    /// How many workers the round waits for.
    awaited: usize,
}

impl Book {
    /// An empty book that so many sources are going to fill.
    pub(crate) fn new(rules: Rules, sources: usize) -> Self {
        Self {
            rules,
            sources,
            delivered: BTreeSet::new(),
            complete: false,
            full_workers_warned: false,
            lives: 0,
            entries: HashMap::new(),
            sequence: 0,
            gone: VecDeque::new(),
            floor: 0,
            awaited: 0,
        }
    }

    /// Takes all that `source` names now.
    pub(crate) fn named(&mut self, source: usize, found: Vec<Found>, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        self.delivered.insert(source);
        let mut seen = HashSet::new();
        let known = self.known_before(source);
        for Found { worker, spec, verdict } in found {
            // Where one source has a name and another the address that it stands for, that is one engine.
            let at = worker.literal_address().and_then(|address| known.get(&address));
            let key = at.cloned().unwrap_or_else(|| worker.route(""));
            if !seen.insert(key.clone()) {
                continue;
            }
            if !self.entries.contains_key(&key) && self.entries.len() >= MAX_WORKERS {
                if !std::mem::replace(&mut self.full_workers_warned, true) {
                    let worker = worker.url();
                    tracing::warn!(worker, "no room for more than {MAX_WORKERS} workers: this and others are left out");
                }
                continue;
            }
            self.name(source, key, worker, Naming { spec, verdict }, &mut outcome);
        }
        let dropped: Vec<String> = self
            .entries
            .iter()
            .filter(|(key, entry)| entry.named_by.contains_key(&source) && !seen.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in dropped {
            self.unname(source, &key, now, &mut outcome);
        }
        outcome
    }

    /// The workers that sources in front of this one name, by their addresses. One of which nothing is known yet stands
    /// in for nobody.
    fn known_before(&self, source: usize) -> HashMap<String, String> {
        let before = |entry: &Entry| entry.visible() && entry.named_by.keys().any(|other| *other < source);
        let known = self.entries.iter().filter(|(_, entry)| before(entry));
        known.filter_map(|(key, entry)| Some((entry.address.clone()?, key.clone()))).collect()
    }

    fn name(&mut self, source: usize, key: String, worker: Worker, naming: Naming, outcome: &mut Outcome) {
        if let Some(entry) = self.entries.get_mut(&key) {
            let returns = entry.named_by.is_empty();
            entry.named_by.insert(source, naming);
            entry.dismissed &= !returns;
            if !entry.dismissed {
                entry.leaves = None;
            }
            let given_up = returns && entry.health() == Health::Failed;
            let first = entry.named_by.values().next().map(|naming| Arc::clone(&naming.spec));
            let Some(first) = first.filter(|first| given_up || **first != *entry.spec) else {
                return self.settle_change(&key, outcome);
            };
            let Ok(worker) = Worker::parse(&first.url) else { return self.settle_change(&key, outcome) };
            self.rename(&key, first, worker, outcome);
        } else {
            let mut entry = self.fresh(naming.spec.clone(), worker);
            tracing::info!(worker = entry.spec.url, "worker named");
            entry.named_by.insert(source, naming);
            outcome.start.push(start(&key, &entry));
            self.entries.insert(key, entry);
        }
    }

    /// The worker is described in other words: it starts anew, but is not taken out of rotation for that.
    fn rename(&mut self, key: &str, spec: Arc<WorkerSpec>, worker: Worker, outcome: &mut Outcome) {
        let mut entry = self.fresh(spec, worker);
        let Some(old) = self.entries.remove(key) else { return };
        tracing::info!(worker = entry.spec.url, "worker described anew");
        entry.named_by = old.named_by;
        self.awaited -= usize::from(old.awaited);
        let (next, was) = (self.sequence + 1, old.machine.as_ref().map(Machine::health));
        if old.spec.url != entry.spec.url && old.settled && !old.away {
            self.gone.push_back((next, old.spec.url.clone()));
        }
        if !old.dismissed && was != Some(Health::Failed) {
            if let (Some(machine), Some(known)) = (&mut entry.machine, old.machine) {
                *machine = known.under(machine.thresholds());
            }
            (entry.settled, entry.identity) = (old.settled, old.identity);
            (entry.load, entry.poll, entry.told, entry.ranks) = (old.load, old.poll, old.told, old.ranks);
            entry.address = entry.address.or(old.address);
        }
        entry.pollable = old.pollable;
        entry.counts = old.counts;
        (entry.changed, entry.described) = (next, next);
        outcome.start.push(start(key, &entry));
        outcome.urgent = true;
        self.entries.insert(key.to_owned(), entry);
        self.settle_change(key, outcome);
    }

    fn unname(&mut self, source: usize, key: &str, now: Instant, outcome: &mut Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.named_by.remove(&source);
        let next = entry.named_by.values().next().map(|naming| Arc::clone(&naming.spec));
        match next {
            Some(spec) if *spec != *entry.spec => match Worker::parse(&spec.url) {
                Ok(worker) => {
                    let key = self.moved(key, worker.route(""), outcome);
                    self.rename(&key, spec, worker, outcome);
                }
                Err(_) => self.settle_change(key, outcome),
            },
            Some(_) => self.settle_change(key, outcome),
            None if entry.away || !entry.settled => {
                let awaited = entry.awaited;
                self.entries.remove(key);
                self.awaited -= usize::from(awaited);
                outcome.stop.push(key.to_owned());
            }
            // It is the name that leaves, not the engine.
            None if self.is_known_otherwise(key) => self.remove(key, outcome),
            None => self.leave(key, now, outcome),
        }
    }

    /// Whether there is another worker, of which something is known, at the same address.
    fn is_known_otherwise(&self, key: &str) -> bool {
        let address = self.entries.get(key).and_then(|entry| entry.address.as_ref());
        let same = |(other, entry): (&String, &Entry)| {
            other != key && entry.visible() && entry.leaves.is_none() && entry.address.as_ref() == address
        };
        address.is_some() && self.entries.iter().any(same)
    }

    /// Puts the worker of `key` under the key of its new name, if nobody stands there; returns where it is.
    fn moved(&mut self, key: &str, to: String, outcome: &mut Outcome) -> String {
        if to == key || self.entries.contains_key(&to) {
            return key.to_owned();
        }
        if let Some(entry) = self.entries.remove(key) {
            outcome.stop.push(key.to_owned());
            self.entries.insert(to.clone(), entry);
        }
        to
    }

    fn leave(&mut self, key: &str, now: Instant, outcome: &mut Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.leaves.is_none() {
            let settle = entry.spec.health.drain_settle_secs.map_or(self.rules.drain_settle, Duration::from_secs);
            tracing::info!(worker = entry.spec.url, ?settle, "worker drains");
            entry.leaves = Some(now + settle);
        }
        self.settle_change(key, outcome);
    }

    fn fresh(&mut self, spec: Arc<WorkerSpec>, worker: Worker) -> Entry {
        self.lives += 1;
        let health = &spec.health;
        let thresholds = Thresholds {
            success: health.success_threshold.unwrap_or(self.rules.thresholds.success).max(1),
            failure: health.failure_threshold.unwrap_or(self.rules.thresholds.failure).max(1),
        };
        let probed = health.disable_health_check.map_or(self.rules.probing, |disabled| !disabled);
        Entry::new(spec, worker, probed.then(|| Machine::new(thresholds)), self.lives)
    }

    /// Drains the worker of `url` until it is named anew; false if there is none.
    pub(crate) fn dismiss(&mut self, url: &str, now: Instant) -> Option<Outcome> {
        let key = Worker::parse(url).ok()?.route("");
        let entry = self.entries.get_mut(&key).filter(|entry| !entry.away)?;
        entry.dismissed = true;
        let mut outcome = Outcome::default();
        self.leave(&key, now, &mut outcome);
        Some(outcome)
    }

    /// Removes the workers that have drained.
    pub(crate) fn reap(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        let due = |entry: &Entry| entry.goes().is_some_and(|leaves| leaves <= now);
        let keys: Vec<String> =
            self.entries.iter().filter(|(_, entry)| due(entry)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key, &mut outcome);
        }
        outcome
    }

    fn remove(&mut self, key: &str, outcome: &mut Outcome) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        tracing::info!(worker = entry.spec.url, "worker removed");
        if entry.visible() {
            self.gone.push_back((self.sequence + 1, entry.spec.url.clone()));
            outcome.urgent = true;
        }
        entry.leaves = None;
        self.awaited -= usize::from(std::mem::take(&mut entry.awaited));
        outcome.stop.push(key.to_owned());
        if entry.named_by.is_empty() {
            self.entries.remove(key);
        } else {
            entry.away = true;
            entry.dismissed = true;
            entry.told_health = None;
            entry.forget_load();
            entry.pollable.send_replace(false);
        }
        while self.gone.len() > MAX_GONE {
            self.floor = self.gone.pop_front().map_or(self.floor, |(sequence, _)| self.floor.max(sequence));
        }
    }

    /// When the next draining worker goes.
    pub(crate) fn next_leave(&self) -> Option<Instant> {
        self.entries.values().filter_map(Entry::goes).min()
    }

    /// Takes the outcome of a probe, and what the worker is if that was asked; the health that the probes make of it.
    /// None if the worker is another one by now.
    pub(crate) fn probed(
        &mut self,
        key: &str,
        life: u64,
        probe: Result<(), String>,
        regular: bool,
    ) -> Option<(Health, Outcome)> {
        let entry = self.of(key, life)?;
        entry.counts.probes += 1;
        entry.counts.failed_probes += u64::from(probe.is_err());
        let machine = entry.machine.as_mut()?;
        let before = machine.health();
        let health = if regular { machine.probed(probe.is_ok()) } else { machine.probed_early(probe.is_ok()) };
        entry.settled |= probe.is_err() || health == Health::Ready;
        entry.probe_error = probe.err();
        let mut outcome = Outcome::default();
        if health != before {
            let (worker, reason) = (entry.spec.url.as_str(), entry.probe_error.as_deref().unwrap_or_default());
            match health {
                Health::Ready => tracing::info!(worker, "worker is ready"),
                Health::Failed => tracing::warn!(worker, reason, "worker is given up: name it anew once it works"),
                _ => tracing::warn!(worker, reason, "worker is not ready"),
            }
        }
        self.settle_change(key, &mut outcome);
        if health == Health::Failed && self.rules.remove_failed {
            self.remove(key, &mut outcome);
        }
        Some((health, outcome))
    }

    /// Whether one more success would make the worker ready: then it is asked first what it is.
    pub(crate) fn about_to_be_ready(&self, key: &str, life: u64) -> bool {
        let entry = self.entries.get(key).filter(|entry| entry.life == life);
        entry.is_some_and(|entry| match entry.machine {
            Some(mut machine) => machine.health() != Health::Ready && machine.probed(true) == Health::Ready,
            None => !entry.settled,
        })
    }

    /// A worker that is not probed can be named.
    pub(crate) fn taken_as_ready(&mut self, key: &str, life: u64) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(entry) = self.of(key, life) {
            entry.settled = true;
            self.settle_change(key, &mut outcome);
        }
        outcome
    }

    /// Takes what the engine says it is.
    pub(crate) fn identified(&mut self, key: &str, life: u64, identity: Info) -> Outcome {
        let next = self.sequence + 1;
        let mut outcome = Outcome::default();
        if let Some(entry) = self.of(key, life).filter(|entry| entry.identity.as_ref() != Some(&identity)) {
            tracing::info!(worker = entry.spec.url, models = ?identity.models, runtime = identity.runtime, "identified");
            entry.identity = Some(identity);
            (entry.changed, entry.described) = (next, next);
            outcome.urgent = entry.visible();
        }
        outcome
    }

    /// Whether workers are polled at all.
    pub(crate) const fn polling(&self) -> bool {
        self.rules.polling
    }

    /// Takes where the worker is.
    pub(crate) fn located(&mut self, key: &str, life: u64, address: String) -> Outcome {
        let next = self.sequence + 1;
        let mut outcome = Outcome::default();
        if let Some(entry) = self.of(key, life) {
            outcome.urgent = entry.locate(address, next);
        }
        outcome
    }

    /// Takes the outcome of a poll.
    pub(crate) fn polled(&mut self, key: &str, life: u64, polled: Polled, seconds: f64, now: Instant) -> Outcome {
        let next = self.sequence + 1;
        let mut outcome = Outcome::default();
        let Some(entry) = self.of(key, life) else { return outcome };
        let awaited = std::mem::take(&mut entry.awaited);
        entry.counts.polls += 1;
        entry.counts.poll_seconds += seconds;
        if let Some(address) = polled.address {
            // Without an address it could not be chosen.
            outcome.urgent = entry.locate(address, next);
        }
        let ready = entry.health() == Health::Ready && !entry.away;
        // Grows within the epoch also for a worker that leaves and comes back.
        if ready && entry.remember(polled.told, next, now) {
            entry.changed = next;
            outcome.urgent |= !awaited;
        }
        self.awaited -= usize::from(awaited);
        outcome.urgent |= awaited && self.awaited == 0;
        outcome
    }

    /// Every worker that is polled on the common schedule is going to be polled now.
    pub(crate) fn begin_round(&mut self) {
        let own_pace = |entry: &Entry| entry.spec.load_monitor_interval_secs.is_some();
        for entry in self.entries.values_mut().filter(|entry| *entry.pollable.borrow() && !own_pace(entry)) {
            self.awaited += usize::from(!std::mem::replace(&mut entry.awaited, true));
        }
    }

    /// Whether all polls of the round have ended.
    pub(crate) const fn round_is_over(&self) -> bool {
        self.awaited == 0
    }

    /// Whether all that was to be known at the start is known: every source has said whom it names, and each of those
    /// has been asked.
    pub(crate) const fn complete(&self) -> bool {
        self.complete
    }

    /// Sees whether the book has become complete by now; true once.
    pub(crate) fn completes(&mut self) -> bool {
        if self.complete || self.delivered.len() < self.sources || self.entries.values().any(|entry| !entry.settled) {
            return false;
        }
        self.complete = true;
        // Those who have read parts of it need all of it.
        self.floor = self.sequence + 1;
        true
    }

    fn of(&mut self, key: &str, life: u64) -> Option<&mut Entry> {
        self.entries.get_mut(key).filter(|entry| entry.life == life)
    }

    /// Sees to it that whatever follows from the state of the worker is so: after a change that may be one of health.
    fn settle_change(&mut self, key: &str, outcome: &mut Outcome) {
        let (next, polling) = (self.sequence + 1, self.rules.polling);
        let Some(entry) = self.entries.get_mut(key) else { return };
        let health = entry.health();
        let pollable = polling && entry.settled && !entry.away && health == Health::Ready;
        if *entry.pollable.borrow() != pollable {
            entry.pollable.send_replace(pollable);
            // Its first poll follows at once.
            let awaited = std::mem::replace(&mut entry.awaited, pollable);
            self.awaited = self.awaited - usize::from(awaited) + usize::from(pollable);
        }
        if health != Health::Ready {
            entry.forget_load();
        }
        if entry.visible() && entry.told_health != Some(health) {
            entry.told_health = Some(health);
            entry.changed = next;
            if entry.described == 0 {
                entry.described = next;
            }
            outcome.urgent = true;
        }
    }
}

fn start(key: &str, entry: &Entry) -> Start {
    Start {
        key: key.to_owned(),
        life: entry.life,
        spec: Arc::clone(&entry.spec),
        worker: entry.worker.clone(),
        probed: entry.machine.is_some(),
    }
}
