//! The ordered list of workers that Envoy may try for one request.

use rand::{Rng, RngCore};

use crate::config::ScoreParams;
use crate::policy::score::expected_wait;
use crate::policy::{Candidate, Needs};

/// Of a large pool so many workers, drawn by chance, are compared for the places behind the pick: the best of them is
/// about as good as the best of all, and the cost of a request does not grow with the fleet.
const WINDOW: usize = 32;

/// Exactly `most` workers, as positions in the fleet: the pick, then the next best of the pool, cycled.
///
/// What is equally good is ordered by chance: in any fixed order the requests of a dead worker would all fall on the
/// same other one.
pub(super) fn workers(
    candidates: &[Candidate<'_>],
    pick: usize,
    most: usize,
    needs: Needs,
    params: &ScoreParams,
    rng: &mut dyn RngCore,
) -> Vec<u16> {
    let others = candidates.len().saturating_sub(1);
    let start = if others > 1 && !needs.in_order { rng.random_range(0..others) } else { 0 };
    let other = |step: usize| {
        let index = (start + step) % others.max(1);
        if index < pick { index } else { index + 1 }
    };
    let mut rest: Vec<usize> = (0..others.min(WINDOW.max(most))).map(other).collect();
    if rest.len() > 1 && most > 1 && needs.score {
        let mut scores = Vec::with_capacity(rest.len());
        expected_wait(params, candidates, &rest, &mut scores);
        let mut ranked: Vec<(f64, usize)> = scores.into_iter().zip(rest).collect();
        let by_score = |one: &(f64, usize), two: &(f64, usize)| one.0.total_cmp(&two.0);
        if ranked.len() > most - 1 {
            ranked.select_nth_unstable_by(most - 1, by_score);
            ranked.truncate(most - 1);
        }
        ranked.sort_by(by_score);
        rest = ranked.into_iter().map(|(_, index)| index).collect();
    }
    let order: Vec<usize> = std::iter::once(pick).chain(rest).collect();
    let workers = order.iter().cycle().filter_map(|&index| candidates.get(index));
    // Every index is valid, so that the cycle never runs dry; an empty pool has no pick.
    if candidates.is_empty() { Vec::new() } else { workers.map(|candidate| candidate.worker).take(most).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::candidate;
    use rand::SeedableRng;

    fn list(loads: &[u32], pick: usize, most: usize, needs: Needs) -> Vec<u16> {
        let candidates: Vec<Candidate<'_>> = (0..).zip(loads).map(|(number, load)| candidate(number, *load)).collect();
        let mut rng = rand::rngs::SmallRng::seed_from_u64(u64::from(loads.iter().sum::<u32>()) + most as u64);
        workers(&candidates, pick, most, needs, &ScoreParams::default(), &mut rng)
    }

    #[test]
    fn the_pick_leads_and_the_list_has_exactly_its_length() {
        let scored = Needs { score: true, ..Needs::default() };
        assert_eq!(list(&[9, 5, 7, 1], 0, 4, scored), [0, 3, 1, 2]);
        assert_eq!(list(&[9, 5, 7, 1], 0, 3, scored), [0, 3, 1]);
        assert_eq!(list(&[9, 5], 1, 5, scored), [1, 0, 1, 0, 1]);
        assert_eq!(list(&[9], 0, 3, scored), [0, 0, 0]);
        assert_eq!(list(&[9, 5, 7, 1], 0, 1, scored), [0]);
        assert_eq!(list(&[], 0, 3, scored), [0; 0]);
        assert_eq!(list(&[1, 2, 3], 0, 4, Needs { in_order: true, ..Needs::default() }), [0, 1, 2, 0]);
    }

    #[test]
    fn the_requests_of_a_dead_worker_spread_over_all_others() {
        let candidates: Vec<Candidate<'_>> = (0..5).map(|number| candidate(number, 0)).collect();
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        for needs in [Needs::default(), Needs { score: true, ..Needs::default() }] {
            let mut seconds = [0; 5];
            for _ in 0..4000 {
                let list = workers(&candidates, 2, 5, needs, &ScoreParams::default(), &mut rng);
                seconds[usize::from(list[1])] += 1;
            }
            assert_eq!(seconds[2], 0);
            assert!(
                seconds.iter().enumerate().all(|(worker, count)| worker == 2 || (850..1150).contains(count)),
                "{seconds:?}"
            );
        }
    }
}
