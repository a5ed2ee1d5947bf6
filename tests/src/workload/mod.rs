//! Workloads to replay: what arrives when, from a seed or from a trace, and what a perfect cache could reuse of it.

mod bound;
mod sessions;
mod text;
mod trace;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

pub use bound::{Bound, Replayed, bound, replay};
pub use sessions::SessionOptions;
pub use text::Prose;
pub use trace::{TraceOptions, read_trace};

use crate::fake_engine::body::push_role;

/// Requests in order of arrival.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The requests.
    pub requests: Vec<Request>,
}

/// One request of a workload.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it arrives, from the start of the replay; never before the previous turn of its session has ended.
    pub arrival: Duration,
    /// The session it belongs to; one-off prompts have a session of their own.
    pub session: usize,
    /// Its number in the session, from 0.
    pub turn: usize,
    /// The prompt.
    pub prompt: PromptText,
    /// Completion tokens to ask for.
    pub max_tokens: usize,
}

/// The text of a prompt, shared or made when needed: a whole workload in full would not fit in memory.
#[derive(Clone, Debug)]
pub enum PromptText {
    /// Messages, whose texts the turns of a session share.
    Chat(Vec<Message>),
    /// One user message made of a trace's blocks.
    Blocks {
        /// Makes the text of a block.
        prose: Arc<Prose>,
        /// Ids of the blocks in order; equal ids have equal texts.
        ids: Vec<u64>,
        /// Bytes of the last block; the others have [`trace::BLOCK_BYTES`].
        last_bytes: usize,
    },
}

/// A chat message.
#[derive(Clone, Debug)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: Arc<str>,
}

impl Workload {
    /// Time of the last arrival.
    pub fn duration(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |request| request.arrival)
    }
}

impl Request {
    /// The body of a streamed chat completion that asks for usage.
    pub fn body(&self, model: &str) -> Vec<u8> {
        let messages = match &self.prompt {
            PromptText::Chat(messages) => messages
                .iter()
                .map(|message| json!({"role": message.role, "content": &*message.content}))
                .collect::<Vec<_>>(),
            PromptText::Blocks { prose, ids, last_bytes } => {
                vec![json!({"role": "user", "content": trace::blocks_text(prose, ids, *last_bytes)})]
            }
        };
        let body = json!({
            "model": model, "messages": messages, "max_tokens": self.max_tokens, "stream": true,
            "stream_options": {"include_usage": true},
        });
        body.to_string().into_bytes()
    }

    /// The text that the engine's tokens are made of.
    pub fn engine_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let mut push = |role: &str, content: &str| {
            push_role(&mut text, role);
            text.extend_from_slice(content.as_bytes());
            text.push(b'\n');
        };
        match &self.prompt {
            PromptText::Chat(messages) => messages.iter().for_each(|message| push(message.role, &message.content)),
            PromptText::Blocks { prose, ids, last_bytes } => push("user", &trace::blocks_text(prose, ids, *last_bytes)),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::fake_engine::body::chat_text;

    #[test]
    fn the_engine_sees_the_text_that_the_bound_is_computed_of() {
        let workload = SessionOptions { sessions: 5, ..SessionOptions::default() }.generate();
        for request in &workload.requests {
            let body: Value = serde_json::from_slice(&request.body("m")).unwrap();
            assert_eq!(chat_text(body["messages"].as_array().unwrap()), request.engine_text());
        }
    }
}
