//! The token ids of a body as they are met.

use super::{Facts, MAX_TOKENS};

/// Where in `input_ids` the walk is.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Sequences of a batch that have begun.
    pub(super) sequences: u32,
    /// Something that is no id was met: what follows it is not taken.
    pub(super) broken: bool,
    /// The value read last is an id.
    pub(super) fresh: bool,
}

impl Ids {
    /// Takes an id, unless one before it was none.
    pub(super) fn push(&mut self, id: u32, facts: &mut Facts) {
        if self.broken {
            return;
        }
        if facts.tokens.len() < MAX_TOKENS {
            facts.tokens.push(id);
        }
        facts.token_count += 1;
        self.fresh = true;
    }

    /// The body ends in a digit: if it is an id's, there may be more of them.
    pub(super) fn drop_unfinished(&mut self, facts: &mut Facts) {
        if !self.fresh {
            return;
        }
        if facts.token_count == facts.tokens.len() as u64 {
            facts.tokens.pop();
        }
        facts.token_count = facts.token_count.saturating_sub(1);
        self.fresh = false;
    }
}
