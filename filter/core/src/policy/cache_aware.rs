//! `cache_aware`: the worker that already holds the prompt's prefix, unless it is overloaded.
//!
//! Optimises KV-cache hits, hence prefill time. Reads the prefix tree, load reports and in-flight counts.
//! The wrong choice when prompts share nothing (`least_load` is cheaper then). Source: SMG's load-balancing page.

use rand::RngCore;
use xxhash_rust::xxh3::xxh3_64;

use super::score::{credit, expected_wait, lowest};
use super::{Branch, Candidate, Needs, Pick, Policy, View, overlap};
use crate::config;
use crate::config::{ColdStartTies, ScoreParams};
use crate::fleet::ring::position;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct CacheAware {
    /// A match must be longer than this share of the prompt.
    threshold: f32,
    config: config::CacheAware,
    /// SMG lets operators tune the score of `least_load` only.
    params: ScoreParams,
    ties: ColdStartTies,
}

/// The head of a prompt that decides between equals: so many bytes of text, or as many token ids as `prefix_hash` takes.
const HEAD_BYTES: usize = 1024;
const HEAD_TOKENS: usize = 256;

impl CacheAware {
    pub(super) fn new(config: &config::CacheAware, ties: ColdStartTies) -> Self {
        Self { threshold: config.threshold, config: *config, params: ScoreParams::default(), ties }
    }

    /// Of the members of `set` that would have the prompt wait as short as `score`, the one that owns its head on the
    /// ring. Nothing of this process is in the head's place, so that other processes find the same owner.
    fn owner_of_head(view: &View<'_>, set: &[usize], scores: &[f64], score: f64) -> Option<usize> {
        let said = &view.said;
        let head = match said.tokens {
            [] => xxh3_64(said.text.get(..HEAD_BYTES).unwrap_or(said.text)),
            ids => {
                let ids = ids.get(..HEAD_TOKENS).unwrap_or(ids);
                xxh3_64(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
            }
        };
        #[expect(clippy::float_cmp, reason = "only exact ties are drawn")]
        let tied = |index: usize| set.iter().zip(scores).any(|(&member, &of)| member == index && of == score);
        let index = |worker: u16| view.candidates.binary_search_by_key(&worker, |candidate| candidate.worker).ok();
        let owner = view.ring?.owner(position(&head.to_le_bytes()), |worker| index(worker).is_some_and(tied))?;
        index(owner)
    }

    /// Hot workers get no more requests for their cache's sake.
    fn is_hot(&self, candidate: &Candidate, mean: f64) -> bool {
        let in_flight = f64::from(candidate.in_flight);
        #[expect(clippy::cast_precision_loss, reason = "a bound on requests in flight")]
        let balance_abs = self.config.balance_abs as f64;
        in_flight > mean * self.config.balance_rel && in_flight > mean + balance_abs
    }

    /// Whether KV memory is so full somewhere, or so unevenly full, that prefixes must not decide.
    pub(super) fn is_under_kv_pressure(&self, candidates: &[Candidate<'_>]) -> bool {
        let (balance, overload) = (self.config.balance_token_usage, self.config.overload_token_usage);
        if balance >= 1.0 && overload >= 1.0 {
            return false;
        }
        let usages = candidates.iter().filter_map(|candidate| candidate.report.map(|load| load.kv_usage));
        let (least, most) = usages.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), k| (low.min(k), high.max(k)));
        (overload < 1.0 && most > overload) || (balance < 1.0 && most - least > balance)
    }

    /// The holders of the prefix that go on to the spill gate: those whose overlap weighs most.
    fn affinity(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Vec<usize> {
        let set = Self::set(view.candidates, |candidate| view.prefix.holders.contains(&candidate.id));
        if self.config.overlap_decay <= 0.0 {
            // All holders of the longest prefix overlap alike: nothing to weigh.
            return set;
        }
        let mut scores = vec![1.0; set.len()];
        #[expect(clippy::cast_precision_loss, reason = "a prompt's length in blocks")]
        let blocks = (view.prefix.total / u64::from(self.config.block_size.max(1))) as f64;
        let (decay, size) = (self.config.overlap_decay, self.config.block_size);
        overlap::decay(decay, size, blocks, view.candidates, &set, &mut scores);
        overlap::group(self.config.selection_temperature, &set, &scores, rng)
    }

    /// The shortest expected wait among the holders `set` that are not hot; if all are, among all workers that are not;
    /// if there is none, or no holder, among all. The position and its score.
    pub(super) fn gate(
        &self,
        candidates: &[Candidate<'_>],
        mut set: Vec<usize>,
        rng: &mut dyn RngCore,
    ) -> Option<(usize, f64)> {
        #[expect(clippy::cast_precision_loss, reason = "the number of workers is small")]
        let mean = candidates.iter().map(|candidate| f64::from(candidate.in_flight)).sum::<f64>()
            / candidates.len().max(1) as f64;
        let spills = !set.is_empty();
        set.retain(|&index| candidates.get(index).is_some_and(|candidate| !self.is_hot(candidate, mean)));
        if set.is_empty() && spills {
            // Every available holder is hot: spill to whoever is not.
            set = Self::set(candidates, |candidate| !self.is_hot(candidate, mean));
        }
        if set.is_empty() {
            set = Self::set(candidates, |_| true);
        }
        let mut scores = Vec::with_capacity(set.len());
        expected_wait(&self.params, candidates, &set, &mut scores);
        lowest(&set, &scores, rng)
    }

    pub(super) fn pick_of(&self, view: &View<'_>, index: usize, score: f64, branch: Branch) -> Pick {
        let credit = Some(credit(&self.params, view.token_ids));
        Pick { credit, score: Some(score), branch: Some(branch), ..Pick::unscored(index) }
    }

    pub(super) fn set(candidates: &[Candidate<'_>], keep: impl Fn(&Candidate<'_>) -> bool) -> Vec<usize> {
        candidates.iter().enumerate().filter(|(_, candidate)| keep(candidate)).map(|(index, _)| index).collect()
    }
}

impl Policy for CacheAware {
    fn needs(&self) -> Needs {
        Needs { prefix: true, score: true, ring: self.ties == ColdStartTies::Ring, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        let candidates = view.candidates;
        let holds = |candidate: &Candidate| view.prefix.holders.contains(&candidate.id);
        let pressed = self.is_under_kv_pressure(candidates);
        let enough = !pressed && view.prefix.ratio() > self.threshold;
        let set = if enough { self.affinity(view, rng) } else { Vec::new() };
        let (mut index, score) = self.gate(candidates, set, rng)?;
        if self.ties == ColdStartTies::Ring && !enough && !pressed && view.prefix.total > 0 {
            let all = Self::set(candidates, |_| true);
            let mut scores = Vec::with_capacity(all.len());
            expected_wait(&self.params, candidates, &all, &mut scores);
            index = Self::owner_of_head(view, &all, &scores, score).unwrap_or(index);
        }
        let branch = match (enough, candidates.get(index).is_some_and(holds)) {
            (false, _) if pressed => Branch::KvPressure,
            (false, _) => Branch::ExpectedWaitFallback,
            (true, true) => Branch::TreeMatch,
            (true, false) => Branch::Spill,
        };
        Some(self.pick_of(view, index, score, branch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, load, view};
    use crate::prefix::Match;
    use rand::SeedableRng;

    /// The set of workers that can win, and the branch, with holders `holders` of `matched` of 100 units.
    #[track_caller]
    fn check(in_flight: &[u32], holders: &[u16], matched: u64, winners: &[usize], branch: Branch) {
        let candidates: Vec<Candidate<'_>> =
            (0..).zip(in_flight).map(|(number, load)| candidate(number, *load)).collect();
        let holders = holders.iter().map(|slot| candidate(*slot, 0).id).collect();
        let prefix = Match { matched, total: 100, holders };
        let policy = CacheAware::new(&config::CacheAware::default(), ColdStartTies::Random);
        let mut rng = rand::rngs::SmallRng::seed_from_u64(3);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..100 {
            let pick = policy.pick(&view(&candidates, &prefix), &mut rng).unwrap();
            assert_eq!(pick.branch, Some(branch), "{in_flight:?}");
            seen.insert(pick.index);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), winners, "{in_flight:?}");
    }

    #[test]
    fn a_match_must_exceed_the_threshold() {
        check(&[0, 0, 0], &[1], 55, &[1], Branch::TreeMatch);
        check(&[0, 0, 0], &[1], 40, &[1], Branch::TreeMatch);
        check(&[0, 0, 0], &[1], 30, &[0, 1, 2], Branch::ExpectedWaitFallback);
        check(&[0, 0, 0], &[1], 21, &[0, 1, 2], Branch::ExpectedWaitFallback);
        check(&[0, 0], &[], 0, &[0, 1], Branch::ExpectedWaitFallback);
    }

    #[test]
    fn without_an_available_holder_all_take_part() {
        check(&[0, 0], &[7], 55, &[0, 1], Branch::Spill);
    }

    #[test]
    fn holders_tie_by_expected_wait() {
        check(&[1, 0, 0], &[0, 1], 40, &[1], Branch::TreeMatch);
        check(&[0, 0, 0], &[0, 1], 40, &[0, 1], Branch::TreeMatch);
    }

    #[test]
    fn kv_pressure_overrides_prefixes() {
        for (usages, balance, overload, pressed) in [
            (vec![0.9, 0.15, 0.15], 0.3, 1.0, true),
            (vec![0.97, 0.80], 1.0, 0.95, true),
            (vec![0.9, 0.9, 0.9], 0.3, 1.0, false),
            (vec![0.6, 0.3], 0.3, 1.0, false),
            (vec![0.95, 0.95], 1.0, 0.95, false),
            (vec![0.951], 1.0, 0.95, true),
            (vec![0.9], 0.3, 1.0, false),
            (vec![1.0, 0.0], 1.0, 1.0, false),
            (vec![0.5, 0.25], 0.25, 1.0, false),
            (vec![], 0.3, 0.5, false),
        ] {
            let reporting = (0..)
                .zip(&usages)
                .map(|(number, usage)| Candidate { report: load(0.0, 0.0, *usage, 0.0), ..candidate(number, 0) });
            let candidates: Vec<Candidate<'_>> = reporting.chain([candidate(9, 0)]).collect();
            let config = config::CacheAware {
                balance_token_usage: balance,
                overload_token_usage: overload,
                ..config::CacheAware::default()
            };
            let prefix = Match { matched: 90, total: 100, holders: vec![candidates[0].id] };
            let mut rng = rand::rngs::SmallRng::seed_from_u64(3);
            let pick =
                CacheAware::new(&config, ColdStartTies::Random).pick(&view(&candidates, &prefix), &mut rng).unwrap();
            assert_eq!(pick.branch == Some(Branch::KvPressure), pressed, "{usages:?}");
        }
    }

    /// Who wins how often of 1,000 picks over three holders of all of a prompt of 20 blocks of 16 ids. By expected wait
    /// the first one does (3,200 tokens at 100,000 a second), then the second (KV usage), and the third has no report.
    fn holders_with_queues(decay: f64, temperature: f64) -> Vec<usize> {
        let candidates = [
            Candidate { report: load(3200.0, 0.0, 0.0, 100_000.0), ..candidate(0, 0) },
            Candidate { report: load(0.0, 0.0, 0.5, 0.0), ..candidate(1, 0) },
            candidate(2, 9),
            candidate(3, 0),
        ];
        let holders = candidates.iter().take(3).map(|candidate| candidate.id).collect();
        let prefix = Match { matched: 320, total: 320, holders };
        let config = config::CacheAware {
            overlap_decay: decay,
            selection_temperature: temperature,
            ..config::CacheAware::default()
        };
        crate::policy::testing::wins(
            &CacheAware::new(&config, ColdStartTies::Random),
            &view(&candidates, &prefix),
            1000,
        )
    }

    #[test]
    fn a_queue_devalues_a_match_and_a_temperature_gives_it_a_chance() {
        assert_eq!(holders_with_queues(0.0, 0.0), [1000, 0, 0, 0]);
        // 1 / (1 + 1 * (200 blocks / 20 blocks)) = 0.091 against 1 and 1: the group of the best scores goes on.
        assert_eq!(holders_with_queues(1.0, 0.0), [0, 1000, 0, 0]);
        assert_eq!(holders_with_queues(0.0, 1.0), [1000, 0, 0, 0], "equal matches are one group");
        // Weights exp(-1), 1 and 1, the last two in one group: 0.155 of the draws.
        let wins = holders_with_queues(1.0, 1.0);
        assert!((120..190).contains(&wins[0]) && wins[0] + wins[1] == 1000, "{wins:?}");
    }

    #[test]
    fn hot_holders_spill() {
        check(&[130, 10, 10], &[0], 90, &[1, 2], Branch::Spill);
        check(&[110, 10, 10], &[0], 90, &[1, 2], Branch::Spill);
        check(&[129, 0], &[0], 90, &[1], Branch::Spill);
        check(&[128, 0], &[0], 90, &[0], Branch::TreeMatch);
        check(&[400, 250, 250], &[0], 90, &[0], Branch::TreeMatch);
        check(&[500], &[0], 90, &[0], Branch::TreeMatch);
        check(&[130, 10, 10], &[0, 1], 90, &[1], Branch::TreeMatch);
    }
}
