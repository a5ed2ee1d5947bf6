//! `least_load`: the shortest expected wait over the whole pool.
//!
//! Optimises time to first token when prompts share nothing. Reads load reports, tallies and in-flight counts.
//! The wrong choice when prompts share prefixes: it spreads them. Source: SMG's load-balancing page.

use rand::RngCore;

use super::score::shortest_wait;
use super::{Candidate, Needs, Pick, Policy, View};
use crate::config::ScoreParams;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct LeastLoad {
    params: ScoreParams,
}

impl LeastLoad {
    pub(super) fn new(params: ScoreParams) -> Self {
        Self { params }
    }

    fn is_below_cap(&self, candidate: &Candidate<'_>) -> bool {
        let cap = self.params.max_waiting;
        let waiting = |waiting: f64| waiting.max(0.0) + f64::from(candidate.tally_requests);
        cap == 0 || candidate.report.is_none_or(|load| waiting(load.waiting) < f64::from(cap))
    }
}

impl Policy for LeastLoad {
    fn needs(&self) -> Needs {
        Needs { score: true, last_load: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        if view.candidates.len() == 1 && self.params.max_waiting == 0 {
            return Some(Pick::unscored(0));
        }
        let eligible = view.candidates.iter().enumerate().filter(|(_, candidate)| self.is_below_cap(candidate));
        let set: Vec<usize> = eligible.map(|(index, _)| index).collect();
        shortest_wait(&self.params, view, &set, rng)
    }

    fn ranking(&self) -> ScoreParams {
        self.params
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, load, view, wins};
    use crate::prefix::Match;
    use rand::SeedableRng;

    /// Picks once and credits the winner as the caller would.
    fn step(policy: &LeastLoad, candidates: &mut [Candidate<'_>]) -> Option<usize> {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let pick = policy.pick(&view(candidates, &Match::default()), &mut rng)?;
        candidates[pick.index].in_flight += 1;
        if let Some(tokens) = pick.credit {
            candidates[pick.index].tally_tokens += tokens;
            candidates[pick.index].tally_requests += 1;
        }
        Some(pick.index)
    }

    fn with_cap(max_waiting: u32) -> LeastLoad {
        LeastLoad::new(ScoreParams { max_waiting, ..ScoreParams::default() })
    }

    #[test]
    fn credit_counts_until_the_next_report() {
        let policy = with_cap(0);
        let mut pair = [
            Candidate { report: load(1000.0, 0.0, 0.2, 100.0), ..candidate(0, 0) },
            Candidate { report: load(2000.0, 0.0, 0.2, 100.0), ..candidate(1, 0) },
        ];
        assert_eq!(step(&policy, &mut pair), Some(0));
        assert_eq!(step(&policy, &mut pair), Some(1));
        let mut reported = pair;
        reported[0].tally_tokens = 0;
        assert_eq!(step(&policy, &mut reported), Some(0));
        assert_eq!(step(&policy, &mut pair), Some(0), "a failed poll leaves A at 20.2775 and B at 30.2775");
    }

    #[test]
    fn a_silent_idle_worker_ties_with_the_best_reporter() {
        let policy = with_cap(0);
        let mut pair = [Candidate { report: load(0.0, 0.0, 0.9, 0.0), ..candidate(0, 0) }, candidate(1, 5)];
        assert_eq!(wins(&policy, &view(&pair, &Match::default()), 100), [100, 0]);
        pair[1].in_flight = 0;
        assert!(wins(&policy, &view(&pair, &Match::default()), 1000).iter().all(|wins| *wins > 400));
    }

    #[test]
    fn without_reports_requests_in_flight_decide() {
        let three = [candidate(0, 5), candidate(1, 3), candidate(2, 3)];
        let wins = wins(&with_cap(0), &view(&three, &Match::default()), 1000);
        assert!(wins[0] == 0 && wins[1] > 400 && wins[2] > 400);
    }

    #[test]
    fn the_waiting_cap_refuses_workers() {
        let waiting =
            |number, waiting, queued| Candidate { report: load(queued, waiting, 0.0, 0.0), ..candidate(number, 0) };
        let policy = with_cap(48);
        assert_eq!(step(&policy, &mut [waiting(0, 64.0, 0.0), waiting(1, 0.0, 1e6)]), Some(1));
        assert_eq!(step(&policy, &mut [waiting(0, 48.0, 0.0), waiting(1, 48.0, 0.0)]), None);
        assert_eq!(step(&policy, &mut [waiting(0, 47.0, 0.0), waiting(1, 48.0, 0.0)]), Some(0));
        let mut pair = [waiting(0, 1.0, 10.0), waiting(1, 0.0, 1e6)];
        let policy = with_cap(2);
        let picks: Vec<_> = (0..4).map(|_| step(&policy, &mut pair)).collect();
        assert_eq!(picks, [Some(0), Some(1), Some(1), None]);
    }

    #[test]
    fn a_single_worker_is_chosen_without_credit_and_still_capped() {
        let mut one = [Candidate { report: load(0.0, 48.0, 0.0, 0.0), ..candidate(0, 0) }];
        assert_eq!(step(&with_cap(0), &mut one), Some(0));
        assert_eq!(one[0].tally_requests, 0);
        assert_eq!(step(&with_cap(48), &mut one), None);
    }

    #[test]
    fn nobody_is_chosen_from_nobody_and_equals_share_alike() {
        assert_eq!(step(&with_cap(0), &mut []), None);
        let equals: Vec<Candidate<'_>> = (0..4).map(|number| candidate(number, 0)).collect();
        let wins = wins(&with_cap(0), &view(&equals, &Match::default()), 4000);
        assert!(wins.iter().all(|wins| (850..1150).contains(wins)), "{wins:?}");
    }
}
