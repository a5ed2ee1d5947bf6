//! One configuration at work: its fleet, its policy and its tables, with every step of a request that touches them.

mod audit;
mod available;
mod bucketless;
mod choose;
mod explain;
mod gauges;
mod ledger;
mod list;
mod misnamed;
mod place;
mod placements;
mod reaper;
mod record;
mod requests;
mod responses;
mod roster;
mod settle;
mod sticky;
mod table;
mod tally;
mod tick;

use std::collections::HashMap;
use std::rc::Rc;

use rand::RngCore;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::config::{Config, PolicyName};
use crate::exchange::Bodies;
use crate::fleet::{Fleet, PolicyRef};
use crate::metrics::Metrics;
use crate::policy::{self, Needs, Policy};
use crate::state::census::Census;
use crate::state::load::SlotId;
use crate::state::meta::Lease;
use crate::state::names::with_slots;
use crate::state::pins::PinTable;
use crate::state::placements::{Placements, Survey};
use crate::state::report::Entry;
use crate::state::reporters::Reporters;
use crate::state::tree::PrefixTree;
use crate::state::turns::Turns;
use crate::store::{Store, StoreError};

use self::audit::Audit;
use self::bucketless::Bucketless;
use self::misnamed::Misnamed;
use self::requests::Requests;
use self::roster::Roster;
use self::sticky::Sweep;
use self::tally::Tally;

pub use ledger::Ledger;
pub use place::{Prompt, Ticket};
pub use requests::{Asked, FROM_WORKER, Told};
pub use settle::Answered;
pub use sticky::{KeySource, StickyKey};
pub use table::{Changed, Delta, LoadTable};

/// How much a line of log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// One line per decision.
    Debug,
    /// State changes.
    Info,
    /// Something an operator should know.
    Warn,
    /// Something an operator must mend.
    Error,
}

/// Where log lines go.
pub trait Log {
    /// Whether lines of `level` are wanted; what is not wanted need not be formatted.
    fn wants(&self, level: Level) -> bool;

    /// Takes one line.
    fn line(&mut self, level: Level, text: &str);
}

/// What a step is given from outside.
pub struct Context<'a> {
    /// The shared tables.
    pub store: &'a mut dyn Store,
    /// Randomness.
    pub rng: &'a mut dyn RngCore,
    /// The wall clock, in Unix milliseconds.
    pub now_ms: u64,
    /// The VM's metrics.
    pub metrics: &'a mut Metrics,
    /// The log.
    pub log: &'a mut dyn Log,
}

impl Context<'_> {
    /// The wall clock, in Unix seconds.
    #[must_use]
    pub fn now_secs(&self) -> u32 {
        u32::try_from(self.now_ms / 1000).unwrap_or(u32::MAX)
    }
}

/// One configuration at work, in one VM.
#[derive(Debug)]
pub struct Balancer {
    config: Rc<Config>,
    /// All policies: a route or a worker's label may name another one than the configuration, and what is no inference
    /// request has its own.
    policies: Vec<(PolicyRef, Box<dyn Policy>)>,
    fleet: Rc<Fleet>,
    roster: Roster,
    load: LoadTable,
    reports: HashMap<u16, Rc<CachedReports>>,
    reporters: Reporters,
    tree: PrefixTree,
    placements: Placements,
    survey: Survey,
    turns: Turns,
    pins: PinTable,
    /// The responses that are remembered; none where the module reads no answers.
    responses: Option<PinTable>,
    key_sweep: Sweep,
    /// Keys that have got a worker since the last tick.
    new_keys: u64,
    lease: Lease,
    leads: bool,
    seed: u64,
    tally: Tally,
    requests: Requests,
    warned_unplaced: bool,
    warned_policies: Vec<String>,
    misnamed: Misnamed,
    /// Workers of the last snapshot that were not kept.
    dropped: u64,
    warned_passthrough: bool,
    bucketless: Bucketless,
    warned_unknown: bool,
    census: Census,
    audit: Audit,
    /// Whether held requests see their bodies.
    pub(crate) bodies: Bodies,
    /// The leader's ticks so far.
    beats: u32,
    /// Slots that the last sweep has found forgotten.
    forgotten: Vec<SlotId>,
    /// The metrics' numbers of each worker's gauges, in the order of the fleet.
    gauges: Vec<[Option<usize>; 6]>,
}

/// The cold reports of one block, as of the version named in the hot block.
#[derive(Debug, Default)]
struct CachedReports {
    version: u32,
    entries: Vec<Entry>,
}

impl Balancer {
    /// Sets `config` to work as VM `vm` (a random number): creates what tables are missing and gives its workers slots.
    /// Everything that earlier configurations left in tables of the same geometry is kept.
    ///
    /// # Errors
    /// When the store cannot answer: then the configuration cannot work.
    pub fn new(config: Config, vm: u64, context: &mut Context<'_>) -> Result<Self, StoreError> {
        let instance = config.instance.clone();
        let load = LoadTable::of(&config);
        let lease = Lease::new(&instance, vm);
        let seed = lease.seed(context.store, context.rng.next_u64())?;
        load.create(context.store)?;
        let now_secs = context.now_secs();
        let (roster, fleet) = Roster::open(&config, context.store, now_secs)?;
        let balancer = Self {
            policies: all_policies().map(|wanted| (wanted, policy::named(wanted, &config))).collect(),
            fleet,
            roster,
            load,
            reports: HashMap::new(),
            reporters: Reporters::new(&instance, u16::try_from(config.max_workers).unwrap_or(u16::MAX)),
            tree: PrefixTree::new(&with_slots(&instance, config.max_workers), config.max_tree_size),
            placements: Placements::new(
                &with_slots(&instance, config.max_workers),
                config.max_tree_size,
                config.cache.ttl_secs,
            ),
            survey: Survey::default(),
            turns: Turns::new(&instance),
            pins: PinTable::new(&instance, config.sticky.max_keys),
            responses: None,
            key_sweep: Sweep::default(),
            new_keys: 0,
            lease,
            leads: false,
            seed,
            config: Rc::new(config),
            tally: Tally::default(),
            requests: Requests::default(),
            warned_unplaced: false,
            warned_policies: Vec::new(),
            misnamed: Misnamed::default(),
            dropped: 0,
            warned_passthrough: false,
            bucketless: Bucketless::default(),
            warned_unknown: false,
            census: Census::default(),
            audit: Audit::default(),
            bodies: Bodies::default(),
            beats: 0,
            forgotten: Vec::new(),
            gauges: Vec::new(),
        };
        balancer.prepare_ring();
        Ok(balancer)
    }

    /// Makes the hash ring of the fleet if any policy in use goes by it.
    fn prepare_ring(&self) {
        if self.needs_before_model(None).ring {
            self.fleet.prepare_ring();
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Rc<Config> {
        &self.config
    }

    /// The fleet as it stands.
    #[must_use]
    pub fn fleet(&self) -> &Rc<Fleet> {
        &self.fleet
    }

    /// Names the shared tables it works on: balancers of equal names share all state.
    #[must_use]
    pub fn tables(&self) -> String {
        self.load.load_key(0)
    }

    /// Whether this VM does what is done once per process, as of its last tick.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// What is known whole of the reporter behind the cluster of hash `cluster`: (epoch, sequence). None if nothing is, or
    /// the fleet has changed since.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn known_behind(&self, store: &mut dyn Store, cluster: u64) -> Result<Option<(u64, u64)>, StoreError> {
        let Some(known) = self.reporters.behind(store, cluster)? else { return Ok(None) };
        let fleet = self.roster.fleet.read(store)?.owners();
        Ok(known.whole.filter(|_| known.fleet == fleet).map(|whole| (known.epoch, whole)))
    }

    /// Notes that the reporter of hash `reporter` is behind the cluster of hash `cluster`. The newest that has been taken
    /// of it: (epoch, sequence).
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn fetched(
        &self,
        store: &mut dyn Store,
        reporter: u64,
        cluster: u64,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        self.reporters.note_cluster(store, reporter, cluster)?;
        let known = self.reporters.of(store, reporter)?;
        Ok((known.reporter != 0).then_some((known.epoch, known.sequence)))
    }

    /// Moves what was counted since the last time into `metrics`; ticks do it by themselves.
    pub fn publish(&mut self, metrics: &mut Metrics) {
        self.tally.publish(metrics);
        let fleet = &self.fleet;
        let url = |id| fleet.by_slot(id).and_then(|at| fleet.worker(at)).map(|worker| worker.url.as_str());
        self.requests.publish(metrics, url);
    }

    /// Marks the workers that `others` do not have as gone from the gauges: this configuration is being replaced.
    pub fn retire(&mut self, metrics: &mut Metrics, others: &[String]) {
        self.publish(metrics);
        for worker in self.fleet.workers().iter().filter(|worker| !others.contains(&worker.url)) {
            gauges::show_gone(metrics, &worker.url);
        }
    }

    /// Whether held requests are known to see their bodies.
    #[must_use]
    pub fn sees_bodies(&self) -> bool {
        self.bodies == Bodies::Seen
    }

    /// What `policy` needs to be told.
    #[must_use]
    pub fn needs(&self, policy: PolicyRef) -> Needs {
        self.policy(policy).map_or_else(Needs::default, Policy::needs)
    }

    /// What any policy needs to be told that a request may come to, whose route names `policy` or none.
    #[must_use]
    pub fn needs_before_model(&self, policy: Option<PolicyName>) -> Needs {
        if let Some(policy) = policy {
            return self.needs(PolicyRef::tuned(policy));
        }
        let usual = self.needs(PolicyRef::tuned(self.config.policy));
        self.fleet.policies().fold(usual, |needs, policy| needs.or(self.needs(policy)))
    }

    /// The hash by which routing key `key` is known to all threads.
    #[must_use]
    pub fn key_hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    fn policy(&self, wanted: PolicyRef) -> Option<&dyn Policy> {
        self.policies.iter().find(|(known, _)| *known == wanted).map(|(_, policy)| policy.as_ref())
    }

    /// Requests in flight at the owner of `id`, as the shared table has it.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn in_flight(&self, store: &mut dyn Store, id: SlotId) -> Result<u32, StoreError> {
        Ok(self.load.read(store, id.block())?.block.slot(id.position()).in_flight)
    }
}

/// Every policy, as the configuration tunes it and as SMG has it built in.
fn all_policies() -> impl Iterator<Item = PolicyRef> {
    let both = |name: &PolicyName| [false, true].map(|built_in| PolicyRef { name: *name, built_in });
    PolicyName::ALL.iter().flat_map(both)
}

#[cfg(test)]
pub(crate) mod tests;
