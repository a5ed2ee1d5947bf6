//! The routing text as it grows.

use super::MAX_TEXT_BYTES;

/// Pieces of text joined by single spaces. All bytes are counted, the first [`MAX_TEXT_BYTES`] are kept.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub(super) kept: Vec<u8>,
    pub(super) bytes: u64,
    /// Whether there is a piece, be it an empty one.
    begun: bool,
}

/// A length that a text can be taken back to.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mark {
    kept: usize,
    bytes: u64,
    begun: bool,
}

impl Text {
    /// An empty text in the buffer `kept`.
    pub(super) fn in_buffer(mut kept: Vec<u8>) -> Self {
        kept.clear();
        Self { kept, ..Self::default() }
    }

    /// Adds a piece. An empty one adds nothing, not even a space.
    pub(super) fn push(&mut self, piece: &[u8]) {
        if !piece.is_empty() {
            self.push_even_empty(piece);
        }
    }

    /// Adds a piece. An empty one is set off by a space like any other.
    pub(super) fn push_even_empty(&mut self, piece: &[u8]) {
        if self.begun {
            self.append(b" ");
        }
        self.begun = true;
        self.append(piece);
    }

    /// Adds another text as if its pieces had been added one by one.
    pub(super) fn push_text(&mut self, other: &Self) {
        self.push(&other.kept);
        self.bytes += other.bytes - other.kept.len() as u64;
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { kept: self.kept.len(), bytes: self.bytes, begun: self.begun }
    }

    /// Forgets what was added since `mark`.
    pub(super) fn rollback(&mut self, mark: Mark) {
        self.kept.truncate(mark.kept);
        self.bytes = mark.bytes;
        self.begun = mark.begun;
    }

    pub(super) fn clear(&mut self) {
        self.rollback(Mark::default());
    }

    fn append(&mut self, piece: &[u8]) {
        let room = MAX_TEXT_BYTES.saturating_sub(self.kept.len());
        self.kept.extend_from_slice(piece.get(..room).unwrap_or(piece));
        self.bytes += piece.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_space_joins_pieces_that_are_not_empty() {
        let mut text = Text::default();
        for piece in ["", "a", "", " b", ""] {
            text.push(piece.as_bytes());
        }
        assert_eq!((text.kept.as_slice(), text.bytes), (b"a  b".as_slice(), 4));
    }

    #[test]
    fn empty_pieces_can_count() {
        let mut text = Text::default();
        text.push_even_empty(b"");
        let mark = text.mark();
        text.push_even_empty(b"");
        text.push_even_empty(b"a");
        assert_eq!((text.kept.as_slice(), text.bytes), (b"  a".as_slice(), 3));
        text.rollback(mark);
        text.push_even_empty(b"b");
        assert_eq!(text.kept, b" b");
        text.clear();
        text.push_even_empty(b"c");
        assert_eq!(text.kept, b"c");
    }

    #[test]
    fn text_beyond_the_bound_is_counted_only() {
        let mut text = Text::default();
        text.push(&vec![b'x'; MAX_TEXT_BYTES - 1]);
        let mark = text.mark();
        text.push(b"yz");
        text.push(b"w");
        assert_eq!(
            (text.kept.len(), text.kept.last(), text.bytes),
            (MAX_TEXT_BYTES, Some(&b' '), 1 + MAX_TEXT_BYTES as u64 + 3)
        );
        text.rollback(mark);
        assert_eq!((text.kept.len() as u64, text.bytes), (MAX_TEXT_BYTES as u64 - 1, MAX_TEXT_BYTES as u64 - 1));
    }
}
