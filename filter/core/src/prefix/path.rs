//! A prompt cut at geometric depths.
//!
//! A node per distinct run of characters cannot live in shared data: it would cost a read per branch and could not be
//! split atomically. So prefixes are remembered at fixed depths only: 64, 96, 128, 192 and 256 bytes, then each next
//! depth half as deep again. Neighbouring depths differ by at most a factor of 1.5, hence a match found here is at
//! least two thirds of the exact one (from 64 bytes on), at 11 nodes for 4 KB and 23 for 512 KB.
//! A node is named by the hash of everything above it.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Text deeper than this is not hashed, in bytes: prompts that agree so far are the same to us.
pub const MAX_TEXT_BYTES: usize = 512 << 10;

/// No prompt has more nodes; the search's probes are laid out for it.
pub const MAX_NODES: usize = 31;

/// One node of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node {
    /// The node's name: a chained hash of everything above it.
    pub tag: u64,
    /// Its depth in units (bytes of text, or token ids).
    pub depth: u64,
}

/// What separates one tree from another: prompts of different roots never match.
#[derive(Debug, Clone, Copy)]
pub struct Root<'a> {
    /// Random per process, so that nobody can aim at a page.
    pub seed: u64,
    /// The model's id.
    pub model: &'a str,
    /// The cache partition (salt, extra key, adapter), if the request names one.
    pub namespace: Option<u64>,
}

impl Root<'_> {
    fn hash(&self, kind: u64) -> u64 {
        let model = xxh3_64_with_seed(self.model.as_bytes(), self.seed ^ kind);
        match self.namespace {
            None => model,
            Some(namespace) => xxh3_64_with_seed(&namespace.to_le_bytes(), model),
        }
    }
}

/// The nodes of a text prompt, top down. Depths are bytes.
pub fn of_text(root: Root<'_>, text: &[u8], into: &mut Vec<Node>) {
    let text = text.get(..MAX_TEXT_BYTES).unwrap_or(text);
    cut(root.hash(1), text, 32, text_depth, into);
}

/// The nodes of a token prompt, top down. Depths are ids, in whole pages of `page` ids.
pub fn of_tokens(root: Root<'_>, ids: &[u32], page: u32, into: &mut Vec<Node>) {
    let page = page.max(1);
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let first = into.len();
    cut(root.hash(2 ^ u64::from(page) << 8), &bytes, page.saturating_mul(4) as usize, page_depth, into);
    for node in into.iter_mut().skip(first) {
        node.depth /= 4;
    }
}

/// A mark for each of `boundaries` (ascending numbers of ids) that `ids` reach: the hash of the prompt's first ids, so many.
pub fn of_boundaries(root: Root<'_>, ids: &[u32], boundaries: &[u32], into: &mut Vec<Node>) {
    let mut hash = Xxh3::with_seed(root.hash(3));
    let mut from = 0;
    for &boundary in boundaries {
        let to = usize::try_from(boundary).unwrap_or(usize::MAX);
        let Some(piece) = ids.get(from..to) else { return };
        let bytes: Vec<u8> = piece.iter().flat_map(|id| id.to_le_bytes()).collect();
        hash.update(&bytes);
        into.push(Node { tag: hash.digest(), depth: u64::from(boundary) });
        from = to;
    }
}

/// Pushes a node for each depth of `depths` (in multiples of `unit` bytes) that `bytes` reaches.
fn cut(root: u64, bytes: &[u8], unit: usize, depths: fn(usize) -> usize, into: &mut Vec<Node>) {
    let (mut hash, mut from) = (root, 0);
    for number in 0..MAX_NODES {
        let Some(to) = depths(number).checked_mul(unit) else { return };
        let Some(piece) = bytes.get(from..to) else { return };
        hash = xxh3_64_with_seed(piece, hash);
        into.push(Node { tag: hash, depth: to as u64 });
        from = to;
    }
}

/// The depths of text in halves of 64 bytes: 2, 3, 4, 6, 8, then half as deep again each, rounded down.
fn text_depth(number: usize) -> usize {
    *[
        2, 3, 4, 6, 8, 12, 18, 27, 40, 60, 90, 135, 202, 303, 454, 681, 1021, 1531, 2296, 3444, 5166, 7749, 11623,
        17434, 26151, 39226, 58839, 88258, 132_387, 198_580, 297_870,
    ]
    .get(number)
    .unwrap_or(&usize::MAX)
}

/// The depths of token prompts in pages: 1, 2, 3, 4, 6, 9, then half as deep again each, rounded down.
fn page_depth(number: usize) -> usize {
    *[
        1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94, 141, 211, 316, 474, 711, 1066, 1599, 2398, 3597, 5395, 8092, 12138,
        18207, 27310, 40965, 61447, 92170, 138_255, 207_382,
    ]
    .get(number)
    .unwrap_or(&usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Root<'_> = Root { seed: 1, model: "m", namespace: None };

    fn nodes(root: Root<'_>, text: &[u8]) -> Vec<Node> {
        let mut nodes = Vec::new();
        of_text(root, text, &mut nodes);
        nodes
    }

    #[test]
    fn depths_grow_by_at_most_a_half() {
        for depths in [text_depth, page_depth] {
            for number in 1..MAX_NODES {
                let (above, here) = (depths(number - 1), depths(number));
                // The deepest exact match that still falls on the node above is one unit short of this one.
                assert!(above < here && (here - 1) * 2 <= above * 3, "{above} {here}");
            }
        }
    }

    #[test]
    fn the_number_of_nodes_is_small() {
        for (bytes, expected) in [(0, 0), (63, 0), (64, 1), (4096, 11), (48 << 10, 17), (512 << 10, 22)] {
            assert!(
                nodes(ROOT, &vec![7; bytes]).len().abs_diff(expected) <= 1,
                "{bytes}: {}",
                nodes(ROOT, &vec![7; bytes]).len()
            );
        }
        assert!(nodes(ROOT, &vec![7; 4 << 20]).len() <= MAX_NODES);
    }

    #[test]
    fn equal_prefixes_share_nodes_and_no_more() {
        let (mut one, mut two) = (vec![7; 4096], vec![7; 4096]);
        one[1000] = 1;
        two[1000] = 2;
        let (one, two) = (nodes(ROOT, &one), nodes(ROOT, &two));
        let shared = one.iter().zip(&two).take_while(|(one, two)| one == two).count();
        assert!(one[shared - 1].depth <= 1000 && one[shared].depth > 1000);
        assert!(one.iter().skip(shared).all(|node| !two.iter().any(|other| other.tag == node.tag)));
    }

    #[test]
    fn models_namespaces_seeds_and_tokens_have_trees_of_their_own() {
        let text = [b'a'; 64];
        let tag = |root| nodes(root, &text)[0].tag;
        let base = tag(ROOT);
        assert_ne!(base, tag(Root { seed: 2, ..ROOT }));
        assert_ne!(base, tag(Root { model: "n", ..ROOT }));
        assert_ne!(base, tag(Root { namespace: Some(0), ..ROOT }));
        let mut tokens = Vec::new();
        of_tokens(ROOT, &[u32::from_le_bytes(*b"aaaa"); 16], 16, &mut tokens);
        assert_ne!(base, tokens[0].tag);
        assert_eq!(tokens[0].depth, 16);
    }

    #[test]
    fn a_mark_is_a_boundarys_first_ids() {
        let marks = |root, ids: &[u32], boundaries: &[u32]| {
            let mut marks = Vec::new();
            of_boundaries(root, ids, boundaries, &mut marks);
            marks
        };
        let mut ids: Vec<u32> = (0..100).collect();
        let whole = marks(ROOT, &ids, &[4, 8, 64, 101]);
        assert_eq!(whole.iter().map(|mark| mark.depth).collect::<Vec<_>>(), [4, 8, 64]);
        assert_eq!(marks(ROOT, &ids[..8], &[8]), whole[1..2], "whatever the boundaries before and the ids behind");
        assert!(marks(ROOT, &ids[..3], &[4, 8]).is_empty() && marks(ROOT, &ids, &[]).is_empty());
        ids[8] = 9;
        let other = marks(ROOT, &ids, &[4, 8, 64]);
        assert!(other[..2] == whole[..2] && other[2] != whole[2]);
        for root in [Root { seed: 2, ..ROOT }, Root { model: "n", ..ROOT }, Root { namespace: Some(0), ..ROOT }] {
            assert!(marks(root, &ids, &[4])[0] != whole[0], "{root:?}");
        }
        let mut nodes = Vec::new();
        of_tokens(ROOT, &ids, 4, &mut nodes);
        assert_ne!(nodes[0].tag, whole[0].tag);
    }

    #[test]
    fn only_whole_pages_of_tokens_count() {
        let mut tokens = Vec::new();
        of_tokens(ROOT, &[5; 15], 16, &mut tokens);
        assert!(tokens.is_empty());
        of_tokens(ROOT, &[5; 40], 16, &mut tokens);
        assert_eq!(tokens.last().unwrap().depth, 32);
    }
}
