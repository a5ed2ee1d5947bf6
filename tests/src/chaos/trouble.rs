//! What goes wrong around the requests, and when: drawn from the seed.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::ChaosSettings;

/// Points at which the module for tests can be told to trap, by how often: most in a request, some on a tick, and now
/// and then the VM that leads, or all of them.
const POINTS: [(&str, u32); 9] = [
    ("request-headers", 4),
    ("request-body", 4),
    ("counted", 4),
    ("half-counted", 4),
    ("response-headers", 4),
    ("done", 4),
    ("tick", 4),
    ("leader", 2),
    ("everyone", 1),
];

const POLICIES: [&str; 4] = ["least_load", "round_robin", "random", "cache_aware"];

/// One trouble.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trouble {
    /// An engine stops listening and drops its connections.
    EngineDies,
    /// The engine that is dead for longest returns on its port.
    EngineReturns,
    /// A VM traps.
    VmDies(&'static str),
    /// The configuration changes.
    Changes(Change),
    /// Both counts are compared, possibly after a trap of a VM.
    Sample(Option<&'static str>),
}

/// One change of configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    Policy(&'static str),
    Threshold(f64),
    /// A worker is no longer in the plugin configuration.
    WorkerGoes,
    /// All workers are in it again.
    WorkersReturn,
    /// A configuration that the filter refuses.
    Refused,
    /// New VMs of the same code.
    Module,
}

/// All troubles of a run with the number of requests that have been sent before each, in order.
pub(super) fn schedule(settings: &ChaosSettings) -> Vec<(usize, Trouble)> {
    let mut rng = SmallRng::seed_from_u64(settings.seed);
    let requests = settings.requests;
    // Enough of each in a short run, and in a long one not so many that they are all there is.
    let often = |one_in: usize| (requests / one_in).max(3);
    let mut all = Vec::new();
    let at = |rng: &mut SmallRng| rng.random_range(requests / 50..=requests * 49 / 50);
    for _ in 0..often(400) {
        let death = at(&mut rng);
        let while_dead = rng.random_range(requests / 100..=requests / 30 + 1);
        all.push((death, Trouble::EngineDies));
        all.push(((death + while_dead).min(requests), Trouble::EngineReturns));
    }
    for _ in 0..often(250) {
        all.push((at(&mut rng), Trouble::VmDies(point(&mut rng))));
    }
    for number in 0..often(500) {
        let change = match number % 6 {
            0 | 3 => Change::Policy(POLICIES.choose(&mut rng).copied().unwrap_or(POLICIES[0])),
            1 => Change::Refused,
            2 => Change::Module,
            4 => Change::WorkerGoes,
            _ => Change::Threshold(f64::from(rng.random_range(1..9)) / 10.0),
        };
        let when = at(&mut rng);
        all.push((when, Trouble::Changes(change)));
        if change == Change::WorkerGoes {
            all.push((when + requests / 100, Trouble::Changes(Change::WorkersReturn)));
        }
    }
    for number in 1..=settings.samples {
        let crash = rng.random_ratio(1, 2).then(|| point(&mut rng));
        all.push((requests * number / (settings.samples + 1), Trouble::Sample(crash)));
    }
    // Stable: what happens at the same request keeps its order.
    all.sort_by_key(|(when, _)| *when);
    all
}

fn point(rng: &mut SmallRng) -> &'static str {
    POINTS.choose_weighted(rng, |(_, weight)| *weight).map_or(POINTS[0].0, |(point, _)| *point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_comes_in_order_and_a_seed_gives_the_same_again() {
        for requests in [300, 10_000] {
            let settings = ChaosSettings { requests, ..ChaosSettings::default() };
            let all = schedule(&settings);
            assert_eq!(all, schedule(&settings));
            assert!(all.is_sorted_by_key(|(when, _)| *when) && all.iter().all(|(when, _)| *when <= requests));
            let count = |matches: fn(&Trouble) -> bool| all.iter().filter(|(_, trouble)| matches(trouble)).count();
            assert_eq!(count(|trouble| matches!(trouble, Trouble::Sample(_))), settings.samples);
            assert!(count(|trouble| matches!(trouble, Trouble::EngineDies)) >= 3);
            assert!(count(|trouble| matches!(trouble, Trouble::VmDies(_))) >= 3);
            assert!(count(|trouble| matches!(trouble, Trouble::Changes(_))) >= 3);
        }
        let mut other = ChaosSettings { seed: 2, ..ChaosSettings::default() };
        assert_ne!(schedule(&other), schedule(&ChaosSettings::default()));
        other.seed = 1;
        assert_eq!(schedule(&other), schedule(&ChaosSettings::default()));
    }
}
