//! `manual`: a key stays with the worker it was given to; this file chooses for keys that have none yet.
//!
//! Optimises that a session finds its state, whatever comes and goes. Reads requests in flight, or active keys. Which
//! key is where is no decision but state: see [`super::sticky`] and the pins in shared data.
//! The wrong choice when sessions hold nothing at the engine. Source: SMG's load-balancing page.

use rand::{Rng, RngCore};

use super::{Branch, Candidate, Family, Keys, Needs, Pick, Policy, View};
use crate::config::AssignmentMode;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Manual {
    mode: AssignmentMode,
}

impl Manual {
    pub(super) fn new(mode: AssignmentMode) -> Self {
        Self { mode }
    }
}

/// The candidate that a new key is given to; ties are drawn uniformly.
pub fn assign(mode: AssignmentMode, candidates: &[Candidate<'_>], rng: &mut dyn RngCore) -> Option<usize> {
    let burden = |candidate: &Candidate<'_>| match mode {
        AssignmentMode::Random => 0,
        AssignmentMode::MinLoad | AssignmentMode::Delegate => candidate.in_flight,
        AssignmentMode::MinGroup => candidate.keys,
    };
    let least = candidates.iter().map(burden).min()?;
    let mut ties = candidates.iter().enumerate().filter(|(_, candidate)| burden(candidate) == least);
    let drawn = rng.random_range(0..ties.clone().count());
    ties.nth(drawn).map(|(index, _)| index)
}

impl Policy for Manual {
    fn needs(&self) -> Needs {
        let keys = Keys { fixed: true, ..Keys::default() };
        Needs { keys, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        let index = assign(self.mode, view.candidates, rng)?;
        Some(Pick { branch: Some(Branch::NoRoutingId), ..Pick::unscored(index) })
    }

    fn why_none(&self, _view: &View<'_>) -> Option<Branch> {
        Some(Branch::NoHealthyWorkers(Family::Manual))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, view, wins};
    use crate::prefix::Match;

    #[track_caller]
    fn check(mode: AssignmentMode, candidates: &[Candidate<'_>], winners: &[usize]) {
        let wins = wins(&Manual::new(mode), &view(candidates, &Match::default()), 600);
        for (index, wins) in wins.iter().enumerate() {
            assert_eq!(*wins > 100, winners.contains(&index), "{mode}: {wins}");
        }
    }

    #[test]
    fn each_mode_gives_new_keys_to_its_least_burdened() {
        let loaded = [(3, 2), (1, 0), (1, 0)].into_iter().zip(0..);
        let three: Vec<Candidate<'_>> =
            loaded.map(|((load, keys), number)| Candidate { keys, ..candidate(number, load) }).collect();
        check(AssignmentMode::Random, &three, &[0, 1, 2]);
        check(AssignmentMode::MinLoad, &three, &[1, 2]);
        check(AssignmentMode::Delegate, &three, &[1, 2]);
        check(AssignmentMode::MinGroup, &three, &[1, 2]);
        let crossed = [Candidate { keys: 0, ..candidate(0, 9) }, Candidate { keys: 5, ..candidate(1, 0) }];
        check(AssignmentMode::MinGroup, &crossed, &[0]);
        check(AssignmentMode::MinLoad, &crossed, &[1]);
        check(AssignmentMode::MinLoad, &[], &[]);
    }
}
