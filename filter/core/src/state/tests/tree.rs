//! The shared prefix tree against its promises.

use super::*;
use crate::prefix::path::{Root, of_text};
use crate::store::MemoryStore;

fn id(slot: u16) -> SlotId {
    SlotId { slot, generation: 0 }
}

fn path(text: &[u8]) -> Vec<Node> {
    let mut nodes = Vec::new();
    of_text(Root { seed: 7, model: "m", namespace: None }, text, &mut nodes);
    nodes
}

struct Bench {
    tree: PrefixTree,
    store: MemoryStore,
}

impl Bench {
    fn new(max_bytes: u64) -> Self {
        Self { tree: PrefixTree::new("", max_bytes), store: MemoryStore::default() }
    }

    fn search(&mut self, text: &[u8]) -> Found {
        self.tree.search(&mut self.store, &path(text), text.len() as u64, &|_| true).unwrap()
    }

    fn insert(&mut self, text: &[u8], worker: SlotId) {
        let found = self.search(text);
        self.tree.insert(&mut self.store, &path(text), Label::default(), worker, found).unwrap();
    }
}

#[test]
fn the_longest_shared_prefix_is_found() {
    let mut bench = Bench::new(1 << 20);
    bench.insert(&[b'a'; 4096], id(1));
    assert_eq!(bench.search(&[b'a'; 4096]).matched.holders, [id(1)]);
    let other = [[b'a'; 1000], [b'b'; 1000]].concat();
    let found = bench.search(&other).matched;
    assert_eq!((found.matched, found.total), (864, 2000));
    assert_eq!(bench.search(&[b'c'; 4096]).matched, Match { total: 4096, ..Match::default() });
    assert_eq!(bench.search(b"short").matched.matched, 0);
}

#[test]
fn a_prefix_has_all_its_holders_and_a_branch_its_own() {
    let mut bench = Bench::new(1 << 20);
    let (left, right) = ([[b'a'; 500], [b'l'; 500]].concat(), [[b'a'; 500], [b'r'; 500]].concat());
    bench.insert(&left, id(1));
    bench.insert(&right, id(2));
    bench.insert(&left, id(3));
    let holders = |text: &[u8], bench: &mut Bench| {
        let mut holders: Vec<u16> = bench.search(text).matched.holders.iter().map(|holder| holder.slot).collect();
        holders.sort_unstable();
        holders
    };
    assert_eq!(holders(&left, &mut bench), [1, 3]);
    assert_eq!(holders(&right, &mut bench), [2]);
    assert_eq!(holders(&[b'a'; 500], &mut bench), [1, 2, 3]);
}

#[test]
fn a_shorter_prefix_serves_when_the_longest_ones_holders_are_out() {
    let mut bench = Bench::new(1 << 20);
    let long = [[b'a'; 500], [b'b'; 500]].concat();
    bench.insert(&[b'a'; 500], id(1));
    bench.insert(&long, id(2));
    let found = bench.tree.search(&mut bench.store, &path(&long), 1000, &|holder| holder == id(1)).unwrap();
    assert_eq!((found.matched.matched, found.matched.holders), (384, vec![id(1)]));
}

#[test]
fn at_most_eight_holders_are_kept_and_the_stalest_goes() {
    let mut bench = Bench::new(1 << 20);
    for slot in 0..20 {
        bench.insert(&[b'a'; 64], id(slot));
    }
    let holders = bench.search(&[b'a'; 64]).matched.holders;
    assert_eq!(holders.len(), MAX_HOLDERS);
    assert!(holders.contains(&id(19)) && !holders.contains(&id(0)), "{holders:?}");
}

#[test]
fn a_slots_new_owner_takes_the_place_of_the_old_one() {
    let mut bench = Bench::new(1 << 20);
    bench.insert(&[b'a'; 64], id(1));
    bench.insert(&[b'a'; 64], SlotId { slot: 1, generation: 1 });
    assert_eq!(bench.search(&[b'a'; 64]).matched.holders, [SlotId { slot: 1, generation: 1 }]);
}

#[test]
fn the_tree_never_exceeds_its_budget() {
    let mut bench = Bench::new(100_000);
    for number in 0..5000_u32 {
        let text: Vec<u8> = number.to_le_bytes().repeat(100);
        bench.insert(&text, id(1));
    }
    let used: usize = bench.store.sizes().iter().map(|(key, bytes)| key.len() + bytes).sum();
    assert!(used <= 100_000, "{used}");
}

#[test]
fn a_conversation_that_goes_on_survives_one_off_prompts() {
    let mut bench = Bench::new(400_000);
    let conversation = [b'c'; 8000];
    bench.insert(&conversation[..4000], id(3));
    let mut hits = 0;
    for round in 0..200_u32 {
        for number in 0..20_u32 {
            let text: Vec<u8> = (round * 20 + number).to_le_bytes().repeat(500);
            bench.insert(&text, id(1));
        }
        hits += usize::from(bench.search(&conversation).matched.matched >= 2000);
        bench.insert(&conversation[..4000 + round as usize * 20], id(3));
    }
    assert!(hits >= 195, "{hits}");
}

#[test]
fn a_repeated_prompt_costs_only_its_probes() {
    struct Counting(MemoryStore, usize);
    impl Store for Counting {
        fn get(&mut self, key: &str) -> Result<Option<crate::store::Versioned>, StoreError> {
            self.1 += 1;
            self.0.get(key)
        }
        fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<crate::store::Write, StoreError> {
            self.1 += 1;
            self.0.set(key, value, version)
        }
    }
    let (tree, mut store) = (PrefixTree::new("", 1 << 20), Counting(MemoryStore::default(), 0));
    let nodes = path(&[b'a'; 4096]);
    for expected in [22, 4] {
        store.1 = 0;
        let found = tree.search(&mut store, &nodes, 4096, &|_| true).unwrap();
        tree.insert(&mut store, &nodes, Label::default(), id(1), found).unwrap();
        assert!(store.1 <= expected, "{} calls", store.1);
    }
}
