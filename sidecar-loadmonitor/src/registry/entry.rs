//! One worker in the registry: who names it, what is known of it, and what a snapshot says of it.

use std::{collections::BTreeMap, sync::Arc};

use filter_core::report::{Health, Info, Load, WorkerReport};
use tokio::{sync::watch, time::Instant};

use crate::{
    config::Worker,
    engine::{RankLoad, Told},
    health::Machine,
    spec::WorkerSpec,
};

/// What one source says of a worker.
#[derive(Debug, Clone)]
pub(crate) struct Naming {
    pub(crate) spec: Arc<WorkerSpec>,
    /// What the source knows of its health, where it knows anything ill: [`Health::NotReady`] or [`Health::Draining`].
    pub(crate) verdict: Option<Health>,
}

/// What has been counted of a worker since it was named.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    pub(crate) polls: u64,
    pub(crate) failed_polls: u64,
    /// Seconds that all polls took together.
    pub(crate) poll_seconds: f64,
    pub(crate) probes: u64,
    pub(crate) failed_probes: u64,
}

/// One worker.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) spec: Arc<WorkerSpec>,
    pub(crate) worker: Worker,
    /// By the number of the source; the first one's spec is the worker's.
    pub(crate) named_by: BTreeMap<usize, Naming>,
    /// Tells the task of this worker from that of an earlier one of the same name.
    pub(crate) life: u64,
    /// What its probes have made of it; none if it is not probed.
    pub(crate) machine: Option<Machine>,
    /// Whether anything is known yet. Before, no snapshot names it: a sidecar that starts would take workers out of
    /// rotation that have been in it all the time.
    pub(crate) settled: bool,
    /// When a draining worker has drained.
    pub(crate) leaves: Option<Instant>,
    /// It was drained by hand, or given up and removed: naming it on and on does not bring it back.
    pub(crate) dismissed: bool,
    /// It has gone, and is remembered only because it is still named.
    pub(crate) away: bool,
    pub(crate) address: Option<String>,
    pub(crate) load: Option<Load>,
    /// The number of the first snapshot that has, or will have, this load.
    pub(crate) poll: u64,
    /// What the engine itself says it is.
    pub(crate) identity: Option<Info>,
    /// The health that snapshots have told, or are about to.
    pub(crate) told_health: Option<Health>,
    /// The number of the first snapshot that has, or will have, the last change of anything.
    pub(crate) changed: u64,
    /// The same for what the worker is.
    pub(crate) described: u64,
    /// The round waits for it.
    pub(crate) awaited: bool,
    /// Whether it is to be polled; its task watches this.
    pub(crate) pollable: watch::Sender<bool>,
    pub(crate) counts: Counts,
    /// When the load was told, and how.
    pub(crate) told: Option<(Instant, &'static str)>,
    pub(crate) ranks: Vec<RankLoad>,
    /// Why the last poll, and the last probe, failed.
    pub(crate) poll_error: Option<String>,
    pub(crate) probe_error: Option<String>,
}

impl Entry {
    /// A worker that nobody names yet.
    pub(crate) fn new(spec: Arc<WorkerSpec>, worker: Worker, machine: Option<Machine>, life: u64) -> Self {
        let address = spec.address.clone().or_else(|| worker.literal_address());
        Self {
            spec,
            worker,
            named_by: BTreeMap::new(),
            life,
            machine,
            settled: false,
            leaves: None,
            dismissed: false,
            away: false,
            address,
            load: None,
            poll: 0,
            identity: None,
            told_health: None,
            changed: 0,
            described: 0,
            awaited: false,
            pollable: watch::Sender::new(false),
            counts: Counts::default(),
            told: None,
            ranks: Vec::new(),
            poll_error: None,
            probe_error: None,
        }
    }

    /// Its health, all things considered: it may be chosen only if nobody has anything against it.
    pub(crate) fn health(&self) -> Health {
        let verdicts = || self.named_by.values().filter_map(|naming| naming.verdict);
        let probed = self.machine.as_ref().map_or(Health::Ready, Machine::health);
        if self.leaves.is_some() || verdicts().any(|verdict| verdict == Health::Draining) {
            Health::Draining
        } else if probed == Health::Ready && verdicts().next().is_some() {
            Health::NotReady
        } else {
            probed
        }
    }

    /// When it goes. One that was drained by hand and is still named does not: a proxy that starts later, and has it in
    /// its own configuration, would take a worker of which nobody speaks for one that may be chosen.
    pub(crate) fn goes(&self) -> Option<Instant> {
        self.leaves.filter(|_| !self.dismissed || self.named_by.is_empty())
    }

    /// Whether snapshots name it.
    pub(crate) const fn visible(&self) -> bool {
        self.settled && !self.away
    }

    /// What it is: what was said of it, completed by what the engine says.
    pub(crate) fn info(&self) -> Info {
        let mut info = self.spec.info();
        if let Some(identity) = &self.identity {
            if info.models.is_empty() {
                info.models.clone_from(&identity.models);
            }
            if info.runtime.is_empty() {
                info.runtime.clone_from(&identity.runtime);
            }
            if info.dp_size == 0 {
                info.dp_size = identity.dp_size;
            }
            for (name, value) in &identity.labels {
                info.labels.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        info
    }

    /// What a snapshot says of it.
    pub(crate) fn report(&self, with_info: bool) -> WorkerReport {
        WorkerReport {
            url: self.spec.url.clone(),
            address: self.address.clone(),
            health: Some(self.health()),
            load: self.load,
            poll: self.poll,
            info: with_info
                .then(|| self.info())
                .filter(|info| self.identity.is_some() || *info != Info::default())
                .map(Box::new),
        }
    }

    /// Remembers where it is, unless its spec says that; whether that is news, for snapshot `next`.
    pub(crate) fn locate(&mut self, address: String, next: u64) -> bool {
        let news = self.spec.address.is_none() && self.address.as_ref() != Some(&address);
        if news {
            (self.address, self.changed) = (Some(address), next);
        }
        news && self.visible()
    }

    /// Forgets what the engine said of its load.
    pub(crate) fn forget_load(&mut self) {
        (self.load, self.poll) = (None, 0);
        self.told = None;
        self.ranks.clear();
    }

    /// Remembers what the engine said of its load, as poll number `poll`; whether that is news. The same numbers from
    /// another poll are: they have what was sent to the engine meanwhile.
    pub(crate) fn remember(&mut self, told: Result<Told, String>, poll: u64, now: Instant) -> bool {
        let news = told.is_ok() || self.load.is_some();
        match told {
            Ok(told) => {
                self.load = Some(told.load.as_sent());
                self.poll = poll;
                self.told = Some((now, told.source));
                self.ranks = told.ranks;
                self.poll_error = None;
            }
            Err(why) => {
                self.forget_load();
                self.counts.failed_polls += 1;
                self.poll_error = Some(why);
            }
        }
        news
    }
}
