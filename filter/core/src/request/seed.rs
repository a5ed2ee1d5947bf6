//! The walk through a JSON body: where facts can stand, and a visitor that hands them to the [`Reader`].
//!
//! Strings are taken as bytes: `serde_json` then neither checks UTF-8 nor minds lone surrogates, and lends the bytes
//! of the body itself wherever there is no escape. Everything of no interest is skipped without recursion.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Endpoint;
use super::namespace::Field;
use super::reader::Reader;

/// After so many strings that turn out to be something else the rest of the body is not read:
/// each costs an error with its position, and a megabyte holds a lot of them.
const MAX_MISTYPED: u32 = 16;

/// Where in the body a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Document,
    Model,
    Stream,
    Namespace(Field),
    /// Chat's and Anthropic's list of messages.
    Messages,
    Message,
    Role,
    Content,
    Reasoning,
    Part,
    PartType,
    PartText,
    /// A string or an array of strings that is the whole routing text.
    Prompt,
    PromptItem,
    /// The question of rerank: a string.
    Query,
    /// The input of embeddings: a string, or an array whose strings count.
    Inputs,
    InputString,
    /// The input of responses and interactions: a string, or an array of items.
    Input,
    Item,
    ItemType,
    /// The text of an item that is a content itself.
    ItemText,
    System,
    /// The client's name for the request ...
    Rid,
    /// ... of which the first counts.
    Rids,
    FirstRid,
    PreviousResponse,
    InputIds,
    /// An id, or a sequence of a batch.
    IdOrSequence,
    Id,
    /// An id of a batch whose first sequence is empty: read as text.
    IdAsText,
}

impl Place {
    /// The place of a member, `None` if it says nothing.
    fn member(self, endpoint: Endpoint, key: &[u8]) -> Option<Self> {
        match self {
            Self::Document => Self::top_level(endpoint, key),
            Self::Message => match key {
                b"role" => Some(Self::Role),
                b"content" => Some(Self::Content),
                b"reasoning_content" if endpoint == Endpoint::Chat => Some(Self::Reasoning),
                _ => None,
            },
            Self::Item => match key {
                b"type" => Some(Self::ItemType),
                b"content" => Some(Self::Content),
                b"text" if endpoint == Endpoint::Interactions => Some(Self::ItemText),
                _ => None,
            },
            Self::Part => match key {
                b"type" => Some(Self::PartType),
                b"text" => Some(Self::PartText),
                _ => None,
            },
            _ => None,
        }
    }

    fn top_level(endpoint: Endpoint, key: &[u8]) -> Option<Self> {
        use Endpoint::{Chat, Classify, Completions, Embeddings, Generate, Interactions, Messages, Rerank, Responses};
        match (key, endpoint) {
            (b"model", _) => Some(Self::Model),
            (b"stream", _) => Some(Self::Stream),
            (b"cache_salt", Chat | Completions | Messages | Generate) => Some(Self::Namespace(Field::CacheSalt)),
            (b"extra_key", Chat | Completions | Messages | Generate) => Some(Self::Namespace(Field::ExtraKey)),
            (b"lora_path", Chat | Completions | Messages | Generate) => Some(Self::Namespace(Field::LoraPath)),
            (b"lora_id", Generate) => Some(Self::Namespace(Field::LoraId)),
            (b"messages", Chat | Messages) => Some(Self::Messages),
            (b"system", Messages) => Some(Self::System),
            (b"prompt", Completions) | (b"text", Generate) => Some(Self::Prompt),
            (b"input_ids", Generate) => Some(Self::InputIds),
            (b"input", Embeddings | Classify) => Some(Self::Inputs),
            (b"input", Responses | Interactions) => Some(Self::Input),
            (b"query", Rerank) => Some(Self::Query),
            (b"rid", Chat | Completions | Messages | Generate | Embeddings | Classify) => Some(Self::Rid),
            (b"rid", Rerank) => Some(Self::Rids),
            (b"previous_response_id", Responses) => Some(Self::PreviousResponse),
            _ => None,
        }
    }

    /// The place of an array's elements, `None` if they say nothing.
    fn element(self) -> Option<Self> {
        match self {
            Self::Messages => Some(Self::Message),
            Self::Content | Self::System => Some(Self::Part),
            Self::Prompt => Some(Self::PromptItem),
            Self::Inputs => Some(Self::InputString),
            Self::Input => Some(Self::Item),
            Self::Rids => Some(Self::FirstRid),
            Self::InputIds => Some(Self::IdOrSequence),
            _ => None,
        }
    }

    /// Whether a string here is read as bytes. Elsewhere strings are not expected, or are one shape of several.
    fn is_string(self) -> bool {
        matches!(
            self,
            Self::Model
                | Self::Namespace(_)
                | Self::Role
                | Self::Content
                | Self::Reasoning
                | Self::PartType
                | Self::PartText
                | Self::Prompt
                | Self::PromptItem
                | Self::Query
                | Self::Inputs
                | Self::Input
                | Self::ItemType
                | Self::ItemText
                | Self::System
                | Self::Rid
                | Self::Rids
                | Self::FirstRid
                | Self::PreviousResponse
        )
    }
}

/// Reads the value at a place.
pub(super) struct At<'r, 'f> {
    pub(super) place: Place,
    pub(super) reader: &'r mut Reader<'f>,
}

impl<'de> DeserializeSeed<'de> for At<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.place.is_string() {
            self.reader.open = Some(self.place);
            deserializer.deserialize_option(self)
        } else {
            self.reader.open = None;
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for At<'_, '_> {
    type Value = ();

    /// Asked for only when the value turned out to be neither string nor array nor null: this is how the difference
    /// between a wrong type, which is passed over, and broken JSON, which is not, reaches us.
    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.mistyped.set(self.reader.mistyped.get() + 1);
        formatter.write_str("a string")
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_bytes(self)
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<(), E> {
        self.reader.open = None;
        self.reader.string(self.place, value);
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.visit_bytes(value.as_bytes())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.reader.boolean(self.place, value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.reader.number(self.place, value);
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.reader.no_id(self.place);
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.reader.no_id(self.place);
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        self.reader.open = None;
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.reader.no_id(self.place);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Self { place, reader } = self;
        reader.open = None;
        let element = if place == Place::IdOrSequence { reader.sequence() } else { place.element() };
        if let Some(place) = element {
            loop {
                match elements.next_element_seed(At { place, reader: &mut *reader }) {
                    Ok(Some(())) if place != Place::FirstRid => {}
                    Ok(_) => break,
                    Err(_) if forgiven(reader) => break,
                    Err(error) => return Err(error),
                }
            }
            reader.sequence_ended(place);
        }
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let Self { place, reader } = self;
        reader.open = None;
        reader.object_begins(place);
        while let Some(member) = members.next_key_seed(Key { place, reader: &mut *reader })? {
            let Some(member) = member else {
                members.next_value::<IgnoredAny>()?;
                continue;
            };
            reader.value_begins(member);
            match members.next_value_seed(At { place: member, reader: &mut *reader }) {
                Ok(()) => {}
                Err(_) if forgiven(reader) => {}
                Err(error) => return Err(error),
            }
            reader.value_ended(member);
        }
        reader.object_ends(place);
        Ok(())
    }
}

/// Whether the error was only that a string was something else.
fn forgiven(reader: &mut Reader<'_>) -> bool {
    let mistyped = reader.mistyped.get();
    if mistyped == reader.forgiven || mistyped > MAX_MISTYPED {
        return false;
    }
    reader.forgiven = mistyped;
    reader.open = None;
    true
}

/// Reads a member's name.
struct Key<'r, 'f> {
    place: Place,
    reader: &'r mut Reader<'f>,
}

impl<'de> DeserializeSeed<'de> for Key<'_, '_> {
    type Value = Option<Place>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Place>, D::Error> {
        self.reader.open = None;
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Key<'_, '_> {
    type Value = Option<Place>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a member's name")
    }

    fn visit_bytes<E>(self, name: &[u8]) -> Result<Option<Place>, E> {
        let member = self.place.member(self.reader.endpoint(), name);
        Ok(member.filter(|place| self.reader.wants(*place)))
    }
}
