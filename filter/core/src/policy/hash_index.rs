//! `cache_aware` with `cache_index: hash`: the holders of a prompt's first token ids, at the deepest of some fixed numbers
//! of them, instead of those of its longest prefix.
//!
//! Cheaper than the tree where prompts come as ids and share beginnings of known lengths; the wrong choice for text, which
//! it does not look at. Source: SMG's cache-aware page.

use rand::RngCore;

use super::cache_aware::CacheAware;
use super::{Branch, Needs, Pick, Policy, View};
use crate::config::{ColdStartTies, Config};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct HashIndex {
    gate: CacheAware,
    /// Prompts of fewer ids are not looked up.
    shortest: u32,
}

impl HashIndex {
    pub(super) fn new(config: &Config) -> Self {
        let shortest = config.cache_boundaries.first().copied().unwrap_or(u32::MAX);
        Self { gate: CacheAware::new(&config.cache, ColdStartTies::Random), shortest }
    }
}

impl Policy for HashIndex {
    fn needs(&self) -> Needs {
        Needs { prefix: true, placements: true, score: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        let candidates = view.candidates;
        let short = view.token_ids.is_none_or(|ids| ids < self.shortest);
        let pressed = !short && self.gate.is_under_kv_pressure(candidates);
        let holds = |index: usize| candidates.get(index).is_some_and(|one| view.prefix.holders.contains(&one.id));
        let mut set = Vec::new();
        if !short && !pressed {
            set.extend((0..candidates.len()).filter(|&index| holds(index)));
        }
        let known = !set.is_empty();
        let (index, score) = self.gate.gate(candidates, set, rng)?;
        let branch = match view.token_ids {
            None => Branch::ExpectedWaitFallback,
            Some(_) if short => Branch::ShortRequest,
            Some(_) if pressed => Branch::KvPressure,
            Some(_) if !known => Branch::ExpectedWaitFallback,
            Some(_) if holds(index) => Branch::HashHit,
            Some(_) => Branch::HashSpill,
        };
        Some(self.gate.pick_of(view, index, score, branch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Candidate;
    use crate::policy::testing::{candidate, load, view};
    use crate::prefix::Match;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    fn policy(more: &str) -> HashIndex {
        let text = format!(r#"{{{more}"cache_index":"hash","cache_boundaries":[16,64]}}"#);
        HashIndex::new(&Config::parse(text.as_bytes()).unwrap())
    }

    /// The branch, and who can win, for a prompt of so many ids whose beginning `holders` hold.
    fn decide(
        policy: &HashIndex,
        available: &[Candidate<'_>],
        ids: Option<u32>,
        holders: &[u16],
    ) -> (Branch, Vec<usize>) {
        let holders = holders.iter().map(|slot| candidate(*slot, 0).id).collect();
        let prefix = Match { matched: 16, total: 1000, holders };
        let view = View { token_ids: ids, ..view(available, &prefix) };
        let mut rng = rand::rngs::SmallRng::seed_from_u64(3);
        let picks: Vec<Pick> = (0..100).map(|_| policy.pick(&view, &mut rng).unwrap()).collect();
        assert!(picks.iter().all(|pick| pick.branch == picks[0].branch));
        assert_eq!(picks[0].credit, Some(ids.unwrap_or(1024)));
        let winners: BTreeSet<usize> = picks.iter().map(|pick| pick.index).collect();
        (picks[0].branch.unwrap(), winners.into_iter().collect())
    }

    fn in_flight(loads: &[u32]) -> Vec<Candidate<'static>> {
        (0..).zip(loads).map(|(number, load)| candidate(number, *load)).collect()
    }

    #[test]
    fn each_branch_by_its_rule() {
        let (policy, idle) = (policy(""), in_flight(&[0, 0, 0]));
        for (ids, holders, branch, winners) in [
            (None, vec![1], Branch::ExpectedWaitFallback, vec![0, 1, 2]),
            (Some(15), vec![1], Branch::ShortRequest, vec![0, 1, 2]),
            (Some(16), vec![], Branch::ExpectedWaitFallback, vec![0, 1, 2]),
            (Some(16), vec![1], Branch::HashHit, vec![1]),
            (Some(1000), vec![1, 2], Branch::HashHit, vec![1, 2]),
        ] {
            assert_eq!(decide(&policy, &idle, ids, &holders), (branch, winners), "{ids:?} {holders:?}");
        }
        assert_eq!(policy.pick(&view(&[], &Match::default()), &mut rand::rngs::SmallRng::seed_from_u64(1)), None);
    }

    #[test]
    fn any_match_counts_however_little_of_the_prompt_it_is() {
        // 16 of 1,000 ids: the threshold of the tree is not asked.
        assert_eq!(decide(&policy(""), &in_flight(&[0, 0]), Some(1000), &[1]), (Branch::HashHit, vec![1]));
    }

    #[test]
    fn hot_holders_spill() {
        let policy = policy("");
        for (loads, holders, branch, winners) in [
            (vec![130, 10, 10], vec![0], Branch::HashSpill, vec![1, 2]),
            (vec![128, 0], vec![0], Branch::HashHit, vec![0]),
            (vec![129, 0], vec![0], Branch::HashSpill, vec![1]),
            (vec![130, 10, 10], vec![0, 1], Branch::HashHit, vec![1]),
            (vec![500], vec![0], Branch::HashHit, vec![0]),
        ] {
            assert_eq!(decide(&policy, &in_flight(&loads), Some(64), &holders), (branch, winners), "{loads:?}");
        }
    }

    #[test]
    fn kv_pressure_comes_behind_a_short_request_only() {
        let policy = policy(r#""overload_token_usage_threshold":0.9,"#);
        let full = [Candidate { report: load(0.0, 0.0, 0.95, 0.0), ..candidate(0, 0) }, candidate(1, 0)];
        assert_eq!(decide(&policy, &full, Some(16), &[0]).0, Branch::KvPressure);
        assert_eq!(decide(&policy, &full, Some(16), &[]).0, Branch::KvPressure);
        assert_eq!(decide(&policy, &full, Some(15), &[0]).0, Branch::ShortRequest);
        assert_eq!(decide(&policy, &full, None, &[0]).0, Branch::ExpectedWaitFallback);
    }
}
