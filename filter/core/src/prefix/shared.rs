//! The shared tree as a [`PrefixIndex`].

use super::path::{Node, Root, of_text, of_tokens};
use super::{Match, PrefixIndex, Units};
use crate::state::load::SlotId;
use crate::state::tree::{Found, Label, PrefixTree};
use crate::store::Store;

/// The shared tree with its store. Units of text are bytes.
#[derive(Debug)]
pub struct SharedIndex<S> {
    tree: PrefixTree,
    store: S,
    page: u32,
}

impl<S: Store> SharedIndex<S> {
    /// `tree` in `store`, with token pages of `page` ids.
    #[must_use]
    pub fn new(tree: PrefixTree, store: S, page: u32) -> Self {
        Self { tree, store, page }
    }

    fn find(&mut self, root: Root<'_>, units: Units<'_>) -> (Vec<Node>, Found) {
        let mut nodes = Vec::new();
        let total = match units {
            Units::Text(text) => {
                of_text(root, text.as_bytes(), &mut nodes);
                text.len()
            }
            Units::Tokens(ids) => {
                of_tokens(root, ids, self.page, &mut nodes);
                ids.len()
            }
        };
        // A store that fails knows nothing: an index is only ever a hint.
        let found = self.tree.search(&mut self.store, &nodes, total as u64, &|_| true).unwrap_or_default();
        (nodes, found)
    }
}

impl<S: Store> PrefixIndex for SharedIndex<S> {
    fn search(&mut self, root: Root<'_>, units: Units<'_>) -> Match {
        self.find(root, units).1.matched
    }

    fn insert(&mut self, root: Root<'_>, units: Units<'_>, worker: SlotId) {
        let (nodes, found) = self.find(root, units);
        let label = Label::new(root.model, matches!(units, Units::Tokens(_)));
        let _ = self.tree.insert(&mut self.store, &nodes, label, worker, found);
    }
}
