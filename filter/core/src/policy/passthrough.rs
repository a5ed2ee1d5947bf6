//! `passthrough`: the first available worker of the pool.
//!
//! For a single backend. The wrong choice with several: only one gets traffic. Source: SMG's load-balancing page.

use rand::RngCore;

use super::{Needs, Pick, Policy, View};

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Passthrough;

impl Policy for Passthrough {
    fn needs(&self) -> Needs {
        Needs { in_order: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, _rng: &mut dyn RngCore) -> Option<Pick> {
        (!view.candidates.is_empty()).then(|| Pick::unscored(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, view, wins};
    use crate::prefix::Match;

    #[test]
    fn the_first_available_worker_takes_all() {
        let available = [candidate(1, 99), candidate(2, 0)];
        assert_eq!(wins(&Passthrough, &view(&available, &Match::default()), 5), [5, 0]);
        assert!(wins(&Passthrough, &view(&[], &Match::default()), 5).is_empty());
    }
}
