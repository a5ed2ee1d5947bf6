//! The policies: given the available workers and what is known of them, which one takes the request.
//!
//! A policy reads nothing by itself and writes nothing: candidates, match, turn and randomness are given to it, and
//! what its pick costs is credited by the caller in the same atomic step.

pub mod bucket;
mod cache_aware;
mod hash_index;
mod least_load;
mod overlap;
mod passthrough;
mod power_of_two;
mod random;
mod round_robin;
pub mod score;

use rand::RngCore;

use crate::config::{CacheIndex, Config, PolicyName};
use crate::prefix::Match;
use crate::report::Load;
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
}

/// Why `cache_aware` chose as it did; the label of `smg_cache_aware_policy_branch_total`.
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
}

impl Pick {
    /// The candidate at `index`, chosen without a score and credited nothing.
    #[must_use]
    pub fn unscored(index: usize) -> Self {
        Self { index, credit: None, score: None, branch: None }
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
}

/// One of the policies.
pub trait Policy: std::fmt::Debug {
    /// What must be in the [`View`].
    fn needs(&self) -> Needs;

    /// The choice, or none if every candidate is refused.
    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick>;
}

/// The policy called `name`, as `config` tunes it.
#[must_use]
pub fn named(name: PolicyName, config: &Config) -> Box<dyn Policy> {
    match name {
        PolicyName::CacheAware if config.cache.index == CacheIndex::Hash => {
            Box::new(hash_index::HashIndex::new(config))
        }
        PolicyName::CacheAware => Box::new(cache_aware::CacheAware::new(&config.cache)),
        PolicyName::LeastLoad => Box::new(least_load::LeastLoad::new(config.score)),
        PolicyName::PowerOfTwo => Box::new(power_of_two::PowerOfTwo::new(config.load_metric)),
        PolicyName::RoundRobin => Box::new(round_robin::RoundRobin),
        PolicyName::Random => Box::new(random::Random),
        // Only a prefill leg has buckets.
        PolicyName::Bucket => Box::new(random::Random),
        PolicyName::Passthrough => Box::new(passthrough::Passthrough),
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
        View { candidates, prefix, token_ids: None, turn: 0 }
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
