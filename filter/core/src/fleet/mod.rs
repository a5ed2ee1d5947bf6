//! The workers one configuration may choose from, and the pools that requests see.
//!
//! A fleet is built when the configuration, the fleet table or the named workers change and is immutable afterwards;
//! exchanges keep the one they were placed with.

mod clusters;
mod members;
mod policies;
pub mod ring;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use crate::breaker::{Outcome, Statuses};
use crate::config::{Breaker, Config};
use crate::report::{Load, Overload};
use crate::state::fleet::{FleetState, url_hash};
use crate::state::load::SlotId;
use crate::state::named::Named;

use self::clusters::Reachable;
use self::members::Member;
use self::ring::Ring;

pub use policies::PolicyRef;

/// The reserved model id that means "any worker".
pub const UNKNOWN_MODEL: &str = "unknown";

/// How a worker is spoken to, the label `connection_mode` of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionMode {
    /// HTTP.
    Http,
    /// gRPC.
    Grpc,
}

impl ConnectionMode {
    /// The label's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
        }
    }
}

/// One worker that can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// As configured, byte for byte: the worker's identity.
    pub url: String,
    /// The URL's hash, by which other tables know it.
    pub hash: u64,
    /// `ip:port`; what Envoy knows the host by.
    pub address: String,
    /// The models it serves; empty if nobody has said: then it serves any.
    pub models: Vec<String>,
    /// Where its load is kept.
    pub id: SlotId,
    /// Its circuit breaker's settings.
    pub breaker: Breaker,
    /// What its answers say of it, unless that is as usual.
    pub statuses: Option<Box<Statuses>>,
    /// From where on it is overloaded, if it can be.
    pub limits: Overload,
    /// How it is spoken to.
    pub mode: ConnectionMode,
    /// The policy that its label names for the models it serves.
    pub policy: Option<PolicyRef>,
    /// The place in [`Config::clusters`] of the cluster it was found in, if it was found by itself and in one of these.
    pub cluster: Option<usize>,
}

impl Worker {
    /// Its first model, or [`UNKNOWN_MODEL`].
    #[must_use]
    pub fn model(&self) -> &str {
        self.models.first().map_or(UNKNOWN_MODEL, String::as_str)
    }

    /// What an answer of `status` says of it.
    #[must_use]
    pub fn outcome(&self, status: u16) -> Outcome {
        self.statuses.as_ref().map_or_else(|| Outcome::of_status(status), |own| own.outcome(status))
    }

    /// Whether what it reports is at a limit or above it.
    #[must_use]
    pub fn is_overloaded(&self, load: &Load) -> bool {
        self.limits.waiting_requests.is_some_and(|limit| load.waiting >= f64::from(limit))
            || self.limits.token_usage.is_some_and(|limit| load.kv_usage >= limit)
    }
}

/// The workers that match a request, whatever their state, in order of registration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    /// Positions in [`Fleet::workers`].
    pub workers: Vec<u16>,
    /// Their slots, in the same order: what every pick goes through.
    pub ids: Vec<SlotId>,
    /// The load blocks they span.
    pub blocks: Vec<u16>,
    /// The policy of its model, if a worker's label has decided it.
    pub policy: Option<PolicyRef>,
    /// Made when it is first asked for.
    ring: OnceCell<Ring>,
}

/// Everything one configuration may choose from.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    workers: Vec<Worker>,
    by_model: HashMap<String, Pool>,
    any: Pool,
    /// Workers that have named no model: they serve the models nobody has named.
    unnamed: Pool,
    /// The pools of requests to a cluster, by its place in the configuration, if there are several.
    by_cluster: HashMap<usize, Reachable>,
    by_address: HashMap<String, u16>,
    by_slot: HashMap<SlotId, u16>,
    by_hash: HashMap<u64, u16>,
    unplaced: Vec<String>,
    unknown_policies: Vec<String>,
    needs_model: bool,
    limited: bool,
    grpc: bool,
    /// Nobody has named a worker yet, and somebody may.
    waits: bool,
}

impl Fleet {
    /// The fleet of `config` as the fleet table places it, with what reporters have `named`. Workers without an address
    /// or a slot are left out. Models that `before` has too keep the policy that was decided for them there.
    #[must_use]
    pub fn new(config: &Config, table: &FleetState, named: &Named, before: Option<&Self>) -> Self {
        let slots = table.slots();
        let members = members::members(config, named);
        let mut fleet = Self { waits: config.discovers() && members.is_empty(), ..Self::default() };
        fleet.needs_model = needs_model(&members);
        // What a reporter has found must not lead to a host that is somebody else.
        let configured: HashSet<String> = config.workers.iter().filter_map(|worker| worker.address.clone()).collect();
        for member in members {
            let free = |found: &String| !configured.contains(found) && !fleet.by_address.contains_key(found);
            let address = member.configured.clone().or_else(|| member.found.clone().filter(free));
            match (address, slots.get(&member.hash)) {
                (Some(address), Some(&id)) => fleet.add(config, member, address, id),
                _ => fleet.unplaced.push(member.url),
            }
        }
        fleet.limited = fleet.workers.iter().any(|worker| !worker.limits.is_default());
        fleet.grpc = fleet.workers.iter().any(|worker| worker.mode == ConnectionMode::Grpc);
        fleet.build_pools(config, before);
        // A ring that was wanted will be wanted again, and not while a request waits.
        if let Some(before) = before
            && let Some(ring) = before.any.ring.get()
        {
            let formerly = |url: &str| before.by_hash(url_hash(url));
            fleet.any.ring = OnceCell::from(Ring::after(ring, fleet.numbered_urls(), formerly));
        }
        fleet
    }

    fn numbered_urls(&self) -> impl Iterator<Item = (u16, &str)> {
        (0..).zip(self.workers.iter().map(|worker| worker.url.as_str()))
    }

    fn add(&mut self, config: &Config, member: Member, address: String, id: SlotId) {
        let Ok(index) = u16::try_from(self.workers.len()) else { return };
        self.by_address.entry(address.clone()).or_insert(index);
        self.by_slot.insert(id, index);
        self.by_hash.insert(member.hash, index);
        let mode = if member.url.starts_with("grpc") { ConnectionMode::Grpc } else { ConnectionMode::Http };
        let Member { url, hash, models, breaker, statuses, limits, policy_label, cluster, .. } = member;
        let policy = policy_label.as_ref().and_then(|label| PolicyRef::of_label(config, label));
        if policy.is_none() {
            self.unknown_policies.extend(policy_label);
        }
        self.workers.push(Worker { url, hash, address, models, id, breaker, statuses, limits, mode, policy, cluster });
    }

    fn build_pools(&mut self, config: &Config, before: Option<&Self>) {
        let models: Vec<String> = self.workers.iter().flat_map(|worker| worker.models.iter().cloned()).collect();
        for model in models {
            if self.by_model.contains_key(&model) {
                continue;
            }
            let mut pool = self.pool_where(|worker| worker.models.is_empty() || worker.models.contains(&model));
            pool.policy = self.policy_of(&model, &pool, before);
            self.by_model.insert(model, pool);
        }
        self.unnamed = self.pool_where(|worker| worker.models.is_empty());
        self.any = self.pool_where(|_| true);
        self.build_clusters();
        // A model with a policy of its own must be known even where all models have the same workers.
        let usual = PolicyRef::tuned(config.policy);
        let differs = self.policies().any(|policy| policy != usual);
        self.needs_model |= differs;
    }

    fn pool_where(&self, matches: impl Fn(&Worker) -> bool) -> Pool {
        self.pool_of((0..).zip(&self.workers).filter(|(_, worker)| matches(worker)).map(|(index, _)| index))
    }

    fn pool_of(&self, workers: impl Iterator<Item = u16>) -> Pool {
        let mut pool = Pool::default();
        for (index, worker) in workers.filter_map(|index| Some((index, self.worker(index)?))) {
            pool.workers.push(index);
            pool.ids.push(worker.id);
            if !pool.blocks.contains(&worker.id.block()) {
                pool.blocks.push(worker.id.block());
            }
        }
        pool
    }

    /// All workers, in order of registration.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The worker at `index`.
    #[must_use]
    pub fn worker(&self, index: u16) -> Option<&Worker> {
        self.workers.get(usize::from(index))
    }

    /// The worker that Envoy knows as `address`.
    #[must_use]
    pub fn by_address(&self, address: &str) -> Option<u16> {
        self.by_address.get(address).copied()
    }

    /// The workers for a request that names `model`; an empty name and [`UNKNOWN_MODEL`] mean any worker.
    #[must_use]
    pub fn pool(&self, model: &str) -> &Pool {
        match model {
            "" | UNKNOWN_MODEL => &self.any,
            model => self.by_model.get(model).unwrap_or(&self.unnamed),
        }
    }

    /// The worker whose URL has this hash.
    #[must_use]
    pub fn by_hash(&self, hash: u64) -> Option<u16> {
        self.by_hash.get(&hash).copied()
    }

    /// The hash ring of `pool`, a pool of this fleet. The first is made at once with [`Self::prepare_ring`], the later
    /// ones with their fleets.
    #[must_use]
    pub fn ring<'a>(&'a self, pool: &'a Pool) -> &'a Ring {
        let whole = || self.any.ring.get_or_init(|| Ring::new(self.numbered_urls()));
        if std::ptr::eq(pool, &raw const self.any) {
            return whole();
        }
        pool.ring.get_or_init(|| whole().part(|worker| pool.workers.binary_search(&worker).is_ok()))
    }

    /// Makes the ring before a request asks for it.
    pub fn prepare_ring(&self) {
        let _ = self.ring(&self.any);
    }

    /// Labels that should name a policy and do not.
    #[must_use]
    pub fn unknown_policies(&self) -> &[String] {
        &self.unknown_policies
    }

    /// Every policy that labels have decided for a model.
    pub fn policies(&self) -> impl Iterator<Item = PolicyRef> {
        self.by_model.values().filter_map(|pool| pool.policy)
    }

    /// Whether a request must name its model to find its pool, also among workers that cannot be chosen yet.
    #[must_use]
    pub fn needs_model(&self) -> bool {
        self.needs_model
    }

    /// The worker that owns `id`.
    #[must_use]
    pub fn by_slot(&self, id: SlotId) -> Option<u16> {
        self.by_slot.get(&id).copied()
    }

    /// `model` as a metric label or log field: only names that the fleet itself has named, since a client could
    /// invent any number of them.
    #[must_use]
    pub fn model_label<'a>(&'a self, model: &str) -> &'a str {
        self.by_model.get_key_value(model).map_or(UNKNOWN_MODEL, |(known, _)| known.as_str())
    }

    /// The models anybody serves, sorted.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = self.by_model.keys().map(String::as_str).collect();
        models.sort_unstable();
        models
    }

    /// The connection modes that are shown.
    #[must_use]
    pub fn modes(&self) -> &'static [ConnectionMode] {
        if self.grpc { &[ConnectionMode::Http, ConnectionMode::Grpc] } else { &[ConnectionMode::Http] }
    }

    /// Whether any worker has a limit of overload protection.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limited
    }

    /// Whether there may be workers that are not here: some have no address yet, or nobody has named any so far.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waits || !self.unplaced.is_empty()
    }

    /// URLs of workers that cannot be chosen: no address is known yet, or the fleet table is full.
    #[must_use]
    pub fn unplaced(&self) -> &[String] {
        &self.unplaced
    }
}

/// Whether different models have different pools: some serve what others do not, or whatever is asked for.
fn needs_model(members: &[Member]) -> bool {
    let named = || members.iter().map(|member| &member.models).filter(|models| !models.is_empty());
    let Some(first) = named().next() else { return false };
    let same = |models: &Vec<String>| models.len() == first.len() && models.iter().all(|model| first.contains(model));
    members.iter().any(|member| member.models.is_empty()) || !named().all(same)
}

#[cfg(test)]
mod tests;
