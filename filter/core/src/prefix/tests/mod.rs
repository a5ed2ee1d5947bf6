//! The two indexes against the vectors of the specification and against each other.

mod exact;
mod property;
mod vectors;

use super::exact::ExactIndex;
use super::path::Root;
use super::shared::SharedIndex;
use crate::state::load::SlotId;
use crate::state::tree::PrefixTree;
use crate::store::MemoryStore;

const ROOT: Root<'_> = Root { seed: 7, model: "m", namespace: None };

/// Token ids in a page, as in the vectors.
const PAGE: u32 = 16;

fn worker(slot: u16) -> SlotId {
    SlotId { slot, generation: 0 }
}

fn exact() -> ExactIndex {
    ExactIndex::new(PAGE)
}

fn shared(max_bytes: u64) -> SharedIndex<MemoryStore> {
    SharedIndex::new(PrefixTree::new("", max_bytes), MemoryStore::default(), PAGE)
}
