//! The specification's vectors for `bucket`, its window, and its bytes.

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

const RULES: Rules = Rules { balance_abs: 64, balance_rel: 1.5, interval_ms: 5000 };
/// Loads are never too far apart.
const BY_RANGE: Rules = Rules { balance_abs: u64::MAX, ..RULES };
const NOW_MS: u64 = 1_790_000_000_000;
const REST: u64 = u64::MAX;

fn ids(count: u16) -> Vec<SlotId> {
    (0..count).map(|slot| SlotId { slot, generation: 1 }).collect()
}

fn buckets(count: u16) -> Buckets {
    Buckets::init(&ids(count), NOW_MS)
}

fn ranges(buckets: &Buckets) -> Vec<(u64, u64)> {
    buckets.ranges().collect()
}

fn loads(buckets: &Buckets) -> Vec<u64> {
    buckets.loads().collect()
}

/// Sends a request at `at_ms` after the start: the worker's number and the rule.
fn send(buckets: &mut Buckets, rules: &Rules, available: &[SlotId], size: u64, at_ms: u64) -> Option<(u16, Rule)> {
    let mut rng = SmallRng::seed_from_u64(size ^ at_ms);
    buckets.select(rules, available, size, NOW_MS + at_ms, &mut rng).map(|(worker, rule)| (worker.slot, rule))
}

/// `count` workers that were sent `sizes`, with ranges fitted to them.
fn fitted(count: u16, sizes: &[u64]) -> Buckets {
    let mut buckets = buckets(count);
    for &size in sizes {
        send(&mut buckets, &BY_RANGE, &ids(count), size, 0);
    }
    assert!(buckets.adjust(&RULES, NOW_MS + 5000));
    buckets
}

#[test]
fn the_first_ranges_are_equal_parts() {
    assert_eq!(ranges(&buckets(3)), [(0, 1364), (1365, 2729), (2730, REST)]);
    assert_eq!(ranges(&buckets(2)), [(0, 2047), (2048, REST)]);
    assert_eq!(ranges(&buckets(1)), [(0, REST)]);
    assert_eq!(ranges(&buckets(0)), []);
    assert_eq!(ranges(&buckets(5000))[4998..], [(4998, 4998), (4999, REST)]);
}

#[test]
fn ranges_are_fitted_to_what_was_sent() {
    let hundreds: Vec<u64> = (1..=6).map(|number| number * 100).collect();
    assert_eq!(ranges(&fitted(3, &hundreds)), [(0, 400), (401, 600), (601, REST)]);
    assert_eq!(ranges(&fitted(2, &[10, 10, 10, 10, 4000])), [(0, 4000), (4001, REST)]);
    assert_eq!(ranges(&fitted(2, &[50; 10])), [(0, 50), (51, REST)]);
    assert_eq!(ranges(&fitted(3, &[1000])), [(0, 1000), (1001, 1334), (1335, REST)]);
    assert_eq!(ranges(&fitted(2, &[0, 0])), [(0, 0), (1, REST)]);
    assert_eq!(ranges(&fitted(1, &[7])), [(0, REST)]);
}

#[test]
fn ranges_stay_while_the_load_is_about_the_same() {
    // One worker, so that the load per worker is what is sent.
    for (load, refits) in [(1400, false), (350, false), (1401, true), (349, true)] {
        let mut buckets = fitted(1, &[700]);
        assert_eq!(buckets.per_worker, 700);
        send(&mut buckets, &RULES, &ids(1), load, 5001);
        assert_eq!(loads(&buckets), [load], "the first request is too old");
        assert!(buckets.adjust(&RULES, NOW_MS + 10_000));
        assert_eq!(buckets.per_worker == load, refits, "{load}");
    }
}

#[test]
fn ranges_are_looked_into_once_in_an_interval_and_stay_when_nothing_was_sent() {
    let mut buckets = buckets(2);
    let first = ranges(&buckets);
    assert!(buckets.adjust(&RULES, NOW_MS + 5000), "nothing was sent");
    assert_eq!(ranges(&buckets), first);
    send(&mut buckets, &RULES, &ids(2), 100, 5000);
    assert!(!buckets.adjust(&RULES, NOW_MS + 9999));
    assert_eq!(ranges(&buckets), first);
    assert!(buckets.adjust(&RULES, NOW_MS + 10_000));
    assert_eq!(ranges(&buckets), [(0, 100), (101, REST)]);
    assert!(!Buckets::init(&[], NOW_MS).adjust(&RULES, NOW_MS));
    assert!(Buckets::init(&[], NOW_MS).adjust(&RULES, NOW_MS + 5000));
}

#[test]
fn a_clock_that_is_set_back_stops_no_adjustment() {
    let mut buckets = buckets(2);
    send(&mut buckets, &RULES, &ids(2), 100, 0);
    assert!(buckets.adjust(&RULES, NOW_MS - 3_600_000));
    assert!(!buckets.adjust(&RULES, NOW_MS - 3_600_000 + 4999));
    send(&mut buckets, &BY_RANGE, &ids(2), 7, 0);
    let mut rng = SmallRng::seed_from_u64(1);
    buckets.select(&RULES, &ids(2), 7, NOW_MS - 3_600_000, &mut rng);
    buckets.select(&RULES, &ids(2), 7, NOW_MS - 3_600_000 + 5001, &mut rng);
    assert_eq!(buckets.remembered(), 1, "what lay in the future has aged all the same");
}

#[test]
fn loads_that_are_too_far_apart_overrule_the_ranges() {
    for (one, two, imbalanced) in
        [(1000, 900, false), (1000, 0, true), (64, 0, false), (65, 0, true), (1500, 1000, false), (1501, 1000, true)]
    {
        let mut buckets = buckets(2);
        (buckets.shares[0].load, buckets.shares[1].load) = (one, two);
        let expected = if imbalanced { (1, Rule::Imbalance) } else { (0, Rule::Range) };
        assert_eq!(send(&mut buckets, &RULES, &ids(2), 5, 0), Some(expected), "{one}/{two}");
    }
}

#[test]
fn two_idle_workers_take_turns_with_equal_requests() {
    let mut buckets = buckets(2);
    let sent: Vec<_> = (0..3).map(|at_ms| send(&mut buckets, &RULES, &ids(2), 500, at_ms).unwrap()).collect();
    assert_eq!(sent, [(0, Rule::Range), (1, Rule::Imbalance), (0, Rule::Range)]);
    assert_eq!(loads(&buckets), [1000, 500]);
}

#[test]
fn the_edges_of_a_range_belong_to_it() {
    let mut buckets = buckets(2);
    for (size, worker) in [(0, 0), (2047, 0), (2048, 1), (u64::MAX, 1)] {
        assert_eq!(send(&mut buckets, &BY_RANGE, &ids(2), size, 0), Some((worker, Rule::Range)), "{size}");
    }
}

#[test]
fn a_worker_that_is_out_is_neither_chosen_nor_compared() {
    let mut buckets = buckets(3);
    buckets.shares[0].load = 10_000;
    buckets.shares[2].load = 60;
    let (all, without_first) = (ids(3), &ids(3)[1..]);
    assert_eq!(send(&mut buckets.clone(), &RULES, &all, 5, 0), Some((1, Rule::Imbalance)));
    assert_eq!(send(&mut buckets.clone(), &RULES, without_first, 1400, 0), Some((1, Rule::Range)));
    assert_eq!(send(&mut buckets, &RULES, without_first, 5, 0), Some((1, Rule::Failover)), "where SMG answers 503");
    assert_eq!(loads(&buckets), [10_000, 5, 60]);
    assert_eq!(send(&mut buckets, &RULES, &[], 5, 0), None);
}

#[test]
fn equally_idle_workers_are_drawn() {
    let mut seen = [0; 3];
    for seed in 0..300 {
        let mut buckets = buckets(3);
        let (worker, rule) = send(&mut buckets, &RULES, &ids(3)[1..], seed % 1000, 0).unwrap();
        assert_eq!(rule, Rule::Failover);
        seen[usize::from(worker)] += 1;
    }
    assert!(seen[0] == 0 && seen[1] > 100 && seen[2] > 100, "{seen:?}");
}

#[test]
fn without_buckets_anybody_takes_the_request() {
    let mut none = Buckets::default();
    let mut seen = [0; 3];
    for number in 0..300 {
        let (worker, rule) = send(&mut none, &RULES, &ids(3), number, 0).unwrap();
        assert_eq!(rule, Rule::Random);
        seen[usize::from(worker)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 60), "{seen:?}");
    assert_eq!(none, Buckets::default(), "nothing is noted");
    // A worker registered again is another one.
    let again = [SlotId { slot: 0, generation: 2 }];
    assert_eq!(send(&mut buckets(1), &RULES, &again, 1, 0), Some((0, Rule::Random)));
}

#[test]
fn a_request_counts_for_one_interval_and_its_end_is_seen_after_the_decision() {
    let mut buckets = buckets(2);
    send(&mut buckets, &RULES, &ids(2), 100, 0);
    assert_eq!(send(&mut buckets, &RULES, &ids(2), 3000, 5000), Some((1, Rule::Imbalance)));
    assert_eq!(loads(&buckets), [100, 3000], "five seconds are not older than five seconds");
    assert_eq!(send(&mut buckets, &RULES, &ids(2), 7, 5001), Some((0, Rule::Imbalance)));
    assert_eq!(loads(&buckets), [7, 3000]);
    // After an hour the old loads still decide once.
    assert_eq!(send(&mut buckets, &RULES, &ids(2), 3000, 3_600_000), Some((0, Rule::Imbalance)));
    assert_eq!(loads(&buckets), [3000, 0]);
}

#[test]
fn the_window_is_bounded_and_lets_the_oldest_go() {
    let mut buckets = buckets(2);
    for number in 0..100_000 {
        send(&mut buckets, &BY_RANGE, &ids(2), if number < 99_000 { 1 } else { 3000 }, 0);
    }
    assert_eq!(buckets.remembered(), MAX_WINDOW);
    assert_eq!(loads(&buckets), [24, 3_000_000], "exactly the last 1,024 requests");
    assert!(buckets.to_bytes().len() < 11_000);
}

#[test]
fn flags_tune_the_rules_but_not_those_of_a_label() {
    assert_eq!(Rules::of(&Config::default()), RULES);
    let flags = br#"{"balance_abs_threshold":7,"balance_rel_threshold":2,"bucket_adjust_interval_secs":1}"#;
    let tuned = Rules { balance_abs: 7, balance_rel: 2.0, interval_ms: 1000 };
    assert_eq!(Rules::of(&Config::parse(flags).unwrap()), tuned);
    let rules = Rules::BUILT_IN;
    assert_eq!((rules.balance_abs, rules.balance_rel, rules.interval_ms), (32, 1.0001, 5000));
}

#[test]
fn bytes_of_another_shape_are_no_buckets() {
    let good = fitted(3, &[10, 20, 3000]).to_bytes();
    assert!(Buckets::from_bytes(&good).is_some());
    let mut longer = good.clone();
    longer.push(0);
    let mut of_nobody = good.clone();
    let last = good.len() - ENTRY_BYTES + 4;
    of_nobody[last] = 3;
    let mut crossed = good.clone();
    crossed[HEADER_BYTES + 4..HEADER_BYTES + 12].fill(0xff);
    for bytes in [&good[..good.len() - 1], &longer, &of_nobody, &crossed, &[], &[0; 27], &[0xff; 100_000]] {
        assert_eq!(Buckets::from_bytes(bytes), None, "{} bytes", bytes.len());
    }
    assert_eq!(Buckets::from_bytes(&[0; HEADER_BYTES]), Some(Buckets::default()));
}

proptest! {
    #[test]
    fn what_is_stored_comes_back(
        count in 0_u16..6,
        steps in prop::collection::vec((0_u64..5000, 0_u64..4000, any::<u8>()), 0..200),
    ) {
        let mut buckets = buckets(count);
        let mut at_ms = 0;
        for (size, passes, out) in steps {
            at_ms += passes;
            let available: Vec<_> = ids(count).into_iter().filter(|id| out & (1 << id.slot) == 0).collect();
            let chosen = send(&mut buckets, &RULES, &available, size, at_ms);
            prop_assert_eq!(chosen.is_none(), available.is_empty());
            buckets.adjust(&RULES, NOW_MS + at_ms);
            let stored = Buckets::from_bytes(&buckets.to_bytes());
            prop_assert_eq!(stored.as_ref(), Some(&buckets));
            // No length is without a worker, and none has two.
            let mut next = 0;
            for (least, most) in buckets.ranges() {
                prop_assert!(least == next && most >= least);
                next = most.wrapping_add(1);
            }
            prop_assert_eq!(next, 0);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Some(mut buckets) = Buckets::from_bytes(&bytes) {
            send(&mut buckets, &RULES, &ids(3), 5, 0);
            buckets.adjust(&RULES, u64::MAX);
        }
    }
}
