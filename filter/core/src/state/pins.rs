//! Which worker a routing key belongs to: the memory of `manual` and of the routing-key override; and, in a table of its
//! own, which worker holds a response.
//!
//! SMG keeps an unbounded map. Here keys are entries of a [`PageTable`]: when a page is full the least recently used of
//! its keys makes room. The table has two thirds more room than keys are wanted, so that with all of them there one in
//! some six thousand is lost to a full page.
//!
//! How many keys there are stands beside the pages, so that nobody has to go through them: VMs add to it on their ticks.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::{read_u32, read_u64, write};
use super::names::Name;
use super::page::{Entered, Page, PageTable};
use crate::policy::sticky::Pins;
use crate::store::{Store, StoreError, Write, version_of};

const ENTRIES_PER_PAGE: u32 = 32;

/// A page with no more room than that is nearly full.
const ROOM: usize = 4;

/// Two workers' hashes (16), last use in Unix seconds (4).
const PAYLOAD_BYTES: usize = 20;

/// A writer that loses this often in a row tries again on its next tick.
const TRIES: usize = 16;

/// The keys' place in the shared store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinTable {
    table: PageTable,
    /// Where their number stands: the number (8), how often it has been changed (8).
    number: String,
}

/// How many keys there are, as those that came and went have been counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Number {
    /// The keys.
    pub keys: u64,
    /// Grows with every change.
    pub changes: u64,
}

/// What is known of one key, with the page it stands on.
#[derive(Debug, Clone)]
pub struct Pinned {
    page: Page,
    tag: u64,
    /// Where on the page it stands, if it is known: a page is searched once.
    entry: Option<usize>,
}

/// What a sweep of one page has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Keys that stay.
    pub kept: u64,
    /// Keys that were forgotten.
    pub evicted: u64,
}

impl PinTable {
    /// A table for `keys` keys of `instance`.
    #[must_use]
    pub fn new(instance: &str, keys: u32) -> Self {
        Self::named('q', instance, keys)
    }

    /// A table for the ids of so many responses.
    #[must_use]
    pub fn of_responses(instance: &str, ids: u32) -> Self {
        Self::named('e', instance, ids)
    }

    fn named(kind: char, instance: &str, keys: u32) -> Self {
        let pages = (u64::from(keys) * 5 / 3).div_ceil(u64::from(ENTRIES_PER_PAGE));
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let table = PageTable::new(kind, instance, pages, ENTRIES_PER_PAGE as usize, PAYLOAD_BYTES);
        Self { table, number: Name::new('u', instance, u64::from(pages) << 32 | u64::from(u32::from(kind))).part(0) }
    }

    /// Names `key` of `scope` (the model, or nothing) for all threads; `seed` is the process's own, so that nobody
    /// outside can choose keys that meet on one page.
    #[must_use]
    pub fn tag(seed: u64, scope: &str, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, xxh3_64_with_seed(scope.as_bytes(), seed))
    }

    /// The number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.table.pages()
    }

    /// So many keys at most are remembered.
    #[must_use]
    pub fn most_keys(&self) -> u64 {
        u64::from(self.pages()) * u64::from(ENTRIES_PER_PAGE)
    }

    /// So many bytes of shared data at most are taken by them.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        u64::from(self.pages()) * self.table.page_bytes() as u64
    }

    /// How many keys there are.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn number(&self, store: &mut dyn Store) -> Result<Number, StoreError> {
        Ok(store.get(&self.number)?.map_or_else(Number::default, |stored| Number::decode(&stored.value)))
    }

    /// Makes `change` of their number; false if every try lost its race.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn count(&self, store: &mut dyn Store, change: impl Fn(Number) -> u64) -> Result<bool, StoreError> {
        for _ in 0..TRIES {
            let stored = store.get(&self.number)?;
            let before = stored.as_ref().map_or_else(Number::default, |stored| Number::decode(&stored.value));
            let after = Number { keys: change(before), changes: before.changes.wrapping_add(1) };
            if store.set(&self.number, &after.encode(), version_of(stored.as_ref()))? == Write::Done {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is known of the key of `tag`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store, tag: u64) -> Result<Pinned, StoreError> {
        let page = self.table.read_evenly(store, self.table.page_of(tag))?;
        let entry = page.find_evenly(tag);
        Ok(Pinned { page, tag, entry })
    }

    /// Stores what `pinned` has been told if nobody has written its page since.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn write(&self, store: &mut dyn Store, pinned: &Pinned) -> Result<Write, StoreError> {
        self.table.write(store, &pinned.page)
    }

    /// Forgets the keys of page `index` that were last used `max_idle_secs` ago or longer; 0 is none. A lost race leaves
    /// them for the next sweep.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn sweep(
        &self,
        store: &mut dyn Store,
        index: u32,
        now_secs: u32,
        max_idle_secs: u32,
    ) -> Result<Swept, StoreError> {
        let mut page = self.table.read(store, index)?;
        let before = page.used();
        if max_idle_secs > 0 {
            for entry in (0..before).rev() {
                // A clock that has gone back makes nothing old.
                if now_secs.saturating_sub(read_u32(page.payload(entry), 16)) >= max_idle_secs {
                    page.remove(entry);
                }
            }
        }
        let evicted = (before - page.used()) as u64;
        if evicted > 0 && self.table.write(store, &page)? != Write::Done {
            return Ok(Swept { kept: before as u64, evicted: 0 });
        }
        Ok(Swept { kept: page.used() as u64, evicted })
    }
}

impl Number {
    fn decode(bytes: &[u8]) -> Self {
        Self { keys: read_u64(bytes, 0), changes: read_u64(bytes, 8) }
    }

    fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        write(&mut bytes, 0, self.keys.to_le_bytes());
        write(&mut bytes, 8, self.changes.to_le_bytes());
        bytes
    }
}

impl Pinned {
    /// Names the key, see [`PinTable::tag`].
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// The workers that the key remembers; none if it is new.
    #[must_use]
    pub fn pins(&self) -> Option<Pins> {
        let payload = self.page.payload(self.entry?);
        Some(Pins([read_u64(payload, 0), read_u64(payload, 8)]))
    }

    /// When the key was last used, in Unix seconds, to within what [`Pinned::set`] was told.
    #[must_use]
    pub fn used_secs(&self) -> Option<u32> {
        self.entry.map(|entry| read_u32(self.page.payload(entry), 16))
    }

    /// Whether newer keys of its page may soon displace it: the page is nearly full, and half a page has been used since.
    #[must_use]
    pub fn is_fading(&self) -> bool {
        const NEARLY_FULL: usize = ENTRIES_PER_PAGE as usize - ROOM;
        let age = self.entry.map_or(0, |entry| self.page.age(entry) as usize);
        // A product, not two questions of which the second is put at times only: the page does not show in the cost.
        (self.page.used() + 1)
            .saturating_sub(NEARLY_FULL)
            .wrapping_mul((age + 1).saturating_sub(ENTRIES_PER_PAGE as usize / 2))
            > 0
    }

    /// Notes that the key is used now and remembers `pins`. How the key has come onto its page.
    pub fn set(&mut self, pins: Pins, now_secs: u32) -> Entered {
        let (entry, entered) = self.page.find_or_insert(self.tag);
        self.entry = Some(entry);
        let Pins([first, second]) = pins;
        let payload = self.page.payload_mut(entry);
        write(payload, 0, first.to_le_bytes());
        write(payload, 8, second.to_le_bytes());
        write(payload, 16, now_secs.to_le_bytes());
        entered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn set(table: &PinTable, store: &mut MemoryStore, tag: u64, pins: [u64; 2], now_secs: u32) {
        let mut pinned = table.read(store, tag).unwrap();
        pinned.set(Pins(pins), now_secs);
        assert_eq!(table.write(store, &pinned), Ok(Write::Done));
    }

    #[test]
    fn a_key_is_found_again_with_its_workers() {
        let (table, mut store) = (PinTable::new("", 1000), MemoryStore::default());
        assert_eq!(table.read(&mut store, 7).unwrap().pins(), None);
        set(&table, &mut store, 7, [11, 12], 100);
        let pinned = table.read(&mut store, 7).unwrap();
        assert_eq!((pinned.pins(), pinned.used_secs()), (Some(Pins([11, 12])), Some(100)));
        assert_eq!(table.read(&mut store, 8).unwrap().pins(), None);
    }

    #[test]
    fn idle_keys_go_at_a_sweep_to_the_second() {
        let (table, mut store) = (PinTable::new("", 1), MemoryStore::default());
        assert_eq!(table.pages(), 1);
        set(&table, &mut store, 1, [5, 0], 1000);
        set(&table, &mut store, 2, [6, 0], 1001);
        let now = 1000 + 14_400;
        assert_eq!(table.sweep(&mut store, 0, now, 0), Ok(Swept { kept: 2, evicted: 0 }));
        assert_eq!(table.sweep(&mut store, 0, 500, 14_400), Ok(Swept { kept: 2, evicted: 0 }));
        assert_eq!(table.sweep(&mut store, 0, now, 14_400), Ok(Swept { kept: 1, evicted: 1 }));
        assert_eq!(table.read(&mut store, 1).unwrap().pins(), None);
        assert!(table.read(&mut store, 2).unwrap().pins().is_some());
    }

    #[test]
    fn a_full_table_keeps_nearly_all_keys_that_it_was_made_for() {
        const KEYS: u32 = 20_000;
        let (table, mut store) = (PinTable::new("", KEYS), MemoryStore::default());
        let tags: Vec<u64> = (0..KEYS).map(|key| PinTable::tag(3, "m", &key.to_le_bytes())).collect();
        for &tag in &tags {
            set(&table, &mut store, tag, [tag.max(1), 0], 1);
        }
        let lost = tags.iter().filter(|&&tag| table.read(&mut store, tag).unwrap().pins().is_none()).count();
        assert!(lost <= 10, "{lost} of {KEYS} keys are lost");
        for key in 0..100_000_u32 {
            set(&table, &mut store, PinTable::tag(3, "other", &key.to_le_bytes()), [1, 0], 1);
        }
        let stored: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum();
        let bound = table.pages() as usize * table.table.page_bytes();
        assert!(stored <= bound, "{stored} bytes of at most {bound}");
    }

    #[test]
    fn scopes_and_seeds_tell_keys_apart() {
        let tags = [
            PinTable::tag(1, "a", b"k"),
            PinTable::tag(1, "b", b"k"),
            PinTable::tag(2, "a", b"k"),
            PinTable::tag(1, "a", b"l"),
        ];
        assert!(tags.iter().enumerate().all(|(at, tag)| !tags[..at].contains(tag)));
    }
}
