//! The routing text of chats, completions and generate, member by member.

use super::super::Endpoint;
use super::{check, read};

#[track_caller]
fn check_messages(messages: &str, expected: &str) {
    check(Endpoint::Chat, &format!(r#"{{"model":"m","messages":{messages}}}"#), expected);
}

#[test]
fn the_vector_of_the_rules() {
    check_messages(
        r#"[{"role":"system","content":"You are X"},
            {"role":"user","content":[{"type":"text","text":"Hi"},{"type":"image_url","image_url":{"url":"data:x"}},{"type":"text","text":"there"}]},
            {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"text\":\"no\"}"}}]},
            {"role":"user","content":"go"}]"#,
        "You are X Hi there go",
    );
}

#[test]
fn every_role_gives_its_content() {
    check_messages(
        r#"[{"role":"developer","content":"a"},{"role":"system","content":"b","name":"n"},{"role":"user","content":"c"},
            {"role":"tool","content":"d","tool_call_id":"1"},{"role":"function","name":"f","content":"e"},{"role":"assistant","content":"f"}]"#,
        "a b c d e f",
    );
}

#[test]
fn an_assistants_reasoning_follows_its_content_wherever_it_stands() {
    for message in [
        r#"{"role":"assistant","content":"C","reasoning_content":"R"}"#,
        r#"{"reasoning_content":"R","content":"C","role":"assistant"}"#,
        r#"{"content":[{"type":"text","text":"C"}],"reasoning_content":"R","role":"assistant"}"#,
    ] {
        check_messages(&format!(r#"[{message},{{"role":"user","content":"x"}}]"#), "C R x");
    }
    check_messages(
        r#"[{"role":"assistant","content":"C","reasoning_content":""},{"role":"user","content":"x"}]"#,
        "C x",
    );
    check_messages(r#"[{"role":"assistant","reasoning_content":"R"}]"#, "R");
    check_messages(
        r#"[{"role":"user","content":"C","reasoning_content":"R"},{"role":"assistant","content":"A"}]"#,
        "C A",
    );
}

#[test]
fn empty_pieces_add_no_space_and_nothing_is_trimmed() {
    check_messages(
        r#"[{"role":"user","content":""},{"role":"user","content":" a "},{"role":"user","content":[]}]"#,
        " a ",
    );
    check_messages(
        r#"[{"role":"user","content":[{"type":"text","text":""},{"type":"text","text":"A"},{"type":"text","text":""}]},{"role":"user","content":"B"}]"#,
        "A B",
    );
    check_messages("[]", "");
}

#[test]
fn only_text_parts_count_wherever_their_type_stands() {
    check_messages(
        r#"[{"role":"user","content":[{"text":"a","type":"text"},{"text":"b","type":"input_audio"},{"type":"refusal","text":"c"},{"text":"d"},"e",5,null,{"type":"text"},{"type":"text","text":"f"}]}]"#,
        "a f",
    );
}

#[test]
fn the_last_of_several_members_counts() {
    check(Endpoint::Chat, r#"{"messages":[{"content":"a"}],"messages":[{"content":"b"}]}"#, "b");
    check(Endpoint::Chat, r#"{"messages":[{"content":"a"}],"messages":null}"#, "");
    check_messages(r#"[{"content":"x"},{"content":"a","content":"b","content":[{"type":"text","text":"c"}]}]"#, "x c");
    check_messages(
        r#"[{"content":[{"type":"text","text":"a","text":"b"},{"type":"text","text":"c","type":"x"}]}]"#,
        "b",
    );
    check_messages(r#"[{"role":"assistant","content":"a","reasoning_content":"r","role":"user"}]"#, "a");
    check(Endpoint::Completions, r#"{"prompt":"a","prompt":["b","c"]}"#, "b c");
}

#[test]
fn completions_join_an_array_of_prompts() {
    check(Endpoint::Completions, r#"{"prompt":"a  b"}"#, "a  b");
    check(Endpoint::Completions, r#"{"prompt":["a","","b"]}"#, "a b");
    check(Endpoint::Completions, r#"{"prompt":[1,2,3]}"#, "");
    check(Endpoint::Completions, r#"{"prompt":[[1,2],[3]],"model":"m"}"#, "");
    check(Endpoint::Completions, r#"{"prompt":null,"messages":[{"role":"user","content":"x"}],"text":"y"}"#, "");
}

#[test]
fn generate_has_text_or_ids() {
    let ids = |body: &str| read(Endpoint::Generate, body).tokens;
    check(Endpoint::Generate, r#"{"text":"a"}"#, "a");
    assert_eq!(ids(r#"{"text":"a","input_ids":[1,2,4294967295]}"#), [1, 2, u32::MAX]);
    assert_eq!(ids(r#"{"input_ids":[[5,6],[7]],"text":"a"}"#), [5, 6]);
    assert_eq!(ids(r#"{"input_ids":[1],"input_ids":[2,3]}"#), [2, 3]);
    assert_eq!(ids(r#"{"input_ids":[1],"input_ids":null}"#), [0u32; 0]);
}

#[test]
fn empty_ids_fall_back_to_the_text_and_else_to_the_ids_as_text() {
    for body in [r#"{"input_ids":[],"text":"a"}"#, r#"{"text":"a","input_ids":[[],[1,2]]}"#] {
        assert_eq!(read(Endpoint::Generate, body).tokens, [0u32; 0], "{body}");
        check(Endpoint::Generate, body, "a");
    }
    check(Endpoint::Generate, r#"{"input_ids":[[],[1,2],[30]]}"#, "1 2 30");
    check(Endpoint::Generate, r#"{"input_ids":[[],[1,2]],"text":""}"#, "");
    check(Endpoint::Generate, r#"{"input_ids":[]}"#, "");
    check(Endpoint::Generate, "{}", "");
}

#[test]
fn ids_end_at_the_first_that_is_none() {
    for (body, expected) in [
        ("[1,-2,3]", 1),
        ("[1,2,4294967296,3]", 2),
        ("[1.5,2]", 0),
        (r#"[1,2,3,"4",5]"#, 3),
        ("[[1,null,2],[3]]", 1),
        (r#""12""#, 0),
    ] {
        let facts = read(Endpoint::Generate, format!(r#"{{"input_ids":{body}}}"#));
        assert_eq!((facts.tokens.len(), facts.end), (expected, crate::request::Parsed::Whole), "{body}");
    }
}

#[test]
fn escapes_and_every_script_come_out_as_they_are() {
    check_messages(
        r#"[{"content":"\u041f\u0440\u0438\u0432\u0435\u0442 \"\\\/\b\f\n\r\t"}]"#,
        "Привет \"\\/\u{8}\u{c}\n\r\t",
    );
    check_messages(r#"[{"content":"日本語 🐄 \ud83d\udc04 العربية"}]"#, "日本語 🐄 🐄 العربية");
    check_messages(r#"[{"\u0063ontent":"x","ro\u006ce":"user"}]"#, "x");
}
