//! `random`: any available worker, uniformly.
//!
//! Optimises nothing, costs least, reads nothing. The wrong choice when requests share prefixes or loads differ.
//! Source: SMG's load-balancing page.

use rand::{Rng, RngCore};

use super::{Needs, Pick, Policy, View};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Random;

impl Policy for Random {
    fn needs(&self) -> Needs {
        Needs::default()
    }

    fn pick(&self, view: &View<'_>, rng: &mut dyn RngCore) -> Option<Pick> {
        let count = view.candidates.len();
        (count > 0).then(|| Pick::unscored(rng.random_range(0..count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, view, wins};
    use crate::prefix::Match;

    #[test]
    fn each_worker_gets_its_share() {
        let three = [candidate(0, 9), candidate(1, 0), candidate(2, 0)];
        let prefix = Match::default();
        let counts = wins(&Random, &view(&three, &prefix), 30_000);
        assert!(counts.iter().all(|wins| (9_700..=10_300).contains(wins)), "{counts:?}");
        assert_eq!(wins(&Random, &view(&three[..1], &prefix), 5), [5]);
        assert!(wins(&Random, &view(&[], &prefix), 5).is_empty());
    }
}
