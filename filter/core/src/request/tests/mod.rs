//! Tests of the facts by what they answer: the rules of the routing text, hostile bodies, and properties.

mod endpoints;
mod facts;
mod hostile;
mod names;
mod oracle;
mod properties;
mod texts;

use super::{Endpoint, Facts, Parsed};

/// The facts of a complete body.
fn read(endpoint: Endpoint, body: impl AsRef<[u8]>) -> Facts {
    let mut facts = Facts::default();
    facts.read_body(endpoint, body.as_ref(), true);
    facts
}

/// The facts of the beginning of a body.
fn read_cut(endpoint: Endpoint, body: impl AsRef<[u8]>) -> Facts {
    let mut facts = Facts::default();
    facts.read_body(endpoint, body.as_ref(), false);
    facts
}

/// The routing text as a string, checked against its length.
fn text(facts: &Facts) -> String {
    assert_eq!(facts.text_bytes, facts.text.len() as u64);
    String::from_utf8_lossy(&facts.text).into_owned()
}

/// The routing text of a complete body that is JSON.
#[track_caller]
fn check(endpoint: Endpoint, body: &str, expected: &str) {
    let facts = read(endpoint, body);
    assert_eq!(facts.end, Parsed::Whole, "{body}");
    assert_eq!(text(&facts), expected, "{body}");
}
