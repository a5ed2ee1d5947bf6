//! The exact prefix index in memory: what the shared tree is measured against, in tests and simulations.
//!
//! SMG's structure: a compressed radix tree of characters or token pages for each model, every node with the workers
//! that were sent it. Eviction and sizes are SMG's too, but nothing here is fast.

use std::collections::HashMap;

use super::path::Root;
use super::{MAX_HOLDERS, Match, PrefixIndex, Units};
use crate::state::load::SlotId;

/// The trees of all models and namespaces. Units of text are characters.
#[derive(Debug)]
pub struct ExactIndex {
    page: usize,
    trees: HashMap<Scope, Tree>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Scope {
    model: String,
    namespace: Option<u64>,
    tokens: bool,
}

impl ExactIndex {
    /// An empty index with token pages of `page` ids (at least 1).
    #[must_use]
    pub fn new(page: u32) -> Self {
        Self { page: usize::try_from(page).unwrap_or(1).max(1), trees: HashMap::new() }
    }

    /// Forgets `worker` everywhere.
    pub fn purge(&mut self, worker: SlotId) {
        for tree in self.trees.values_mut() {
            tree.root.purge(worker);
        }
    }

    /// The units of all nodes, each counted once per worker that holds it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.trees.values().map(|tree| tree.root.size()).sum()
    }

    /// Takes the least recently used leaves from their workers until each tree has at most `budget` units.
    pub fn evict(&mut self, budget: usize) {
        for tree in self.trees.values_mut() {
            let mut size = tree.root.size();
            while size > budget {
                let Some(freed) = tree.root.oldest().and_then(|stamp| tree.root.drop_leaf(stamp)) else { break };
                size -= freed;
            }
        }
    }

    fn tree(&mut self, root: Root<'_>, units: Units<'_>) -> (&mut Tree, Vec<u32>) {
        let (tokens, stride, units) = match units {
            Units::Text(text) => (false, 1, text.chars().map(u32::from).collect()),
            Units::Tokens(ids) => (true, self.page, ids.chunks_exact(self.page).flatten().copied().collect()),
        };
        let scope = Scope { model: root.model.to_owned(), namespace: root.namespace, tokens };
        let tree = self.trees.entry(scope).or_insert_with(|| Tree { root: Node::default(), stride, clock: 0 });
        (tree, units)
    }
}

impl PrefixIndex for ExactIndex {
    fn search(&mut self, root: Root<'_>, units: Units<'_>) -> Match {
        let total = match units {
            Units::Text(text) => text.chars().count(),
            Units::Tokens(ids) => ids.len(),
        };
        let (tree, units) = self.tree(root, units);
        let (matched, node) = tree.root.search(&units, tree.stride);
        let holders = node.holders.iter().map(|(worker, _)| *worker);
        Match {
            matched: matched as u64,
            total: total as u64,
            holders: if matched > 0 { holders.take(MAX_HOLDERS).collect() } else { Vec::new() },
        }
    }

    fn insert(&mut self, root: Root<'_>, units: Units<'_>, worker: SlotId) {
        let (tree, units) = self.tree(root, units);
        tree.clock += 1;
        tree.root.insert(&units, worker, tree.clock, tree.stride);
    }
}

#[derive(Debug)]
struct Tree {
    root: Node,
    /// Numbers that make one step of the tree: 1 for characters, a page for token ids.
    stride: usize,
    clock: u64,
}

#[derive(Debug, Default)]
struct Node {
    edge: Vec<u32>,
    children: Vec<Self>,
    /// Each with the clock at which a prompt last ended here for it, 0 if none did.
    holders: Vec<(SlotId, u64)>,
}

impl Node {
    /// The child whose edge begins like `units`, and how much of it they share, in whole strides.
    fn follow(&self, units: &[u32], stride: usize) -> Option<(usize, usize)> {
        let shared = |child: &Self| {
            let same = child.edge.iter().zip(units).take_while(|(one, two)| one == two).count();
            same - same % stride
        };
        self.children.iter().map(shared).enumerate().find(|(_, shared)| *shared > 0)
    }

    /// The deepest node that `units` touch, and their depth there.
    fn search(&self, units: &[u32], stride: usize) -> (usize, &Self) {
        let Some((at, shared)) = self.follow(units, stride) else { return (0, self) };
        match self.children.get(at) {
            Some(child) if shared == child.edge.len() => {
                let (deeper, node) = child.search(units.get(shared..).unwrap_or_default(), stride);
                (shared + deeper, node)
            }
            Some(child) => (shared, child),
            None => (0, self),
        }
    }

    fn insert(&mut self, units: &[u32], worker: SlotId, now: u64, stride: usize) {
        let stamp = if units.is_empty() { now } else { 0 };
        match self.holders.iter_mut().find(|(holder, _)| *holder == worker) {
            Some((_, old)) => *old = stamp.max(*old),
            None => self.holders.push((worker, stamp)),
        }
        if units.is_empty() {
            return;
        }
        let Some((at, shared)) = self.follow(units, stride) else {
            let holders = vec![(worker, now)];
            self.children.push(Self { edge: units.to_vec(), children: Vec::new(), holders });
            return;
        };
        let Some(child) = self.children.get_mut(at) else { return };
        if shared < child.edge.len() {
            let below = child.edge.split_off(shared);
            let children = std::mem::take(&mut child.children);
            let lower = Self { edge: below, children, holders: child.holders.clone() };
            child.children.push(lower);
        }
        child.insert(units.get(shared..).unwrap_or_default(), worker, now, stride);
    }

    fn purge(&mut self, worker: SlotId) {
        self.holders.retain(|(holder, _)| *holder != worker);
        for child in &mut self.children {
            child.purge(worker);
        }
        self.prune();
    }

    /// Drops children that nobody holds: nobody holds anything below them either.
    fn prune(&mut self) {
        self.children.retain(|child| !child.holders.is_empty());
    }

    fn size(&self) -> usize {
        self.edge.len() * self.holders.len() + self.children.iter().map(Self::size).sum::<usize>()
    }

    /// The workers for which this is a leaf: they hold none of its children.
    fn leaf_holders(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let is_leaf = |worker: SlotId| !self.children.iter().any(|child| child.holds(worker));
        let holders = self.holders.iter().enumerate().filter(move |(_, (worker, _))| is_leaf(*worker));
        holders.map(|(at, (_, stamp))| (at, *stamp))
    }

    fn holds(&self, worker: SlotId) -> bool {
        self.holders.iter().any(|(holder, _)| *holder == worker)
    }

    /// The oldest stamp of any worker at a leaf below this node.
    fn oldest(&self) -> Option<u64> {
        let of_child = |child: &Self| child.leaf_holders().map(|(_, stamp)| stamp).chain(child.oldest()).min();
        self.children.iter().filter_map(of_child).min()
    }

    /// Takes a leaf below this node from the worker that has stamped it with `stamp`. Returns the units freed.
    fn drop_leaf(&mut self, stamp: u64) -> Option<usize> {
        for child in &mut self.children {
            let leaf = child.leaf_holders().find(|(_, of)| *of == stamp);
            let freed = match leaf {
                Some((at, _)) => {
                    child.holders.remove(at);
                    Some(child.edge.len())
                }
                None => child.drop_leaf(stamp),
            };
            if freed.is_some() {
                self.prune();
                return freed;
            }
        }
        None
    }
}
