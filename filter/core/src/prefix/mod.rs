//! Who already holds a prompt's prefix.

pub mod exact;
pub mod path;
pub mod shared;

#[cfg(test)]
mod tests;

use crate::state::load::SlotId;

use self::path::Root;

/// At most this many holders of one prefix are remembered and returned (SMG's number).
pub const MAX_HOLDERS: usize = 8;

/// The outcome of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// Units (bytes of text, or token ids) of the longest known prefix.
    pub matched: u64,
    /// Units of the whole prompt.
    pub total: u64,
    /// Its usable holders; empty when nothing matched.
    pub holders: Vec<SlotId>,
}

impl Match {
    /// Matched over total, 0 for an empty prompt; in `f32` like SMG, so that thresholds agree at the edge.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "SMG computes this ratio in single precision")]
    pub fn ratio(&self) -> f32 {
        if self.total == 0 { 0.0 } else { self.matched as f32 / self.total as f32 }
    }
}

/// A prompt as an index looks at it. Text and tokens never match each other.
#[derive(Debug, Clone, Copy)]
pub enum Units<'a> {
    /// Routing text.
    Text(&'a str),
    /// Token ids.
    Tokens(&'a [u32]),
}

/// Remembers who was sent which prompts.
///
/// The balancer works on the shared tree itself, whose search hands its pages on to the insertion; this is what the
/// two indexes have in common, so that one can be held against the other.
pub trait PrefixIndex {
    /// The longest prefix of `units` that anybody under `root` was sent, and who was.
    fn search(&mut self, root: Root<'_>, units: Units<'_>) -> Match;

    /// Notes that `worker` is sent `units`.
    fn insert(&mut self, root: Root<'_>, units: Units<'_>, worker: SlotId);
}
