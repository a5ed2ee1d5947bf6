//! The fleet table: which worker owns which slot.
//!
//! Configurations put nothing into it but the hashes of their workers' URLs (several configurations may share it, and
//! a rejected one runs too). A worker that nobody has named for a while loses its slot; the slot's next owner
//! has another generation, so nothing that was remembered of the old one is taken for the new one's.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{read_u16, read_u32, read_u64, write};
use super::load::SlotId;
use super::names::Name;
use crate::store::{Store, StoreError, Write, version_of};

const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 16;
const TRIES: usize = 16;

/// A slot that nobody has named for this long is given up, in seconds.
pub const FORGOTTEN_AFTER_SECS: u32 = 60;

/// The hash that stands for a worker's URL.
#[must_use]
pub fn url_hash(url: &str) -> u64 {
    // A slash at the end names the same engine.
    xxh3_64(url.trim_end_matches('/').as_bytes()).max(1)
}

/// The table's place in the shared store.
#[derive(Debug, Clone)]
pub struct FleetTable {
    key: String,
    capacity: u16,
}

/// A copy of the table.
#[derive(Debug, Clone, Default)]
pub struct FleetState {
    slots: Vec<Owner>,
    named: u64,
    discovers_secs: u32,
    version: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Owner {
    url: u64,
    seen_secs: u32,
    generation: u16,
}

impl FleetState {
    fn decode(bytes: &[u8], capacity: u16) -> Self {
        let mut slots = vec![Owner::default(); usize::from(capacity)];
        for (number, slot) in slots.iter_mut().enumerate() {
            let at = HEADER_BYTES + number * SLOT_BYTES;
            *slot = Owner {
                url: read_u64(bytes, at),
                seen_secs: read_u32(bytes, at + 8),
                generation: read_u16(bytes, at + 12),
            };
        }
        Self { slots, named: read_u64(bytes, 0), discovers_secs: read_u32(bytes, 8), version: None }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + self.slots.len() * SLOT_BYTES];
        write(&mut bytes, 0, self.named.to_le_bytes());
        write(&mut bytes, 8, self.discovers_secs.to_le_bytes());
        for (number, slot) in self.slots.iter().enumerate() {
            let at = HEADER_BYTES + number * SLOT_BYTES;
            write(&mut bytes, at, slot.url.to_le_bytes());
            write(&mut bytes, at + 8, slot.seen_secs.to_le_bytes());
            write(&mut bytes, at + 12, slot.generation.to_le_bytes());
        }
        bytes
    }

    /// The version of the bytes it was read from, if it was read.
    #[must_use]
    pub fn version(&self) -> Option<u32> {
        self.version
    }

    /// A hash of who owns which slot: equal tables may differ in stamps only.
    #[must_use]
    pub fn owners(&self) -> u64 {
        let mut bytes = Vec::with_capacity(self.slots.len() * 10);
        for owner in &self.slots {
            bytes.extend_from_slice(&owner.url.to_le_bytes());
            bytes.extend_from_slice(&owner.generation.to_le_bytes());
        }
        xxh3_64(&bytes)
    }

    /// Where each URL hash stands.
    #[must_use]
    pub fn slots(&self) -> HashMap<u64, SlotId> {
        let owned = self.slots.iter().enumerate().filter(|(_, owner)| owner.url != 0);
        owned
            .filter_map(|(slot, owner)| {
                Some((owner.url, SlotId { slot: u16::try_from(slot).ok()?, generation: owner.generation }))
            })
            .collect()
    }

    /// How often the table of named workers has changed, as far as it is to be heeded; see [`super::named`].
    #[must_use]
    pub fn named(&self) -> u64 {
        self.named
    }

    /// Whether some configuration wants workers that only reporters name.
    #[must_use]
    pub fn discovers(&self, now_secs: u32) -> bool {
        self.discovers_secs != 0 && self.discovers_secs.saturating_add(FORGOTTEN_AFTER_SECS) >= now_secs
    }

    /// Slots whose owner was last named before `now_secs - FORGOTTEN_AFTER_SECS`.
    #[must_use]
    pub fn forgotten(&self, now_secs: u32) -> Vec<SlotId> {
        let old = |owner: &Owner| owner.url != 0 && owner.seen_secs.saturating_add(FORGOTTEN_AFTER_SECS) < now_secs;
        let forgotten = self.slots.iter().enumerate().filter(|(_, owner)| old(owner));
        forgotten
            .filter_map(|(slot, owner)| Some(SlotId { slot: u16::try_from(slot).ok()?, generation: owner.generation }))
            .collect()
    }

    /// Gives every URL of `urls` a slot; true if the table has changed. A full table leaves the rest without.
    fn intern(&mut self, urls: &[u64], now_secs: u32) -> bool {
        let known = self.slots();
        let mut changed = false;
        let mut free = 0;
        for &url in urls {
            if known.contains_key(&url) || self.slots.iter().take(free).any(|owner| owner.url == url) {
                continue;
            }
            while self.slots.get(free).is_some_and(|owner| owner.url != 0) {
                free += 1;
            }
            let Some(owner) = self.slots.get_mut(free) else { break };
            *owner = Owner { url, seen_secs: now_secs, ..*owner };
            free += 1;
            changed = true;
        }
        changed
    }

    /// Notes that `urls` are still in use; true if a stamp has moved by enough to matter.
    fn refresh(&mut self, urls: &[u64], now_secs: u32) -> bool {
        let slots = self.slots();
        let mut changed = false;
        for id in urls.iter().filter_map(|url| slots.get(url)) {
            if let Some(owner) = self.slots.get_mut(usize::from(id.slot))
                && owner.seen_secs.saturating_add(FORGOTTEN_AFTER_SECS / 4) < now_secs
            {
                owner.seen_secs = now_secs;
                changed = true;
            }
        }
        changed
    }

    fn heed(&mut self, named: u64) -> bool {
        let later = named > self.named;
        self.named = self.named.max(named);
        later
    }

    fn free(&mut self, id: SlotId) -> bool {
        let Some(owner) = self.slots.get_mut(usize::from(id.slot)) else { return false };
        if owner.url == 0 || owner.generation != id.generation {
            return false;
        }
        *owner = Owner { generation: id.generation.wrapping_add(1), ..Owner::default() };
        true
    }
}

impl FleetTable {
    /// The table of `instance` with `capacity` slots.
    #[must_use]
    pub fn new(instance: &str, capacity: u16) -> Self {
        Self { key: Name::new('f', instance, u64::from(capacity)).part(0), capacity }
    }

    /// Its key, for creation.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads the table if its version is not `known`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read_newer(&self, store: &mut dyn Store, known: Option<u32>) -> Result<Option<FleetState>, StoreError> {
        let stored = store.get(&self.key)?;
        Ok(stored.filter(|stored| known != Some(stored.version)).map(|stored| FleetState {
            version: Some(stored.version),
            ..FleetState::decode(&stored.value, self.capacity)
        }))
    }

    /// Reads the table.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store) -> Result<FleetState, StoreError> {
        let stored = store.get(&self.key)?;
        let bytes = stored.as_ref().map_or(&[][..], |stored| &stored.value);
        Ok(FleetState {
            version: stored.as_ref().map(|stored| stored.version),
            ..FleetState::decode(bytes, self.capacity)
        })
    }

    /// Gives every URL a slot where it has none, and returns the table.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn intern(&self, store: &mut dyn Store, urls: &[u64], now_secs: u32) -> Result<FleetState, StoreError> {
        self.change(store, |state| state.intern(urls, now_secs)).map(|(state, _)| state)
    }

    /// Notes that `urls` are in use, and whether workers that only reporters name are wanted. Returns the table.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn refresh(
        &self,
        store: &mut dyn Store,
        urls: &[u64],
        discovers: bool,
        now_secs: u32,
    ) -> Result<FleetState, StoreError> {
        let changed = self.change(store, |state| {
            let told = state.discovers_secs;
            let noted = discovers && (told == 0 || told.saturating_add(FORGOTTEN_AFTER_SECS / 4) < now_secs);
            if noted {
                state.discovers_secs = now_secs.max(1);
            }
            noted | state.intern(urls, now_secs) | state.refresh(urls, now_secs)
        });
        changed.map(|(state, _)| state)
    }

    /// Makes a change of the table of named workers count, the `named`-th, and gives `urls` slots where they have none.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn heed(
        &self,
        store: &mut dyn Store,
        named: u64,
        urls: &[u64],
        now_secs: u32,
    ) -> Result<FleetState, StoreError> {
        self.change(store, |state| state.heed(named) | state.intern(urls, now_secs)).map(|(state, _)| state)
    }

    /// Takes a slot from its owner; true if it was `id`'s.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn free(&self, store: &mut dyn Store, id: SlotId) -> Result<bool, StoreError> {
        self.change(store, |state| state.free(id)).map(|(_, changed)| changed)
    }

    fn change(
        &self,
        store: &mut dyn Store,
        mut apply: impl FnMut(&mut FleetState) -> bool,
    ) -> Result<(FleetState, bool), StoreError> {
        let mut state = FleetState::default();
        for _ in 0..TRIES {
            let stored = store.get(&self.key)?;
            let version = version_of(stored.as_ref());
            let bytes = stored.map(|stored| stored.value).unwrap_or_default();
            state = FleetState::decode(&bytes, self.capacity);
            if !apply(&mut state) {
                return Ok((state, false));
            }
            if store.set(&self.key, &state.encode(), version)? == Write::Done {
                return Ok((state, true));
            }
        }
        // Lost every race: what was read last, without our change. The next tick tries again.
        Ok((state, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn a_url_keeps_its_slot() {
        let (table, mut store) = (FleetTable::new("", 64), MemoryStore::default());
        let first = table.intern(&mut store, &[5, 6, 7], 0).unwrap().slots();
        let second = table.intern(&mut store, &[9, 7, 6, 5], 0).unwrap().slots();
        assert!([5, 6, 7].iter().all(|url| first[url] == second[url]));
        let distinct: std::collections::HashSet<_> = second.values().map(|id| id.slot).collect();
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn a_full_table_gives_no_slot_and_loses_none() {
        let (table, mut store) = (FleetTable::new("", 64), MemoryStore::default());
        let urls: Vec<u64> = (1..=70).collect();
        let slots = table.intern(&mut store, &urls, 0).unwrap().slots();
        assert_eq!(slots.len(), 64);
        assert!(slots.contains_key(&64) && !slots.contains_key(&65));
    }

    #[test]
    fn a_slot_that_is_given_up_comes_back_with_another_generation() {
        let (table, mut store) = (FleetTable::new("", 64), MemoryStore::default());
        let old = table.intern(&mut store, &[5], 0).unwrap().slots()[&5];
        let state = table.refresh(&mut store, &[], false, 61).unwrap();
        assert_eq!(state.forgotten(61), [old]);
        assert!(table.free(&mut store, old).unwrap());
        assert!(!table.free(&mut store, old).unwrap());
        let new = table.intern(&mut store, &[6], 61).unwrap().slots()[&6];
        assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
    }

    #[test]
    fn a_worker_in_use_is_not_forgotten() {
        let (table, mut store) = (FleetTable::new("", 64), MemoryStore::default());
        table.intern(&mut store, &[5], 0).unwrap();
        for now in 0..1000 {
            assert!(table.refresh(&mut store, &[5], false, now).unwrap().forgotten(now).is_empty());
        }
    }

    #[test]
    fn what_reporters_name_is_heeded_once_and_wanted_for_a_while() {
        let (table, mut store) = (FleetTable::new("", 64), MemoryStore::default());
        let state = table.heed(&mut store, 3, &[5], 0).unwrap();
        assert!(state.slots().contains_key(&5) && !state.discovers(0));
        assert_eq!(table.heed(&mut store, 2, &[], 0).unwrap().named(), 3, "an older change changes nothing");
        let state = table.refresh(&mut store, &[], true, 100).unwrap();
        assert!(state.discovers(160) && !state.discovers(161));
        assert_eq!(table.read(&mut store).unwrap().named(), 3);
        for now in 100..1000 {
            assert!(table.refresh(&mut store, &[], true, now).unwrap().discovers(now));
        }
    }
}
