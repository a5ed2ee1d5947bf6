//! Where a key belongs: the rules of the policy `manual` and of the routing-key override (SMG's sticky sessions).
//!
//! A key remembers up to two workers. The two kinds differ when its worker is out: `manual` puts the stand-in behind and
//! goes back when the worker recovers; the override that delegates makes it the first.

use super::Branch;

/// The workers that one key remembers, the first before the second, as hashes of their URLs. 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pins(pub [u64; 2]);

impl Pins {
    /// Those there are.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        self.0.into_iter().filter(|&worker| worker != 0)
    }

    fn in_front(self, worker: u64) -> Self {
        let Self([first, second]) = self;
        Self([worker, if first == worker { second } else { first }])
    }

    /// Behind the one there is; of two the older goes.
    fn behind(self, worker: u64) -> Self {
        match self.0 {
            [0, _] => Self([worker, 0]),
            [first, 0] => Self([first, worker]),
            [_, second] => Self([second, worker]),
        }
    }
}

/// Which rules hold for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The policy `manual`.
    Manual,
    /// The override, whose new placements an assignment mode makes.
    Assigned,
    /// The override, whose new placements the policy makes.
    Delegated,
}

/// So many requests of one key at its worker are enough: the next one is placed again. The override only.
pub const MOST_IN_FLIGHT: u32 = 2;

/// What is known of a key before anybody is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It belongs to this worker.
    Here(u64),
    /// It belongs to this worker, which has enough of it.
    Enough(u64),
    /// Those that it remembers are out.
    Out,
    /// It is new.
    New,
}

impl Rules {
    /// What `pins` say: where the key belongs, given who `is_available` and how many requests of it a worker has.
    #[must_use]
    pub fn look_up(
        self,
        pins: Option<Pins>,
        is_available: impl Fn(u64) -> bool,
        in_flight: impl Fn(u64) -> u32,
    ) -> Known {
        let Some(pins) = pins else { return Known::New };
        match pins.iter().find(|&worker| is_available(worker)) {
            None => Known::Out,
            Some(worker) if self == Self::Manual || in_flight(worker) < MOST_IN_FLIGHT => Known::Here(worker),
            Some(worker) => Known::Enough(worker),
        }
    }

    /// What the key remembers once it is placed at `worker`, which has so many requests of it in flight. None if that
    /// changes nothing.
    #[must_use]
    pub fn placed(self, known: Known, pins: Option<Pins>, worker: u64, in_flight: u32) -> Option<Pins> {
        let before = pins.unwrap_or_default();
        let after = match known {
            Known::Here(_) => before,
            Known::Enough(first) if worker == first || in_flight >= MOST_IN_FLIGHT => before,
            Known::Enough(_) => before.in_front(worker),
            Known::Out | Known::New if self == Self::Delegated => before.in_front(worker),
            Known::Out | Known::New => before.behind(worker),
        };
        (pins.is_none() || after != before).then_some(after)
    }
}

impl Known {
    /// How such a decision is counted.
    #[must_use]
    pub fn branch(self) -> Branch {
        match self {
            Self::Here(_) => Branch::OccupiedHit,
            Self::Enough(_) => Branch::CapRespill,
            Self::Out => Branch::OccupiedMiss,
            Self::New => Branch::Vacant,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: u64 = 1;
    const Y: u64 = 2;
    const Z: u64 = 3;

    /// One decision: the policy or the assignment would choose `chosen`. Where the request goes, what the key remembers
    /// then, and how it is counted.
    #[track_caller]
    fn check(
        rules: Rules,
        pins: &[u64],
        up: &[u64],
        busy: &[(u64, u32)],
        chosen: u64,
        expected: (u64, &[u64], Branch),
    ) {
        let entry = |workers: &[u64]| {
            let at = |place: usize| workers.get(place).copied().unwrap_or(0);
            (!workers.is_empty()).then(|| Pins([at(0), at(1)]))
        };
        let in_flight = |worker| busy.iter().find(|(at, _)| *at == worker).map_or(0, |(_, count)| *count);
        let before = entry(pins);
        let known = rules.look_up(before, |worker| up.contains(&worker), in_flight);
        let worker = if let Known::Here(worker) = known { worker } else { chosen };
        let after = rules.placed(known, before, worker, in_flight(worker)).or(before);
        assert_eq!((worker, after, known.branch()), (expected.0, entry(expected.1), expected.2));
    }

    #[test]
    fn manual_stands_in_and_goes_back() {
        let rules = Rules::Manual;
        check(rules, &[], &[X, Y], &[], X, (X, &[X], Branch::Vacant));
        check(rules, &[X], &[X, Y], &[(X, 1000)], Y, (X, &[X], Branch::OccupiedHit));
        check(rules, &[Y], &[X, Z], &[], X, (X, &[Y, X], Branch::OccupiedMiss));
        check(rules, &[Y, X], &[X, Y, Z], &[], Z, (Y, &[Y, X], Branch::OccupiedHit));
        check(rules, &[Y, X], &[X, Z], &[], Z, (X, &[Y, X], Branch::OccupiedHit));
        check(rules, &[Y, X], &[Z], &[], Z, (Z, &[X, Z], Branch::OccupiedMiss));
    }

    #[test]
    fn the_override_makes_the_new_worker_the_first() {
        let rules = Rules::Delegated;
        check(rules, &[], &[X, Y], &[], X, (X, &[X], Branch::Vacant));
        check(rules, &[X], &[Y], &[], Y, (Y, &[Y, X], Branch::OccupiedMiss));
        check(rules, &[Y, X], &[X, Y], &[], X, (Y, &[Y, X], Branch::OccupiedHit));
        check(rules, &[X], &[X, Y], &[(X, 1)], Y, (X, &[X], Branch::OccupiedHit));
        check(rules, &[X], &[X, Y], &[(X, 2)], X, (X, &[X], Branch::CapRespill));
        check(rules, &[X], &[X, Z], &[(X, 2), (Z, 1)], Z, (Z, &[Z, X], Branch::CapRespill));
        check(rules, &[X], &[X, Z], &[(X, 2), (Z, 2)], Z, (Z, &[X], Branch::CapRespill));
        check(rules, &[X, Y], &[X, Y, Z], &[(X, 2)], Z, (Z, &[Z, X], Branch::CapRespill));
        check(rules, &[X, Y], &[X, Y], &[(X, 2)], Y, (Y, &[Y, X], Branch::CapRespill));
        check(rules, &[X, Y], &[Z], &[], Z, (Z, &[Z, X], Branch::OccupiedMiss));
    }

    #[test]
    fn an_override_that_assigns_stands_in_as_manual_does() {
        let rules = Rules::Assigned;
        check(rules, &[X], &[Y], &[], Y, (Y, &[X, Y], Branch::OccupiedMiss));
        check(rules, &[X, Y], &[X, Y], &[], Z, (X, &[X, Y], Branch::OccupiedHit));
        check(rules, &[X], &[X, Z], &[(X, 2)], Z, (Z, &[Z, X], Branch::CapRespill));
    }
}
