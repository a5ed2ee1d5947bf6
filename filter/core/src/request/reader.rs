//! The facts of a JSON body, taken as its members are met, so that a cut or broken body yields what came before.
//!
//! As in the engines' own parsers the last of several members of one name counts, and their order does not matter.

use std::cell::Cell;
use std::mem::take;

use serde::de::DeserializeSeed;
use serde_json::Deserializer;

use super::cut::open_string;
use super::ids::Ids;
use super::message::{Kind, Message, Part};
use super::namespace::Namespace;
use super::seed::{At, Place};
use super::text::Text;
use super::{Endpoint, Facts, MAX_RESPONSE_ID_BYTES, MAX_RID_BYTES, MAX_TEXT_BYTES};

/// More of a model's name is not kept, in bytes.
const MAX_MODEL_BYTES: usize = 1024;

/// The facts so far, and where in the body the walk is.
pub(super) struct Reader<'f> {
    facts: &'f mut Facts,
    endpoint: Endpoint,
    text: Text,
    /// Text that goes elsewhere than to the end of the routing text: a message's reasoning (behind its content),
    /// Anthropic's system prompt (in front of all), ids written as text (only if there is nothing else).
    aside: Text,
    namespace: Namespace,
    message: Option<Message>,
    part: Option<Part>,
    /// The member whose string is being read.
    pub(super) open: Option<Place>,
    /// How many values were no strings where only strings make sense, and how many of these were passed over.
    pub(super) mistyped: Cell<u32>,
    pub(super) forgiven: u32,
    /// Whether `text` of generate was a string.
    has_prompt: bool,
    in_system: bool,
    ids: Ids,
}

impl<'f> Reader<'f> {
    pub(super) fn new(facts: &'f mut Facts, endpoint: Endpoint, body_bytes: usize) -> Self {
        let mut text = Text::in_buffer(take(&mut facts.text));
        // One allocation instead of a dozen growing ones; the text is never longer than the body.
        text.kept.reserve(body_bytes.min(MAX_TEXT_BYTES));
        let aside = Text::in_buffer(take(&mut facts.aside));
        Self {
            facts,
            endpoint,
            text,
            aside,
            namespace: Namespace::default(),
            message: None,
            part: None,
            open: None,
            mistyped: Cell::new(0),
            forgiven: 0,
            has_prompt: false,
            in_system: false,
            ids: Ids::default(),
        }
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Whether the member at this place is looked for.
    pub(super) fn wants(&self, place: Place) -> bool {
        self.facts.wants_rid || !matches!(place, Place::Rid | Place::Rids)
    }

    pub(super) fn string(&mut self, place: Place, value: &[u8]) {
        match place {
            // Only here even an empty piece is set off by a space.
            Place::Content | Place::PartText if self.endpoint == Endpoint::Responses => {
                self.text.push_even_empty(value);
            }
            Place::Content | Place::PromptItem | Place::Query | Place::Inputs | Place::InputString | Place::Input => {
                self.text.push(value)
            }
            Place::Prompt => {
                self.has_prompt = true;
                self.text.push(value);
            }
            Place::PartText => self.parts_text().push(value),
            Place::ItemText => {
                if let Some(item) = &mut self.message {
                    item.has_text = true;
                }
                self.text.push(value);
            }
            Place::ItemType => {
                let kind = Kind::of(self.endpoint, value);
                if let Some(item) = &mut self.message {
                    item.kind = kind;
                }
            }
            Place::Rid | Place::Rids | Place::FirstRid => keep(&mut self.facts.rid, value, MAX_RID_BYTES),
            Place::PreviousResponse => {
                keep(&mut self.facts.previous_response_id, value, MAX_RESPONSE_ID_BYTES);
            }
            Place::System | Place::Reasoning => self.aside.push(value),
            // A name that long is nobody's: its beginning tells as much, and is no burden.
            Place::Model => {
                let name = value.get(..MAX_MODEL_BYTES).unwrap_or(value);
                self.facts.model.push_str(&String::from_utf8_lossy(name));
            }
            Place::Namespace(field) => self.namespace.set(field, value),
            Place::Role => {
                if let Some(message) = &mut self.message {
                    message.by_assistant = value == b"assistant";
                }
            }
            Place::PartType => {
                let is_text = Part::is_text(self.endpoint, value);
                if let Some(part) = &mut self.part {
                    part.is_text = is_text;
                }
            }
            _ => self.no_id(place),
        }
    }

    pub(super) fn boolean(&mut self, place: Place, value: bool) {
        match place {
            Place::Stream => self.facts.stream = value,
            _ => self.no_id(place),
        }
    }

    pub(super) fn number(&mut self, place: Place, value: u64) {
        match (place, u32::try_from(value)) {
            (Place::Id | Place::IdOrSequence, Ok(id)) => self.ids.push(id, self.facts),
            (Place::IdAsText, Ok(_)) if !self.ids.broken => self.aside.push(value.to_string().as_bytes()),
            _ => self.no_id(place),
        }
    }

    /// A value that can be no id: where ids are expected, the rest of them is not taken.
    pub(super) fn no_id(&mut self, place: Place) {
        if matches!(place, Place::Id | Place::IdOrSequence | Place::IdAsText) {
            self.ids.broken = true;
        }
    }

    /// A sequence of a batch begins: the place of its elements, `None` if they do not count.
    pub(super) fn sequence(&mut self) -> Option<Place> {
        self.ids.fresh = false;
        self.ids.sequences += 1;
        match (self.ids.sequences, self.facts.token_count) {
            (1, 0) => Some(Place::Id),
            (_, 0) => Some(Place::IdAsText),
            _ => None,
        }
    }

    /// An array of values at `place` ended.
    pub(super) fn sequence_ended(&mut self, place: Place) {
        if matches!(place, Place::Id | Place::IdOrSequence) {
            self.ids.fresh = false;
        }
    }

    pub(super) fn object_begins(&mut self, place: Place) {
        let begins = self.parts_text().mark();
        match place {
            Place::Message | Place::Item => self.message = Some(Message { begins, ..Message::default() }),
            Place::Part => self.part = Some(Part { begins, ..Part::default() }),
            _ => self.no_id(place),
        }
    }

    pub(super) fn object_ends(&mut self, place: Place) {
        match place {
            Place::Message | Place::Item => self.message_ends(true),
            Place::Part => self.part_ends(),
            _ => {}
        }
    }

    /// A member begins: an earlier one of the same name is forgotten.
    pub(super) fn value_begins(&mut self, place: Place) {
        match place {
            Place::Messages | Place::Query | Place::Inputs | Place::Input => self.text.clear(),
            Place::Prompt => {
                self.has_prompt = false;
                self.text.clear();
            }
            Place::Content | Place::ItemText => {
                if let Some(message) = &mut self.message {
                    message.content_read = false;
                    message.has_text = false;
                    self.text.rollback(message.begins);
                }
            }
            Place::ItemType => {
                if let Some(item) = &mut self.message {
                    item.kind = Kind::Unsaid;
                }
            }
            Place::Reasoning => self.aside.clear(),
            Place::System => {
                self.in_system = true;
                self.aside.clear();
            }
            Place::PartText => {
                if let Some(Part { begins, .. }) = self.part {
                    self.parts_text().rollback(begins);
                }
            }
            Place::Role | Place::PartType => self.string(place, b""),
            Place::Model => self.facts.model.clear(),
            Place::Stream => self.facts.stream = false,
            Place::Namespace(field) => self.namespace.set(field, b""),
            Place::InputIds => self.ids_begin(),
            Place::Rid | Place::Rids => self.facts.rid.clear(),
            Place::PreviousResponse => self.facts.previous_response_id.clear(),
            _ => {}
        }
    }

    pub(super) fn value_ended(&mut self, place: Place) {
        match (place, &mut self.message) {
            (Place::System, _) => self.in_system = false,
            (Place::Content, Some(message)) => message.content_read = true,
            _ => {}
        }
    }

    /// The body ends in the middle: takes the beginning of a string that it ends in, and drops a number that may
    /// have more digits.
    pub(super) fn ends_early(&mut self, body: &[u8]) {
        if body.last().is_some_and(u8::is_ascii_digit) {
            self.ids.drop_unfinished(self.facts);
        }
        let Some(
            place @ (Place::Content
            | Place::Reasoning
            | Place::PartText
            | Place::Prompt
            | Place::PromptItem
            | Place::Query
            | Place::Inputs
            | Place::Input
            | Place::ItemText),
        ) = self.open
        else {
            return;
        };
        if let Some(string) = open_string(body) {
            let quoted = [b"\"", string, b"\""].concat();
            // A broken escape in it leaves the text as it was.
            let _ = At { place, reader: self }.deserialize(&mut Deserializer::from_slice(&quoted));
        }
    }

    /// Puts everything in its place. What the rest of the body might have put elsewhere is left out, so that the text
    /// of a cut body is where the text of the whole one begins.
    pub(super) fn finish(mut self, whole: bool) {
        self.part_ends();
        self.message_ends(false);
        match self.endpoint {
            Endpoint::Generate if whole && !self.has_prompt && self.facts.token_count == 0 => {
                std::mem::swap(&mut self.text, &mut self.aside);
            }
            Endpoint::Messages if self.aside.bytes > 0 => {
                self.aside.push_text(&self.text);
                std::mem::swap(&mut self.text, &mut self.aside);
            }
            _ => {}
        }
        self.facts.namespace = self.namespace.id();
        self.facts.text = self.text.kept;
        self.facts.text_bytes = self.text.bytes;
        self.facts.aside = self.aside.kept;
        self.facts.aside.clear();
    }

    /// Appends the reasoning to the content. Content that may still come belongs in front of it.
    fn message_ends(&mut self, whole: bool) {
        let Some(message) = self.message.take() else { return };
        match self.endpoint {
            Endpoint::Chat => {
                if message.by_assistant && (whole || message.content_read) {
                    self.text.push_text(&self.aside);
                }
                self.aside.clear();
            }
            Endpoint::Responses | Endpoint::Interactions if !message.counts() => self.text.rollback(message.begins),
            _ => {}
        }
    }

    /// Keeps the text of a part only if the part is text.
    fn part_ends(&mut self) {
        if let Some(Part { begins, is_text: false }) = self.part.take() {
            self.parts_text().rollback(begins);
        }
    }

    fn parts_text(&mut self) -> &mut Text {
        if self.in_system { &mut self.aside } else { &mut self.text }
    }

    fn ids_begin(&mut self) {
        self.ids = Ids { broken: self.facts.hinted, ..Ids::default() };
        if !self.facts.hinted {
            self.facts.tokens.clear();
            self.facts.token_count = 0;
        }
        self.aside.clear();
    }
}

/// Takes a name of at most `most` bytes; a longer one, and one that is not UTF-8, names nothing.
fn keep(into: &mut String, value: &[u8], most: usize) {
    if let (true, Ok(name)) = (value.len() <= most, std::str::from_utf8(value)) {
        into.push_str(name);
    }
}
