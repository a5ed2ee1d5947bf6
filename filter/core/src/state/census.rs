//! How full the prefix tree is, counted a few pages per tick so that no tick holds its thread for long.

use super::tree::PrefixTree;
use crate::store::{Store, StoreError};

/// Reading 64 pages takes about 100 µs.
const PAGES_PER_TICK: u32 = 64;

/// A count in progress.
#[derive(Debug, Default)]
pub struct Census {
    next: u32,
    nodes: u64,
    bytes: u64,
}

/// A finished count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// Nodes in use.
    pub nodes: u64,
    /// Bytes of shared data that the pages take, without their keys.
    pub bytes: u64,
}

impl Census {
    /// Counts some more pages; the result when all have been counted, after which it starts over.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn step(&mut self, store: &mut dyn Store, tree: &PrefixTree) -> Result<Option<Counted>, StoreError> {
        let table = tree.table();
        for _ in 0..PAGES_PER_TICK {
            if self.next >= table.pages() {
                let counted = Counted { nodes: self.nodes, bytes: self.bytes };
                *self = Self::default();
                return Ok(Some(counted));
            }
            let page = table.read(store, self.next)?;
            self.next += 1;
            self.nodes += page.used() as u64;
            self.bytes += page.stored_bytes() as u64;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::path::{Root, of_text};
    use crate::state::load::SlotId;
    use crate::state::tree::Found;
    use crate::store::MemoryStore;

    #[test]
    fn all_nodes_are_counted_over_some_ticks() {
        let (tree, mut store) = (PrefixTree::new("", 1 << 20), MemoryStore::default());
        let mut nodes = Vec::new();
        of_text(Root { seed: 1, model: "m", namespace: None }, &[b'a'; 4096], &mut nodes);
        tree.insert(&mut store, &nodes, SlotId { slot: 1, generation: 0 }, Found::default()).unwrap();
        let stored: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum();
        let mut census = Census::default();
        let counted = std::iter::repeat_with(|| census.step(&mut store, &tree).unwrap()).take(100).flatten().next();
        assert_eq!(counted, Some(Counted { nodes: nodes.len() as u64, bytes: stored as u64 }));
    }
}
