//! The expected-wait score: how long a request would wait at each worker, from its report and what was sent since.
//!
//! Reporting worker: `(queued + sent since the report) / throughput + w * k / (1 - k)` seconds, where `k` is the share
//! of KV memory in use. A worker that does not report is reckoned as the best reporter plus its own requests in flight.
//! When nobody reports, requests in flight decide.

use rand::{Rng, RngCore};

use super::{Candidate, Pick, View};
use crate::config::ScoreParams;
use crate::report::Load;

/// KV memory is never reckoned fuller than this: the pressure term would be infinite.
const MOST_KV_USAGE: f64 = 0.999;

/// Scores the candidates at `set` into `scores` (same order). Baselines look at the members of `set` only.
pub fn expected_wait(params: &ScoreParams, candidates: &[Candidate<'_>], set: &[usize], scores: &mut Vec<f64>) {
    let prefill = f64::from(params.mean_prefill_tokens);
    let members = || set.iter().filter_map(|&index| candidates.get(index));
    let mut best = f64::INFINITY;
    let (mut rate_sum, mut rates) = (0.0, 0.0);
    for candidate in members() {
        if let Some(load) = candidate.report {
            best = best.min(reporting(params, load, candidate.tally_tokens));
            if load.throughput > 0.0 {
                rate_sum += load.throughput;
                rates += 1.0;
            }
        }
    }
    let rate = if rates > 0.0 { rate_sum / rates } else { params.default_throughput };
    scores.clear();
    scores.extend(members().map(|candidate| match candidate.report {
        Some(load) => reporting(params, load, candidate.tally_tokens),
        None if best.is_finite() => best + f64::from(candidate.in_flight) * prefill / rate,
        None => f64::from(candidate.in_flight),
    }));
}

/// The member of `set` with the lowest score and that score; exact ties are drawn uniformly.
pub fn lowest(set: &[usize], scores: &[f64], rng: &mut dyn RngCore) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64)> = None;
    let mut ties = 0_u32;
    for (&index, &score) in set.iter().zip(scores) {
        match best {
            Some((_, least)) if score > least => {}
            #[expect(clippy::float_cmp, reason = "only exact ties are drawn")]
            Some((_, least)) if score == least => {
                ties += 1;
                // Reservoir of one: each of the n tied members stays with probability 1/n.
                if rng.random_range(0..ties) == 0 {
                    best = Some((index, score));
                }
            }
            _ => {
                ties = 1;
                best = Some((index, score));
            }
        }
    }
    best
}

/// The member of `set` where a request would wait for the shortest time, with what it is credited; none of an empty set.
pub fn shortest_wait(params: &ScoreParams, view: &View<'_>, set: &[usize], rng: &mut dyn RngCore) -> Option<Pick> {
    let mut scores = Vec::with_capacity(set.len());
    expected_wait(params, view.candidates, set, &mut scores);
    let (index, score) = lowest(set, &scores, rng)?;
    Some(Pick { credit: Some(credit(params, view.token_ids)), score: Some(score), ..Pick::unscored(index) })
}

/// The score in seconds of a worker that reports `load` and was sent nothing since.
#[must_use]
pub fn of_report(params: &ScoreParams, load: &Load) -> f64 {
    reporting(params, load, 0)
}

/// What a request adds to its worker's tally, in tokens.
#[must_use]
pub fn credit(params: &ScoreParams, token_ids: Option<u32>) -> u32 {
    token_ids.unwrap_or(params.mean_prefill_tokens)
}

fn reporting(params: &ScoreParams, load: &Load, tally_tokens: u32) -> f64 {
    let queued = if load.queued_tokens > 0.0 {
        load.queued_tokens
    } else {
        load.waiting.max(0.0) * f64::from(params.mean_prefill_tokens)
    };
    let rate = if load.throughput > 0.0 { load.throughput } else { params.default_throughput };
    let usage = load.kv_usage.clamp(0.0, MOST_KV_USAGE);
    (queued + f64::from(tally_tokens)) / rate + params.kv_pressure_weight * usage / (1.0 - usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::{candidate, load};

    #[track_caller]
    fn check(report: Option<&Load>, tally: u32, expected: f64) {
        check_with(&ScoreParams::default(), report, tally, expected);
    }

    #[track_caller]
    fn check_with(params: &ScoreParams, report: Option<&Load>, tally: u32, expected: f64) {
        let one = [Candidate { report, tally_tokens: tally, ..candidate(0, 0) }];
        let mut scores = Vec::new();
        expected_wait(params, &one, &[0], &mut scores);
        assert!((scores[0] - expected).abs() < 1e-6, "{} instead of {expected}", scores[0]);
        if let (Some(load), 0) = (report, tally) {
            assert_eq!(of_report(params, load), scores[0]);
        }
    }

    #[test]
    fn scores_as_specified() {
        check(load(1000.0, 0.0, 0.2, 100.0), 0, 10.0375);
        check(load(2000.0, 0.0, 0.2, 100.0), 0, 20.0375);
        check(load(1000.0, 0.0, 0.2, 100.0), 1024, 20.2775);
        check(load(0.0, 0.0, 0.9, 0.0), 0, 1.35);
        check(load(0.0, 0.0, 0.95, 0.0), 0, 2.85);
        check(load(0.0, 0.0, 1.0, 0.0), 0, 149.85);
        check(load(0.0, 0.0, 5.0, 0.0), 0, 149.85);
        check(load(0.0, 8.0, 0.2, 100.0), 0, 81.9575);
        check(load(4096.0, 0.0, 0.5, 0.0), 0, 2.198);
        check(load(4096.0, 0.0, 0.5, 0.0), 512, 2.454);
        check(load(0.0, 0.0, 0.5, 0.0), 0, 0.15);
        check(load(400.0, 0.0, 0.4, 1200.0), 0, 0.433_333_333);
        let weightless = ScoreParams { kv_pressure_weight: 0.0, ..ScoreParams::default() };
        check_with(&weightless, load(0.0, 0.0, 0.99, 0.0), 0, 0.0);
    }

    #[test]
    fn a_silent_worker_is_the_best_reporter_plus_its_own_requests() {
        let pair = [Candidate { report: load(0.0, 0.0, 0.9, 0.0), ..candidate(0, 0) }, candidate(1, 5)];
        let mut scores = Vec::new();
        expected_wait(&ScoreParams::default(), &pair, &[0, 1], &mut scores);
        assert!((scores[1] - 3.91).abs() < 1e-6);
    }
}
