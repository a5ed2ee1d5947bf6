//! The circuit breaker: a worker that fails too often in a row is left alone for a while.
//!
//! Envoy's own health checks and outlier ejection do not protect a worker that is named to it, so this breaker must
//! stand by itself. Rules: SMG's circuit-breaker page.

use crate::config::Breaker;
use crate::report::Resilience;
use crate::state::load::{BreakerState, Slot};

/// What a response says of the worker that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The worker works; 400, 404 and 501 count too.
    Success,
    /// It failed, was not reached or took too long.
    Failure,
    /// It said that it is full: neither.
    Capacity,
}

impl Outcome {
    /// The outcome of an HTTP status.
    #[must_use]
    pub fn of_status(status: u16) -> Self {
        match status {
            429 => Self::Capacity,
            408 | 500 | 502 | 503 | 504 => Self::Failure,
            _ => Self::Success,
        }
    }
}

/// The HTTP status that the text of a gRPC status stands for. Only those that say something of the worker have one of
/// their own (RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, UNAVAILABLE, INVALID_ARGUMENT); the others count as answers.
#[must_use]
pub fn status_of_grpc(code: &[u8]) -> u16 {
    match code {
        b"3" => 400,
        b"4" => 504,
        b"8" => 429,
        b"14" => 503,
        _ => 200,
    }
}

/// The statuses of a worker whose answers do not count as usual.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statuses {
    capacity: Vec<u16>,
    failures: Vec<u16>,
}

impl Statuses {
    /// What `own` names, each list in place of the usual one; none if it names neither.
    #[must_use]
    pub fn of(own: &Resilience) -> Option<Self> {
        let (capacity, failures) = (&own.capacity_status_codes, &own.retryable_status_codes);
        let usual = |list: &Option<Vec<u16>>, usual: &[u16]| list.clone().unwrap_or_else(|| usual.to_vec());
        (capacity.is_some() || failures.is_some()).then(|| Self {
            capacity: usual(capacity, &[429]),
            failures: usual(failures, &[408, 429, 500, 502, 503, 504]),
        })
    }

    /// The outcome of an HTTP status.
    #[must_use]
    pub fn outcome(&self, status: u16) -> Outcome {
        if self.capacity.contains(&status) {
            Outcome::Capacity
        } else if self.failures.contains(&status) {
            Outcome::Failure
        } else {
            Outcome::Success
        }
    }
}

/// Whether the breaker lets requests through at `now_ms`. An open one whose time is up does: see [`on_dispatch`].
#[must_use]
pub fn lets_through(config: &Breaker, slot: &Slot, now_ms: u64) -> bool {
    slot.breaker != BreakerState::Open || !config.enabled || is_over(config, slot, now_ms)
}

/// The change that choosing a worker makes: an open breaker whose time is up becomes half open.
pub fn on_dispatch(config: &Breaker, slot: &mut Slot, now_ms: u64) {
    if slot.breaker == BreakerState::Open && is_over(config, slot, now_ms) {
        slot.breaker = BreakerState::HalfOpen;
        slot.failures = 0;
        slot.successes = 0;
    }
}

/// The change that an outcome makes; false if there is none.
pub fn on_outcome(config: &Breaker, slot: &mut Slot, outcome: Outcome, now_ms: u64) -> bool {
    let before = *slot;
    if outcome != Outcome::Capacity && slot.breaker == BreakerState::Open {
        on_dispatch(config, slot, now_ms);
    }
    match (outcome, slot.breaker) {
        (Outcome::Capacity, _) | (Outcome::Success, BreakerState::Open) => {}
        (Outcome::Success, BreakerState::Closed) => slot.failures = 0,
        (Outcome::Success, BreakerState::HalfOpen) => {
            slot.successes = slot.successes.saturating_add(1);
            if reaches(slot.successes, config.success_threshold) {
                *slot = Slot { breaker: BreakerState::Closed, failures: 0, successes: 0, opened_at: 0, ..*slot };
            }
        }
        (Outcome::Failure, BreakerState::Open) => slot.failures = slot.failures.saturating_add(1),
        (Outcome::Failure, BreakerState::HalfOpen) => open(slot, now_ms),
        (Outcome::Failure, BreakerState::Closed) => {
            slot.failures = slot.failures.saturating_add(1);
            slot.successes = 0;
            if config.enabled && reaches(slot.failures, config.failure_threshold) {
                open(slot, now_ms);
            }
        }
    }
    *slot != before
}

/// Counters stop where they are full, so that a greater threshold is that.
fn reaches(count: u16, threshold: u32) -> bool {
    u32::from(count) >= threshold.min(u32::from(u16::MAX))
}

fn open(slot: &mut Slot, now_ms: u64) {
    slot.breaker = BreakerState::Open;
    slot.opened_at = tenths(now_ms);
    slot.successes = 0;
}

/// A breaker may have been opened at a later time than it is here: each VM goes by the clock of its last tick. What lies
/// ahead by more than the timeout is no tick's delay but a wall clock that stepped back, which must not keep a breaker
/// open for longer than twice its timeout.
fn is_over(config: &Breaker, slot: &Slot, now_ms: u64) -> bool {
    let (now, timeout) = (tenths(now_ms), u64::from(config.timeout_secs) * 10);
    let (passed, ahead) = (now.wrapping_sub(slot.opened_at), slot.opened_at.wrapping_sub(now));
    if passed <= ahead { u64::from(passed) >= timeout } else { u64::from(ahead) > timeout }
}

/// The wall clock in tenths of a second. It starts again every 13 years: only differences mean anything.
fn tenths(now_ms: u64) -> u32 {
    (now_ms / 100 % (1 << 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use Outcome::{Capacity, Failure, Success};

    fn after(outcomes: &[(Outcome, u64)]) -> Slot {
        let mut slot = Slot::default();
        for (outcome, now) in outcomes {
            on_outcome(&Breaker::default(), &mut slot, *outcome, *now * 1000);
        }
        slot
    }

    fn failures(count: usize) -> Vec<(Outcome, u64)> {
        vec![(Failure, 100); count]
    }

    #[test]
    fn ten_failures_in_a_row_open_it() {
        assert_eq!(after(&failures(9)).breaker, BreakerState::Closed);
        assert_eq!(after(&failures(10)).breaker, BreakerState::Open);
        let reset = after(&[failures(9), vec![(Success, 100)]].concat());
        assert_eq!((reset.breaker, reset.failures), (BreakerState::Closed, 0));
        assert_eq!(after(&[(Capacity, 1); 50]), Slot::default());
    }

    #[test]
    fn it_is_half_open_after_the_timeout() {
        let mut slot = after(&failures(10));
        let config = Breaker::default();
        assert!(!lets_through(&config, &slot, 159_900));
        assert!(lets_through(&config, &slot, 160_000));
        assert!(!lets_through(&config, &slot, 99_000), "another thread's older tick");
        assert!(lets_through(&config, &slot, 39_000), "a clock that stepped back");
        on_dispatch(&config, &mut slot, 160_000);
        assert_eq!(slot.breaker, BreakerState::HalfOpen);
    }

    #[test]
    fn half_open_closes_on_three_successes_and_opens_on_a_failure() {
        let closed = after(&[failures(10), vec![(Success, 160); 3]].concat());
        assert_eq!((closed.breaker, closed.failures), (BreakerState::Closed, 0));
        let opened = after(&[failures(10), vec![(Success, 160), (Success, 161), (Failure, 162)]].concat());
        assert_eq!((opened.breaker, opened.opened_at), (BreakerState::Open, 1620));
    }

    #[test]
    fn statuses_count_as_specified() {
        for (status, outcome) in [
            (200, Success),
            (404, Success),
            (501, Success),
            (400, Success),
            (429, Capacity),
            (503, Failure),
            (408, Failure),
        ] {
            assert_eq!(Outcome::of_status(status), outcome, "{status}");
        }
    }

    #[test]
    fn a_disabled_breaker_counts_and_never_opens() {
        let config = Breaker { enabled: false, ..Breaker::default() };
        let mut slot = Slot::default();
        for _ in 0..100 {
            on_outcome(&config, &mut slot, Failure, 1);
        }
        assert_eq!((slot.breaker, slot.failures), (BreakerState::Closed, 100));
    }

    #[test]
    fn the_timeout_is_the_same_at_any_moment() {
        let config = Breaker::default();
        // Within a second, and where the tenths of a second start again.
        for opened in [1_790_000_000_950_u64, (1 << 32) * 100 - 1, (1 << 32) * 400 - 30_000] {
            let mut slot = Slot::default();
            for _ in 0..10 {
                on_outcome(&config, &mut slot, Failure, opened);
            }
            for (passed, expected) in [(0, false), (59_900, false), (60_000, true), (90_000, true)] {
                assert_eq!(lets_through(&config, &slot, opened + passed), expected, "{opened} + {passed}");
            }
        }
    }

    #[test]
    fn a_thread_whose_tick_is_older_leaves_it_alone_too() {
        let (config, opened) = (Breaker::default(), 1_790_000_000_000);
        let mut slot = Slot::default();
        for _ in 0..10 {
            on_outcome(&config, &mut slot, Failure, opened);
        }
        for (earlier, expected) in [(100, false), (250, false), (5_000, false), (60_000, false), (60_100, true)] {
            assert_eq!(lets_through(&config, &slot, opened - earlier), expected, "{earlier} ms earlier");
        }
    }

    #[test]
    fn a_threshold_that_no_counter_reaches_is_where_it_stops() {
        let config = Breaker { failure_threshold: u32::MAX, ..Breaker::default() };
        let mut slot = Slot { failures: u16::MAX - 1, ..Slot::default() };
        on_outcome(&config, &mut slot, Failure, 1);
        assert_eq!(slot.breaker, BreakerState::Open);
    }
}
