//! How full the prefix tree is, counted a few pages per tick so that no tick holds its thread for long.

use std::collections::{HashMap, HashSet};

use super::load::SlotId;
use super::tree::{Label, PrefixTree, nodes};
use crate::store::{Store, StoreError};

/// Reading 64 pages takes about 100 µs.
const PAGES_PER_TICK: u32 = 64;

/// Models beyond so many are counted in the totals only.
const MAX_LABELS: usize = 2048;

/// A count in progress, or a finished one.
#[derive(Debug, Clone, Default)]
pub struct Census {
    next: u32,
    /// Nodes in use.
    pub nodes: u64,
    /// Bytes of shared data that the pages take, without their keys.
    pub bytes: u64,
    /// What each model's tree of text or ids holds.
    pub trees: HashMap<Label, Tree>,
}

/// What one tree holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Bytes of text, or token ids, counted once for each worker that holds them (as SMG sizes its trees).
    pub units: u64,
    /// The workers that hold something.
    pub holders: HashSet<SlotId>,
}

impl Census {
    /// Counts some more pages; the result when all have been counted, after which it starts over. Holders for which
    /// `usable` does not hold are left out: they are gone.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn step(
        &mut self,
        store: &mut dyn Store,
        tree: &PrefixTree,
        usable: &dyn Fn(SlotId) -> bool,
    ) -> Result<Option<Self>, StoreError> {
        let table = tree.table();
        for _ in 0..PAGES_PER_TICK {
            if self.next >= table.pages() {
                return Ok(Some(std::mem::take(self)));
            }
            let page = table.read(store, self.next)?;
            self.next += 1;
            self.nodes += page.used() as u64;
            self.bytes += page.stored_bytes() as u64;
            for node in nodes(&page) {
                if !self.trees.contains_key(&node.label) && self.trees.len() >= MAX_LABELS {
                    continue;
                }
                let tree = self.trees.entry(node.label).or_default();
                for holder in node.holders.into_iter().filter(|holder| usable(*holder)) {
                    tree.units += u64::from(node.units);
                    tree.holders.insert(holder);
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prefix::path::{Root, of_text, of_tokens};
    use crate::state::tree::Found;
    use crate::store::MemoryStore;

    fn id(slot: u16) -> SlotId {
        SlotId { slot, generation: 0 }
    }

    #[test]
    fn all_nodes_are_counted_over_some_ticks() {
        let (tree, mut store) = (PrefixTree::new("", 1 << 20), MemoryStore::default());
        let (mut text, mut ids) = (Vec::new(), Vec::new());
        let root = Root { seed: 1, model: "m", namespace: None };
        of_text(root, &[b'a'; 4096], &mut text);
        of_tokens(root, &[7; 64], 16, &mut ids);
        let mut insert = |nodes: &[_], tokens, slot| {
            tree.insert(&mut store, nodes, Label::new("m", tokens), id(slot), Found::default()).unwrap();
        };
        insert(&text, false, 1);
        insert(&text, false, 2);
        insert(&text, false, 3);
        insert(&ids, true, 2);
        let stored: usize = store.sizes().iter().map(|(_, bytes)| bytes).sum();
        let mut census = Census::default();
        let mut step = || census.step(&mut store, &tree, &|id| id.slot != 3).unwrap();
        let counted = std::iter::repeat_with(&mut step).take(100).flatten().next().unwrap();
        assert_eq!((counted.nodes, counted.bytes), ((text.len() + ids.len()) as u64, stored as u64));
        let of = |tokens| counted.trees[&Label::new("m", tokens)].clone();
        let deepest = text.last().unwrap().depth;
        assert_eq!(of(false), Tree { units: 2 * deepest, holders: [id(1), id(2)].into() }, "worker 3 is gone");
        assert_eq!(of(true), Tree { units: 64, holders: [id(2)].into() });
    }
}
