//! What one request says for routing: bytes in, facts out, whatever the bytes are.
//!
//! Nothing here fails: what cannot be read is a fact that is missing, and the request is routed without it.

mod answered;
mod body;
mod cut;
mod endpoint;
mod hint;
mod ids;
mod keys;
mod message;
mod namespace;
mod reader;
mod seed;
mod target;
mod text;

#[cfg(test)]
mod tests;

pub use answered::answered_id;
pub use endpoint::{Endpoint, MAX_RESPONSE_ID_BYTES, endpoint, response_id};
pub use hint::{MAX_HINT_BYTES, MAX_HINT_IDS, routing_tokens};
pub use keys::{
    IMPLICIT_KEY_HEADERS, MAX_ROUTING_KEY_BYTES, implicit_key, manual_key, rid_key, routing_key, strip_lineage,
};
pub use target::{Target, target_worker};

/// Routing text beyond this many bytes is counted and neither kept nor compared: prompts that agree so far
/// share all of the cache that matters.
pub const MAX_TEXT_BYTES: usize = 512 << 10;

/// Token ids beyond this many are counted and not kept; in memory they take as much as [`MAX_TEXT_BYTES`].
pub const MAX_TOKENS: usize = MAX_TEXT_BYTES / size_of::<u32>();

/// A longer `rid` is none, in bytes: what is left of it without its marks could hardly be short enough for a key.
pub const MAX_RID_BYTES: usize = 1024;

/// A model id of ordinary length keeps its buffer from request to request; a client's absurd one does not.
const MODEL_BUFFER_BYTES: usize = 4 << 10;

/// How far the body could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parsed {
    /// To its end: a fact that is missing is not in the body.
    Whole,
    /// To the end of the bytes at hand, which is not the end of the body: more bytes may bring more facts.
    Cut,
    /// The body is not JSON from some byte on (or ends too early). What came before is in the facts.
    Malformed,
    /// Not at all: no body yet, or none that this endpoint is routed by.
    #[default]
    NotRead,
}

/// What one request says for routing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The model's name as the client wrote it; empty if there is none or it is not a string.
    pub model: String,
    /// The routing text: the pieces of the prompt joined by one space, its first [`MAX_TEXT_BYTES`] bytes.
    /// Bytes, not characters: what the client sent as text need not be valid UTF-8.
    pub text: Vec<u8>,
    /// The length of the whole routing text in bytes.
    pub text_bytes: u64,
    /// The prompt's token ids, the first [`MAX_TOKENS`] of them. If there are any, they count and the text does not.
    pub tokens: Vec<u32>,
    /// The number of all token ids of the prompt.
    pub token_count: u64,
    /// Whether the ids are those of the header `x-smg-routing-tokens`, which win over the body's.
    pub hinted: bool,
    /// Whether the client asked for a streamed answer.
    pub stream: bool,
    /// Names the cache partition, from the cache salt, the extra key and the LoRA adapter; `None` without any.
    pub namespace: Option<u64>,
    /// Whether [`Facts::rid`] is looked for. [`Facts::clear`] forgets this wish too.
    pub wants_rid: bool,
    /// The client's name for the request as the body has it, for [`rid_key`]; of a list, as rerank may have one, the
    /// first. Empty if there is none, if it was not looked for, and if it is longer than [`MAX_RID_BYTES`].
    pub rid: String,
    /// The response that the client refers to; empty if there is none, or none of at most [`MAX_RESPONSE_ID_BYTES`].
    pub previous_response_id: String,
    /// How far the body could be read.
    pub end: Parsed,
    /// Room for text whose place in the routing text is known only later.
    aside: Vec<u8>,
}

impl Facts {
    /// Forgets everything and keeps the buffers for the next request.
    pub fn clear(&mut self) {
        self.hinted = false;
        self.wants_rid = false;
        self.clear_body();
    }

    /// Takes the token ids of the header `x-smg-routing-tokens`. An invalid header changes nothing;
    /// returns whether it was valid. The body's ids and [`Facts::read_body`] leave these ids alone.
    pub fn hint(&mut self, header: &[u8]) -> bool {
        let mut ids = Vec::new();
        let valid = routing_tokens(header, &mut ids);
        if valid {
            self.token_count = ids.len() as u64;
            self.tokens.clear();
            self.tokens.append(&mut ids);
            self.hinted = true;
        }
        valid
    }

    /// Reads `body`, the bytes that have arrived so far, in place of any body read before.
    /// `complete` says that no more will come.
    pub fn read_body(&mut self, endpoint: Endpoint, body: &[u8], complete: bool) {
        self.clear_body();
        if endpoint.has_prompt() {
            self.end = body::read(self, endpoint, body, complete);
        }
    }

    fn clear_body(&mut self) {
        self.model.clear();
        self.model.shrink_to(MODEL_BUFFER_BYTES);
        self.text.clear();
        self.text_bytes = 0;
        if !self.hinted {
            self.tokens.clear();
            self.token_count = 0;
        }
        self.stream = false;
        self.namespace = None;
        self.rid.clear();
        self.previous_response_id.clear();
        self.end = Parsed::NotRead;
        self.aside.clear();
    }
}
