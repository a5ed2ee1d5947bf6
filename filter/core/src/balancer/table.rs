//! Reading and writing the load tables, with the bounds that keep a hot loop from spinning.

use crate::state::keys::{Change, KeyTable};
use crate::state::load::{LoadBlock, SLOTS_PER_BLOCK, Slot, SlotId};
use crate::state::names::Name;
use crate::store::{ABSENT, Store, StoreError, Write, version_of};

/// A writer that loses this often in a row gives its change to the pending list.
pub(super) const TRIES: usize = 16;

/// A store that always fails must not fill the memory: further keys that end then stay in their table.
const MOST_PENDING: usize = 16_384;

/// The load tables' places in the shared store.
#[derive(Debug, Clone)]
pub struct LoadTable {
    load: Name,
    report: Name,
    blocks: u16,
}

/// A block with the version it was read at.
#[derive(Debug, Clone)]
pub struct Read {
    /// Which block.
    pub number: u16,
    /// Its content.
    pub block: LoadBlock,
    /// For the compare-and-swap.
    pub version: Option<u32>,
}

/// What a request adds to its worker's slot, or takes from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delta {
    /// Requests in flight.
    pub in_flight: i32,
    /// Distinct routing keys with requests in flight.
    pub keys: i32,
}

/// A change that has lost every race so far; the next tick applies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pending {
    /// Of a worker's counts.
    Load {
        /// The table.
        table: Name,
        /// The worker.
        id: SlotId,
        /// The change.
        delta: Delta,
    },
    /// One request of a routing key less at a worker.
    Key {
        /// The key counts.
        table: KeyTable,
        /// The load table that holds the number of distinct keys.
        load: Name,
        /// The key's hash.
        key: u64,
        /// The worker.
        id: SlotId,
    },
}

impl LoadTable {
    /// The tables of `instance` for `max_workers` workers.
    #[must_use]
    pub fn new(instance: &str, max_workers: u16) -> Self {
        let geometry = u64::from(max_workers);
        Self {
            load: Name::new('l', instance, geometry),
            report: Name::new('p', instance, geometry),
            blocks: max_workers.div_ceil(SLOTS_PER_BLOCK as u16),
        }
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u16 {
        self.blocks
    }

    /// The hot table's name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.load
    }

    /// The key of a hot block.
    #[must_use]
    pub fn load_key(&self, block: u16) -> String {
        self.load.part(u32::from(block))
    }

    /// The key of a cold block.
    #[must_use]
    pub fn report_key(&self, block: u16) -> String {
        self.report.part(u32::from(block))
    }

    /// Creates the blocks that are missing, empty.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn create(&self, store: &mut dyn Store) -> Result<(), StoreError> {
        // The last key is written last: if it exists, so do all others.
        let last = self.report_key(self.blocks.saturating_sub(1));
        if store.get(&last)?.is_some() {
            return Ok(());
        }
        for block in 0..self.blocks {
            for key in [self.load_key(block), self.report_key(block)] {
                store.set(&key, &[], Some(ABSENT))?;
            }
        }
        Ok(())
    }

    /// Reads a hot block.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store, number: u16) -> Result<Read, StoreError> {
        let stored = store.get(&self.load_key(number))?;
        let version = version_of(stored.as_ref());
        let bytes = stored.map(|stored| stored.value).unwrap_or_default();
        Ok(Read { number, block: LoadBlock::new(bytes), version })
    }

    /// Stores a hot block if nobody has written it since.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn write(&self, store: &mut dyn Store, read: &Read) -> Result<Write, StoreError> {
        store.set(&self.load_key(read.number), read.block.as_bytes(), read.version)
    }

    /// Applies `change` to the slot of `id` if `id` still owns it. `change` says whether it changed anything.
    /// Returns false if every try lost its race.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn change(
        &self,
        store: &mut dyn Store,
        id: SlotId,
        mut change: impl FnMut(&mut Slot) -> bool,
    ) -> Result<bool, StoreError> {
        for _ in 0..TRIES {
            let mut read = self.read(store, id.block())?;
            let mut slot = read.block.slot(id.position());
            if slot.generation != id.generation || !change(&mut slot) {
                return Ok(true);
            }
            read.block.set_slot(id.position(), slot);
            if self.write(store, &read)? == Write::Done {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds `delta` to the counts of `id`; what loses every race is added to `pending`, for a later try.
    ///
    /// An in-flight change of the other sign that still waits is reduced instead: the count stops at 0, so to subtract
    /// now and add later would leave one too many for ever. One entry a worker keeps the list short, whatever the store
    /// does.
    pub fn count(&self, store: &mut dyn Store, id: SlotId, delta: Delta, pending: &mut Vec<Pending>) {
        let of_worker = |waiting: &Pending| matches!(waiting, Pending::Load { table, id: waits, .. } if *waits == id && *table == self.load);
        let waits = pending.iter().position(of_worker);
        let opposed = waits.and_then(|at| pending.get(at)).is_some_and(|waiting| {
            matches!(waiting, Pending::Load { delta: waiting, .. }
                if waiting.in_flight.signum() * delta.in_flight.signum() < 0)
        });
        if !opposed && self.add(store, id, delta) {
            return;
        }
        match waits.and_then(|at| pending.get_mut(at)) {
            Some(Pending::Load { delta: waiting, .. }) => {
                waiting.in_flight = waiting.in_flight.saturating_add(delta.in_flight);
                waiting.keys = waiting.keys.saturating_add(delta.keys);
            }
            _ => pending.push(Pending::Load { table: self.load.clone(), id, delta }),
        }
        let nothing = Delta::default();
        pending.retain(|waiting| !matches!(waiting, Pending::Load { delta, .. } if *delta == nothing));
    }

    /// Whether `delta` was applied; false if every try lost its race or the store failed.
    fn add(&self, store: &mut dyn Store, id: SlotId, delta: Delta) -> bool {
        let done = self.change(store, id, |slot| {
            slot.in_flight = slot.in_flight.saturating_add_signed(delta.in_flight);
            slot.keys = slot.keys.saturating_add(delta.keys);
            true
        });
        done == Ok(true)
    }

    fn named(load: Name) -> Self {
        Self { report: load.clone(), load, blocks: 0 }
    }
}

impl Pending {
    /// Tries all of `pending` again and keeps what fails again.
    pub fn retry(store: &mut dyn Store, pending: &mut Vec<Self>) {
        for waiting in std::mem::take(pending) {
            match waiting {
                Self::Load { table, id, delta } => LoadTable::named(table).count(store, id, delta, pending),
                Self::Key { table, load, key, id } => {
                    let keys = Self::drop_key(store, &table, &load, key, id, pending);
                    if keys != 0 {
                        LoadTable::named(load).count(store, id, Delta { in_flight: 0, keys }, pending);
                    }
                }
            }
        }
    }

    /// Counts one request of `key` less at `id` and returns what that did to the worker's number of distinct keys.
    /// What loses every race is added to `pending`.
    pub(super) fn drop_key(
        store: &mut dyn Store,
        table: &KeyTable,
        load: &Name,
        key: u64,
        id: SlotId,
        pending: &mut Vec<Self>,
    ) -> i32 {
        match table.remove(store, key, id) {
            Ok(Change::Keys(keys)) => keys,
            Ok(Change::Untracked) => 0,
            Ok(Change::Lost) | Err(_) => {
                if pending.len() < MOST_PENDING {
                    pending.push(Self::Key { table: table.clone(), load: load.clone(), key, id });
                }
                0
            }
        }
    }
}
