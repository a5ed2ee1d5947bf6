//! `round_robin`: each worker in turn, counted per set of candidates.
//!
//! Optimises nothing but evenness. Reads the turn of its candidate set.
//! The wrong choice when requests differ in size or share prefixes. Source: SMG's load-balancing page.

use rand::RngCore;

use super::{Needs, Pick, Policy, View};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct RoundRobin;

impl Policy for RoundRobin {
    fn needs(&self) -> Needs {
        Needs { turn: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, _rng: &mut dyn RngCore) -> Option<Pick> {
        (view.turn as usize).checked_rem(view.candidates.len()).map(Pick::unscored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, view};
    use crate::prefix::Match;
    use rand::SeedableRng;

    #[test]
    fn the_turn_wraps_around_the_candidates() {
        let three = [candidate(0, 9), candidate(1, 0), candidate(2, 0)];
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let prefix = Match::default();
        let picks: Vec<usize> = [0, 1, 2, 3, u32::MAX]
            .into_iter()
            .map(|turn| RoundRobin.pick(&View { turn, ..view(&three, &prefix) }, &mut rng).unwrap().index)
            .collect();
        assert_eq!(picks, [0, 1, 2, 0, 0]);
        assert_eq!(RoundRobin.pick(&view(&[], &prefix), &mut rng), None);
    }
}
