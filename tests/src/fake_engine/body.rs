//! Reads a generation request as leniently as an engine can: unknown members are skipped at any depth, wrong types
//! count as absent, of equal members the last one wins.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use super::block_cache::block_hashes;
use super::options::EngineOptions;
use super::rank::Prompt;

/// Block hashes of token prompts start from here, those of text from 0: they never match each other.
const TOKEN_IDS_SEED: u64 = 1;

/// Sequences and prompts of one request at most, so that no request can take the test machine down.
const MAX_FAN_OUT: usize = 256;

/// The endpoint a generation came to; it decides the shape of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /generate`, SGLang's own
    Generate,
}

/// What a generation request asks for.
#[derive(Debug)]
pub struct Generation {
    /// Where it came.
    pub endpoint: Endpoint,
    /// The model it names.
    pub model: Option<String>,
    /// One prompt, or several for a batch.
    pub prompts: Vec<Prompt>,
    /// Whether the request was an array of prompts, even of one.
    pub batch: bool,
    /// Sequences to generate for each prompt.
    pub sequences: usize,
    /// Whether the answer is a stream of events.
    pub stream: bool,
    /// Whether a stream ends with a usage chunk.
    pub include_usage: bool,
    /// Completion tokens of each sequence.
    pub max_tokens: usize,
    /// The data-parallel rank the body names.
    pub dp_rank: Option<usize>,
}

impl Generation {
    /// Reads a request body.
    ///
    /// # Errors
    /// The JSON error of a body that is no JSON object.
    pub fn parse(endpoint: Endpoint, body: &[u8], options: &EngineOptions) -> Result<Self, serde_json::Error> {
        let Known(members) = serde_json::from_slice(body)?;
        let sampling = members.get("sampling_params");
        let number = |value: Option<&Value>| value.and_then(Value::as_u64).map(|number| number as usize);
        let flag = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
        let (prompts, batch) = prompts(endpoint, &members, options);
        let max_tokens = number(members.get("max_completion_tokens"))
            .or_else(|| number(members.get("max_tokens")))
            .or_else(|| number(sampling.and_then(|params| params.get("max_new_tokens"))))
            .unwrap_or(options.default_max_tokens);
        let sequences = number(members.get("n")).or_else(|| number(sampling.and_then(|params| params.get("n"))));
        Ok(Self {
            endpoint,
            model: members.get("model").and_then(Value::as_str).map(str::to_owned),
            prompts,
            batch,
            sequences: sequences.unwrap_or(1).clamp(1, MAX_FAN_OUT),
            stream: flag(members.get("stream")),
            include_usage: flag(members.get("stream_options").and_then(|options| options.get("include_usage"))),
            max_tokens: max_tokens.min(options.max_output_tokens),
            dp_rank: number(members.get("routed_dp_rank")),
        })
    }
}

/// The text that a chat's tokens are made of: each message as `<|role|>`, its text, and a line feed.
pub fn chat_text(messages: &[Value]) -> Vec<u8> {
    let mut text = Vec::new();
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        push_role(&mut text, role);
        match message.get("content") {
            Some(Value::String(content)) => text.extend_from_slice(content.as_bytes()),
            Some(Value::Array(parts)) => parts.iter().for_each(|part| push_part(&mut text, part)),
            Some(Value::Null) | None => {}
            Some(other) => text.extend_from_slice(other.to_string().as_bytes()),
        }
        text.push(b'\n');
    }
    text
}

/// Appends what the chat template puts in front of a message's text.
pub(crate) fn push_role(text: &mut Vec<u8>, role: &str) {
    text.extend_from_slice(b"<|");
    text.extend_from_slice(role.as_bytes());
    text.extend_from_slice(b"|>");
}

fn push_part(text: &mut Vec<u8>, part: &Value) {
    match part.get("text").and_then(Value::as_str).or(part.as_str()) {
        Some(words) => text.extend_from_slice(words.as_bytes()),
        None => text.extend_from_slice(part.to_string().as_bytes()),
    }
}

fn prompts(endpoint: Endpoint, members: &Map<String, Value>, options: &EngineOptions) -> (Vec<Prompt>, bool) {
    let source = match endpoint {
        Endpoint::Chat => {
            let messages = members.get("messages").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            return (vec![text_prompt(&chat_text(messages), options)], false);
        }
        Endpoint::Completions => members.get("prompt"),
        Endpoint::Generate => members.get("text").filter(|text| !text.is_null()).or_else(|| members.get("input_ids")),
    };
    match source {
        Some(Value::String(text)) => (vec![text_prompt(text.as_bytes(), options)], false),
        Some(Value::Array(ids)) if ids.first().is_some_and(Value::is_number) => (vec![ids_prompt(ids, options)], false),
        Some(Value::Array(batch)) if !batch.is_empty() => {
            let prompts = batch.iter().take(MAX_FAN_OUT).map(|entry| match entry {
                Value::String(text) => text_prompt(text.as_bytes(), options),
                Value::Array(ids) => ids_prompt(ids, options),
                other => text_prompt(other.to_string().as_bytes(), options),
            });
            (prompts.collect(), true)
        }
        _ => (vec![Prompt::default()], false),
    }
}

/// A prompt of text: a token is `bytes_per_token` bytes.
pub(crate) fn text_prompt(text: &[u8], options: &EngineOptions) -> Prompt {
    Prompt {
        tokens: text.len().div_ceil(options.bytes_per_token),
        blocks: hashes(text, options.block_tokens * options.bytes_per_token, 0, options),
    }
}

fn ids_prompt(ids: &[Value], options: &EngineOptions) -> Prompt {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| (id.as_u64().unwrap_or(0) as u32).to_le_bytes()).collect();
    Prompt { tokens: ids.len(), blocks: hashes(&bytes, options.block_tokens * 4, TOKEN_IDS_SEED, options) }
}

fn hashes(bytes: &[u8], block_bytes: usize, seed: u64, options: &EngineOptions) -> Vec<u64> {
    if options.cache_tokens == 0 { Vec::new() } else { block_hashes(bytes, block_bytes, seed) }
}

/// The members that mean something here; anything else is skipped without recursion.
struct Known(Map<String, Value>);

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Known;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Known, A::Error> {
                let mut members = Map::new();
                while let Some(name) = access.next_key::<String>()? {
                    match name.as_str() {
                        "model"
                        | "messages"
                        | "prompt"
                        | "text"
                        | "input_ids"
                        | "stream"
                        | "stream_options"
                        | "max_tokens"
                        | "max_completion_tokens"
                        | "sampling_params"
                        | "n"
                        | "routed_dp_rank" => {
                            members.insert(name, access.next_value()?);
                        }
                        _ => {
                            access.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                Ok(Known(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(endpoint: Endpoint, body: &str) -> Generation {
        Generation::parse(endpoint, body.as_bytes(), &EngineOptions::default()).unwrap()
    }

    #[test]
    fn strings_and_content_parts_are_the_same_prompt() {
        let plain = parse(Endpoint::Chat, r#"{"messages":[{"role":"user","content":"Grüße aus 北京"}]}"#);
        let parts = parse(
            Endpoint::Chat,
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"Grüße"},{"type":"text","text":" aus \u5317京"}]}]}"#,
        );
        assert_eq!(plain.prompts[0].tokens, parts.prompts[0].tokens);
        assert_eq!(plain.prompts[0].tokens, ("<|user|>Grüße aus 北京\n".len()).div_ceil(4));
        assert_eq!(plain.prompts[0].blocks, parts.prompts[0].blocks);
    }

    #[test]
    fn every_form_of_a_prompt_is_read() {
        assert_eq!(parse(Endpoint::Completions, r#"{"prompt":"12345678"}"#).prompts[0].tokens, 2);
        assert_eq!(parse(Endpoint::Generate, r#"{"text":"12345678"}"#).prompts[0].tokens, 2);
        assert_eq!(parse(Endpoint::Generate, r#"{"input_ids":[1,2,3]}"#).prompts[0].tokens, 3);
        let batch = parse(Endpoint::Generate, r#"{"input_ids":[[1,2,3],[4]]}"#);
        assert!(batch.batch);
        assert_eq!(batch.prompts.iter().map(|prompt| prompt.tokens).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(parse(Endpoint::Completions, r#"{"prompt":["a","b"]}"#).prompts.len(), 2);
    }

    #[test]
    fn unknown_deep_wrong_and_repeated_members_do_no_harm() {
        let deep = format!(
            r#"{{"junk":{}{},"max_tokens":"many","stream":1,"model":"a","model":"b"}}"#,
            "[".repeat(10_000),
            "]".repeat(10_000)
        );
        let request = parse(Endpoint::Chat, &deep);
        assert_eq!(request.model.as_deref(), Some("b"));
        assert_eq!(request.max_tokens, EngineOptions::default().default_max_tokens);
        assert!(!request.stream);
        for broken in ["", "{", "[1]", "nonsense", "{\"model\":\"\u{1}\"}"] {
            assert!(Generation::parse(Endpoint::Chat, broken.as_bytes(), &EngineOptions::default()).is_err());
        }
    }
}
