//! Whose turn it is, per set of candidates: round robin's shared state.
//!
//! SMG keeps a counter per distinct list of available workers, at most 4,096 of them, the n-th new list starting at
//! position n. Here they are entries of a [`PageTable`]: when one must go it is the least recently used of its page,
//! which need not be the oldest of all.

use super::bytes::{read_u32, write};
use super::names::Name;
use super::page::{Entered, PageTable};
use crate::store::{Store, StoreError, Write, version_of};

const SETS: u32 = 4096;
const SETS_PER_PAGE: u32 = 64;

/// A writer that loses this often in a row gives up and takes the position it has seen.
const TRIES: usize = 16;

/// Round robin's counters.
#[derive(Debug, Clone)]
pub struct Turns {
    table: PageTable,
    start: String,
}

impl Turns {
    /// The counters of `instance`.
    #[must_use]
    pub fn new(instance: &str) -> Self {
        Self {
            table: PageTable::new('r', instance, SETS / SETS_PER_PAGE, SETS_PER_PAGE as usize, 4),
            start: Name::new('s', instance, 0).part(0),
        }
    }

    /// The position of `set` (the hash of its ordered members), advanced by one.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn take(&self, store: &mut dyn Store, set: u64) -> Result<u32, StoreError> {
        let mut start = None;
        let mut position = 0;
        for _ in 0..TRIES {
            let mut page = self.table.read(store, self.table.page_of(set))?;
            let (entry, entered) = page.find_or_insert(set);
            position = match (entered, start) {
                (Entered::Known, _) => read_u32(page.payload(entry), 0),
                (_, Some(start)) => start,
                (_, None) => {
                    let fresh = self.next_start(store)?;
                    start = Some(fresh);
                    fresh
                }
            };
            write(page.payload_mut(entry), 0, position.wrapping_add(1).to_le_bytes());
            if self.table.write(store, &page)? == Write::Done {
                break;
            }
        }
        Ok(position)
    }

    /// Where the next new set starts: the first ever at 0, the second at 1.
    fn next_start(&self, store: &mut dyn Store) -> Result<u32, StoreError> {
        let mut start = 0;
        for _ in 0..TRIES {
            let stored = store.get(&self.start)?;
            let version = version_of(stored.as_ref());
            start = stored.map_or(0, |stored| read_u32(&stored.value, 0));
            if store.set(&self.start, &start.wrapping_add(1).to_le_bytes(), version)? == Write::Done {
                break;
            }
        }
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn each_set_counts_by_itself_and_the_nth_starts_at_n() {
        let (turns, mut store) = (Turns::new(""), MemoryStore::default());
        let mut take = |set| turns.take(&mut store, set).unwrap();
        assert_eq!([take(10), take(10), take(20), take(10), take(20), take(30)], [0, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn a_lost_race_takes_the_next_turn() {
        struct Racing(MemoryStore, Option<Turns>);
        impl Store for Racing {
            fn get(&mut self, key: &str) -> Result<Option<crate::store::Versioned>, StoreError> {
                let seen = self.0.get(key);
                if let Some(turns) = self.1.take() {
                    turns.take(&mut self.0, 7).unwrap();
                }
                seen
            }
            fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
                self.0.set(key, value, version)
            }
        }
        let (turns, store) = (Turns::new(""), MemoryStore::default());
        assert_eq!(turns.take(&mut store.clone(), 7), Ok(0));
        assert_eq!(turns.take(&mut Racing(store, Some(turns.clone())), 7), Ok(2));
    }

    #[test]
    fn of_4097_sets_the_least_recently_used_is_forgotten() {
        let (turns, mut store) = (Turns::new(""), MemoryStore::default());
        // Spread evenly over the pages, which the sets' hashes are only by chance: so the oldest of a page is the oldest
        // of all.
        let set = |number: u32| (u64::from(number % 64) << 58) + u64::from(number / 64);
        let mut take = |number| turns.take(&mut store, set(number)).unwrap();
        for number in 0..4096 {
            assert_eq!(take(number), number, "the new sets start one after the other");
        }
        assert_eq!(take(4096), 4096);
        assert_eq!(take(1), 2, "known");
        assert_eq!(take(0), 4097, "forgotten, hence new");
    }

    #[test]
    fn the_number_of_sets_is_bounded() {
        let (turns, mut store) = (Turns::new(""), MemoryStore::default());
        for set in 0..10_000u64 {
            turns.take(&mut store, set.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
        }
        assert!(store.sizes().len() <= 65);
    }
}
