//! What is known of a message, an item of an input or a part of a content while it is being read.

use super::Endpoint;
use super::text::Mark;

/// A message, or an item of an input.
#[derive(Default)]
pub(super) struct Message {
    /// The routing text in front of it.
    pub(super) begins: Mark,
    pub(super) by_assistant: bool,
    pub(super) content_read: bool,
    pub(super) kind: Kind,
    /// Whether it has a text of its own, outside any content.
    pub(super) has_text: bool,
}

impl Message {
    /// Whether an item's text belongs to the routing text. One with a text of its own must say that it is a text;
    /// messages and turns need not say what they are, so of a cut one the beginning counts.
    pub(super) fn counts(&self) -> bool {
        match self.kind {
            Kind::Text => true,
            Kind::Unsaid => !self.has_text,
            Kind::Other => false,
        }
    }
}

/// What an item calls itself.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Unsaid,
    /// Something that has text for the model.
    Text,
    /// Something else, as a tool's output.
    Other,
}

impl Kind {
    /// The kind of this name.
    pub(super) fn of(endpoint: Endpoint, name: &[u8]) -> Self {
        match (name, endpoint) {
            (b"message" | b"reasoning", Endpoint::Responses) | (b"text", Endpoint::Interactions) => Self::Text,
            _ => Self::Other,
        }
    }
}

/// A part of a content.
#[derive(Default)]
pub(super) struct Part {
    /// The routing text in front of it.
    pub(super) begins: Mark,
    pub(super) is_text: bool,
}

impl Part {
    /// Whether parts of this type are text.
    pub(super) fn is_text(endpoint: Endpoint, name: &[u8]) -> bool {
        match name {
            b"text" => endpoint != Endpoint::Responses,
            b"input_text" | b"output_text" | b"reasoning_text" => endpoint == Endpoint::Responses,
            _ => false,
        }
    }
}
