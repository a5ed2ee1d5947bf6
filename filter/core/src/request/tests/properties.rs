//! What holds for every body: a plain reading of the parsed document agrees, a cut yields a beginning, nothing traps.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::{
    Endpoint, Facts, Parsed, Target, answered_id, endpoint, manual_key, response_id, rid_key, routing_key,
    routing_tokens, strip_lineage, target_worker,
};
use super::{read, read_cut};

/// Strings with every kind of escape, several scripts, and what the cut looks for.
pub(super) fn string() -> impl Strategy<Value = String> {
    vec(
        prop_oneof![
            Just("\"".to_owned()),
            Just("\\".to_owned()),
            Just("\n".to_owned()),
            Just(":".to_owned()),
            Just("🐄".to_owned()),
            Just("語".to_owned()),
            Just("\u{1}".to_owned()),
            "[a-z ,:\\[\\]{}]{0,6}",
        ],
        0..6,
    )
    .prop_map(|pieces| pieces.concat())
}

fn part() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => string().prop_map(|text| json!({"type": "text", "text": text})),
        1 => string().prop_map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
        1 => string().prop_map(|text| json!({"type": "refusal", "text": text})),
        1 => Just(json!({"type": "text"})),
        1 => Just(json!("text")),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop::sample::select(vec!["system", "user", "assistant", "tool", "developer", "function"]);
    let content = prop_oneof![
        3 => string().prop_map(Value::from),
        2 => vec(part(), 0..4).prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    (role, content, prop::option::of(string()), any::<bool>()).prop_map(|(role, content, reasoning, calls)| {
        let mut message = Map::new();
        message.insert("role".into(), role.into());
        message.insert("content".into(), content);
        if let Some(reasoning) = reasoning {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if calls {
            message.insert("tool_calls".into(), json!([{"function": {"arguments": "{\"content\": \"no\"}"}}]));
        }
        message.into()
    })
}

fn chat() -> impl Strategy<Value = Value> {
    (string(), vec(message(), 0..5), any::<bool>())
        .prop_map(|(model, messages, stream)| json!({"model": model, "stream": stream, "messages": messages, "n": 1.5}))
}

/// The rule, read off the parsed document.
fn plain_text(chat: &Value) -> String {
    let mut pieces = Vec::new();
    for message in chat["messages"].as_array().unwrap() {
        match &message["content"] {
            Value::String(text) => pieces.push(text.clone()),
            Value::Array(parts) => {
                let texts = parts.iter().filter(|part| part["type"] == "text");
                pieces.extend(texts.filter_map(|part| part["text"].as_str()).map(str::to_owned));
            }
            _ => {}
        }
        if message["role"] == "assistant" {
            pieces.extend(message["reasoning_content"].as_str().map(str::to_owned));
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces.join(" ")
}

/// The document with everything that is not ASCII escaped, as many clients send it.
fn escaped(document: &Value) -> String {
    let mut out = String::new();
    for character in document.to_string().chars() {
        if character.is_ascii() {
            out.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    out
}

proptest! {
    #[test]
    fn agrees_with_a_plain_reading(chat in chat(), indent in any::<bool>()) {
        let expected = plain_text(&chat);
        let body = if indent { serde_json::to_string_pretty(&chat).unwrap() } else { chat.to_string() };
        for body in [body, escaped(&chat)] {
            let facts = read(Endpoint::Chat, &body);
            prop_assert_eq!(std::str::from_utf8(&facts.text).unwrap(), &expected);
            prop_assert_eq!(facts.text_bytes, expected.len() as u64);
            prop_assert_eq!(&facts.model, chat["model"].as_str().unwrap());
            prop_assert_eq!(Value::from(facts.stream), chat["stream"].clone());
            prop_assert_eq!(facts.end, Parsed::Whole);
        }
    }

    #[test]
    fn the_order_of_members_does_not_matter(message in message().prop_shuffle_members()) {
        let expected = plain_text(&json!({"messages": [message.1]}));
        let facts = read(Endpoint::Chat, format!(r#"{{"messages":[{}]}}"#, message.0));
        prop_assert_eq!(std::str::from_utf8(&facts.text).unwrap(), &expected);
    }

    #[test]
    fn the_text_of_a_cut_body_is_where_the_whole_text_begins(chat in chat(), ascii in any::<bool>()) {
        let body = if ascii { escaped(&chat) } else { chat.to_string() };
        let whole = read(Endpoint::Chat, &body).text;
        let mut longest = 0;
        for cut in 0..body.len() {
            let facts = read_cut(Endpoint::Chat, &body.as_bytes()[..cut]);
            prop_assert_eq!(facts.end, Parsed::Cut);
            prop_assert!(whole.starts_with(&facts.text), "{} at {cut}: {:?}", body, String::from_utf8_lossy(&facts.text));
            prop_assert!(facts.model.is_empty() || facts.model == chat["model"].as_str().unwrap());
            longest = facts.text.len();
        }
        prop_assert_eq!(longest, whole.len(), "all of the text is there before the last byte");
    }

    #[test]
    fn the_ids_of_a_cut_body_are_where_the_whole_ones_begin(ids in vec(any::<u32>(), 1..20), batch in any::<bool>()) {
        let value = if batch { json!([ids, [1, 2]]) } else { json!(ids) };
        let body = json!({"input_ids": value, "text": "5"}).to_string();
        for cut in 0..=body.len() {
            let facts = read_cut(Endpoint::Generate, &body.as_bytes()[..cut]);
            prop_assert!(ids.starts_with(&facts.tokens), "{} at {cut}", body);
            prop_assert_eq!(facts.token_count, facts.tokens.len() as u64);
        }
    }

    #[test]
    fn a_damaged_body_never_traps(chat in chat(), at in any::<prop::sample::Index>(), bytes in vec(any::<u8>(), 0..4), complete in any::<bool>()) {
        let mut body = chat.to_string().into_bytes();
        let at = at.index(body.len());
        let end = (at + bytes.len()).min(body.len());
        body.splice(at..end, bytes);
        check_never_traps(&body, complete);
    }

    #[test]
    fn every_number_is_a_position(number in any::<usize>(), plus in any::<bool>(), zeros in 0..200usize) {
        let header = format!("{}{}{number}", if plus { "+" } else { "" }, "0".repeat(zeros));
        prop_assert_eq!(target_worker(header.as_bytes()), Target::Index(number));
    }

    #[test]
    fn a_key_is_the_same_in_every_turn_and_retry(key in "\\PC{0,20}[^0-9]", turn in any::<u64>(), retry in any::<u64>()) {
        let all = [format!("{key}_t{turn}"), format!("{key}_r{retry}"), format!("{key}_t{turn}_r{retry}")];
        for marked in &all {
            prop_assert_eq!(strip_lineage(marked), key.as_str());
            prop_assert_eq!(rid_key(marked), routing_key(key.as_bytes()));
        }
        prop_assert_eq!(strip_lineage(&key), key.as_str());
    }

    #[test]
    fn random_bytes_never_trap(bytes in vec(any::<u8>(), 0..200), complete in any::<bool>()) {
        check_never_traps(&bytes, complete);
    }

    #[test]
    fn random_json_like_bytes_never_trap(pieces in vec(prop::sample::select(PIECES.to_vec()), 0..40), complete in any::<bool>()) {
        check_never_traps(pieces.concat().as_bytes(), complete);
    }
}

const PIECES: [&str; 36] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "\\ud83d",
    "1",
    "-1",
    "2.5e3",
    "null",
    "true",
    " ",
    "\"messages\":",
    "\"content\":",
    "\"role\":",
    "\"assistant\"",
    "\"reasoning_content\":",
    "\"type\":",
    "\"text\"",
    "\"text\":",
    "\"prompt\":",
    "\"input_ids\":",
    "\"model\":",
    "\"system\":",
    "\"input\":",
    "\"query\":",
    "\"rid\":",
    "\"input_text\"",
    "\"reasoning\"",
    "\"previous_response_id\":",
    "\"cache_salt\":",
    "\"a\"",
];

fn check_never_traps(bytes: &[u8], complete: bool) {
    let mut facts = Facts::default();
    for (at, endpoint) in Endpoint::WITH_PROMPT.into_iter().enumerate() {
        facts.wants_rid = at % 2 == 0;
        facts.read_body(endpoint, bytes, complete);
        assert!(facts.text.len() as u64 <= facts.text_bytes);
        assert!(!complete || facts.end != Parsed::Cut);
    }
    let _ = (endpoint(bytes, bytes), response_id(bytes), answered_id(bytes));
    routing_tokens(bytes, &mut facts.tokens);
    let _ = (routing_key(bytes), manual_key(bytes), target_worker(bytes));
    let _ = rid_key(&String::from_utf8_lossy(bytes));
    facts.hint(bytes);
}

/// A document together with its text in which the members of the object stand in any order.
trait ShuffleMembers: Strategy<Value = Value> + Sized {
    fn prop_shuffle_members(self) -> impl Strategy<Value = (String, Value)> {
        self.prop_flat_map(|value| {
            let members: Vec<(String, Value)> = value.as_object().unwrap().clone().into_iter().collect();
            (Just(members).prop_shuffle(), Just(value))
        })
        .prop_map(|(members, value)| {
            let members: Vec<String> = members.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
            (format!("{{{}}}", members.join(",")), value)
        })
    }
}

impl<S: Strategy<Value = Value>> ShuffleMembers for S {}
