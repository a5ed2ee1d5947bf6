//! Pauses between tries, each about twice the last.

use std::time::Duration;

use rand::Rng;

/// The first pause.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The pause that comes next.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from [`FIRST_PAUSE`] up to `longest`.
    pub(crate) fn new(longest: Duration) -> Self {
        Self { next: FIRST_PAUSE.min(longest), longest }
    }

    /// How long to pause now: up to half less than planned, so that many sidecars do not return all at once.
    pub(crate) fn pause(&mut self, random: &mut impl Rng) -> Duration {
        let planned = self.next;
        self.next = (planned * 2).min(self.longest);
        planned.mul_f64(random.random_range(0.5..=1.0))
    }

    /// After a success the pauses start over.
    pub(crate) fn reset(&mut self) {
        self.next = FIRST_PAUSE.min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_over() {
        let mut random = StdRng::seed_from_u64(7);
        let mut backoff = Backoff::new(Duration::from_millis(500));
        for _ in 0..2 {
            for planned in [100, 200, 400, 500, 500] {
                let planned = Duration::from_millis(planned);
                let pause = backoff.pause(&mut random);
                assert!((planned / 2..=planned).contains(&pause), "{pause:?} for {planned:?}");
            }
            backoff.reset();
        }
    }
}
