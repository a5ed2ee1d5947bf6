//! The shared prefix tree: which workers were sent which prefixes, in pages that every thread reads and writes.
//!
//! Reads probe a fixed binary layout over the absolute depth number (16, then 8 or 24, …), not over this prompt's own
//! length: all turns of a conversation then probe the same nodes, and refreshing a probed node that fades keeps it.
//! All writes are best effort: one conflict and the write is skipped, so a hot system prompt never spins; what is
//! lost is a hint.

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{read_u16, read_u32, write};
use super::load::SlotId;
use super::page::{Entered, Page, PageTable};
use crate::prefix::path::Node;
use crate::prefix::{MAX_HOLDERS, Match};
use crate::store::{Store, StoreError, Write};

/// A holder: slot + 1 (0 is nobody), generation, and the page's clock when it was last used.
const HOLDER_BYTES: usize = 8;
/// Behind its holders a node says whose it is: model tag (4), and units since the node above (4, the top bit for ids).
const HOLDERS_BYTES: usize = MAX_HOLDERS * HOLDER_BYTES;
const PAYLOAD_BYTES: usize = HOLDERS_BYTES + 8;
const OF_TOKENS: u32 = 1 << 31;

/// 48 nodes make a page of 4 KB: reading it costs little more than reading 1 KB.
const NODES_PER_PAGE: usize = 48;

/// What a path belongs to, for the gauges: searches go by its hashes alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Label {
    /// Tells the models of a fleet apart; see [`Label::new`].
    pub model: u32,
    /// Its units are token ids, not bytes of text.
    pub tokens: bool,
}

impl Label {
    /// The label of `model`, a name that the fleet knows.
    #[must_use]
    pub fn new(model: &str, tokens: bool) -> Self {
        Self { model: xxh3_64(model.as_bytes()) as u32, tokens }
    }
}

/// A node as the census sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    /// What its path belongs to.
    pub label: Label,
    /// Units between the node above and this one.
    pub units: u32,
    /// Who holds it.
    pub holders: Vec<SlotId>,
}

/// The tree's place in the shared store.
#[derive(Debug, Clone)]
pub struct PrefixTree {
    table: PageTable,
}

/// What a search has found, with the pages it has read: inserting afterwards need not read them again.
#[derive(Debug, Default)]
pub struct Found {
    /// The match, as a policy wants it.
    pub matched: Match,
    /// Nodes at and above the match, 0 if nothing matched.
    depth: usize,
    pages: Vec<Page>,
    /// A probed node is about to be replaced although it is in use.
    fading: bool,
}

impl PrefixTree {
    /// A tree of at most `max_bytes` of shared data (at least one page).
    #[must_use]
    pub fn new(instance: &str, max_bytes: u64) -> Self {
        let page_bytes = PageTable::new('t', instance, 1, NODES_PER_PAGE, PAYLOAD_BYTES).page_bytes() as u64;
        // Keys and bookkeeping of the store are bytes too: reckon 64 per page.
        let pages = u32::try_from(max_bytes / (page_bytes + 64)).unwrap_or(u32::MAX);
        Self { table: PageTable::new('t', instance, pages.min(1 << 24), NODES_PER_PAGE, PAYLOAD_BYTES) }
    }

    /// The table underneath, for sweeps and tests.
    #[must_use]
    pub fn table(&self) -> &PageTable {
        &self.table
    }

    /// The deepest node of `path` with a holder for which `usable` holds. `total` is the prompt's length in the
    /// path's units.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn search(
        &self,
        store: &mut dyn Store,
        path: &[Node],
        total: u64,
        usable: &dyn Fn(SlotId) -> bool,
    ) -> Result<Found, StoreError> {
        let mut found = Found { matched: Match { total, ..Match::default() }, ..Found::default() };
        let mut step = 16;
        while step > 0 {
            let probe = found.depth + step;
            step /= 2;
            let Some(node) = probe.checked_sub(1).and_then(|index| path.get(index)) else { continue };
            let index = self.table.page_of(node.tag);
            let known = found.pages.iter().position(|page| page.index() == index);
            if known.is_none() {
                found.pages.push(self.table.read(store, index)?);
            }
            let Some(page) = known.map_or(found.pages.last(), |at| found.pages.get(at)) else { continue };
            let Some(entry) = page.find(node.tag) else { continue };
            let holders: Vec<SlotId> = holders(page.payload(entry)).filter(|holder| usable(*holder)).collect();
            if !holders.is_empty() {
                found.fading |= page.is_fading(entry);
                found.depth = probe;
                found.matched.matched = node.depth;
                found.matched.holders = holders;
            }
        }
        Ok(found)
    }

    /// Makes `worker` a holder of every node of `path`, which belongs to `label`. Nodes above the match are left alone when the worker holds
    /// the match already, unless one of those that were probed fades. Returns how many other nodes had to make room.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn insert(
        &self,
        store: &mut dyn Store,
        path: &[Node],
        label: Label,
        worker: SlotId,
        mut found: Found,
    ) -> Result<u64, StoreError> {
        let mut evicted = 0;
        let known = if found.matched.holders.contains(&worker) { found.depth } else { 0 };
        if known > 0 && found.fading {
            for page in &mut found.pages {
                let mut changed = false;
                for node in path.iter().take(known) {
                    if let Some(entry) = page.find(node.tag).filter(|&entry| page.is_fading(entry)) {
                        hold(page, entry, worker);
                        page.touch(entry);
                        changed = true;
                    }
                }
                if changed {
                    self.table.write(store, page)?;
                }
            }
            found.pages.clear();
        }
        let depth_above =
            |number: usize| number.checked_sub(1).and_then(|above| path.get(above)).map_or(0, |node| node.depth);
        for (number, node) in path.iter().enumerate().skip(known) {
            let index = self.table.page_of(node.tag);
            let read = found.pages.iter().position(|page| page.index() == index);
            let mut page = match read {
                Some(at) => found.pages.swap_remove(at),
                None => self.table.read(store, index)?,
            };
            let present = page.find(node.tag);
            if let Some(entry) = present
                && !page.is_fading(entry)
                && holders(page.payload(entry)).any(|holder| holder == worker)
            {
                continue;
            }
            let (entry, entered) = page.find_or_insert(node.tag);
            hold(&mut page, entry, worker);
            let units = u32::try_from(node.depth - depth_above(number)).unwrap_or(u32::MAX) & !OF_TOKENS;
            let payload = page.payload_mut(entry);
            write(payload, HOLDERS_BYTES, label.model.to_le_bytes());
            write(payload, HOLDERS_BYTES + 4, (units | if label.tokens { OF_TOKENS } else { 0 }).to_le_bytes());
            // A conflict skips this node: the other writer's news is as good as ours.
            if self.table.write(store, &page)? == Write::Done && entered == Entered::Replaced {
                evicted += 1;
            }
        }
        Ok(evicted)
    }
}

/// The nodes of one page.
pub fn nodes(page: &Page) -> impl Iterator<Item = Counted> + '_ {
    (0..page.used()).map(|entry| {
        let payload = page.payload(entry);
        let units = read_u32(payload, HOLDERS_BYTES + 4);
        Counted {
            label: Label { model: read_u32(payload, HOLDERS_BYTES), tokens: units & OF_TOKENS != 0 },
            units: units & !OF_TOKENS,
            holders: holders(payload).collect(),
        }
    })
}

/// The holders in a node's payload.
fn holders(payload: &[u8]) -> impl Iterator<Item = SlotId> + '_ {
    payload.get(..HOLDERS_BYTES).unwrap_or_default().chunks_exact(HOLDER_BYTES).filter_map(|raw| {
        let slot = read_u16(raw, 0).checked_sub(1)?;
        Some(SlotId { slot, generation: read_u16(raw, 2) })
    })
}

/// Makes `worker` a holder, in the place of an earlier owner of its slot, else a free one, else the stalest.
fn hold(page: &mut Page, entry: usize, worker: SlotId) {
    let clock = page.clock();
    let payload = page.payload_mut(entry);
    let wanted = worker.slot.saturating_add(1);
    let rank = |raw: &[u8]| match read_u16(raw, 0) {
        slot if slot == wanted => 0,
        0 => 1,
        _ => 2,
    };
    let place = payload
        .get_mut(..HOLDERS_BYTES)
        .unwrap_or_default()
        .chunks_exact_mut(HOLDER_BYTES)
        .min_by_key(|raw| (rank(raw), std::cmp::Reverse(clock.wrapping_sub(read_u32(raw, 4)))));
    if let Some(raw) = place {
        write(raw, 0, wanted.to_le_bytes());
        write(raw, 2, worker.generation.to_le_bytes());
        write(raw, 4, clock.to_le_bytes());
    }
}

#[cfg(test)]
#[path = "tests/tree.rs"]
mod tests;
