//! `power_of_two`: the better of two workers drawn by chance.
//!
//! Near `least_load` at the price of two workers, and without its herds: two balancers that know the same rarely
//! choose the same. Reads load reports, tallies and in-flight counts of the pair. The wrong choice when prompts share
//! prefixes: it spreads them. Source: SMG's load-balancing page.

use rand::{Rng, RngCore};

use super::score::shortest_wait;
use super::{Candidate, Needs, Pick, Policy, View};
use crate::config::{LoadMetric, ScoreParams};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct PowerOfTwo {
    metric: LoadMetric,
    /// SMG lets operators tune the score of `least_load` only.
    params: ScoreParams,
}

impl PowerOfTwo {
    pub(super) fn new(metric: LoadMetric) -> Self {
        Self { metric, params: ScoreParams::default() }
    }

    /// The candidates whose expected waits are compared, at least one if there is any.
    fn set(&self, candidates: &[Candidate<'_>], rng: &mut dyn RngCore) -> Vec<usize> {
        match self.metric {
            LoadMetric::ExpectedWait => pair(candidates.len(), rng),
            LoadMetric::Requests => least_busy(candidates, pair(candidates.len(), rng)),
            LoadMetric::LeastRequests => least_busy(candidates, (0..candidates.len()).collect()),
        }
    }
}

/// Two different positions below `count`, each pair equally likely; all there are if there are not two.
fn pair(count: usize, rng: &mut dyn RngCore) -> Vec<usize> {
    if count < 2 {
        return (0..count).collect();
    }
    let one = rng.random_range(0..count);
    let other = rng.random_range(0..count - 1);
    vec![one, if other < one { other } else { other + 1 }]
}

/// Those of `set` with the fewest requests in flight.
fn least_busy(candidates: &[Candidate<'_>], mut set: Vec<usize>) -> Vec<usize> {
    let in_flight = |index: &usize| candidates.get(*index).map(|candidate| candidate.in_flight);
    let fewest = set.iter().filter_map(in_flight).min();
    set.retain(|index| in_flight(index) == fewest);
    set
}

impl Policy for PowerOfTwo {
    fn needs(&self) -> Needs {
        Needs { score: true, last_load: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        if view.candidates.len() == 1 {
            return Some(Pick::unscored(0));
        }
        let set = self.set(view.candidates, rng);
        // Whose report is the best and what the mean throughput is, is asked of the members of the set only.
        shortest_wait(&self.params, view, &set, rng)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::score::expected_wait;
    use crate::policy::testing::{candidate, load, view, wins};
    use crate::prefix::Match;
    use crate::report::Load;
    use rand::SeedableRng;

    fn all(metric: LoadMetric, candidates: &[Candidate<'_>], picks: usize) -> Vec<usize> {
        wins(&PowerOfTwo::new(metric), &view(candidates, &Match::default()), picks)
    }

    fn pick(metric: LoadMetric, candidates: &[Candidate<'_>]) -> Option<Pick> {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(5);
        PowerOfTwo::new(metric).pick(&view(candidates, &Match::default()), &mut rng)
    }

    fn with(number: u16, in_flight: u32, report: Option<&'static Load>) -> Candidate<'static> {
        Candidate { report, ..candidate(number, in_flight) }
    }

    /// A report whose score is `seconds`.
    fn waits(seconds: f64) -> Option<&'static Load> {
        load(seconds * 100.0, 0.0, 0.0, 100.0)
    }

    #[test]
    fn one_worker_is_taken_without_a_score_and_of_none_nobody() {
        for &metric in LoadMetric::ALL {
            assert_eq!(pick(metric, &[candidate(0, 9)]), Some(Pick::unscored(0)), "{metric}");
            assert_eq!(pick(metric, &[]), None, "{metric}");
        }
    }

    #[test]
    fn of_two_workers_always_the_better_one() {
        let pair = [with(0, 0, load(1000.0, 0.0, 0.2, 100.0)), with(1, 0, load(2000.0, 0.0, 0.2, 100.0))];
        assert_eq!(all(LoadMetric::ExpectedWait, &pair, 200), [200, 0]);
        let pick = pick(LoadMetric::ExpectedWait, &pair).unwrap();
        assert!((pick.score.unwrap() - 10.0375).abs() < 1e-6);
        assert_eq!((pick.credit, pick.branch), (Some(1024), None));
    }

    #[test]
    fn requests_in_flight_come_before_the_report() {
        let pair = [with(0, 5, waits(0.0)), with(1, 2, waits(1e6))];
        assert_eq!(all(LoadMetric::Requests, &pair, 200), [0, 200]);
        assert_eq!(
            pick(LoadMetric::Requests, &pair).unwrap().credit,
            Some(1024),
            "one left is scored and credited too"
        );
    }

    #[test]
    fn with_as_many_requests_the_expected_wait_decides() {
        let pair = [with(0, 5, waits(3.0)), with(1, 5, waits(1.0))];
        assert_eq!(all(LoadMetric::Requests, &pair, 200), [0, 200]);
    }

    #[test]
    fn least_requests_looks_at_the_whole_pool() {
        let loads = [4, 5, 1, 3];
        let four: Vec<_> = (0..).zip(loads).map(|(number, load)| candidate(number, load)).collect();
        assert_eq!(all(LoadMetric::LeastRequests, &four, 200), [0, 0, 200, 0]);
        let four = [with(0, 2, None), with(1, 1, waits(3.0)), with(2, 1, waits(1.0)), with(3, 7, waits(0.0))];
        assert_eq!(all(LoadMetric::LeastRequests, &four, 200), [0, 0, 200, 0]);
    }

    #[test]
    fn the_busiest_of_three_never_wins() {
        let three = [candidate(0, 10), candidate(1, 5), candidate(2, 0)];
        let wins = all(LoadMetric::ExpectedWait, &three, 30_000);
        assert_eq!(wins[0], 0);
        assert!((9_700..=10_300).contains(&wins[1]) && (19_700..=20_300).contains(&wins[2]), "{wins:?}");
    }

    #[test]
    fn who_is_not_drawn_lends_no_baseline() {
        let three = [with(0, 0, load(0.0, 0.0, 0.9, 0.0)), candidate(1, 5), with(2, 0, waits(0.0))];
        let mut rng = rand::rngs::SmallRng::seed_from_u64(5);
        let policy = PowerOfTwo::new(LoadMetric::ExpectedWait);
        let scores: Vec<f64> = (0..200)
            .filter_map(|_| policy.pick(&view(&three, &Match::default()), &mut rng))
            .filter(|pick| pick.index == 0)
            .filter_map(|pick| pick.score)
            .collect();
        // Against the third worker the first one loses: it wins over the second, which waits 1.35 + 5 * 1024 / 2000.
        assert!(!scores.is_empty() && scores.iter().all(|score| (score - 1.35).abs() < 1e-9));
        let mut scores = Vec::new();
        expected_wait(&policy.params, &three, &[0, 1], &mut scores);
        assert!((scores[1] - 3.91).abs() < 1e-6, "{scores:?}");
    }

    #[test]
    fn equals_share_alike() {
        let pair = [with(0, 3, waits(1.0)), with(1, 3, waits(1.0))];
        for &metric in LoadMetric::ALL {
            assert!(all(metric, &pair, 4000).iter().all(|wins| (1850..2150).contains(wins)), "{metric}");
        }
        let five: Vec<_> = (0..5).map(|number| candidate(number, 0)).collect();
        let wins = all(LoadMetric::ExpectedWait, &five, 10_000);
        assert!(wins.iter().all(|wins| (1850..2150).contains(wins)), "{wins:?}");
    }

    #[test]
    fn the_credit_is_the_requests_size_where_it_is_known() {
        let pair = [candidate(0, 0), candidate(1, 1)];
        let mut rng = rand::rngs::SmallRng::seed_from_u64(5);
        let prefix = Match::default();
        let sized = View { token_ids: Some(512), ..view(&pair, &prefix) };
        for &metric in LoadMetric::ALL {
            let pick = PowerOfTwo::new(metric).pick(&sized, &mut rng).unwrap();
            assert_eq!((pick.index, pick.credit), (0, Some(512)), "{metric}");
        }
    }
}
