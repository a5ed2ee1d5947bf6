use super::*;
use crate::store::MemoryStore;

const A: SlotId = SlotId { slot: 1, generation: 0 };
const B: SlotId = SlotId { slot: 2, generation: 0 };

/// The table as one VM sees it.
struct Of(KeyTable, u64);

fn of(vm: u64) -> Of {
    Of(KeyTable::new(""), vm)
}

impl Of {
    fn add(&self, store: &mut dyn Store, key: u64, worker: SlotId) -> Change {
        let known = self.0.read(store, key).unwrap();
        self.0.add(store, self.1, known, worker, 1).unwrap()
    }

    fn remove(&self, store: &mut dyn Store, key: u64, worker: SlotId) -> Change {
        self.0.remove(store, self.1, key, worker).unwrap()
    }

    fn in_flight(&self, store: &mut dyn Store, key: u64, worker: SlotId) -> u32 {
        self.0.read(store, key).unwrap().in_flight(worker)
    }
}

#[test]
fn a_key_comes_with_its_first_request_and_leaves_with_its_last() {
    let mut store = MemoryStore::default();
    let (one, two) = (of(1), of(2));
    assert_eq!(one.add(&mut store, 7, A), Change::Keys(1));
    assert_eq!(two.add(&mut store, 7, A), Change::Keys(0), "the same key from another thread");
    assert_eq!(one.add(&mut store, 7, B), Change::Keys(1), "another worker has it for the first time");
    assert_eq!(one.add(&mut store, 8, A), Change::Keys(1));
    assert_eq!(one.in_flight(&mut store, 7, A), 2);
    assert_eq!(one.remove(&mut store, 7, A), Change::Keys(0));
    assert_eq!(one.remove(&mut store, 7, A), Change::Untracked, "the other one is not this VM's");
    assert_eq!(two.remove(&mut store, 7, A), Change::Keys(-1));
    assert_eq!(one.remove(&mut store, 7, B), Change::Keys(-1));
    assert_eq!(one.in_flight(&mut store, 7, A), 0);
}

#[test]
fn nothing_is_left_of_a_million_keys_that_have_ended() {
    let (table, mut store) = (of(1), MemoryStore::default());
    for key in 0..1_000_000u64 {
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!(table.add(&mut store, key, A), Change::Keys(1));
        assert_eq!(table.remove(&mut store, key, A), Change::Keys(-1));
    }
    assert!(store.sizes().iter().all(|(_, bytes)| *bytes <= 8));
    assert!(store.sizes().len() <= PAGES as usize);
}

#[test]
fn a_page_full_of_live_keys_takes_no_more() {
    let (table, mut store) = (of(1), MemoryStore::default());
    // Small numbers all fall into the first page.
    for key in 0..ENTRIES_PER_PAGE as u64 {
        assert_eq!(table.add(&mut store, key, A), Change::Keys(1));
    }
    assert_eq!(table.add(&mut store, 1000, A), Change::Untracked);
    assert_eq!(table.remove(&mut store, 1000, A), Change::Untracked);
    assert_eq!(table.add(&mut store, 3, A), Change::Keys(0), "a known one goes on");
}

#[test]
fn two_threads_that_meet_count_the_key_once() {
    struct Racing(MemoryStore, Option<Of>);
    impl Store for Racing {
        fn get(&mut self, key: &str) -> Result<Option<crate::store::Versioned>, StoreError> {
            self.0.get(key)
        }
        fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
            if let Some(other) = self.1.take() {
                assert_eq!(other.add(&mut self.0, 7, A), Change::Keys(1));
            }
            self.0.set(key, value, version)
        }
    }
    let mut store = Racing(MemoryStore::default(), Some(of(2)));
    let table = of(1);
    // The other comes between this one's read and its write.
    assert_eq!(table.add(&mut store, 7, A), Change::Keys(0));
    assert_eq!(table.in_flight(&mut store, 7, A), 2);
}

#[test]
fn what_dead_vms_have_left_is_purged() {
    let mut store = MemoryStore::default();
    let (dead, living) = (of(1), of(2));
    for (vm, key, worker) in
        [(&dead, 1, A), (&dead, 1, A), (&dead, 2, A), (&dead, 3, B), (&living, 2, A), (&living, 4, B)]
    {
        vm.add(&mut store, key, worker);
    }
    // Small numbers all fall into the first page.
    let purged = dead.0.purge(&mut store, 0, &mut |_, vm| vm == 1).unwrap();
    assert_eq!(purged, [A, B], "key 2 is still in flight at A for the living");
    let left: Vec<_> = living.0.entries(&mut store, 0).unwrap().iter().map(|entry| (entry.vm, entry.key)).collect();
    assert_eq!(left.len(), 2);
    assert!(left.contains(&(2, 2)) && left.contains(&(2, 4)));
    assert_eq!(dead.remove(&mut store, 1, A), Change::Untracked);
}
