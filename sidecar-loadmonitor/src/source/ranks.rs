//! Data-parallel ranks, and what they come to together.

use std::collections::BTreeMap;

use filter_core::report::Load;

use super::Reading;
use crate::engine::RankLoad;

/// What one rank says; what it does not say, or what cannot be true, is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Rank {
    /// 0-based, where told.
    pub(crate) dp_rank: Option<u32>,
    /// Tokens of waiting requests that no cache holds.
    pub(crate) queued_tokens: Option<f64>,
    /// Requests that wait.
    pub(crate) waiting: Option<f64>,
    /// Requests that run.
    pub(crate) running: Option<f64>,
    /// Share of the KV memory in use.
    pub(crate) kv_usage: Option<f64>,
    /// Generated tokens per second.
    pub(crate) throughput: Option<f64>,
    /// Share of prompt tokens found in the prefix cache.
    pub(crate) cache_hit_rate: Option<f64>,
    /// KV memory in tokens.
    pub(crate) capacity: Option<f64>,
}

impl Rank {
    /// Whether this is what engines publish before their first step: zeros, the capacity included. It looks idle and
    /// is not.
    fn is_blank(&self) -> bool {
        let numbers = [self.queued_tokens, self.waiting, self.running, self.kv_usage, self.throughput, self.capacity];
        numbers.iter().all(|number| number.is_none_or(|number| number == 0.0))
    }

    fn load(&self) -> Load {
        Load {
            queued_tokens: self.queued_tokens.unwrap_or_default(),
            waiting: self.waiting.unwrap_or_default(),
            running: self.running.unwrap_or_default(),
            kv_usage: self.kv_usage.unwrap_or_default(),
            throughput: self.throughput.unwrap_or_default(),
        }
        .sanitized()
    }
}

/// What `ranks` say together: queue, requests and throughput are sums, KV usage is the mean of those who tell it.
/// A rank named twice counts as it was named last, and one that has not begun does not count.
pub(crate) fn together(ranks: Vec<Rank>) -> Reading {
    if ranks.is_empty() {
        return Reading::Inconclusive("reported no rank".into());
    }
    let mut distinct = BTreeMap::new();
    for (position, rank) in (0..).zip(ranks) {
        distinct.insert(rank.dp_rank.unwrap_or(position), rank);
    }
    distinct.retain(|_, rank| !rank.is_blank());
    if distinct.is_empty() {
        return Reading::Unknown("has only zeros: the engine is starting".into());
    }
    let sum = |field: fn(&Rank) -> Option<f64>| distinct.values().filter_map(field).sum::<f64>();
    let load = Load {
        queued_tokens: sum(|rank| rank.queued_tokens),
        waiting: sum(|rank| rank.waiting),
        running: sum(|rank| rank.running),
        kv_usage: mean(distinct.values().filter_map(|rank| rank.kv_usage)).unwrap_or_default(),
        throughput: sum(|rank| rank.throughput),
    };
    let each = |(&dp_rank, rank): (&u32, &Rank)| RankLoad {
        dp_rank,
        load: rank.load(),
        cache_hit_rate: rank.cache_hit_rate.map(|rate| rate.min(1.0)),
    };
    Reading::Load(load.sanitized(), distinct.iter().map(each).collect())
}

/// The mean, if there is anything.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}
