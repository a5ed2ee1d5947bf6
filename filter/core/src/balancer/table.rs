//! Reading and writing the load tables, with the bounds that keep a hot loop from spinning.

use crate::state::load::{LoadBlock, SLOTS_PER_BLOCK, Slot, SlotId};
use crate::state::names::Name;
use crate::store::{ABSENT, Store, StoreError, Write, version_of};

/// A writer that loses this often in a row gives its change to the pending list.
pub(super) const TRIES: usize = 16;

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

/// A change of an in-flight count that has lost every race so far; the next tick applies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    table: Name,
    id: SlotId,
    change: i32,
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

    /// Adds `change` to the in-flight count of `id`; what loses every race is added to `pending`, for a later try.
    ///
    /// A change of the other sign that still waits is reduced instead: a count stops at 0, so to subtract now and add
    /// later would leave one too many for ever. One entry a worker keeps the list short, whatever the store does.
    pub fn count(&self, store: &mut dyn Store, id: SlotId, change: i32, pending: &mut Vec<Pending>) {
        let waits = pending.iter().position(|waiting| waiting.id == id && waiting.table == self.load);
        let opposed =
            waits.and_then(|at| pending.get(at)).is_some_and(|waiting| waiting.change.signum() != change.signum());
        let left = if opposed { Some(change) } else { self.add(store, id, change).map(|left| left.change) };
        let Some(left) = left else { return };
        match waits.and_then(|at| pending.get_mut(at)) {
            Some(waiting) => waiting.change = waiting.change.saturating_add(left),
            None => pending.push(Pending { table: self.load.clone(), id, change: left }),
        }
        pending.retain(|waiting| waiting.change != 0);
    }

    fn add(&self, store: &mut dyn Store, id: SlotId, change: i32) -> Option<Pending> {
        let done = self.change(store, id, |slot| {
            slot.in_flight = slot.in_flight.saturating_add_signed(change);
            true
        });
        (done != Ok(true)).then(|| Pending { table: self.load.clone(), id, change })
    }

    /// Tries a pending change again.
    #[must_use]
    pub fn retry(store: &mut dyn Store, pending: Pending) -> Option<Pending> {
        let table = Self { load: pending.table.clone(), report: pending.table, blocks: 0 };
        table.add(store, pending.id, pending.change)
    }
}
