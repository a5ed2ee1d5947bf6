//! `consistent_hashing`: the owner of the request's key on the hash ring.
//!
//! Optimises that a key stays where it is while workers come and go. Reads headers only, never load.
//! The wrong choice when keys differ much in traffic. Source: SMG's load-balancing page.

use rand::{Rng, RngCore};

use super::{Branch, Family, Keys, Needs, Pick, Policy, View};
use crate::fleet::ring::position;
use crate::request::Target;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct ConsistentHashing;

impl Policy for ConsistentHashing {
    fn needs(&self) -> Needs {
        let keys = Keys { target: true, configured: true, fixed: true, implicit: true };
        Needs { keys, ring: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        let pick = |index, branch| Some(Pick { branch: Some(branch), ..Pick::unscored(index) });
        match view.said.target {
            Target::Index(index) if index < view.candidates.len() => return pick(index, Branch::TargetWorkerHit),
            Target::Index(_) | Target::Invalid => return None,
            Target::Absent => {}
        }
        if let Some(key) = view.said.hash_key {
            let position = position(key);
            let owner = pick(view.owner(position)?, Branch::RoutingKeyHit)?;
            return Some(Pick { position: Some(position), ..owner });
        }
        (!view.candidates.is_empty())
            .then(|| rng.random_range(0..view.candidates.len()))
            .and_then(|index| pick(index, Branch::RandomFallback))
    }

    fn why_none(&self, view: &View<'_>) -> Option<Branch> {
        let missed = view.said.target != Target::Absent && !view.candidates.is_empty();
        Some(if missed { Branch::TargetWorkerMiss } else { Branch::NoHealthyWorkers(Family::ConsistentHashing) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ring::Ring;
    use crate::policy::testing::{candidate, view, wins};
    use crate::policy::{Candidate, Said};
    use crate::prefix::Match;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    /// What is chosen of the workers with these numbers, all of three on the ring.
    #[track_caller]
    fn check(up: &[u16], said: Said<'_>, expected: Option<u16>, branch: Branch) {
        let ring = Ring::new((0..).zip(["http://w1:8000", "http://w2:8000", "http://w3:8000"]));
        let candidates: Vec<Candidate<'_>> = up.iter().map(|&number| candidate(number, 0)).collect();
        let prefix = Match::default();
        let view = View { said, ring: Some(&ring), ..view(&candidates, &prefix) };
        let mut rng = SmallRng::seed_from_u64(1);
        let pick = ConsistentHashing.pick(&view, &mut rng);
        assert_eq!(pick.map(|pick| candidates[pick.index].worker), expected);
        let told = pick.map_or_else(|| ConsistentHashing.why_none(&view), |pick| pick.branch);
        assert_eq!(told, Some(branch));
    }

    fn at(target: Target) -> Said<'static> {
        Said { target, ..Said::default() }
    }

    fn key(key: &str) -> Said<'_> {
        Said { hash_key: Some(key.as_bytes()), ..Said::default() }
    }

    #[test]
    fn a_target_is_an_index_into_the_available_workers() {
        check(&[0, 1, 2], at(Target::Index(1)), Some(1), Branch::TargetWorkerHit);
        check(&[1, 2], at(Target::Index(0)), Some(1), Branch::TargetWorkerHit);
        check(&[1, 2], at(Target::Index(1)), Some(2), Branch::TargetWorkerHit);
        check(&[1, 2], at(Target::Index(2)), None, Branch::TargetWorkerMiss);
        check(&[0, 1, 2], at(Target::Index(3)), None, Branch::TargetWorkerMiss);
        check(&[0, 1, 2], at(Target::Invalid), None, Branch::TargetWorkerMiss);
        let both = Said { target: Target::Invalid, hash_key: Some(b"user-123"), ..Said::default() };
        check(&[0, 1, 2], both, None, Branch::TargetWorkerMiss);
        check(&[], at(Target::Index(0)), None, Branch::NoHealthyWorkers(Family::ConsistentHashing));
    }

    #[test]
    fn a_key_belongs_to_the_next_available_worker_on_the_ring() {
        check(&[0, 1, 2], key("user-123"), Some(2), Branch::RoutingKeyHit);
        check(&[1, 2], key("user-123"), Some(2), Branch::RoutingKeyHit);
        check(&[0, 1, 2], key("alice"), Some(0), Branch::RoutingKeyHit);
        check(&[1, 2], key("alice"), Some(2), Branch::RoutingKeyHit);
        check(&[0, 1, 2], key("Bearer sk-abc"), Some(0), Branch::RoutingKeyHit);
        check(&[], key("alice"), None, Branch::NoHealthyWorkers(Family::ConsistentHashing));
    }

    #[test]
    fn without_a_key_any_worker_is_as_likely() {
        let candidates: Vec<Candidate<'_>> = (0..3).map(|number| candidate(number, 9)).collect();
        let wins = wins(&ConsistentHashing, &view(&candidates, &Match::default()), 3000);
        assert!(wins.iter().all(|wins| (850..1150).contains(wins)), "{wins:?}");
    }
}
