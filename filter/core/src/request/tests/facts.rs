//! Model, stream, cache partition, token ids, and reading again.

use super::super::{Endpoint, Facts, MAX_TEXT_BYTES, MAX_TOKENS, Parsed};
use super::{read, read_cut, text};

#[test]
fn the_model_is_the_last_one_that_is_a_string() {
    for (body, expected) in [
        (r#"{"model":"llama"}"#, "llama"),
        (r#"{"messages":[],"model":"qwen/Qwen3-8B"}"#, "qwen/Qwen3-8B"),
        (r#"{"model":"a","model":"b"}"#, "b"),
        (r#"{"model":"a","model":5}"#, ""),
        (r#"{"model":null}"#, ""),
        (r#"{"model":["a"]}"#, ""),
        (r#"{"model":"\u043c"}"#, "м"),
        ("{}", ""),
    ] {
        let facts = read(Endpoint::Chat, body);
        assert_eq!((facts.model.as_str(), facts.end), (expected, Parsed::Whole), "{body}");
    }
}

#[test]
fn stream_is_true_only_if_it_says_so() {
    let stream = |body: &str| {
        let facts = read(Endpoint::Completions, body);
        assert_eq!(facts.end, Parsed::Whole, "{body}");
        facts.stream
    };
    assert!(stream(r#"{"stream":true}"#));
    for body in
        [r#"{"stream":false}"#, r#"{"stream":"true"}"#, r#"{"stream":{"a":[1]}}"#, r#"{"stream":true,"stream":1}"#]
    {
        assert!(!stream(body), "{body}");
    }
}

#[test]
fn partitions_differ_by_field_length_and_value() {
    let bodies = [
        r#"{"cache_salt":"ab","extra_key":"c"}"#,
        r#"{"cache_salt":"a","extra_key":"bc"}"#,
        r#"{"cache_salt":"abc"}"#,
        r#"{"extra_key":"abc"}"#,
        r#"{"lora_path":"abc"}"#,
        r#"{"lora_id":"abc"}"#,
        r#"{"cache_salt":"abc","extra_key":"abc"}"#,
    ];
    let names: Vec<_> = bodies.iter().map(|body| read(Endpoint::Generate, body).namespace.unwrap()).collect();
    for (at, name) in names.iter().enumerate() {
        assert!(!names[..at].contains(name), "{}", bodies[at]);
    }
    assert_eq!(read(Endpoint::Chat, bodies[0]).namespace, Some(names[0]), "the same on another endpoint");
    assert_eq!(read(Endpoint::Chat, r#"{"extra_key":"c","cache_salt":"ab"}"#).namespace, Some(names[0]));
}

#[test]
fn unset_fields_make_no_partition() {
    for body in [
        "{}",
        r#"{"cache_salt":""}"#,
        r#"{"cache_salt":null,"extra_key":5}"#,
        r#"{"lora_id":"only on generate"}"#,
        r#"{"cache_salt":"a","cache_salt":""}"#,
        r#"{"messages":[{"role":"user","content":"x","cache_salt":"a"}]}"#,
        r#"{"cache_salt":["a"],"extra_key":7,"lora_path":true}"#,
        r#"{"cache_salt":"a","cache_salt":null}"#,
        r#"{"lora_path":"a","lora_path":["b",null]}"#,
        r#"{"Cache_salt":"a","metadata":{"extra_key":"b"}}"#,
    ] {
        assert_eq!(read(Endpoint::Chat, body).namespace, None, "{body}");
    }
}

#[test]
fn only_what_the_engines_cache_by_partition_is_partitioned() {
    let body = r#"{"cache_salt":"a","extra_key":"b","lora_path":"c","lora_id":"d","input_ids":[1],"text":"t"}"#;
    let without_id = r#"{"cache_salt":"a","extra_key":"b","lora_path":"c"}"#;
    for endpoint in Endpoint::WITH_PROMPT {
        let partitioned =
            matches!(endpoint, Endpoint::Chat | Endpoint::Completions | Endpoint::Messages | Endpoint::Generate);
        assert_eq!(read(endpoint, body).namespace.is_some(), partitioned, "{endpoint:?}");
        let reads_id = read(endpoint, body).namespace != read(endpoint, without_id).namespace;
        assert_eq!(reads_id, endpoint == Endpoint::Generate, "{endpoint:?}");
    }
    let facts = read(Endpoint::Generate, body);
    assert_eq!(
        (facts.tokens.as_slice(), facts.namespace),
        (
            [1].as_slice(),
            read(Endpoint::Generate, r#"{"lora_id":"d","lora_path":"c","extra_key":"b","cache_salt":"a"}"#).namespace
        ),
        "with ids as with text"
    );
}

#[test]
fn a_partition_far_back_in_the_body_counts_for_a_whole_body_only() {
    let body = r#"{"messages":[{"content":"a"}],"cache_salt":"s"}"#;
    assert_eq!(read_cut(Endpoint::Chat, &body[..body.len() - 3]).namespace, None, "half a salt is none");
    assert!(read_cut(Endpoint::Chat, &body[..body.len() - 1]).namespace.is_some());
}

#[test]
fn text_beyond_the_bound_is_counted_and_not_kept() {
    let long = "x".repeat(MAX_TEXT_BYTES);
    let body = format!(r#"{{"messages":[{{"content":"ab"}},{{"content":"{long}"}},{{"content":"c"}}]}}"#);
    let facts = read(Endpoint::Chat, body);
    assert_eq!(facts.text.len(), MAX_TEXT_BYTES);
    assert!(facts.text.starts_with(b"ab xxx"));
    assert_eq!(facts.text_bytes, MAX_TEXT_BYTES as u64 + 5);
}

#[test]
fn ids_beyond_the_bound_are_counted_and_not_kept() {
    let ids = vec!["7"; MAX_TOKENS + 3].join(",");
    let facts = read(Endpoint::Generate, format!(r#"{{"input_ids":[{ids}]}}"#));
    assert_eq!((facts.tokens.len(), facts.token_count), (MAX_TOKENS, MAX_TOKENS as u64 + 3));
}

#[test]
fn the_headers_ids_win_over_the_bodys() {
    let mut facts = Facts::default();
    assert!(!facts.hint(b"1,x") && !facts.hinted);
    assert!(facts.hint(b"1,2,3"));
    facts.read_body(Endpoint::Generate, br#"{"input_ids":[9],"text":"t","model":"m"}"#, true);
    assert_eq!((facts.tokens.as_slice(), facts.token_count, facts.model.as_str()), ([1, 2, 3].as_slice(), 3, "m"));
    facts.clear();
    assert_eq!(facts, Facts::default());
}

#[test]
fn a_second_reading_replaces_the_first() {
    let body = br#"{"model":"m","cache_salt":"s","stream":true,"input_ids":[1,2],"text":"abc"}"#;
    let mut facts = Facts::default();
    facts.read_body(Endpoint::Generate, &body[..40], false);
    assert_eq!(facts.end, Parsed::Cut);
    facts.read_body(Endpoint::Generate, body, true);
    assert_eq!(facts, read(Endpoint::Generate, body));
    facts.read_body(Endpoint::Generate, b"{}", true);
    assert_eq!(facts, read(Endpoint::Generate, b"{}"));
}

#[test]
fn a_body_without_a_prompt_is_not_read() {
    for endpoint in [Endpoint::Other, Endpoint::Models, Endpoint::ResponseById, Endpoint::Audio] {
        assert_eq!(read(endpoint, br#"{"model":"m"}"#), Facts::default());
    }
}

#[test]
fn a_number_at_the_cut_may_have_more_digits() {
    for (body, expected) in [
        (r#"{"input_ids":[1,23"#, vec![1]),
        (r#"{"input_ids":[1,23 "#, vec![1, 23]),
        (r#"{"input_ids":[1,23,"#, vec![1, 23]),
        (r#"{"input_ids":[[1,23],[4"#, vec![1, 23]),
        (r#"{"input_ids":[1,23],"n":4"#, vec![1, 23]),
        (r#"{"input_ids":[1"#, vec![]),
    ] {
        let facts = read_cut(Endpoint::Generate, body);
        assert_eq!(facts.token_count, expected.len() as u64, "{body}");
        assert_eq!((facts.tokens, facts.end), (expected, Parsed::Cut), "{body}");
    }
}

#[test]
fn a_cut_text_keeps_its_beginning() {
    for (body, expected) in [
        (r#"{"messages":[{"role":"user","content":"Hello wo"#, "Hello wo"),
        (r#"{"messages":[{"role":"user","content":"Hello\u00e"#, "Hello"),
        (r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"#, "a b"),
        (r#"{"messages":[{"role":"user","content":[{"text":"b"#, ""),
        (r#"{"messages":[{"role":"user","content":[{"type":"image_url","text":"b"#, ""),
        (r#"{"messages":[{"role":"assistant","content":"a","reasoning_content":"b"#, "a b"),
        (r#"{"messages":[{"role":"assistant","reasoning_content":"b","content":"a"#, "a"),
        (r#"{"messages":[{"role":"assistant","reasoning_content":"b"#, ""),
        (r#"{"messages":[{"content":"a:"},{"content":5,"ro"#, "a:"),
        (r#"{"messages":[{"content":"#, ""),
        (r#"{"messages":[{"content""#, ""),
        (r#"{"messages":[{"content":"a","tool_calls":["b"#, "a"),
    ] {
        let facts = read_cut(Endpoint::Chat, body);
        assert_eq!((text(&facts).as_str(), facts.end), (expected, Parsed::Cut), "{body}");
    }
    assert_eq!(text(&read_cut(Endpoint::Completions, r#"{"prompt":["a:", "b"#)), "a: b");
    assert_eq!(text(&read_cut(Endpoint::Completions, r#"{"prompt":["a:", 5, "#)), "a:");
    assert_eq!(read_cut(Endpoint::Chat, r#"{"model":"gpt-"#).model, "", "half a model's name is none");
}
