//! Reading and writing the load tables, with the bounds that keep a hot loop from spinning.

use crate::config::Config;
use crate::state::load::{LoadBlock, SLOTS_PER_BLOCK, Slot, SlotId};
use crate::state::names::Name;
use crate::store::{ABSENT, Store, StoreError, Write, version_of};

/// A writer that loses this often in a row gives up.
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

/// What a request adds to its worker's slot, or takes from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delta {
    /// Requests in flight.
    pub in_flight: i32,
    /// Distinct routing keys with requests in flight.
    pub keys: i32,
}

/// What became of a change of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It stands, or there was nothing to change.
    Done,
    /// The slot has another owner now.
    Gone,
    /// Every try lost its race.
    Lost,
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

    /// The tables that `config` works on.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self::new(&config.instance, u16::try_from(config.max_workers).unwrap_or(u16::MAX))
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
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn change(
        &self,
        store: &mut dyn Store,
        id: SlotId,
        mut change: impl FnMut(&mut Slot) -> bool,
    ) -> Result<Changed, StoreError> {
        for _ in 0..TRIES {
            let mut read = self.read(store, id.block())?;
            let mut slot = read.block.slot(id.position());
            if slot.generation != id.generation {
                return Ok(Changed::Gone);
            }
            if !change(&mut slot) {
                return Ok(Changed::Done);
            }
            read.block.set_slot(id.position(), slot);
            if self.write(store, &read)? == Write::Done {
                return Ok(Changed::Done);
            }
        }
        Ok(Changed::Lost)
    }

    /// Adds `delta` to the counts of `id`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn add(&self, store: &mut dyn Store, id: SlotId, delta: Delta) -> Result<Changed, StoreError> {
        self.change(store, id, |slot| {
            slot.in_flight = slot.in_flight.saturating_add_signed(delta.in_flight);
            slot.keys = slot.keys.saturating_add(delta.keys);
            true
        })
    }
}
