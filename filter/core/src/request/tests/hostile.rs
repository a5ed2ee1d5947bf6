//! Bodies that nobody should send. Each is routed on what could be read of it.

use super::super::{Endpoint, Parsed};
use super::{read, text};

#[test]
fn what_is_no_json_says_nothing() {
    for body in [
        "",
        " ",
        "hello",
        "{",
        "\"",
        "[",
        "\u{feff}{}",
        "{]",
        "nul",
        "\0",
        "--boundary\r\nContent-Disposition: form-data",
    ] {
        for endpoint in Endpoint::WITH_PROMPT {
            let facts = read(endpoint, body);
            assert_eq!(
                (text(&facts).as_str(), facts.model.as_str(), facts.end),
                ("", "", Parsed::Malformed),
                "{body:?}"
            );
        }
    }
}

#[test]
fn json_that_is_no_object_says_nothing() {
    for body in ["null", "5", "\"text\"", "[]", "[1]", r#"[{"model":"m"}]"#, "true", "-1", "1.5"] {
        for endpoint in Endpoint::WITH_PROMPT {
            let facts = read(endpoint, body);
            assert_eq!((text(&facts).as_str(), facts.model.as_str(), facts.end), ("", "", Parsed::Whole), "{body:?}");
        }
    }
}

#[test]
fn what_came_before_the_damage_is_kept() {
    let good = r#"{"model":"m","messages":[{"role":"user","content":"a"}]"#;
    for tail in ["", ",", "x", ",\"x\"", ",\"x\":", ",\"x\":tru", "]", "}}", ",\"x\":\"\\q\"}", "}garbage", ",5:6}"] {
        let facts = read(Endpoint::Chat, format!("{good}{tail}"));
        assert_eq!((text(&facts).as_str(), facts.model.as_str(), facts.end), ("a", "m", Parsed::Malformed), "{tail}");
    }
}

#[test]
fn a_wrong_type_costs_its_own_member_only() {
    for wrong in ["5", "-1", "1e300", "null", "true", "[[]]", "[5]"] {
        let body = format!(
            r#"{{"model":{wrong},"cache_salt":{wrong},"stream":{wrong},"messages":[{wrong},{{"role":{wrong},"content":{wrong}}},
               {{"content":[{{"type":{wrong},"text":{wrong}}},{{"type":"text","text":"a"}}]}},{{"reasoning_content":{wrong},"content":"b"}}],"x":1}}"#
        );
        let facts = read(Endpoint::Chat, &body);
        assert_eq!((text(&facts).as_str(), facts.end), ("a b", Parsed::Whole), "{body}");
    }
    for wrong in ["5", "\"x\"", "{\"a\":{}}", "false", "[[[\"a\"]]]"] {
        let facts = read(Endpoint::Chat, format!(r#"{{"messages":{wrong},"model":"m","stream":{{"a":1}}}}"#));
        assert_eq!((text(&facts).as_str(), facts.model.as_str(), facts.end), ("", "m", Parsed::Whole), "{wrong}");
    }
}

#[test]
fn an_object_in_place_of_a_string_ends_the_reading_and_no_more() {
    let facts = read(Endpoint::Chat, r#"{"messages":[{"content":"a"},{"content":{"text":"b"}}],"model":"m"}"#);
    assert_eq!((text(&facts).as_str(), facts.end), ("a", Parsed::Malformed));
}

#[test]
fn thousands_of_wrong_types_end_the_reading() {
    let body =
        format!(r#"{{"messages":[{{"content":"a"}},{}{{"content":"b"}}],"x":1}}"#, r#"{"content":5},"#.repeat(10_000));
    assert_eq!(text(&read(Endpoint::Chat, body)), "a");
}

#[test]
fn ten_thousand_levels_are_skipped_without_recursion() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        for body in [
            format!(r#"{{"model":"m","messages":[{{"role":"user","content":"a"}}],"x":{deep}}}"#),
            format!(r#"{{"x":{deep},"model":"m","messages":[{deep},{{"role":"user","content":"a"}}]}}"#),
            format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"a"}},{{"x":{deep},"content":[{deep}]}}]}}"#
            ),
        ] {
            let facts = read(Endpoint::Chat, &body);
            assert_eq!((text(&facts).as_str(), facts.model.as_str(), facts.end), ("a", "m", Parsed::Whole));
        }
        let unclosed = format!(r#"{{"model":"m","messages":[{{"content":"a"}}],"x":{}"#, open.repeat(10_000));
        let facts = read(Endpoint::Chat, unclosed);
        assert_eq!((text(&facts).as_str(), facts.end), ("a", Parsed::Malformed));
        for (endpoint, member) in [
            (Endpoint::Completions, "prompt"),
            (Endpoint::Generate, "input_ids"),
            (Endpoint::Generate, "text"),
            (Endpoint::Responses, "input"),
            (Endpoint::Embeddings, "input"),
            (Endpoint::Interactions, "input"),
            (Endpoint::Messages, "system"),
            (Endpoint::Rerank, "query"),
            (Endpoint::Rerank, "rid"),
            (Endpoint::Chat, "messages"),
            (Endpoint::Chat, "model"),
        ] {
            read(endpoint, format!(r#"{{"{member}":{deep}}}"#));
            read(endpoint, &deep);
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_text_like_any_other() {
    let facts = read(Endpoint::Chat, b"{\"\xff\":\"\xfe\",\"model\":\"m\xff\",\"messages\":[{\"content\":\"a\xff\xc3b\"},{\"content\":\"c\\n\xf0\"}]}");
    assert_eq!(facts.text, b"a\xff\xc3b c\n\xf0");
    assert_eq!((facts.model.as_str(), facts.end), ("m\u{fffd}", Parsed::Whole));
}

#[test]
fn lone_surrogates_and_control_characters_do_not_end_the_text() {
    let body = b"{\"messages\":[{\"content\":\"a\\ud83d b\"},{\"content\":\"\\udc04c\"},{\"content\":\"d\n\x01e\"}],\"model\":\"m\"}";
    let facts = read(Endpoint::Chat, body);
    assert_eq!((facts.model.as_str(), facts.end), ("m", Parsed::Whole));
    assert!(facts.text.starts_with(b"a") && facts.text.ends_with(b"c d\n\x01e"));
}

#[test]
fn a_body_of_twenty_megabytes_keeps_no_more_than_the_bound() {
    let body = format!(r#"{{"model":"m","messages":[{{"content":"{}"}}]}}"#, "long \\n".repeat(20 << 20 >> 3));
    let facts = read(Endpoint::Chat, &body);
    assert_eq!(facts.text.len(), super::super::MAX_TEXT_BYTES);
    assert_eq!(facts.text_bytes, (20 << 20 >> 3) * 6);
}

#[test]
fn a_huge_model_name_is_not_kept() {
    let body = [br#"{"model":""#.as_slice(), &vec![0xff; 8 << 20], br#""}"#].concat();
    let mut facts = crate::request::Facts::default();
    facts.read_body(Endpoint::Chat, &body, true);
    assert!(!facts.model.is_empty() && facts.model.len() <= 4096);
}
