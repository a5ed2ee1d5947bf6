//! The leader's audit: whether the load table says what the VMs' rows add up to.
//!
//! A VM that traps between the two writes of a step leaves them different by one. Requests under way make them differ
//! for microseconds, so a difference counts only when it stands still, or when it never goes away.

use std::collections::{HashMap, HashSet};

use super::ledger::Ledger;
use super::reaper::purge;
use super::table::Changed;
use super::{Context, Level};
use crate::state::load::{SLOTS_PER_BLOCK, SlotId};
use crate::store::StoreError;

/// A difference that has not changed, with nothing around it, for so many ticks is mended.
const STILL: u32 = 2;

/// Under traffic: a difference of one sign on so many ticks in a row is mended by the least that was seen.
const LASTING: u32 = 16;

/// The number of ticks for which nothing may change before keys are counted: the sweep after a death takes two.
const KEYS_STILL: u32 = 4;

/// What the audit remembers.
#[derive(Debug, Default)]
pub(super) struct Audit {
    differences: HashMap<SlotId, Difference>,
    /// Deaths whose key counts have been audited.
    reaped: u32,
    /// The load blocks' versions, and for how many ticks they have been so.
    versions: Vec<Option<u32>>,
    still: u32,
}

#[derive(Debug, Clone, Copy)]
struct Difference {
    table: u32,
    rows: u32,
    /// Ticks on which both were the same as before.
    still: u32,
    /// Ticks on which the difference had the same sign.
    lasting: u32,
    /// The least of it.
    least: u32,
}

impl Audit {
    /// One tick of the audit. To be called by the leader.
    pub(super) fn check(&mut self, context: &mut Context<'_>, ledger: &Ledger) -> Result<(), StoreError> {
        let claims = ledger.rows.claims(context.store)?;
        if claims.overflowed {
            return Ok(());
        }
        let mut versions = Vec::with_capacity(usize::from(ledger.load.blocks()));
        let mut table: Vec<(SlotId, u32)> = Vec::new();
        for block in 0..ledger.load.blocks() {
            let read = ledger.load.read(context.store, block)?;
            versions.push(read.version);
            for (position, number) in (0..SLOTS_PER_BLOCK).zip(block * SLOTS_PER_BLOCK as u16..) {
                let slot = read.block.slot(position);
                table.push((SlotId { slot: number, generation: slot.generation }, slot.in_flight));
            }
        }
        let mut rows: HashMap<SlotId, u32> = HashMap::new();
        for (row, claim) in (0..).zip(&claims.claims).filter(|(_, claim)| claim.incarnation != 0) {
            let found = ledger.rows.read(context.store, row)?;
            if found.incarnation != claim.incarnation && !found.counts.is_empty() {
                // Overwritten by one that was buried and has not noticed yet: its owner writes it again.
                return Ok(());
            }
            for (id, count) in found.counts {
                let sum = rows.entry(id).or_default();
                *sum = sum.saturating_add(count);
            }
        }
        let mut before = std::mem::take(&mut self.differences);
        for (id, table) in table {
            let rows = rows.get(&id).copied().unwrap_or(0);
            if table != rows {
                self.differences.insert(id, Difference::follow(before.remove(&id), table, rows));
            }
        }
        self.mend(context, ledger)?;
        self.still = if versions == self.versions { self.still.saturating_add(1) } else { 0 };
        self.versions = versions;
        if self.reaped != claims.reaped && self.still >= KEYS_STILL {
            self.reaped = claims.reaped;
            count_keys(context, ledger)?;
        }
        Ok(())
    }

    fn mend(&mut self, context: &mut Context<'_>, ledger: &Ledger) -> Result<(), StoreError> {
        let due = |difference: &Difference| difference.still >= STILL || difference.lasting >= LASTING;
        let mended: Vec<SlotId> = self.differences.iter().filter(|(_, found)| due(found)).map(|(id, _)| *id).collect();
        for id in mended {
            let Some(found) = self.differences.remove(&id) else { continue };
            let still = found.still >= STILL;
            let mut changed = false;
            let done = ledger.load.change(context.store, id, |slot| {
                changed = !still || slot.in_flight == found.table;
                if still && changed {
                    slot.in_flight = found.rows;
                } else if !still && found.table > found.rows {
                    slot.in_flight = slot.in_flight.saturating_sub(found.least);
                } else if !still {
                    slot.in_flight = slot.in_flight.saturating_add(found.least);
                }
                changed
            })?;
            if changed && done == Changed::Done {
                context.metrics.add("smg_in_flight_corrections_total", &[], 1);
                let line = format!(
                    "the in-flight count of slot {} was {} where all VMs together have {}: corrected",
                    id.slot, found.table, found.rows
                );
                context.log.line(Level::Info, &line);
            }
        }
        Ok(())
    }
}

impl Difference {
    fn follow(before: Option<Self>, table: u32, rows: u32) -> Self {
        let new = Self { table, rows, still: 0, lasting: 0, least: table.abs_diff(rows) };
        let Some(before) = before else { return new };
        let lasts = (before.table > before.rows) == (table > rows);
        Self {
            still: if (before.table, before.rows) == (table, rows) { before.still + 1 } else { 0 },
            lasting: if lasts { before.lasting + 1 } else { 0 },
            least: if lasts { before.least.min(new.least) } else { new.least },
            ..new
        }
    }
}

/// Sets every worker's number of distinct keys to what the key counts say; nothing is under way. Whoever was to remove
/// the counts of the dead may have died too, so that is done first.
fn count_keys(context: &mut Context<'_>, ledger: &Ledger) -> Result<(), StoreError> {
    purge(ledger, context, 0..ledger.keys.table().pages())?;
    let mut distinct: HashMap<SlotId, HashSet<u64>> = HashMap::new();
    for page in 0..ledger.keys.table().pages() {
        for entry in ledger.keys.entries(context.store, page)? {
            distinct.entry(entry.worker).or_default().insert(entry.key);
        }
    }
    for block in 0..ledger.load.blocks() {
        let read = ledger.load.read(context.store, block)?;
        for (position, number) in (0..SLOTS_PER_BLOCK).zip(block * SLOTS_PER_BLOCK as u16..) {
            let seen = read.block.slot(position);
            let id = SlotId { slot: number, generation: seen.generation };
            let keys = distinct.get(&id).map_or(0, |keys| i32::try_from(keys.len()).unwrap_or(i32::MAX));
            if seen.keys != keys {
                ledger.load.change(context.store, id, |slot| {
                    let same = slot.keys == seen.keys;
                    if same {
                        slot.keys = keys;
                    }
                    same
                })?;
            }
        }
    }
    Ok(())
}
