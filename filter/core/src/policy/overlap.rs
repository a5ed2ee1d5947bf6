//! How `cache_aware` weighs the holders of a prefix against each other before load decides.
//!
//! A holder's overlap score is divided the more, the longer its queue is (decay); the best score, or one drawn with a
//! temperature, names the group that goes on. Source: SMG's cache-aware page.

use rand::{Rng, RngCore};

use super::Candidate;

/// Divides each score by `1 + decay * (extra queued blocks) / request_blocks`, where extra is counted above the
/// shortest queue of those that report. Who does not report keeps its score.
pub(super) fn decay(
    decay: f64,
    block_size: u32,
    request_blocks: f64,
    candidates: &[Candidate<'_>],
    set: &[usize],
    scores: &mut [f64],
) {
    let queue = |index: &usize| candidates.get(*index).and_then(|candidate| candidate.report);
    let queued: Vec<Option<f64>> =
        set.iter().map(|index| queue(index).map(|load| load.queued_tokens.max(0.0))).collect();
    let shortest = queued.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    for (score, queued) in scores.iter_mut().zip(&queued) {
        if let Some(queued) = queued {
            *score /= 1.0 + decay * ((queued - shortest) / f64::from(block_size.max(1))) / request_blocks.max(1.0);
        }
    }
}

/// The members of `set` whose score equals the best one, or, with a temperature, one drawn by its weight.
pub(super) fn group(temperature: f64, set: &[usize], scores: &[f64], rng: &mut dyn RngCore) -> Vec<usize> {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let chosen =
        if temperature > 0.0 { draw(&weights(temperature, scores), scores, rng).unwrap_or(best) } else { best };
    #[expect(clippy::float_cmp, reason = "a group is what scores exactly alike")]
    let alike = set.iter().zip(scores).filter(|(_, score)| **score == chosen);
    alike.map(|(index, _)| *index).collect()
}

/// The share of each score: `exp((s' - 1) / t)` of scores stretched over 0 to 1, adding up to 1.
pub(super) fn weights(temperature: f64, scores: &[f64]) -> Vec<f64> {
    let (least, most) =
        scores.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), s| (low.min(*s), high.max(*s)));
    let spread = most - least;
    let raw: Vec<f64> = scores
        .iter()
        .map(|score| if spread > 0.0 { (((score - least) / spread - 1.0) / temperature).exp() } else { 1.0 })
        .collect();
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|weight| weight / sum).collect()
}

fn draw(weights: &[f64], scores: &[f64], rng: &mut dyn RngCore) -> Option<f64> {
    let mut left: f64 = rng.random_range(0.0..1.0);
    for (weight, score) in weights.iter().zip(scores) {
        left -= weight;
        if left < 0.0 {
            return Some(*score);
        }
    }
    scores.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, load};
    use rand::SeedableRng;

    #[test]
    fn weights_as_specified() {
        for (temperature, scores, expected) in [
            (0.5, vec![10.0, 8.0, 6.0], vec![0.6652, 0.2447, 0.0900]),
            (1.0, vec![10.0, 9.0], vec![0.7311, 0.2689]),
            (1.0, vec![7.0, 7.0], vec![0.5, 0.5]),
        ] {
            let weights = weights(temperature, &scores);
            assert!(weights.iter().zip(&expected).all(|(got, wanted)| (got - wanted).abs() < 1e-4), "{weights:?}");
        }
    }

    #[test]
    fn a_long_queue_takes_from_an_overlap() {
        let queued = |number, tokens| Candidate { report: load(tokens, 0.0, 0.0, 0.0), ..candidate(number, 0) };
        let candidates = [queued(0, 3200.0), queued(1, 0.0), candidate(2, 0)];
        let mut scores = [10.0, 8.0, 5.0];
        decay(1.0, 16, 20.0, &candidates, &[0, 1, 2], &mut scores);
        assert!((scores[0] - 0.909).abs() < 1e-3);
        assert_eq!(scores[1..], [8.0, 5.0]);
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        assert_eq!(group(0.0, &[0, 1, 2], &scores, &mut rng), [1]);
    }

    #[test]
    fn a_temperature_lets_others_win_now_and_then() {
        let mut rng = rand::rngs::SmallRng::seed_from_u64(1);
        let mut wins = [0; 2];
        for _ in 0..2000 {
            for index in group(1.0, &[0, 1], &[10.0, 9.0], &mut rng) {
                wins[index] += 1;
            }
        }
        assert!((1360..1560).contains(&wins[0]) && wins[0] + wins[1] == 2000, "{wins:?}");
    }
}
