//! The chat requests of a measurement, made before it begins.

use std::collections::VecDeque;

use bytes::Bytes;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::cells::{Cell, Mix};
use crate::workload::Prose;

/// Measured turns of a conversation.
const TURNS: usize = 4;
/// By how much of the cell's size a turn extends the last.
const STEP: f64 = 0.05;
/// Text of one message at most, as bytes.
const MESSAGE: usize = 2048;
/// Bytes of a piece of text; sizes are met to within one.
const SENTENCE: usize = 96;

/// Writes the requests of one run; no two conversations of it begin alike.
#[derive(Debug)]
pub(super) struct Prompts {
    /// As they stand in JSON.
    sentences: Vec<String>,
    conversations: u64,
}

/// The requests of one measurement.
#[derive(Debug, Clone, Default)]
pub(super) struct Bodies {
    /// Sent first and not measured: they open connections and tell the proxy what the measured ones repeat or extend.
    pub(super) before: Vec<Bytes>,
    /// What is measured, in this order.
    pub(super) measured: Vec<Bytes>,
}

impl Prompts {
    pub(super) fn new() -> Self {
        let mut rng = SmallRng::seed_from_u64(7);
        let prose = Prose::new();
        let sentences = (0..1021).map(|_| {
            // The line break is what a JSON parser has to undo in real prompts.
            let quoted = serde_json::Value::from(prose.text(&mut rng, SENTENCE) + "\n").to_string();
            quoted.trim_matches('"').to_owned()
        });
        Self { sentences: sentences.collect(), conversations: 0 }
    }

    /// `requests` requests for a cell, after `warm` others that are like new.
    pub(super) fn bodies(&mut self, cell: &Cell, requests: usize, warm: usize) -> Bodies {
        let bytes = cell.prompt_kb * 1024;
        let stream = cell.stream_chunks > 0;
        let mut bodies = Bodies {
            before: (0..warm).map(|_| self.conversation(bytes, stream).body()).collect(),
            measured: Vec::with_capacity(requests),
        };
        match cell.mix {
            Mix::Cold => bodies.measured.extend((0..requests).map(|_| self.conversation(bytes, stream).body())),
            Mix::Repeat => {
                let body = self.conversation(bytes, stream).body();
                bodies.before.push(body.clone());
                bodies.measured.resize(requests, body);
            }
            Mix::Turn => {
                let step = (bytes as f64 * STEP) as usize;
                // So that the measured turns have the cell's size on average.
                let first = bytes.saturating_sub(step * (TURNS + 1) / 2);
                let sessions = requests.div_ceil(TURNS);
                let mut open: VecDeque<_> = (0..sessions).map(|_| self.conversation(first, stream)).collect();
                bodies.before.extend(open.iter().map(Conversation::body));
                while bodies.measured.len() < requests {
                    let Some(mut next) = open.pop_front() else { break };
                    next.extend(&self.sentences, step);
                    bodies.measured.push(next.body());
                    open.push_back(next);
                }
            }
        }
        bodies
    }

    fn conversation(&mut self, bytes: usize, stream: bool) -> Conversation {
        self.conversations += 1;
        // Multiplied by an odd number it stays unique, and prompts differ from their first character on.
        let name = self.conversations.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut conversation = Conversation {
            text: format!(r#"{{"model":"bench","stream":{stream},"max_tokens":16,"messages":["#),
            name: format!("{name:016x} "),
            messages: 0,
            next: (name % self.sentences.len() as u64) as usize,
        };
        let length = conversation.text.len();
        conversation.extend(&self.sentences, bytes.saturating_sub(length));
        conversation
    }
}

/// A chat that grows.
#[derive(Debug)]
struct Conversation {
    /// The body without its end.
    text: String,
    /// What the first message begins with.
    name: String,
    messages: usize,
    next: usize,
}

impl Conversation {
    /// Adds messages of `bytes` bytes in all.
    fn extend(&mut self, sentences: &[String], bytes: usize) {
        let end = self.text.len() + bytes;
        while self.text.len() < end {
            let role = if self.messages.is_multiple_of(2) { "user" } else { "assistant" };
            let comma = if self.messages == 0 { "" } else { "," };
            self.text += &format!(r#"{comma}{{"role":"{role}","content":"{}"#, self.name);
            self.name.clear();
            self.messages += 1;
            let message_end = (self.text.len() + MESSAGE).min(end);
            while self.text.len() < message_end {
                self.text += &sentences[self.next % sentences.len()];
                self.next += 1;
            }
            self.text += "\"}";
        }
    }

    fn body(&self) -> Bytes {
        format!("{}]}}", self.text).into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;

    use super::*;

    fn text(body: &Bytes) -> String {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["messages"].as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect()
    }

    fn cell(mix: Mix, prompt_kb: usize) -> Cell {
        Cell { prompt_kb, mix, stream_chunks: 0 }
    }

    #[test]
    fn bodies_have_the_size_of_their_cell_on_average() {
        let mut prompts = Prompts::new();
        for mix in [Mix::Cold, Mix::Turn, Mix::Repeat] {
            for kb in [4, 48, 400] {
                let bodies = prompts.bodies(&cell(mix, kb), 16, 0).measured;
                let mean = bodies.iter().map(Bytes::len).sum::<usize>() / 16;
                let (least, most) = (kb * 1024 * 95 / 100, kb * 1024 * 110 / 100);
                assert!((least..most).contains(&mean), "{mix} {kb} KB: {mean} bytes");
            }
        }
    }

    #[test]
    fn cold_prompts_differ_from_the_first_bytes_on() {
        let mut prompts = Prompts::new();
        let both = [prompts.bodies(&cell(Mix::Cold, 4), 500, 20), prompts.bodies(&cell(Mix::Cold, 4), 500, 20)];
        let all: Vec<_> = both.iter().flat_map(|bodies| bodies.before.iter().chain(&bodies.measured)).collect();
        let heads: HashSet<String> = all.iter().map(|body| text(body).chars().take(16).collect()).collect();
        assert_eq!(heads.len(), 1040);
    }

    #[test]
    fn each_turn_extends_one_that_was_sent_before() {
        let bodies = Prompts::new().bodies(&cell(Mix::Turn, 4), 40, 3);
        assert_eq!(bodies.before.len(), 3 + 10);
        let mut sent: Vec<String> = bodies.before.iter().map(text).collect();
        for body in &bodies.measured {
            let text = text(body);
            let last = sent.iter_mut().find(|last| text.starts_with(last.as_str())).unwrap();
            assert!(text.len() > last.len());
            *last = text;
        }
    }

    #[test]
    fn a_repeated_prompt_was_sent_before() {
        let bodies = Prompts::new().bodies(&cell(Mix::Repeat, 4), 40, 0);
        assert!(bodies.measured.iter().all(|body| *body == bodies.before[0]));
    }
}
