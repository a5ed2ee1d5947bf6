//! Who was sent which prompts, by hashes of their first token ids: what `cache_aware` goes by in place of the prefix tree
//! with `cache_index: hash`.
//!
//! A key has up to three holders, each with the second in which it was last sent such a prompt. It stands for the model,
//! the partition, the number of ids and the ids (see [`crate::prefix::path::of_boundaries`]). All writes are best effort:
//! one conflict and the write is skipped; what is lost is a hint.

use std::collections::HashMap;

use super::bytes::{read_u16, read_u32, write};
use super::load::SlotId;
use super::page::{Entered, Page, PageTable};
use crate::prefix::path::Node;
use crate::store::{Store, StoreError, Write};

/// Holders of one key: SMG's number.
const MAX_HOLDERS: usize = 3;
/// Slot + 1 (0 is nobody), generation, and the second of the last touch, in Unix time.
const HOLDER_BYTES: usize = 8;
const HOLDERS_BYTES: usize = MAX_HOLDERS * HOLDER_BYTES;
/// Behind its holders a key says whose it is: the model's tag.
const PAYLOAD_BYTES: usize = HOLDERS_BYTES + 4;
/// 96 keys make a page of 4 KB.
const KEYS_PER_PAGE: usize = 96;

/// Reading 64 pages takes about 100 µs.
const PAGES_PER_TICK: u32 = 64;

/// Models beyond so many are not counted.
const MAX_LABELS: usize = 2048;

/// The table's place in the shared store.
#[derive(Debug, Clone)]
pub struct Placements {
    table: PageTable,
    ttl_secs: u32,
}

/// The pages of a prompt's marks, as read once for the probe and the note.
#[derive(Debug, Default)]
pub struct Known {
    pages: Vec<Page>,
}

/// A sweep in progress, or a finished one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    next: u32,
    /// Keys with a holder, by the model's tag.
    pub keys: HashMap<u32, u64>,
}

impl Placements {
    /// A table of at most `max_bytes` of shared data (at least one page), whose holders count for `ttl_secs`.
    #[must_use]
    pub fn new(instance: &str, max_bytes: u64, ttl_secs: u32) -> Self {
        let table = |pages| PageTable::new('h', instance, pages, KEYS_PER_PAGE, PAYLOAD_BYTES);
        // Keys and bookkeeping of the store are bytes too: reckon 64 per page.
        let pages = max_bytes / (table(1).page_bytes() as u64 + 64);
        Self { table: table(u32::try_from(pages).unwrap_or(u32::MAX).min(1 << 24)), ttl_secs }
    }

    /// Reads the pages of `marks`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store, marks: &[Node]) -> Result<Known, StoreError> {
        let mut pages: Vec<Page> = Vec::with_capacity(marks.len());
        for mark in marks {
            let index = self.table.page_of(mark.tag);
            if !pages.iter().any(|page| page.index() == index) {
                pages.push(self.table.read(store, index)?);
            }
        }
        Ok(Known { pages })
    }

    /// The deepest of `marks` (ascending) with a holder for which `usable` holds: its depth and those holders. Depth 0 if
    /// there is none.
    #[must_use]
    pub fn search(
        &self,
        known: &Known,
        marks: &[Node],
        now_secs: u32,
        usable: &dyn Fn(SlotId) -> bool,
    ) -> (u64, Vec<SlotId>) {
        for mark in marks.iter().rev() {
            let index = self.table.page_of(mark.tag);
            let Some(page) = known.pages.iter().find(|page| page.index() == index) else { continue };
            let Some(key) = page.find(mark.tag) else { continue };
            let live = holders(page.payload(key)).filter(|(_, touched)| self.is_live(*touched, now_secs));
            let usable: Vec<SlotId> = live.map(|(holder, _)| holder).filter(|holder| usable(*holder)).collect();
            if !usable.is_empty() {
                return (mark.depth, usable);
            }
        }
        (0, Vec::new())
    }

    /// Makes `worker` a holder of all `marks`, which belong to the model of tag `label`: refreshed where it is one, else in
    /// the place of one that is gone or has expired, else of the stalest. Returns how many other keys had to make room.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn note(
        &self,
        store: &mut dyn Store,
        known: Known,
        marks: &[Node],
        label: u32,
        worker: SlotId,
        now_secs: u32,
    ) -> Result<u64, StoreError> {
        let mut evicted = 0;
        for mut page in known.pages {
            let (index, mut changed, mut replaced) = (page.index(), false, 0);
            for mark in marks.iter().filter(|mark| self.table.page_of(mark.tag) == index) {
                let noted = |(holder, touched): (SlotId, u32)| holder == worker && touched == now_secs;
                if let Some(key) = page.find(mark.tag)
                    && holders(page.payload(key)).any(noted)
                    && !page.is_fading(key)
                {
                    // A second is as fine as it gets: a hot prompt is written once a second.
                    continue;
                }
                let (key, entered) = page.find_or_insert(mark.tag);
                let payload = page.payload_mut(key);
                self.hold(payload, worker, now_secs);
                write(payload, HOLDERS_BYTES, label.to_le_bytes());
                replaced += u64::from(entered == Entered::Replaced);
                changed = true;
            }
            if changed && self.table.write(store, &page)? == Write::Done {
                evicted += replaced;
            }
        }
        Ok(evicted)
    }

    /// Sweeps some more pages: drops holders that have expired or for which `usable` does not hold, and keys without any.
    /// The count when all have been swept, after which it starts over.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn sweep(
        &self,
        store: &mut dyn Store,
        survey: &mut Survey,
        now_secs: u32,
        usable: &dyn Fn(SlotId) -> bool,
    ) -> Result<Option<Survey>, StoreError> {
        for _ in 0..PAGES_PER_TICK {
            if survey.next >= self.table.pages() {
                return Ok(Some(std::mem::take(survey)));
            }
            let mut page = self.table.read(store, survey.next)?;
            survey.next += 1;
            let mut changed = false;
            // Backwards, since the last key takes the place of a removed one.
            for key in (0..page.used()).rev() {
                let payload = page.payload_mut(key);
                changed |= self.drop_holders(payload, now_secs, usable);
                if holders(payload).next().is_none() {
                    page.remove(key);
                    changed = true;
                    continue;
                }
                let label = read_u32(payload, HOLDERS_BYTES);
                if survey.keys.len() < MAX_LABELS || survey.keys.contains_key(&label) {
                    *survey.keys.entry(label).or_default() += 1;
                }
            }
            if changed {
                // A lost race was one to news: the next sweep looks again.
                self.table.write(store, &page)?;
            }
        }
        Ok(None)
    }

    /// Whether what was touched then still counts. A clock that leaps forward and back must not make a holder eternal.
    fn is_live(&self, touched_secs: u32, now_secs: u32) -> bool {
        now_secs.abs_diff(touched_secs) <= self.ttl_secs
    }

    fn drop_holders(&self, payload: &mut [u8], now_secs: u32, usable: &dyn Fn(SlotId) -> bool) -> bool {
        let mut dropped = false;
        for raw in payload.get_mut(..HOLDERS_BYTES).unwrap_or_default().chunks_exact_mut(HOLDER_BYTES) {
            if let Some((holder, touched)) = holder(raw)
                && (!self.is_live(touched, now_secs) || !usable(holder))
            {
                raw.fill(0);
                dropped = true;
            }
        }
        dropped
    }

    fn hold(&self, payload: &mut [u8], worker: SlotId, now_secs: u32) {
        let rank = |raw: &[u8]| match holder(raw) {
            // The same slot: the worker itself, or an earlier owner.
            Some((holder, _)) if holder.slot == worker.slot => (0, 0),
            None => (1, 0),
            Some((_, touched)) if !self.is_live(touched, now_secs) => (2, 0),
            Some((_, touched)) => (3, touched),
        };
        let places = payload.get_mut(..HOLDERS_BYTES).unwrap_or_default().chunks_exact_mut(HOLDER_BYTES);
        if let Some(raw) = places.min_by_key(|raw| rank(raw)) {
            write(raw, 0, worker.slot.saturating_add(1).to_le_bytes());
            write(raw, 2, worker.generation.to_le_bytes());
            write(raw, 4, now_secs.to_le_bytes());
        }
    }
}

/// The holders in a key's payload, with the seconds of their last touch.
fn holders(payload: &[u8]) -> impl Iterator<Item = (SlotId, u32)> + '_ {
    payload.get(..HOLDERS_BYTES).unwrap_or_default().chunks_exact(HOLDER_BYTES).filter_map(holder)
}

fn holder(raw: &[u8]) -> Option<(SlotId, u32)> {
    let slot = read_u16(raw, 0).checked_sub(1)?;
    Some((SlotId { slot, generation: read_u16(raw, 2) }, read_u32(raw, 4)))
}

#[cfg(test)]
#[path = "tests/placements.rs"]
mod tests;
