//! Whatever an input holds, a plain reading of the parsed document gives the same text, and a cut one a beginning of it.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::Endpoint;
use super::properties::string;
use super::{read, read_cut};

/// A value that may stand anywhere, often as text with a type.
fn block() -> impl Strategy<Value = Value> {
    let kinds = ["text", "input_text", "output_text", "reasoning_text", "input_image", "tool_result"];
    let typed = || (prop::sample::select(kinds.to_vec()), string());
    prop_oneof![
        6 => typed().prop_map(|(kind, text)| json!({"type": kind, "text": text})),
        2 => typed().prop_map(|(kind, text)| json!({"type": kind, "content": [{"type": kind, "text": text}]})),
        1 => string().prop_map(|text| json!({"text": text})),
        1 => string().prop_map(Value::from),
        1 => Just(json!([null, {"text": 5}, 7])),
        1 => Just(Value::Null),
    ]
}

fn item() -> impl Strategy<Value = Value> {
    let kinds = ["message", "reasoning", "function_call_output", "text", "thought"];
    let content = prop_oneof![string().prop_map(Value::from), vec(block(), 0..4).prop_map(Value::from)];
    prop_oneof![
        3 => (prop::option::of(prop::sample::select(kinds.to_vec())), content).prop_map(|(kind, content)| match kind {
            Some(kind) => json!({"type": kind, "role": "user", "content": content}),
            None => json!({"role": "user", "content": content}),
        }),
        2 => block(),
    ]
}

fn input() -> impl Strategy<Value = Value> {
    prop_oneof![1 => string().prop_map(Value::from), 4 => vec(item(), 0..5).prop_map(Value::from)]
}

/// The texts of a content: the string, or those of its parts of these kinds.
fn texts<'v>(content: &'v Value, kinds: &[&str]) -> Vec<&'v str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => {
            let of_kind = |part: &&Value| part["type"].as_str().is_some_and(|kind| kinds.contains(&kind));
            parts.iter().filter(of_kind).filter_map(|part| part["text"].as_str()).collect()
        }
        _ => Vec::new(),
    }
}

fn joined(mut pieces: Vec<&str>) -> String {
    pieces.retain(|piece| !piece.is_empty());
    pieces.join(" ")
}

/// The items of an input, none if it is something else.
fn items(input: &Value) -> &[Value] {
    input.as_array().map_or(&[], Vec::as_slice)
}

fn responses(input: &Value) -> String {
    if let Value::String(text) = input {
        return text.clone();
    }
    let counts = |item: &&Value| matches!(item["type"].as_str(), None | Some("message" | "reasoning"));
    let kinds = ["input_text", "output_text", "reasoning_text"];
    items(input).iter().filter(counts).flat_map(|item| texts(&item["content"], &kinds)).collect::<Vec<_>>().join(" ")
}

fn interactions(input: &Value) -> String {
    if let Value::String(text) = input {
        return text.clone();
    }
    let pieces = items(input).iter().flat_map(|item| match (item["type"].as_str(), item.get("text")) {
        (Some("text"), Some(text)) => text.as_str().into_iter().collect(),
        (Some("text"), None) | (None, None) => texts(&item["content"], &["text"]),
        _ => Vec::new(),
    });
    joined(pieces.collect())
}

fn strings(input: &Value) -> String {
    match input {
        Value::String(text) => text.clone(),
        input => joined(items(input).iter().filter_map(Value::as_str).collect()),
    }
}

fn messages(system: &Value, messages: &Value) -> String {
    let mut pieces = texts(system, &["text"]);
    pieces.extend(items(messages).iter().flat_map(|message| texts(&message["content"], &["text"])));
    joined(pieces)
}

#[track_caller]
fn check(endpoint: Endpoint, body: &Value, expected: &str) {
    let facts = read(endpoint, body.to_string());
    assert_eq!(std::str::from_utf8(&facts.text), Ok(expected), "{endpoint:?} {body}");
    assert_eq!(facts.text_bytes, expected.len() as u64);
}

/// Every cut text is where the whole one begins.
#[track_caller]
fn check_cuts(endpoint: Endpoint, body: &str) {
    let whole = read(endpoint, body).text;
    for cut in 0..body.len() {
        let facts = read_cut(endpoint, &body.as_bytes()[..cut]);
        let text = String::from_utf8_lossy(&facts.text);
        assert!(whole.starts_with(&facts.text), "{endpoint:?} {body} at {cut}: {text:?}");
    }
}

proptest! {
    #[test]
    fn an_input_is_read_as_a_plain_reader_would(input in input()) {
        let body = json!({"model": "m", "input": input, "query": input});
        check(Endpoint::Responses, &body, &responses(&input));
        check(Endpoint::Interactions, &body, &interactions(&input));
        check(Endpoint::Embeddings, &body, &strings(&input));
        check(Endpoint::Classify, &body, &strings(&input));
        check(Endpoint::Rerank, &body, input.as_str().unwrap_or_default());
    }

    #[test]
    fn a_messages_body_is_read_as_a_plain_reader_would(system in input(), list in vec(item(), 0..5)) {
        let expected = messages(&system, &Value::from(list.clone()));
        check(Endpoint::Messages, &json!({"system": system, "messages": list}), &expected);
        let body = format!(r#"{{"messages":{},"system":{system}}}"#, Value::from(list));
        assert_eq!(String::from_utf8(read(Endpoint::Messages, &body).text), Ok(expected), "{body}");
    }

    #[test]
    fn a_cut_input_gives_a_beginning(input in input()) {
        // Members in the order in which the items' kinds come first, as clients send them.
        let body = format!(r#"{{"input":{},"query":"q"}}"#, kinds_first(&input));
        for endpoint in [Endpoint::Responses, Endpoint::Interactions, Endpoint::Embeddings, Endpoint::Rerank] {
            check_cuts(endpoint, &body);
        }
    }
}

/// The value with `type` as the first member of every object.
fn kinds_first(value: &Value) -> String {
    match value {
        Value::Array(elements) => format!("[{}]", elements.iter().map(kinds_first).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(name, _)| *name != "type");
            let members = members.iter().map(|(name, value)| format!("{}:{}", json!(name), kinds_first(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}
