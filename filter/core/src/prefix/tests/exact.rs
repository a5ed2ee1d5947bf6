//! The exact index by itself: sizes, eviction, removal.

use super::super::{MAX_HOLDERS, PrefixIndex, Units};
use super::{ExactIndex, ROOT, exact, worker};

fn insert(index: &mut ExactIndex, text: &str, slot: u16) {
    index.insert(ROOT, Units::Text(text), worker(slot));
}

/// Matched characters and holders of `text`.
fn found(index: &mut ExactIndex, text: &str) -> (u64, Vec<u16>) {
    let found = index.search(ROOT, Units::Text(text));
    (found.matched, found.holders.iter().map(|holder| holder.slot).collect())
}

#[test]
fn each_worker_counts_the_units_it_holds() {
    let mut index = exact();
    let mut sizes = Vec::new();
    for (text, slot) in [("hello", 1), ("hello", 2), ("help!", 1), ("hello", 1), ("hel", 2)] {
        insert(&mut index, text, slot);
        sizes.push(index.size());
    }
    assert_eq!(sizes, [5, 10, 12, 12, 12]);
}

#[test]
fn the_least_recently_used_leaves_go_until_the_budget_is_met() {
    let mut index = exact();
    for (text, slot) in [("hello", 1), ("hello", 2), ("world", 2)] {
        insert(&mut index, text, slot);
    }
    index.evict(15);
    assert_eq!(index.size(), 15);
    index.evict(5);
    assert_eq!(index.size(), 5);
    assert_eq!(found(&mut index, "world"), (5, vec![2]));
    assert_eq!(found(&mut index, "hello"), (0, vec![]));
}

#[test]
fn a_leaf_goes_before_what_it_stands_on() {
    let mut index = exact();
    insert(&mut index, "system prompt", 1);
    insert(&mut index, "system prompt, then one", 1);
    insert(&mut index, "system prompt, then two", 1);
    index.evict(24);
    assert_eq!(found(&mut index, "system prompt, then one").0, 20, "the older branch went");
    assert_eq!(found(&mut index, "system prompt, then two").0, 23);
}

#[test]
fn a_removed_worker_holds_nothing() {
    let mut index = exact();
    insert(&mut index, "abc", 1);
    insert(&mut index, "abcdef", 2);
    index.purge(worker(2));
    assert_eq!(found(&mut index, "abcdef"), (3, vec![1]));
    assert_eq!(index.size(), 3);
    index.purge(worker(1));
    assert_eq!((found(&mut index, "abc"), index.size()), ((0, vec![]), 0));
}

#[test]
fn characters_count_and_not_bytes() {
    let mut index = exact();
    insert(&mut index, "日本語のプロンプト", 1);
    let matched = index.search(ROOT, Units::Text("日本語の文章 abc"));
    assert_eq!((matched.matched, matched.total), (4, 10));
}

#[test]
fn at_most_eight_holders_are_returned() {
    let mut index = exact();
    for slot in 0..20 {
        insert(&mut index, "shared", slot);
    }
    assert_eq!(found(&mut index, "shared").1.len(), MAX_HOLDERS);
}
