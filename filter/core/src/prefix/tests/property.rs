//! The shared tree against the exact index, on random prompts over few distinct blocks.

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{PrefixIndex, Units};
use super::{PAGE, ROOT, exact, shared, worker};

/// Prompts made of few blocks of all lengths, each with the worker it is sent to.
fn texts() -> impl Strategy<Value = Vec<(String, u16)>> {
    let block = (0..4_usize, prop::sample::select(vec![1, 7, 31, 32, 33, 64, 100, 257, 900]));
    let text = vec(block, 0..10).prop_map(|blocks| {
        let block = |(letter, length): (usize, usize)| ["a", "b", "ab", "cd"][letter].repeat(length);
        blocks.into_iter().map(block).collect::<String>()
    });
    vec((text, 0..5_u16), 1..24)
}

/// The same of token ids.
fn tokens() -> impl Strategy<Value = Vec<(Vec<u32>, u16)>> {
    let block = (0..3_u32, prop::sample::select(vec![1, 15, 16, 17, 48, 200]));
    let ids = vec(block, 0..10)
        .prop_map(|blocks| blocks.into_iter().flat_map(|(id, length)| std::iter::repeat_n(id, length)).collect());
    vec((ids, 0..5_u16), 1..24)
}

/// How much of the beginning two prompts have in common.
fn common<T: PartialEq>(one: &[T], two: &[T]) -> u64 {
    one.iter().zip(two).take_while(|(one, two)| one == two).count() as u64
}

#[test]
fn prompts_of_all_depths_are_found() {
    let long: String = (0..100_000_u32).map(|number| format!("{number:06} ")).collect();
    let mut shared = shared(16 << 20);
    shared.insert(ROOT, Units::Text(&long), worker(1));
    let lengths = std::iter::successors(Some(64), |length: &usize| Some(length + length / 10 + 1));
    for length in lengths.take_while(|length| *length < 512 << 10) {
        let (same, other) = (&long[..length], long[..length].to_owned() + &"x".repeat(1000));
        for text in [same, &other] {
            let found = shared.search(ROOT, Units::Text(text));
            assert!(found.matched * 3 >= length as u64 * 2, "{} of {length}", found.matched);
            assert_eq!(found.holders, [worker(1)]);
        }
    }
    let ids: Vec<u32> = (0..130_000).collect();
    shared.insert(ROOT, Units::Tokens(&ids), worker(2));
    for pages in [1, 2, 3, 5, 10, 30, 100, 300, 1000, 3000, 8000] {
        let found = shared.search(ROOT, Units::Tokens(&ids[..pages * PAGE as usize]));
        assert!(found.matched * 3 >= (pages * PAGE as usize * 2) as u64, "{} ids of {pages} pages", found.matched);
    }
}

proptest! {
    #[test]
    fn a_text_match_is_true_and_at_least_two_thirds_of_the_exact_one(prompts in texts()) {
        let (mut exact, mut shared) = (exact(), shared(16 << 20));
        for (number, (text, slot)) in prompts.iter().enumerate() {
            let units = Units::Text(text);
            let (truth, found) = (exact.search(ROOT, units), shared.search(ROOT, units));
            prop_assert_eq!(truth.total, found.total);
            prop_assert!(found.matched <= truth.matched, "{} of {}", found.matched, truth.matched);
            if truth.matched >= 64 {
                prop_assert!(found.matched * 3 >= truth.matched * 2, "{} of {}", found.matched, truth.matched);
                prop_assert!(!found.holders.is_empty());
            }
            for holder in found.holders {
                let sent = prompts[..number].iter().any(|(earlier, at)| {
                    *at == holder.slot && common(earlier.as_bytes(), text.as_bytes()) >= found.matched
                });
                prop_assert!(sent, "worker {} was never sent {} bytes of this", holder.slot, found.matched);
            }
            exact.insert(ROOT, units, worker(*slot));
            shared.insert(ROOT, units, worker(*slot));
        }
    }

    #[test]
    fn a_token_match_is_true_and_at_least_two_thirds_of_the_exact_one(prompts in tokens()) {
        let (mut exact, mut shared) = (exact(), shared(16 << 20));
        for (number, (ids, slot)) in prompts.iter().enumerate() {
            let units = Units::Tokens(ids);
            let (truth, found) = (exact.search(ROOT, units), shared.search(ROOT, units));
            prop_assert_eq!(truth.total, found.total);
            prop_assert!(found.matched <= truth.matched && found.matched % u64::from(PAGE) == 0);
            prop_assert!(found.matched * 3 >= truth.matched * 2, "{} of {}", found.matched, truth.matched);
            prop_assert_eq!(truth.holders.is_empty(), found.holders.is_empty());
            for holder in found.holders {
                let sent = prompts[..number]
                    .iter()
                    .any(|(earlier, at)| *at == holder.slot && common(earlier, ids) >= found.matched);
                prop_assert!(sent, "worker {} was never sent {} ids of this", holder.slot, found.matched);
            }
            exact.insert(ROOT, units, worker(*slot));
            shared.insert(ROOT, units, worker(*slot));
        }
    }

    #[test]
    fn a_tree_that_forgets_still_tells_the_truth(prompts in texts()) {
        let mut shared = shared(1);
        for (number, (text, slot)) in prompts.iter().enumerate() {
            let found = shared.search(ROOT, Units::Text(text));
            for holder in found.holders {
                let sent = prompts[..number].iter().any(|(earlier, at)| {
                    *at == holder.slot && common(earlier.as_bytes(), text.as_bytes()) >= found.matched
                });
                prop_assert!(sent, "worker {} was never sent {} bytes of this", holder.slot, found.matched);
            }
            shared.insert(ROOT, Units::Text(text), worker(*slot));
        }
    }
}
