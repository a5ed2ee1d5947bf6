//! The names in a body that tie requests together: `rid`, and the response that is referred to.

use super::super::{Endpoint, Facts, MAX_RESPONSE_ID_BYTES, MAX_RID_BYTES, Parsed, rid_key};
use super::read;

/// The `rid` of a body when it is asked for.
fn rid(endpoint: Endpoint, body: impl AsRef<[u8]>) -> String {
    let mut facts = Facts { wants_rid: true, ..Facts::default() };
    facts.read_body(endpoint, body.as_ref(), true);
    facts.rid
}

const WITH_RID: [Endpoint; 6] = [
    Endpoint::Chat,
    Endpoint::Completions,
    Endpoint::Generate,
    Endpoint::Messages,
    Endpoint::Embeddings,
    Endpoint::Classify,
];

#[test]
fn a_rid_is_read_if_it_is_asked_for() {
    let body = r#"{"rid":"conv_t2","model":"m"}"#;
    for endpoint in Endpoint::WITH_PROMPT {
        assert_eq!(read(endpoint, body).rid, "", "{endpoint:?}: nobody has asked");
        let has_one = WITH_RID.contains(&endpoint) || endpoint == Endpoint::Rerank;
        assert_eq!(rid(endpoint, body), if has_one { "conv_t2" } else { "" }, "{endpoint:?}");
    }
    let mut facts = Facts { wants_rid: true, ..Facts::default() };
    facts.read_body(Endpoint::Chat, body.as_bytes(), true);
    assert_eq!(rid_key(&facts.rid), Some("conv"));
    facts.read_body(Endpoint::Chat, b"{}", true);
    assert_eq!((facts.rid.as_str(), facts.wants_rid), ("", true), "the next body's, the same wish");
    facts.clear();
    assert_eq!(facts, Facts::default());
}

#[test]
fn a_rid_is_the_last_one_that_is_a_string() {
    for (body, expected) in [
        (r#"{"rid":"a","rid":"b"}"#, "b"),
        (r#"{"rid":"a","rid":null}"#, ""),
        (r#"{"rid":"a","rid":5}"#, ""),
        (r#"{"rid":""}"#, ""),
        (r#"{"rid":true}"#, ""),
        (r#"{"rid":["a"]}"#, ""),
        (r#"{"rid":"\u0061\n\u00e9"}"#, "a\né"),
        (r#"{"messages":[{"rid":"a"}],"Rid":"b"}"#, ""),
        (r#"{"messages":[{"content":"x"}],"rid":"a"}"#, "a"),
        (r#"{"rid":"\ud83d"}"#, ""),
    ] {
        for endpoint in WITH_RID {
            assert_eq!(rid(endpoint, body), expected, "{endpoint:?} {body}");
        }
    }
    assert_eq!(rid(Endpoint::Chat, b"{\"rid\":\"a\xff\"}"), "", "not UTF-8");
}

#[test]
fn of_reranks_list_the_first_counts() {
    for (body, expected) in [
        (r#"{"rid":["a","b"],"query":"q"}"#, "a"),
        (r#"{"rid":[]}"#, ""),
        (r#"{"rid":[null,"b"]}"#, ""),
        (r#"{"rid":[5,"b"]}"#, ""),
        (r#"{"rid":[["a"],"b"]}"#, ""),
        (r#"{"rid":["","b"]}"#, ""),
        (r#"{"rid":["a"],"rid":"c"}"#, "c"),
        (r#"{"rid":"c","rid":["a",{"x":1}]}"#, "a"),
    ] {
        assert_eq!(rid(Endpoint::Rerank, body), expected, "{body}");
        let facts = read(Endpoint::Rerank, body);
        assert_eq!((facts.rid.as_str(), facts.end), ("", Parsed::Whole), "{body}");
    }
    let many = format!(r#"{{"rid":[{}"z"],"query":"q"}}"#, "\"a\",".repeat(100_000));
    assert_eq!(rid(Endpoint::Rerank, many), "a");
}

#[test]
fn a_rid_is_kept_up_to_its_bound() {
    for (bytes, kept) in [(1, true), (128, true), (129, true), (MAX_RID_BYTES, true), (MAX_RID_BYTES + 1, false)] {
        let name = "r".repeat(bytes);
        let body = format!(r#"{{"rid":"{name}","prompt":"p"}}"#);
        assert_eq!(rid(Endpoint::Completions, body), if kept { name } else { String::new() }, "{bytes} bytes");
    }
    let huge = format!(r#"{{"rid":"{}"}}"#, "r".repeat(8 << 20));
    assert_eq!(rid(Endpoint::Chat, huge), "");
}

#[test]
fn half_a_name_is_none() {
    let body = r#"{"rid":"conv","previous_response_id":"resp_1","input":"a"}"#;
    for cut in 0..body.len() {
        let mut facts = Facts { wants_rid: true, ..Facts::default() };
        for (endpoint, whole) in [(Endpoint::Embeddings, "conv"), (Endpoint::Responses, "resp_1")] {
            facts.read_body(endpoint, &body.as_bytes()[..cut], false);
            let name = if endpoint == Endpoint::Responses { &facts.previous_response_id } else { &facts.rid };
            assert!(name.is_empty() || name == whole, "{name} at {cut}");
        }
    }
}

#[test]
fn responses_may_refer_to_another_one() {
    let previous = |body: &str| read(Endpoint::Responses, body).previous_response_id;
    assert_eq!(previous(r#"{"input":"a","previous_response_id":"resp_1"}"#), "resp_1");
    for body in [
        "{}",
        r#"{"previous_response_id":null}"#,
        r#"{"previous_response_id":""}"#,
        r#"{"previous_response_id":5}"#,
        r#"{"previous_response_id":["resp_1"]}"#,
        r#"{"previous_response_id":"a","previous_response_id":null}"#,
        r#"{"input":[{"previous_response_id":"a"}]}"#,
    ] {
        assert_eq!(previous(body), "", "{body}");
    }
    for (bytes, kept) in [(1, true), (MAX_RESPONSE_ID_BYTES, true), (MAX_RESPONSE_ID_BYTES + 1, false)] {
        let body = format!(r#"{{"previous_response_id":"{}"}}"#, "r".repeat(bytes));
        assert_eq!(previous(&body).len(), if kept { bytes } else { 0 });
    }
    for endpoint in Endpoint::WITH_PROMPT.into_iter().filter(|endpoint| *endpoint != Endpoint::Responses) {
        assert_eq!(read(endpoint, r#"{"previous_response_id":"a"}"#).previous_response_id, "", "{endpoint:?}");
    }
}
