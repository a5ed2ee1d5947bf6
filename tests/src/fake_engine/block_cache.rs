//! A prefix cache by blocks, as vLLM and SGLang keep it: hashes chained from the start of the prompt, blocks that
//! running requests hold are pinned, the others are evicted least recently used first.
//!
//! A request releases its blocks deepest first, so that a parent is always younger than its children and a chain
//! loses its end before its start.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The end of a list of blocks.
const NONE: usize = usize::MAX;

/// The hashes of the full blocks of `bytes`, each over everything from the start up to its end.
///
/// `seed` keeps prompts apart that must never match (text and token ids).
pub fn block_hashes(bytes: &[u8], block_bytes: usize, seed: u64) -> Vec<u64> {
    let mut above = seed;
    bytes
        .chunks_exact(block_bytes.max(1))
        .map(|block| {
            above = xxh3_64_with_seed(block, above);
            above
        })
        .collect()
}

/// Blocks of one engine's KV memory.
#[derive(Debug)]
pub struct BlockCache {
    capacity: usize,
    index: HashMap<u64, usize, BuildHasherDefault<AlreadyHashed>>,
    blocks: Vec<Block>,
    vacant: Vec<usize>,
    oldest: usize,
    newest: usize,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    hash: u64,
    pins: u32,
    older: usize,
    newer: usize,
}

impl BlockCache {
    /// A cache of at most `capacity` blocks.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, index: HashMap::default(), blocks: Vec::new(), vacant: Vec::new(), oldest: NONE, newest: NONE }
    }

    /// Number of blocks held.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// How many leading blocks of a prompt are here; changes nothing.
    pub fn matched(&self, hashes: &[u64]) -> usize {
        hashes.iter().take_while(|hash| self.index.contains_key(hash)).count()
    }

    /// Pins the leading blocks that are here and returns how many they are.
    pub fn pin_matched(&mut self, hashes: &[u64]) -> usize {
        let matched = self.matched(hashes);
        for hash in &hashes[..matched] {
            self.pin(self.index[hash]);
        }
        matched
    }

    /// Adds and pins the blocks from `from` on, evicting what is idle.
    ///
    /// Returns how many leading blocks the caller has pinned now: fewer than all when the memory is full of pinned
    /// blocks.
    pub fn insert_pinned(&mut self, hashes: &[u64], from: usize) -> usize {
        for (position, &hash) in hashes.iter().enumerate().skip(from) {
            if let Some(&at) = self.index.get(&hash) {
                self.pin(at);
                continue;
            }
            if self.index.len() >= self.capacity && !self.evict_oldest() {
                return position;
            }
            let block = Block { hash, pins: 1, older: NONE, newer: NONE };
            let at = match self.vacant.pop() {
                Some(at) => {
                    self.blocks[at] = block;
                    at
                }
                None => {
                    self.blocks.push(block);
                    self.blocks.len() - 1
                }
            };
            self.index.insert(hash, at);
        }
        hashes.len().max(from)
    }

    /// Releases blocks that the caller has pinned, the deepest first.
    pub fn unpin(&mut self, hashes: &[u64]) {
        for hash in hashes.iter().rev() {
            let Some(&at) = self.index.get(hash) else { continue };
            self.blocks[at].pins -= 1;
            if self.blocks[at].pins == 0 {
                self.append_newest(at);
            }
        }
    }

    /// Serves a prompt that nothing overlaps with; returns how many of its leading blocks were here.
    ///
    /// At most `reusable` blocks count, because an engine computes at least the last token of a prompt.
    pub fn serve(&mut self, hashes: &[u64], reusable: usize) -> usize {
        let pinned = self.pin_matched(hashes);
        let all = self.insert_pinned(hashes, pinned);
        self.unpin(&hashes[..all]);
        pinned.min(reusable)
    }

    fn pin(&mut self, at: usize) {
        if self.blocks[at].pins == 0 {
            self.unlink(at);
        }
        self.blocks[at].pins += 1;
    }

    fn evict_oldest(&mut self) -> bool {
        let at = self.oldest;
        if at == NONE {
            return false;
        }
        self.unlink(at);
        self.index.remove(&self.blocks[at].hash);
        self.vacant.push(at);
        true
    }

    fn unlink(&mut self, at: usize) {
        let Block { older, newer, .. } = self.blocks[at];
        if older == NONE {
            self.oldest = newer
        } else {
            self.blocks[older].newer = newer
        }
        if newer == NONE {
            self.newest = older
        } else {
            self.blocks[newer].older = older
        }
        self.blocks[at].older = NONE;
        self.blocks[at].newer = NONE;
    }

    fn append_newest(&mut self, at: usize) {
        self.blocks[at].older = self.newest;
        self.blocks[at].newer = NONE;
        if self.newest == NONE {
            self.oldest = at
        } else {
            self.blocks[self.newest].newer = at
        }
        self.newest = at;
    }
}

/// The keys are hashes already; hashing them again would be the cache's largest cost.
#[derive(Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Vec<u64> {
        block_hashes(text.as_bytes(), 4, 0)
    }

    #[test]
    fn only_full_blocks_from_the_start_match() {
        let mut cache = BlockCache::new(100);
        assert_eq!(cache.serve(&prompt("aaaabbbbccccdd"), 99), 0);
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.serve(&prompt("aaaabbbbXXXXdddd"), 99), 2);
        assert_eq!(cache.serve(&prompt("XXXXbbbbcccc"), 99), 0, "an equal block after another start is another block");
        assert_eq!(cache.serve(&prompt("aaaabbbbccccdddd"), 99), 3);
        assert_eq!(cache.serve(&prompt("aaaabbbbccccdddd"), 3), 3, "the block of the last token is computed anyway");
    }

    #[test]
    fn the_least_recently_used_chain_goes_first_and_from_its_end() {
        let mut cache = BlockCache::new(5);
        cache.serve(&prompt("aaaabbbbcccc"), 99);
        cache.serve(&prompt("ddddeeee"), 99);
        assert_eq!(cache.serve(&prompt("ffff"), 99), 0);
        assert_eq!(cache.matched(&prompt("aaaabbbbcccc")), 2, "the end of the older chain was evicted");
        assert_eq!(cache.matched(&prompt("ddddeeee")), 2);
        assert_eq!(cache.len(), 5);
        cache.serve(&prompt("aaaabbbb"), 99);
        cache.serve(&prompt("gggghhhh"), 99);
        assert_eq!(cache.matched(&prompt("aaaabbbb")), 2, "a use makes a chain young again");
        assert_eq!(cache.matched(&prompt("ddddeeee")), 0);
    }

    #[test]
    fn pinned_blocks_stay() {
        let mut cache = BlockCache::new(3);
        let held = prompt("aaaabbbb");
        let pinned = cache.insert_pinned(&held, 0);
        assert_eq!(pinned, 2);
        cache.serve(&prompt("ccccdddd"), 99);
        assert_eq!(cache.matched(&held), 2);
        assert_eq!(cache.matched(&prompt("ccccdddd")), 1, "one block was left for the other prompt");
        cache.unpin(&held[..pinned]);
        cache.serve(&prompt("eeeeffffgggg"), 99);
        assert_eq!(cache.matched(&held), 0);
        assert_eq!(cache.len(), 3);
    }

    #[test]
    fn a_cache_without_memory_keeps_nothing() {
        let mut cache = BlockCache::new(0);
        cache.serve(&prompt("aaaabbbb"), 99);
        assert!(cache.is_empty());
        assert_eq!(cache.serve(&prompt("aaaabbbb"), 99), 0);
    }
}
