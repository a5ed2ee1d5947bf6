//! The policies: given the available workers and what is known of them, which one takes the request.
//!
//! A policy reads nothing by itself and writes nothing: candidates, match, turn and randomness are given to it, and
//! what its pick costs is credited by the caller in the same atomic step.

pub mod bucket;
mod cache_aware;
mod consistent_hashing;
mod hash_index;
mod least_load;
pub mod manual;
mod overlap;
mod passthrough;
mod power_of_two;
mod prefix_hash;
mod random;
mod round_robin;
pub mod score;
pub mod sticky;

use rand::RngCore;

use crate::config::{AssignmentMode, CacheIndex, Config, PolicyName, ScoreParams};
use crate::fleet::PolicyRef;
use crate::fleet::ring::Ring;
use crate::prefix::Match;
use crate::report::Load;
use crate::request::Target;
use crate::state::load::SlotId;

/// An available worker as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<'a> {
    /// Its position in the fleet.
    pub worker: u16,
    /// Its slot.
    pub id: SlotId,
    /// Requests dispatched and not ended.
    pub in_flight: u32,
    /// Distinct routing keys among them.
    pub keys: u32,
    /// Tokens credited since its last report.
    pub tally_tokens: u32,
    /// Requests credited since its last report.
    pub tally_requests: u32,
    /// Its last report, if it counts.
    pub report: Option<&'a Load>,
}

/// What a pick is made from.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The available workers of the pool, in pool order.
    pub candidates: &'a [Candidate<'a>],
    /// Who holds the prompt's prefix; empty unless the policy wants it.
    pub prefix: &'a Match,
    /// How many token ids the request has brought, if any: its size, where it is known.
    pub token_ids: Option<u32>,
    /// The position of this candidate set; 0 unless the policy takes turns.
    pub turn: u32,
    /// What the request itself says.
    pub said: Said<'a>,
    /// The hash ring of the pool; none unless the policy wants it.
    pub ring: Option<&'a Ring>,
}

impl View<'static> {
    /// What is seen where nobody may be chosen.
    #[must_use]
    pub fn of_nobody() -> Self {
        static NOTHING: Match = Match { matched: 0, total: 0, holders: Vec::new() };
        Self { candidates: &[], prefix: &NOTHING, token_ids: None, turn: 0, said: Said::default(), ring: None }
    }
}

impl View<'_> {
    /// The candidate that owns `position` on the ring, as its index.
    #[must_use]
    pub fn owner(&self, position: u64) -> Option<usize> {
        // Candidates stand in the order of the fleet.
        let index = |worker: u16| self.candidates.binary_search_by_key(&worker, |candidate| candidate.worker);
        let owner = self.ring?.owner(position, |worker| index(worker).is_ok())?;
        index(owner).ok()
    }
}

/// What a request says of where it wants to go, and the head of its prompt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// The worker that it names by an index.
    pub target: Target,
    /// The key that `consistent_hashing` goes by: of the request's identity, a routing-key header, or an implicit one.
    pub hash_key: Option<&'a [u8]>,
    /// The first valid configured routing-key header, as it came.
    pub routing_key: Option<&'a [u8]>,
    /// The routing text, or its beginning.
    pub text: &'a [u8],
    /// Token ids; if there are any, the text does not count.
    pub tokens: &'a [u32],
}

/// Whose decisions a counter of branches counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `cache_aware`.
    CacheAware,
    /// `prefix_hash`.
    PrefixHash,
    /// `consistent_hashing`.
    ConsistentHashing,
    /// `manual` and the routing-key override.
    Manual,
    /// Requests that refer to a response, under any policy.
    Responses,
}

impl Family {
    /// The counter's name.
    #[must_use]
    pub fn counter(self) -> &'static str {
        match self {
            Self::CacheAware => "smg_cache_aware_policy_branch_total",
            Self::PrefixHash => "smg_prefix_hash_policy_branch_total",
            Self::ConsistentHashing => "smg_consistent_hashing_policy_branch_total",
            Self::Manual => "smg_manual_policy_branch_total",
            Self::Responses => "smg_response_lookup_total",
        }
    }
}

/// Why a policy chose as it did; the label `branch` of its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Branch {
    /// A holder of the matched prefix.
    TreeMatch,
    /// Enough of the prompt matched, but no holder could take it.
    Spill,
    /// Too little of the prompt matched.
    ExpectedWaitFallback,
    /// KV memory is too full, or too unevenly so, to go by prefixes. Logged, not counted.
    KvPressure,
    /// With `cache_index: hash`, whose branches are logged and not counted: a holder of the prompt's beginning.
    HashHit,
    /// The same: no holder of the prompt's beginning could take it.
    HashSpill,
    /// The same: fewer token ids than the first boundary.
    ShortRequest,
    /// The owner of the prompt's head takes it, of the head at this boundary.
    RingHit(u32),
    /// Every owner is overloaded; the boundary of the owner that takes it all the same, or 0.
    LoadBalanceWalk(u32),
    /// There is no ring.
    FallbackLeastLoad,
    /// Nothing to hash.
    NoRoutingKey,
    /// The worker that the request names by its index.
    TargetWorkerHit,
    /// There is no such worker.
    TargetWorkerMiss,
    /// The owner of a key.
    RoutingKeyHit,
    /// There is no key: any worker.
    RandomFallback,
    /// The key's worker.
    OccupiedHit,
    /// The key's workers are out.
    OccupiedMiss,
    /// A new key.
    Vacant,
    /// The key's worker has enough of it.
    CapRespill,
    /// There is no key.
    NoRoutingId,
    /// The worker that holds the response which the request refers to.
    ResponseHeld,
    /// That worker may not be chosen.
    ResponseOut,
    /// Nobody is remembered to hold it.
    ResponseUnknown,
    /// Nobody may be chosen.
    NoHealthyWorkers(Family),
}

impl Branch {
    /// The word used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TreeMatch => "tree_match",
            Self::Spill => "spill",
            Self::ExpectedWaitFallback => "expected_wait_fallback",
            Self::KvPressure => "kv_pressure_expected_wait",
            Self::HashHit => "hash_hit",
            Self::HashSpill => "hash_spill",
            Self::ShortRequest => "short_request",
            Self::RingHit(_) => "ring_hit",
            Self::LoadBalanceWalk(_) => "load_balance_walk",
            Self::FallbackLeastLoad => "fallback_least_load",
            Self::NoRoutingKey => "no_routing_key",
            Self::TargetWorkerHit => "target_worker_hit",
            Self::TargetWorkerMiss => "target_worker_miss",
            Self::RoutingKeyHit => "routing_key_hit",
            Self::RandomFallback => "random_fallback",
            Self::OccupiedHit => "occupied_hit",
            Self::OccupiedMiss => "occupied_miss",
            Self::Vacant => "vacant",
            Self::CapRespill => "cap_respill",
            Self::NoRoutingId => "no_routing_id",
            Self::ResponseHeld => "response_held",
            Self::ResponseOut => "response_out",
            Self::ResponseUnknown => "response_unknown",
            Self::NoHealthyWorkers(_) => "no_healthy_workers",
        }
    }

    /// The counter that it is counted by, if any.
    #[must_use]
    pub fn counter(self) -> Option<&'static str> {
        let logged = matches!(self, Self::KvPressure | Self::HashHit | Self::HashSpill | Self::ShortRequest);
        (!logged).then(|| self.family().counter())
    }

    /// The boundary that it was found at, in tokens; 0 is none.
    #[must_use]
    pub fn level(self) -> u32 {
        match self {
            Self::RingHit(level) | Self::LoadBalanceWalk(level) => level,
            _ => 0,
        }
    }

    /// Whose decision it is.
    #[must_use]
    pub fn family(self) -> Family {
        match self {
            Self::TreeMatch
            | Self::Spill
            | Self::ExpectedWaitFallback
            | Self::KvPressure
            | Self::HashHit
            | Self::HashSpill
            | Self::ShortRequest => Family::CacheAware,
            Self::RingHit(_) | Self::LoadBalanceWalk(_) | Self::FallbackLeastLoad | Self::NoRoutingKey => {
                Family::PrefixHash
            }
            Self::TargetWorkerHit | Self::TargetWorkerMiss | Self::RoutingKeyHit | Self::RandomFallback => {
                Family::ConsistentHashing
            }
            Self::OccupiedHit | Self::OccupiedMiss | Self::Vacant | Self::CapRespill | Self::NoRoutingId => {
                Family::Manual
            }
            Self::ResponseHeld | Self::ResponseOut | Self::ResponseUnknown => Family::Responses,
            Self::NoHealthyWorkers(family) => family,
        }
    }
}

/// A policy's choice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pick {
    /// Position in [`View::candidates`].
    pub index: usize,
    /// Tokens to credit to the worker's tally (and one request), if the pick was scored.
    pub credit: Option<u32>,
    /// The score it won with, in seconds (or requests, where nobody reports), if it was scored.
    pub score: Option<f64>,
    /// Which rule decided.
    pub branch: Option<Branch>,
    /// The position on the ring that it owns, if that is why.
    pub position: Option<u64>,
}

impl Pick {
    /// The candidate at `index`, chosen without a score and credited nothing.
    #[must_use]
    pub fn unscored(index: usize) -> Self {
        Self { index, credit: None, score: None, branch: None, position: None }
    }
}

/// What a policy needs to be told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// The prompt's holders, hence the request body.
    pub prefix: bool,
    /// The holders come from the hashes of the prompt's first token ids, not from the prefix tree.
    pub placements: bool,
    /// A turn of its candidate set.
    pub turn: bool,
    /// Expected wait, for ranking the workers behind the pick.
    pub score: bool,
    /// Behind the pick the pool's order stands; otherwise what is equally good is ordered by chance.
    pub in_order: bool,
    /// A worker's last load also counts after a poll of it has failed, until it is too old. SMG's `least_load` keeps
    /// it, its `cache_aware` takes such a worker for one that does not report.
    pub last_load: bool,
    /// The hash ring.
    pub ring: bool,
    /// The head of the prompt, unless the request names a routing key.
    pub head: bool,
    /// The headers that may name a key or a worker.
    pub keys: Keys,
}

/// Which headers a policy goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    /// `X-SMG-Target-Worker`.
    pub target: bool,
    /// The configured routing-key headers.
    pub configured: bool,
    /// `X-SMG-Routing-Key`, whatever is configured.
    pub fixed: bool,
    /// `Authorization`, `X-Forwarded-For` and `Cookie`.
    pub implicit: bool,
}

impl Needs {
    /// What either needs.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let (one, two) = (self.keys, other.keys);
        Self {
            prefix: self.prefix || other.prefix,
            placements: self.placements || other.placements,
            turn: self.turn || other.turn,
            score: self.score || other.score,
            in_order: self.in_order || other.in_order,
            last_load: self.last_load || other.last_load,
            ring: self.ring || other.ring,
            head: self.head || other.head,
            keys: Keys {
                target: one.target || two.target,
                configured: one.configured || two.configured,
                fixed: one.fixed || two.fixed,
                implicit: one.implicit || two.implicit,
            },
        }
    }
}

/// One of the policies.
pub trait Policy: std::fmt::Debug {
    /// What must be in the [`View`].
    fn needs(&self) -> Needs;

    /// The choice, or none if every candidate is refused.
    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick>;

    /// What the expected waits of the workers behind the pick are reckoned with. Operators tune those of `least_load`
    /// only (spec: the expected-wait score).
    fn ranking(&self) -> ScoreParams {
        ScoreParams::default()
    }

    /// How it is counted that nobody was chosen.
    fn why_none(&self, _view: &View<'_>) -> Option<Branch> {
        None
    }
}

/// The policy that `wanted` names, with the settings of `config` or SMG's built-in ones.
#[must_use]
pub fn named(wanted: PolicyRef, config: &Config) -> Box<dyn Policy> {
    if wanted.built_in {
        return named(PolicyRef::tuned(wanted.name), &Config::built_in());
    }
    match wanted.name {
        PolicyName::CacheAware if config.cache.index == CacheIndex::Hash => {
            Box::new(hash_index::HashIndex::new(config))
        }
        PolicyName::CacheAware => Box::new(cache_aware::CacheAware::new(&config.cache, config.cold_start_ties)),
        PolicyName::LeastLoad => Box::new(least_load::LeastLoad::new(config.score)),
        PolicyName::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(config.load_metric)),
        PolicyName::RoundRobin => Box::new(round_robin::RoundRobin),
        PolicyName::Random => Box::new(random::Random),
        // Only a prefill leg has buckets.
        PolicyName::Bucket => Box::new(random::Random),
        PolicyName::Passthrough => Box::new(passthrough::Passthrough),
        PolicyName::ConsistentHashing => Box::new(consistent_hashing::ConsistentHashing),
        PolicyName::PrefixHash => Box::new(prefix_hash::PrefixHash::new(&config.prefix_hash, &config.cache_boundaries)),
        PolicyName::Manual => {
            Box::new(manual::Manual::new(config.sticky.assignment_mode.unwrap_or(AssignmentMode::Random)))
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Candidate `number` with so many requests in flight and no report.
    pub(crate) fn candidate(number: u16, in_flight: u32) -> Candidate<'static> {
        Candidate {
            worker: number,
            id: SlotId { slot: number, generation: 0 },
            in_flight,
            keys: 0,
            tally_tokens: 0,
            tally_requests: 0,
            report: None,
        }
    }

    /// A report with queue, waiting requests, KV usage and throughput.
    pub(crate) fn load(queued_tokens: f64, waiting: f64, kv_usage: f64, throughput: f64) -> Option<&'static Load> {
        Some(Box::leak(Box::new(Load { queued_tokens, waiting, running: 0.0, kv_usage, throughput })))
    }

    /// A view of candidates only.
    pub(crate) fn view<'a>(candidates: &'a [Candidate<'a>], prefix: &'a Match) -> View<'a> {
        View { candidates, prefix, token_ids: None, turn: 0, said: Said::default(), ring: None }
    }

    /// How often each candidate wins in `picks` independent picks.
    pub(crate) fn wins(policy: &dyn Policy, view: &View<'_>, picks: usize) -> Vec<usize> {
        let mut rng: rand::rngs::SmallRng = rand::SeedableRng::seed_from_u64(7);
        let mut wins = vec![0; view.candidates.len()];
        for _ in 0..picks {
            if let Some(pick) = policy.pick(view, &mut rng) {
                wins[pick.index] += 1;
            }
        }
        wins
    }
}
