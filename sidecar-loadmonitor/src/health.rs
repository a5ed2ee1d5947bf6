//! A worker's health, from the outcomes of its probes (SMG: worker states). Pure.

use filter_core::report::Health;

/// How many probes it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thresholds {
    /// So many successes in a row bring a worker into rotation, at least 1.
    pub(crate) success: u32,
    /// So many failures in a row take it out, at least 1.
    pub(crate) failure: u32,
}

/// A worker that was never ready is given up after so many times the failure threshold: engines load for minutes.
const PENDING_FACTOR: u32 = 10;

/// One that has been ready is given up after so many times the failure threshold in a row.
const LOST_FACTOR: u32 = 3;

impl Default for Thresholds {
    /// SMG's.
    fn default() -> Self {
        Self { success: 2, failure: 3 }
    }
}

/// The health of one worker.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    thresholds: Thresholds,
    health: Health,
    successes: u32,
    failures: u32,
    probes: u32,
}

impl Machine {
    /// A worker that has not been probed yet.
    pub(crate) fn new(thresholds: Thresholds) -> Self {
        Self { thresholds, health: Health::Pending, successes: 0, failures: 0, probes: 0 }
    }

    /// The thresholds that it goes by.
    pub(crate) const fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    /// The same worker under other thresholds.
    pub(crate) fn under(self, thresholds: Thresholds) -> Self {
        Self { thresholds, ..self }
    }

    /// The health as it stands.
    pub(crate) const fn health(&self) -> Health {
        self.health
    }

    /// Takes the outcome of a probe; the health after it.
    pub(crate) fn probed(&mut self, succeeded: bool) -> Health {
        self.probes = self.probes.saturating_add(1);
        if succeeded {
            self.successes = self.successes.saturating_add(1);
            self.failures = 0;
        } else {
            self.failures = self.failures.saturating_add(1);
            self.successes = 0;
        }
        let Thresholds { success, failure } = self.thresholds;
        self.health = match self.health {
            Health::Pending | Health::NotReady if self.successes >= success => Health::Ready,
            Health::Pending if self.probes >= failure.saturating_mul(PENDING_FACTOR) => Health::Failed,
            Health::NotReady if self.failures >= failure.saturating_mul(LOST_FACTOR) => Health::Failed,
            Health::Ready if self.failures >= failure => Health::NotReady,
            as_it_was => as_it_was,
        };
        self.health
    }

    /// Takes the outcome of a probe that came before its time, to bring the worker in sooner; the health after it. Its
    /// failure takes no part in giving the worker up, whatever time that is meant to leave an engine to load.
    pub(crate) fn probed_early(&mut self, succeeded: bool) -> Health {
        if succeeded {
            return self.probed(true);
        }
        self.successes = 0;
        self.health
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(machine: &mut Machine, probes: &[(bool, u32)]) -> Health {
        for &(succeeded, times) in probes {
            for _ in 0..times {
                machine.probed(succeeded);
            }
        }
        machine.health()
    }

    #[test]
    fn two_successes_bring_a_worker_in_and_three_failures_take_it_out() {
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(after(&mut machine, &[(true, 1)]), Health::Pending);
        assert_eq!(after(&mut machine, &[(false, 1), (true, 1)]), Health::Pending);
        assert_eq!(after(&mut machine, &[(true, 1)]), Health::Ready);
        assert_eq!(after(&mut machine, &[(false, 2), (true, 1), (false, 2)]), Health::Ready);
        assert_eq!(after(&mut machine, &[(false, 1)]), Health::NotReady);
        assert_eq!(after(&mut machine, &[(true, 1), (false, 1), (true, 1)]), Health::NotReady);
        assert_eq!(after(&mut machine, &[(true, 1)]), Health::Ready);
    }

    #[test]
    fn who_never_comes_back_is_given_up() {
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(after(&mut machine, &[(true, 2), (false, 8)]), Health::NotReady);
        assert_eq!(after(&mut machine, &[(false, 1)]), Health::Failed);
        assert_eq!(after(&mut machine, &[(true, 5)]), Health::Failed);
    }

    #[test]
    fn a_start_up_of_minutes_is_no_failure() {
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(after(&mut machine, &[(false, 28), (true, 1)]), Health::Pending);
        assert_eq!(after(&mut machine, &[(true, 1)]), Health::Ready);
        let mut machine = Machine::new(Thresholds::default());
        assert_eq!(after(&mut machine, &[(false, 30)]), Health::Failed);
    }

    #[test]
    fn a_probe_before_its_time_brings_a_worker_in_but_never_gives_it_up() {
        let mut machine = Machine::new(Thresholds::default());
        for _ in 0..1000 {
            assert_eq!(machine.probed_early(false), Health::Pending);
        }
        machine.probed_early(true);
        machine.probed_early(false);
        assert_eq!(machine.probed_early(true), Health::Pending, "two in a row");
        assert_eq!(machine.probed_early(true), Health::Ready);
        assert_eq!(after(&mut machine, &[(false, 3)]), Health::NotReady);
        for _ in 0..1000 {
            assert_eq!(machine.probed_early(false), Health::NotReady);
        }
    }
}
