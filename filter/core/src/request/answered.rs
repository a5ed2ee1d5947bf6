//! The id of a response, from the beginning of an engine's answer to `POST /v1/responses`.
//!
//! Answers are one JSON object, whose `id` it is, or a stream of server-sent events, of which the first ones carry the
//! object as `response`. Whatever else comes is no id.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

use super::MAX_RESPONSE_ID_BYTES;

/// The id in `head`, the first bytes of an answer: 1 to [`MAX_RESPONSE_ID_BYTES`] bytes. None if it is not there, or not
/// there yet.
#[must_use]
pub fn answered_id(head: &[u8]) -> Option<String> {
    let head = head.trim_ascii_start();
    if head.first() == Some(&b'{') {
        return id_in(head, Level::Response);
    }
    head.split(|&byte| byte == b'\n' || byte == b'\r')
        .filter_map(|line| line.strip_prefix(b"data:"))
        .find_map(|event| id_in(event, Level::Event))
}

fn id_in(json: &[u8], level: Level) -> Option<String> {
    let mut found = None;
    // An object that is cut, or goes on after its id, is an error here; what was found stands.
    let _ = Object { level, found: &mut found }.deserialize(&mut serde_json::Deserializer::from_slice(json));
    found.filter(|id| (1..=MAX_RESPONSE_ID_BYTES).contains(&id.len()))
}

#[derive(Debug, Clone, Copy)]
enum Level {
    /// An object that has the response as a member.
    Event,
    /// The response itself.
    Response,
}

struct Object<'f> {
    level: Level,
    found: &'f mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with a response's id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            match (self.level, name.as_str()) {
                (Level::Event, "response") => {
                    return members.next_value_seed(Object { level: Level::Response, found: self.found });
                }
                (Level::Response, "id") => {
                    *self.found = Some(members.next_value()?);
                    // Nobody needs the rest.
                    return Err(A::Error::custom("the id is found"));
                }
                _ => drop(members.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_answer_has_it_at_its_top() {
        for answer in [
            r#"{"id":"resp_1","object":"response","output":[{"id":"msg_1"}]}"#,
            r#"  {"output":[{"id":"msg_1"}],"response":{"id":"no"},"id":"resp_1"}"#,
            r#"{"id":"resp_1","output":[{"te"#,
            r#"{"id":"resp\u005f1""#,
        ] {
            assert_eq!(answered_id(answer.as_bytes()).as_deref(), Some("resp_1"), "{answer}");
        }
    }

    #[test]
    fn a_stream_has_it_in_its_first_event_of_a_response() {
        for answer in [
            "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"st",
            "data: {\"response\":{\"object\":\"response\",\"id\":\"resp_1\"},\"type\":\"response.created\"}\n\n",
            ": a comment\r\n\r\ndata:{\"type\":\"other\",\"id\":\"no\"}\r\n\r\ndata: {\"response\":{\"id\":\"resp_1\"}}\r\n",
            "id: 7\nretry: 10\ndata: [1]\ndata: [DONE]\ndata: {\"item\":{\"id\":\"no\"},\"response\":{\"id\":\"resp_1\"}}",
        ] {
            assert_eq!(answered_id(answer.as_bytes()).as_deref(), Some("resp_1"), "{answer}");
        }
    }

    #[test]
    fn what_is_no_id_is_none() {
        for answer in [
            "",
            "{",
            r#"{"id":"resp_1"#,
            r#"{"id":7}"#,
            r#"{"id":null}"#,
            r#"{"id":""}"#,
            r#"{"error":{"id":"no"}}"#,
            r#"["id","resp_1"]"#,
            "data: {\"response\":{\"id\":\"resp_",
            "data: {\"id\":\"resp_1\"}",
            "\u{1f}\u{8b}\u{8}",
        ] {
            assert_eq!(answered_id(answer.as_bytes()), None, "{answer}");
        }
        let of = |bytes: usize| answered_id(format!(r#"{{"id":"{}"}}"#, "r".repeat(bytes)).as_bytes());
        assert!(of(MAX_RESPONSE_ID_BYTES).is_some() && of(MAX_RESPONSE_ID_BYTES + 1).is_none());
    }

    #[test]
    fn an_answer_may_be_cut_anywhere() {
        let answer = "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"status\":\"queued\"}}\n\n";
        let whole = answer.find("resp_1\"").unwrap() + "resp_1\"".len();
        for cut in 0..answer.len() {
            let expected = (cut >= whole).then_some("resp_1");
            assert_eq!(answered_id(&answer.as_bytes()[..cut]).as_deref(), expected, "{cut} bytes");
        }
    }
}
