//! The reading of an answer to `POST /v1/responses` for the id of the response.

use crate::request::answered_id;

/// So much of an answer is looked at, in bytes: engines write the id first or nearly so.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// The answer is looked at with each of its first so many parts, then whenever twice as much of it is there: parts can be
/// as small as a byte.
const FIRST_PARTS: u32 = 16;

/// What a look at an answer has found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing yet.
    Open,
    /// The response's id.
    Id(String),
    /// Nothing, and nothing will come.
    Nothing,
}

/// The beginning of an answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The hash of the worker that gives it.
    worker: u64,
    head: Vec<u8>,
    parts: u32,
    looked_at: usize,
}

impl Answer {
    /// The answer of the worker with this hash.
    pub(super) fn of(worker: u64) -> Self {
        Self { worker, head: Vec::new(), parts: 0, looked_at: 0 }
    }

    /// The hash of the worker that gives it.
    pub(super) fn worker(&self) -> u64 {
        self.worker
    }

    /// How many bytes more are looked at.
    pub(super) fn room(&self) -> usize {
        MAX_HEAD_BYTES - self.head.len().min(MAX_HEAD_BYTES)
    }

    /// Takes another part.
    pub(super) fn take(&mut self, part: &[u8], ends: bool) -> Look {
        self.head.extend_from_slice(part.get(..self.room()).unwrap_or(part));
        self.parts = self.parts.saturating_add(1);
        let ends = ends || self.room() == 0;
        if !ends && self.parts > FIRST_PARTS && self.head.len() < self.looked_at.saturating_mul(2) {
            return Look::Open;
        }
        self.looked_at = self.head.len();
        match answered_id(&self.head) {
            Some(id) => Look::Id(id),
            None if ends => Look::Nothing,
            None => Look::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_once_it_is_there() {
        let mut answer = Answer::of(7);
        assert_eq!(answer.take(b"event: response.created\n", false), Look::Open);
        assert_eq!(answer.take(b"data: {\"response\":{\"id\":\"resp", false), Look::Open);
        assert_eq!(answer.take(b"_1\",", false), Look::Id("resp_1".to_owned()));
        assert_eq!(Answer::of(7).take(b"{\"object\":\"response\"}", true), Look::Nothing);
    }

    #[test]
    fn an_answer_in_single_bytes_is_looked_at_seldom_and_found_in_the_end() {
        let text = format!("{{\"output\":\"{}\",\"id\":\"resp_1\",\"status\":\"completed\"}}", "x".repeat(5000));
        let (mut answer, mut looks) = (Answer::of(7), 0);
        for (at, byte) in text.bytes().enumerate() {
            let taken = answer.take(&[byte], at + 1 == text.len());
            looks += u32::from(answer.looked_at == at + 1);
            if taken != Look::Open {
                assert_eq!((taken, at + 1), (Look::Id("resp_1".to_owned()), text.len()));
            }
        }
        assert!(looks < 32, "looked at {looks} times");
    }

    #[test]
    fn a_long_answer_without_an_id_is_given_up() {
        let mut answer = Answer::of(7);
        for _ in 0..15 {
            assert_eq!(answer.take(&[b' '; 1024], false), Look::Open);
        }
        assert_eq!(answer.room(), 1024);
        assert_eq!(answer.take(&[b' '; 4096], false), Look::Nothing);
        assert_eq!((answer.room(), answer.head.len()), (0, MAX_HEAD_BYTES));
    }
}
