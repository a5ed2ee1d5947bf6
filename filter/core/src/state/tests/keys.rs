use super::*;
use crate::store::MemoryStore;

const A: SlotId = SlotId { slot: 1, generation: 0 };
const B: SlotId = SlotId { slot: 2, generation: 0 };

fn add(table: &KeyTable, store: &mut MemoryStore, key: u64, worker: SlotId) -> Change {
    let known = table.read(store, key).unwrap();
    table.add(store, known, worker).unwrap()
}

#[test]
fn a_key_comes_with_its_first_request_and_leaves_with_its_last() {
    let mut store = MemoryStore::default();
    let (one, two) = (KeyTable::new("", 1), KeyTable::new("", 2));
    assert_eq!(add(&one, &mut store, 7, A), Change::Keys(1));
    assert_eq!(add(&two, &mut store, 7, A), Change::Keys(0), "the same key from another thread");
    assert_eq!(add(&one, &mut store, 7, B), Change::Keys(1), "another worker has it for the first time");
    assert_eq!(add(&one, &mut store, 8, A), Change::Keys(1));
    assert_eq!(one.read(&mut store, 7).unwrap().in_flight(A), 2);
    assert_eq!(one.remove(&mut store, 7, A), Ok(Change::Keys(0)));
    assert_eq!(one.remove(&mut store, 7, A), Ok(Change::Untracked), "the other one is not this VM's");
    assert_eq!(two.remove(&mut store, 7, A), Ok(Change::Keys(-1)));
    assert_eq!(one.remove(&mut store, 7, B), Ok(Change::Keys(-1)));
    assert_eq!(one.read(&mut store, 7).unwrap().in_flight(A), 0);
}

#[test]
fn nothing_is_left_of_a_million_keys_that_have_ended() {
    let (table, mut store) = (KeyTable::new("", 1), MemoryStore::default());
    for key in 0..1_000_000u64 {
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(add(&table, &mut store, key, A), Change::Keys(1));
        assert_eq!(table.remove(&mut store, key, A), Ok(Change::Keys(-1)));
    }
    assert!(store.sizes().iter().all(|(_, bytes)| *bytes <= 8));
    assert!(store.sizes().len() <= PAGES as usize);
}

#[test]
fn a_page_full_of_live_keys_takes_no_more() {
    let (table, mut store) = (KeyTable::new("", 1), MemoryStore::default());
    // Small numbers all fall into the first page.
    for key in 0..ENTRIES_PER_PAGE as u64 {
        assert_eq!(add(&table, &mut store, key, A), Change::Keys(1));
    }
    assert_eq!(add(&table, &mut store, 1000, A), Change::Untracked);
    assert_eq!(table.remove(&mut store, 1000, A), Ok(Change::Untracked));
    assert_eq!(add(&table, &mut store, 3, A), Change::Keys(0), "a known one goes on");
}

#[test]
fn two_threads_that_meet_count_the_key_once() {
    struct Racing(MemoryStore, Option<KeyTable>);
    impl Store for Racing {
        fn get(&mut self, key: &str) -> Result<Option<crate::store::Versioned>, StoreError> {
            self.0.get(key)
        }
        fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
            if let Some(other) = self.1.take() {
                assert_eq!(add(&other, &mut self.0, 7, A), Change::Keys(1));
            }
            self.0.set(key, value, version)
        }
    }
    let mut store = Racing(MemoryStore::default(), Some(KeyTable::new("", 2)));
    let table = KeyTable::new("", 1);
    let known = table.read(&mut store, 7).unwrap();
    assert_eq!(table.add(&mut store, known, A), Ok(Change::Keys(0)));
    assert_eq!(table.read(&mut store, 7).unwrap().in_flight(A), 2);
}
