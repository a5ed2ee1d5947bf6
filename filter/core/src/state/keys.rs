//! Requests in flight per routing key and worker, and hence how many distinct keys a worker has (spec: SMG keeps a map
//! of routing key to requests in flight beside each worker's count).
//!
//! Each entry belongs to one VM, so that what a dead VM leaves behind can be told from what lives. All entries of a key
//! share a page: whoever changes one sees whether the key came to the worker or left it. Entries that count something
//! are never replaced; when a page is full of them the request goes untracked.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::{read_u16, read_u32, read_u64, write};
use super::load::SlotId;
use super::page::{Page, PageTable};
use crate::store::{Store, StoreError, Write};

/// Room for 65,536 entries, far more than one Envoy has keyed requests in flight; 2.3 MB at most.
const PAGES: u32 = 2048;
const ENTRIES_PER_PAGE: usize = 32;

/// Key (8), VM (8), slot (2), generation (2), count (4).
const PAYLOAD_BYTES: usize = 24;

/// A writer that loses this often in a row gives up.
const TRIES: usize = 16;

/// The counts' place in the shared store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTable {
    table: PageTable,
}

/// What a change did to the number of distinct keys of its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// So much: 1 when the key came to the worker, -1 when it left it, else 0.
    Keys(i32),
    /// Nothing: a page has no room, or had no such entry.
    Untracked,
    /// Nothing: every try lost its race.
    Lost,
}

/// The keys of a page, read before a pick.
#[derive(Debug)]
pub struct KeyPage {
    page: Page,
    key: u64,
}

impl KeyPage {
    /// Requests in flight of the key at `worker`, over all VMs.
    #[must_use]
    pub fn in_flight(&self, worker: SlotId) -> u32 {
        entries(&self.page)
            .filter(|entry| entry.key == self.key && entry.worker == worker)
            .fold(0, |sum, entry| sum.saturating_add(entry.count))
    }
}

/// One entry, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyCount {
    /// The key's hash.
    pub key: u64,
    /// The VM whose requests these are.
    pub vm: u64,
    /// Where they are.
    pub worker: SlotId,
    /// How many; at least 1.
    pub count: u32,
}

impl KeyTable {
    /// The counts of `instance`.
    #[must_use]
    pub fn new(instance: &str) -> Self {
        Self { table: PageTable::new('k', instance, PAGES, ENTRIES_PER_PAGE, PAYLOAD_BYTES) }
    }

    /// The table underneath, for sweeps and tests.
    #[must_use]
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// What is known of `key`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store, key: u64) -> Result<KeyPage, StoreError> {
        Ok(KeyPage { page: self.table.read(store, self.table.page_of(key))?, key })
    }

    /// `more` requests of `known`'s key at `worker`, by VM `vm`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn add(
        &self,
        store: &mut dyn Store,
        vm: u64,
        mut known: KeyPage,
        worker: SlotId,
        more: u32,
    ) -> Result<Change, StoreError> {
        for _ in 0..TRIES {
            let before = known.in_flight(worker);
            let key = known.key;
            let page = &mut known.page;
            let Some((entry, _)) = page.find_or_add(tag(vm, key, worker)) else { return Ok(Change::Untracked) };
            let count = KeyCount::decode(page.payload(entry)).count.saturating_add(more);
            KeyCount { key, vm, worker, count }.encode(page.payload_mut(entry));
            if self.table.write(store, page)? == Write::Done {
                return Ok(Change::Keys(i32::from(before == 0)));
            }
            known = self.read(store, key)?;
        }
        Ok(Change::Lost)
    }

    /// One request of `key` less at `worker`, by VM `vm`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn remove(&self, store: &mut dyn Store, vm: u64, key: u64, worker: SlotId) -> Result<Change, StoreError> {
        for _ in 0..TRIES {
            let mut known = self.read(store, key)?;
            let page = &mut known.page;
            let Some(entry) = page.find(tag(vm, key, worker)) else { return Ok(Change::Untracked) };
            let mut counted = KeyCount::decode(page.payload(entry));
            counted.count = counted.count.saturating_sub(1);
            if counted.count > 0 {
                counted.encode(page.payload_mut(entry));
            } else {
                page.remove(entry);
            }
            if self.table.write(store, page)? == Write::Done {
                return Ok(Change::Keys(-i32::from(known.in_flight(worker) == 0)));
            }
        }
        Ok(Change::Lost)
    }

    /// The entries of page `index`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn entries(&self, store: &mut dyn Store, index: u32) -> Result<Vec<KeyCount>, StoreError> {
        Ok(entries(&self.table.read(store, index)?).collect())
    }

    /// Removes the entries of page `index` whose VMs are `dead`, and returns the workers that have one distinct key less
    /// for it (each as often as it has). Nothing if every try lost its race: a later sweep finds them.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn purge(
        &self,
        store: &mut dyn Store,
        index: u32,
        dead: &mut dyn FnMut(&mut dyn Store, u64) -> bool,
    ) -> Result<Vec<SlotId>, StoreError> {
        for _ in 0..TRIES {
            let mut page = self.table.read(store, index)?;
            let mut removed = Vec::new();
            for entry in (0..page.used()).rev() {
                let count = KeyCount::decode(page.payload(entry));
                if dead(store, count.vm) {
                    page.remove(entry);
                    removed.push((count.key, count.worker));
                }
            }
            if removed.is_empty() {
                return Ok(Vec::new());
            }
            if self.table.write(store, &page)? == Write::Done {
                removed.sort_unstable_by_key(|(key, worker)| (*key, worker.slot, worker.generation));
                removed.dedup();
                removed
                    .retain(|(key, worker)| !entries(&page).any(|entry| entry.key == *key && entry.worker == *worker));
                return Ok(removed.into_iter().map(|(_, worker)| worker).collect());
            }
        }
        Ok(Vec::new())
    }
}

fn tag(vm: u64, key: u64, worker: SlotId) -> u64 {
    let place = u64::from(worker.slot) << 16 | u64::from(worker.generation);
    let mut bytes = [0; 16];
    write(&mut bytes, 0, key.to_le_bytes());
    write(&mut bytes, 8, place.to_le_bytes());
    xxh3_64_with_seed(&bytes, vm)
}

impl KeyCount {
    fn decode(payload: &[u8]) -> Self {
        Self {
            key: read_u64(payload, 0),
            vm: read_u64(payload, 8),
            worker: SlotId { slot: read_u16(payload, 16), generation: read_u16(payload, 18) },
            count: read_u32(payload, 20),
        }
    }

    fn encode(self, payload: &mut [u8]) {
        write(payload, 0, self.key.to_le_bytes());
        write(payload, 8, self.vm.to_le_bytes());
        write(payload, 16, self.worker.slot.to_le_bytes());
        write(payload, 18, self.worker.generation.to_le_bytes());
        write(payload, 20, self.count.to_le_bytes());
    }
}

fn entries(page: &Page) -> impl Iterator<Item = KeyCount> + '_ {
    (0..page.used()).map(|entry| KeyCount::decode(page.payload(entry)))
}

#[cfg(test)]
#[path = "tests/keys.rs"]
mod tests;
