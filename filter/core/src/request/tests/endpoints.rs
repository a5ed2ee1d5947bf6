//! The routing text of the endpoints besides chats, completions and generate.

use super::super::{Endpoint, Parsed};
use super::{check, read, read_cut, text};

#[track_caller]
fn check_responses(input: &str, expected: &str) {
    check(Endpoint::Responses, &format!(r#"{{"model":"m","instructions":"no","input":{input}}}"#), expected);
}

#[test]
fn responses_have_an_input_of_text_or_items() {
    check_responses(r#"" a b ""#, " a b ");
    check_responses(
        r#"[{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"x"}]},
            {"role":"assistant","content":"b"},{"type":"reasoning","summary":[{"type":"summary_text","text":"no"}],"content":[{"type":"reasoning_text","text":"c"}]},
            {"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","output":"no"},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"d","annotations":[{"text":"no"}]},{"type":"refusal","refusal":"no"}]},
            {"role":"user","content":[{"type":"input_text","text":"e"}]},{"type":"message","content":"f","role":"user"}]"#,
        "a b c d e f",
    );
}

#[test]
fn an_empty_part_of_responses_takes_a_space() {
    let part = |text: &str| format!(r#"{{"type":"input_text","text":"{text}"}}"#);
    let message = |parts: &[&str]| {
        let parts = parts.iter().map(|text| part(text)).collect::<Vec<_>>().join(",");
        format!(r#"{{"role":"user","content":[{parts}]}}"#)
    };
    check_responses(&format!("[{}]", message(&["a", "", "b"])), "a  b");
    check_responses(&format!("[{}]", message(&["", "b"])), " b");
    check_responses(&format!("[{}]", message(&["a", ""])), "a ");
    check_responses(&format!("[{}]", message(&["", ""])), " ");
    check_responses(&format!("[{}]", message(&[""])), "");
    check_responses(&format!("[{},{}]", message(&["a"]), message(&["", "b"])), "a  b");
    check_responses(&format!("[{},{}]", message(&[]), message(&["b"])), "b");
    check_responses(
        r#"[{"role":"user","content":"a"},{"role":"user","content":""},{"role":"user","content":"b"}]"#,
        "a  b",
    );
    check_responses(
        r#"[{"content":[{"type":"input_text","text":"a"},{"type":"input_image","text":""},{"text":"","type":"x"},{"type":"input_text","text":"b"}]}]"#,
        "a b",
    );
    check_responses(r#"[{"content":"a"},{"type":"input_file","content":""},{"content":"b"}]"#, "a b");
}

#[test]
fn what_is_no_message_of_responses_says_nothing() {
    for input in [
        "null",
        "5",
        "true",
        "[]",
        r#"["a",5,null,["b"]]"#,
        r#"[{"type":"function_call_output","content":"a"}]"#,
        r#"[{"content":"a","type":"custom"}]"#,
        r#"[{"type":"message","content":null},{"content":5},{"text":"a"},{"type":"input_text","text":"a"}]"#,
        r#"[{"content":[{"type":"text","text":"a"},{"text":"b"},"c",{"type":5,"text":"d"},{"type":"summary_text","text":"e"}]}]"#,
        r#"[{"content":[[{"type":"input_text","text":"a"}]]}]"#,
    ] {
        check_responses(input, "");
    }
    check(Endpoint::Responses, r#"{"messages":[{"content":"a"}],"prompt":"b","query":"c","system":"d"}"#, "");
}

#[test]
fn the_last_of_several_members_of_an_input_counts() {
    check(Endpoint::Responses, r#"{"input":"a","input":[{"content":"b"}]}"#, "b");
    check(Endpoint::Responses, r#"{"input":[{"content":"b"}],"input":null}"#, "");
    check_responses(r#"[{"content":"x"},{"content":"a","content":[{"type":"input_text","text":"b"}]}]"#, "x b");
    check_responses(r#"[{"content":"x"},{"type":"custom","content":"a","type":"message"}]"#, "x a");
    check_responses(r#"[{"content":"x"},{"type":"message","content":"a","type":"custom"}]"#, "x");
    check_responses(r#"[{"content":"x"},{"type":"custom","content":"a","type":null}]"#, "x a");
}

#[test]
fn anthropics_system_prompt_comes_first_wherever_it_stands() {
    let messages = r#""messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"no"},{"type":"tool_use","input":{"text":"no"}},{"type":"text","text":"b"}]}]"#;
    for system in [
        r#""system":"S""#,
        r#""system":[{"type":"text","text":"S","cache_control":{"type":"ephemeral"}},{"type":"x","text":"no"}]"#,
    ] {
        check(Endpoint::Messages, &format!("{{{system},{messages}}}"), "S a b");
        check(Endpoint::Messages, &format!("{{{messages},{system}}}"), "S a b");
    }
    for system in ["5", "null", "\"\"", "[]", "[5]", "true", r#"[{"type":"text","text":""}]"#] {
        check(Endpoint::Messages, &format!(r#"{{"system":{system},{messages}}}"#), "a b");
    }
    check(Endpoint::Messages, &format!(r#"{{"system":"T",{messages},"system":"S"}}"#), "S a b");
    check(
        Endpoint::Messages,
        &format!(r#"{{"system":[{{"type":"text","text":"S"}},{{"type":"text","text":"T"}}],{messages}}}"#),
        "S T a b",
    );
    check(Endpoint::Chat, r#"{"system":"S","messages":[{"role":"user","content":"a"}]}"#, "a");
}

#[test]
fn of_anthropics_blocks_only_text_counts() {
    check(
        Endpoint::Messages,
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},
            {"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"no"}]},{"type":"image","source":{"type":"base64","data":"no"}},
            {"type":"input_text","text":"no"},{"text":"no"},"no",null,{"text":"b","type":"text"}]},{"role":"user","content":""},
            {"role":"assistant","content":"c","reasoning_content":"no"}],"prompt":"no","input":"no"}"#,
        "a b c",
    );
    check(Endpoint::Messages, r#"{"messages":null,"model":"m"}"#, "");
    check(Endpoint::Messages, r#"{"messages":[null,5,"a",[],{"content":null}]}"#, "");
}

#[test]
fn embeddings_and_classify_join_the_strings_of_their_input() {
    for endpoint in [Endpoint::Embeddings, Endpoint::Classify] {
        check(endpoint, r#"{"input":" a  b"}"#, " a  b");
        check(
            endpoint,
            r#"{"input":["a",5,[1,2],"b",null,{"content":"no","text":"no"},"","c",true,-1,1.5,["no"]]}"#,
            "a b c",
        );
        for input in ["[1,2,3]", "[[1,2],[3]]", "null", "5", "[]", "\"\"", "[\"\"]", "true"] {
            check(endpoint, &format!(r#"{{"input":{input},"query":"no","prompt":"no","text":"no"}}"#), "");
        }
        check(endpoint, r#"{"input":"a","input":["b"]}"#, "b");
        check(endpoint, r#"{"input":["a"],"input":null}"#, "");
        let numbers = vec!["7"; 100_000].join(",");
        check(endpoint, &format!(r#"{{"input":[{numbers},"a"]}}"#), "a");
    }
}

#[test]
fn rerank_has_its_query_only() {
    check(Endpoint::Rerank, r#"{"query":" q","documents":["a","b"],"input":"no","text":"no"}"#, " q");
    for query in ["null", "5", "[\"a\"]", "\"\"", "true", "[[]]"] {
        check(Endpoint::Rerank, &format!(r#"{{"query":{query},"documents":["a"]}}"#), "");
    }
    check(Endpoint::Rerank, r#"{"query":"a","query":"b"}"#, "b");
    check(Endpoint::Rerank, r#"{"query":"a","query":null}"#, "");
}

#[test]
fn interactions_have_a_text_or_contents_or_turns() {
    let interactions = |input: &str, expected: &str| {
        check(Endpoint::Interactions, &format!(r#"{{"system_instruction":"no","input":{input}}}"#), expected);
    };
    interactions(r#"" a ""#, " a ");
    interactions(
        r#"[{"type":"text","text":"a"},{"type":"image","data":"no"},{"text":"b","type":"text"},{"type":"text","text":""},{"type":"thought","text":"no"},{"text":"no"}]"#,
        "a b",
    );
    interactions(
        r#"[{"role":"user","content":"a"},{"role":"model","content":[{"type":"text","text":"b"},{"type":"image","text":"no"},{"type":"text","text":"c"}]},{"role":"user","content":""},{"role":"user","content":"d"}]"#,
        "a b c d",
    );
    interactions(r#"[{"type":"text","text":"x"},{"type":"text","text":"a","text":"b"}]"#, "x b");
    for input in [
        "null",
        "5",
        "[]",
        r#"["a",5,null,["b"]]"#,
        r#"[{"type":"function_result","content":"a"},{"type":"text","text":null},{"type":"text","text":5}]"#,
    ] {
        interactions(input, "");
    }
}

#[test]
fn a_cut_text_keeps_its_beginning() {
    use Endpoint::{Embeddings, Interactions, Messages, Rerank, Responses};
    for (endpoint, body, expected) in [
        (Responses, r#"{"input":"Hello wo"#, "Hello wo"),
        (Responses, r#"{"input":[{"role":"user","content":"a"},{"role":"user","content":"b"#, "a b"),
        (Responses, r#"{"input":[{"content":[{"type":"input_text","text":"b"#, "b"),
        (Responses, r#"{"input":[{"content":[{"type":"input_text","text":""#, ""),
        (Responses, r#"{"input":[{"content":[{"type":"input_text","text":"a"},{"type":"input_text","text":""#, "a "),
        (Responses, r#"{"input":[{"content":[{"text":"b"#, ""),
        (Responses, r#"{"input":[{"type":"custom","content":"b"#, ""),
        (Responses, r#"{"input":"a","instructions":"b"#, "a"),
        (Messages, r#"{"system":"S","messages":[{"role":"user","content":"a"#, "S a"),
        (Messages, r#"{"messages":[{"role":"user","content":"a"}],"system":"S"#, "a"),
        (Embeddings, r#"{"input":"a"#, "a"),
        (Embeddings, r#"{"input":["a:","b"#, "a:"),
        (Embeddings, r#"{"input":["a:",tru"#, "a:"),
        (Embeddings, r#"{"input":["a:",1"#, "a:"),
        (Rerank, r#"{"documents":["a"],"query":"q"#, "q"),
        (Rerank, r#"{"query":"q","documents":["a"#, "q"),
        (Interactions, r#"{"input":[{"type":"text","text":"a"#, "a"),
        (Interactions, r#"{"input":[{"text":"a"#, ""),
        (Interactions, r#"{"input":[{"role":"user","content":[{"type":"text","text":"a"#, "a"),
    ] {
        let facts = read_cut(endpoint, body);
        assert_eq!((text(&facts).as_str(), facts.end), (expected, Parsed::Cut), "{body}");
    }
}

#[test]
fn damage_costs_what_comes_after_it() {
    for (endpoint, body, expected) in [
        (Endpoint::Responses, r#"{"input":[{"content":"a"},{"content":"b"]"#, "a b"),
        (Endpoint::Messages, r#"{"system":"S","messages":[{"content":"a"},}"#, "S a"),
        (Endpoint::Embeddings, r#"{"input":["a",}"#, "a"),
        (Endpoint::Rerank, r#"{"query":"q","documents":[}"#, "q"),
        (Endpoint::Interactions, r#"{"input":[{"type":"text","text":"a"},{"type":"text","text":"b"]"#, "a b"),
    ] {
        let facts = read(endpoint, body);
        assert_eq!((text(&facts).as_str(), facts.end), (expected, Parsed::Malformed), "{body}");
    }
}
