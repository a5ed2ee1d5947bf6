//! Every choice of one mutated request, from one number.

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

pub struct Dice(SmallRng);

impl Dice {
    /// The choices for request `number` of a run: none depends on the requests before.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(SmallRng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number))
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// Does to `bytes` what a bad line, a bug or a fuzzer would: bits turned, pieces cut out, doubled or put in.
    pub fn damage(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            if bytes.is_empty() {
                return;
            }
            let at = self.below(bytes.len());
            let end = at + self.below((bytes.len() - at).min(40)) + 1;
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.bytes(1)[0],
                2 => drop(bytes.drain(at..end)),
                3 => drop(bytes.splice(at..at, bytes[at..end].to_vec())),
                4 => {
                    let size = self.below(20);
                    drop(bytes.splice(at..at, self.bytes(size)));
                }
                _ => bytes.truncate(at),
            }
        }
    }
}
