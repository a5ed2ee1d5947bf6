//! Holders by hashes: three of them, their time, and the table's bounds.

use super::*;
use crate::store::MemoryStore;

const NOW: u32 = 1_790_000_000;
const TTL: u32 = 180;

fn table(max_bytes: u64) -> Placements {
    Placements::new("", max_bytes, TTL)
}

fn id(slot: u16) -> SlotId {
    SlotId { slot, generation: 0 }
}

/// Marks at depths 8, 16, ... of the prompt `number`; prompts of the same number share all.
fn marks(number: u64, count: u64) -> Vec<Node> {
    let tag = |depth: u64| (number * 100 + depth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (1..=count).map(|depth| Node { tag: tag(depth), depth: depth * 8 }).collect()
}

fn note(table: &Placements, store: &mut MemoryStore, marks: &[Node], worker: SlotId, now: u32) -> u64 {
    let known = table.read(store, marks).unwrap();
    table.note(store, known, marks, 1, worker, now).unwrap()
}

fn found(table: &Placements, store: &mut MemoryStore, marks: &[Node], now: u32) -> (u64, Vec<u16>) {
    let known = table.read(store, marks).unwrap();
    let (depth, mut holders) = table.search(&known, marks, now, &|_| true);
    holders.sort_by_key(|holder| holder.slot);
    (depth, holders.into_iter().map(|holder| holder.slot).collect())
}

#[test]
fn the_deepest_mark_with_a_usable_holder_decides() {
    let (table, mut store) = (table(1 << 20), MemoryStore::default());
    assert_eq!(found(&table, &mut store, &marks(1, 3), NOW), (0, vec![]));
    note(&table, &mut store, &marks(1, 1), id(1), NOW);
    note(&table, &mut store, &marks(1, 2), id(2), NOW);
    assert_eq!(found(&table, &mut store, &marks(1, 3), NOW), (16, vec![2]));
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW), (8, vec![1, 2]));
    let known = table.read(&mut store, &marks(1, 3)).unwrap();
    assert_eq!(table.search(&known, &marks(1, 3), NOW, &|id| id.slot != 2), (8, vec![id(1)]));
    assert_eq!(table.search(&known, &marks(1, 3), NOW, &|_| false), (0, vec![]));
    assert_eq!(found(&table, &mut store, &marks(2, 3), NOW), (0, vec![]));
    assert_eq!(found(&table, &mut store, &[], NOW), (0, vec![]));
}

#[test]
fn a_holder_counts_for_its_time_and_is_refreshed_by_each_request() {
    let (table, mut store) = (table(1 << 20), MemoryStore::default());
    note(&table, &mut store, &marks(1, 1), id(1), NOW);
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + TTL), (8, vec![1]));
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + TTL + 1), (0, vec![]));
    note(&table, &mut store, &marks(1, 1), id(1), NOW + TTL);
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + 2 * TTL), (8, vec![1]));
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + TTL - 1), (8, vec![1]), "clocks may be set back a little");
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW - 3600), (0, vec![]));
}

#[test]
fn of_three_holders_the_stalest_makes_room() {
    let (table, mut store) = (table(1 << 20), MemoryStore::default());
    for (slot, later) in [(1, 0), (2, 1), (3, 2), (1, 3)] {
        note(&table, &mut store, &marks(1, 1), id(slot), NOW + later);
    }
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + 3), (8, vec![1, 2, 3]));
    note(&table, &mut store, &marks(1, 1), id(4), NOW + 4);
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + 4), (8, vec![1, 3, 4]));
    // An expired one goes before the stalest of those that count.
    note(&table, &mut store, &marks(1, 1), id(5), NOW + 3 + TTL);
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW + 3 + TTL), (8, vec![1, 4, 5]));
}

#[test]
fn a_slots_new_owner_takes_the_place_of_the_old_one() {
    let (table, mut store) = (table(1 << 20), MemoryStore::default());
    for slot in 1..4 {
        note(&table, &mut store, &marks(1, 1), id(slot), NOW + u32::from(slot));
    }
    let again = SlotId { slot: 3, generation: 1 };
    note(&table, &mut store, &marks(1, 1), again, NOW + 9);
    let known = table.read(&mut store, &marks(1, 1)).unwrap();
    let (_, holders) = table.search(&known, &marks(1, 1), NOW + 9, &|_| true);
    assert!(holders.len() == 3 && holders.contains(&again) && !holders.contains(&id(3)), "{holders:?}");
}

#[test]
fn a_hot_prompt_is_written_once_a_second() {
    struct Counting(MemoryStore, usize);
    impl Store for Counting {
        fn get(&mut self, key: &str) -> Result<Option<crate::store::Versioned>, StoreError> {
            self.0.get(key)
        }
        fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
            self.1 += 1;
            self.0.set(key, value, version)
        }
    }
    let (table, mut store) = (table(1), Counting(MemoryStore::default(), 0));
    for request in 0..300 {
        let known = table.read(&mut store, &marks(1, 3)).unwrap();
        table.note(&mut store, known, &marks(1, 3), 1, id(1), NOW + request / 100).unwrap();
    }
    assert_eq!(store.1, 3, "three marks of one page are one write");
}

#[test]
fn a_lost_race_is_a_lost_hint() {
    let (table, mut store) = (table(1), MemoryStore::default());
    let known = table.read(&mut store, &marks(1, 1)).unwrap();
    note(&table, &mut store, &marks(1, 1), id(2), NOW);
    assert_eq!(table.note(&mut store, known, &marks(1, 1), 1, id(1), NOW), Ok(0));
    assert_eq!(found(&table, &mut store, &marks(1, 1), NOW), (8, vec![2]));
}

#[test]
fn a_sweep_drops_what_has_expired_and_counts_the_rest() {
    let (table, mut store) = (table(1 << 20), MemoryStore::default());
    for (number, slot, later) in [(1, 1, 0), (2, 1, 100), (2, 2, 0), (3, 3, 100), (4, 3, 0), (4, 1, 100)] {
        note(&table, &mut store, &marks(number, 2), id(slot), NOW + later);
    }
    let mut survey = Survey::default();
    let mut sweep = || table.sweep(&mut store, &mut survey, NOW + TTL + 1, &|id| id.slot != 3).unwrap();
    let swept = std::iter::repeat_with(&mut sweep).take(100).flatten().next().unwrap();
    assert_eq!(swept.keys, HashMap::from([(1, 4)]), "prompts 2 and 4, two marks each");
    let used: usize = (0..table.table.pages()).map(|page| table.table.read(&mut store, page).unwrap().used()).sum();
    assert_eq!(used, 4);
    assert_eq!(found(&table, &mut store, &marks(2, 2), NOW + 100), (16, vec![1]));
    assert_eq!(found(&table, &mut store, &marks(4, 2), NOW + 100), (16, vec![1]));
}

#[test]
fn a_million_keys_in_one_page_stay_one_page() {
    let (table, mut store) = (table(4096), MemoryStore::default());
    assert_eq!(table.table.pages(), 1);
    let mut evicted = 0;
    for number in 0..10_000 {
        evicted += note(&table, &mut store, &marks(number, 100), id(1), NOW);
    }
    assert_eq!(evicted, 1_000_000 - KEYS_PER_PAGE as u64);
    let sizes = store.sizes();
    assert!(sizes.len() == 1 && sizes[0].1 <= 4096, "{sizes:?}");
    assert_eq!(found(&table, &mut store, &marks(9_999, 100), NOW), (800, vec![1]), "the newest are known");
}

#[test]
fn the_table_keeps_to_its_bytes() {
    let (table, mut store) = (table(100_000), MemoryStore::default());
    for number in 0..10_000 {
        note(&table, &mut store, &marks(number, 4), id(1), NOW);
    }
    let used: usize = store.sizes().iter().map(|(_, bytes)| bytes + 64).sum();
    assert!(used <= 100_000, "{used}");
}
