//! Requests that the module makes itself.

use std::time::Duration;

use super::message::Headers;

/// A request that the module has made itself and that has not been answered.
#[derive(Debug, Clone, PartialEq)]
pub struct SideCall {
    pub(super) number: u32,
    pub(super) context: u32,
    /// When it was made.
    pub(super) made: Duration,
    /// Where it goes to.
    pub cluster: String,
    /// Its headers.
    pub headers: Headers,
    /// How long it may last, in milliseconds.
    pub timeout_ms: u32,
}

impl SideCall {
    /// A header as text; empty if there is none.
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
    }
}

/// The side calls of one VM.
#[derive(Debug, Default)]
pub(super) struct SideCalls {
    pub(super) open: Vec<SideCall>,
    pub(super) made: u32,
    /// The answer that a callback is told of: headers and body.
    pub(super) answer: Option<(Headers, Vec<u8>)>,
}
