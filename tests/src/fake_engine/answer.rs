//! The bodies of generation answers: OpenAI's chat and completions, and SGLang's `/generate`.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};

use super::body::{Endpoint, Generation};
use super::rank::Running;

/// The words that answers are made of, one for each token.
const WORDS: [&str; 8] = ["one ", "grey ", "heron ", "waits ", "by ", "the ", "water ", "and "];

/// Writes the answer of one request.
#[derive(Debug)]
pub struct Answer {
    endpoint: Endpoint,
    id: String,
    /// Everything of an OpenAI chunk before `choices`.
    head: String,
    model: String,
    created: u64,
    batch: bool,
    include_usage: bool,
    sequences: usize,
    max_tokens: usize,
    usage: Vec<Usage>,
}

/// Token counts of one prompt.
#[derive(Clone, Copy, Debug)]
struct Usage {
    prompt: usize,
    cached: usize,
}

impl Answer {
    /// The answer to `request`, which ran as `works` (one for each prompt).
    pub fn new(request: &Generation, works: &[Running], number: u64, default_model: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let model = request.model.clone().unwrap_or_else(|| default_model.to_owned());
        let (prefix, object) = match request.endpoint {
            Endpoint::Chat => ("chatcmpl", "chat.completion.chunk"),
            Endpoint::Completions => ("cmpl", "text_completion"),
            Endpoint::Generate => ("gen", ""),
        };
        let id = format!("{prefix}-{number:012x}");
        let quoted = Value::String(model.clone());
        let head =
            format!(r#"data: {{"id":"{id}","object":"{object}","created":{created},"model":{quoted},"choices":["#);
        let usage = works.iter().map(|work| Usage { prompt: work.prompt_tokens(), cached: work.cached_tokens() });
        Self {
            endpoint: request.endpoint,
            id,
            head,
            model,
            created,
            batch: request.batch,
            include_usage: request.include_usage,
            sequences: request.sequences,
            max_tokens: request.max_tokens,
            usage: usage.collect(),
        }
    }

    /// The events of decode step `step` (from 0), one for each sequence.
    pub fn step(&self, step: usize) -> String {
        let mut text = String::new();
        for index in 0..self.choices() {
            self.push_chunk(&mut text, index, step);
        }
        text
    }

    /// The events after the last step: finish reasons, the usage chunk if asked for, `[DONE]`.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        if self.endpoint != Endpoint::Generate {
            for index in 0..self.choices() {
                text.push_str(&self.head);
                text.push_str(&match self.endpoint {
                    Endpoint::Chat => format!(r#"{{"index":{index},"delta":{{}},"finish_reason":"length"}}"#),
                    _ => format!(r#"{{"index":{index},"text":"","finish_reason":"length"}}"#),
                });
                text.push_str("]}\n\n");
            }
            if self.include_usage {
                text.push_str(&self.head);
                text.push_str(&format!("],\"usage\":{}}}\n\n", self.usage()));
            }
        }
        text.push_str("data: [DONE]\n\n");
        text
    }

    /// The whole answer of a request that is not streamed.
    pub fn whole(&self) -> Bytes {
        let document = match self.endpoint {
            Endpoint::Generate => {
                let mut answers: Vec<Value> = (0..self.choices()).map(|index| self.native(index, None)).collect();
                if self.batch || answers.len() > 1 { Value::Array(answers) } else { answers.swap_remove(0) }
            }
            endpoint => {
                let text = completion(self.max_tokens);
                let choice = |index: usize| match endpoint {
                    Endpoint::Chat => json!({
                        "index": index, "message": {"role": "assistant", "content": text}, "logprobs": null,
                        "finish_reason": "length",
                    }),
                    _ => json!({"index": index, "text": text, "logprobs": null, "finish_reason": "length"}),
                };
                let object = if endpoint == Endpoint::Chat { "chat.completion" } else { "text_completion" };
                json!({
                    "id": self.id, "object": object, "created": self.created, "model": self.model,
                    "choices": (0..self.choices()).map(choice).collect::<Vec<_>>(), "usage": self.usage(),
                })
            }
        };
        Bytes::from(document.to_string())
    }

    fn choices(&self) -> usize {
        self.usage.len() * self.sequences
    }

    fn push_chunk(&self, text: &mut String, index: usize, step: usize) {
        let word = WORDS[step % WORDS.len()];
        match self.endpoint {
            Endpoint::Chat => {
                let role = if step == 0 { r#""role":"assistant","# } else { "" };
                text.push_str(&self.head);
                text.push_str(&format!(
                    "{{\"index\":{index},\"delta\":{{{role}\"content\":\"{word}\"}},\"finish_reason\":null}}]}}\n\n"
                ));
            }
            Endpoint::Completions => {
                text.push_str(&self.head);
                text.push_str(&format!("{{\"index\":{index},\"text\":\"{word}\",\"finish_reason\":null}}]}}\n\n"));
            }
            Endpoint::Generate => {
                text.push_str(&format!("data: {}\n\n", self.native(index, Some(step + 1))));
            }
        }
    }

    /// One object of `/generate`; `so_far` tokens of a stream, whose texts are cumulative.
    fn native(&self, index: usize, so_far: Option<usize>) -> Value {
        let usage = self.usage[index / self.sequences];
        let tokens = so_far.unwrap_or(self.max_tokens);
        let finished = tokens >= self.max_tokens;
        let reason = if finished { json!({"type": "length", "length": self.max_tokens}) } else { Value::Null };
        let mut answer = json!({
            "text": completion(tokens),
            "output_ids": (0..tokens).map(|token| token % WORDS.len()).collect::<Vec<_>>(),
            "meta_info": {
                "id": format!("{}-{index}", self.id), "finish_reason": reason, "prompt_tokens": usage.prompt,
                "completion_tokens": tokens, "cached_tokens": usage.cached,
            },
        });
        if (self.batch || self.sequences > 1) && so_far.is_some() {
            answer["index"] = json!(index);
        }
        answer
    }

    fn usage(&self) -> Value {
        let prompt: usize = self.usage.iter().map(|usage| usage.prompt).sum();
        let cached: usize = self.usage.iter().map(|usage| usage.cached).sum();
        let completion = self.choices() * self.max_tokens;
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

/// An error in OpenAI's shape.
pub fn error(status: u16, kind: &str, message: &str) -> Value {
    json!({"error": {"message": message, "type": kind, "param": null, "code": status}})
}

fn completion(tokens: usize) -> String {
    (0..tokens).map(|token| WORDS[token % WORDS.len()]).collect()
}
