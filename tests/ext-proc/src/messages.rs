//! The few messages of `envoy.service.ext_proc.v3` that a picker needs, with their fields' numbers.

use bytes::Bytes;
use prost::{Message, Oneof};

/// What Envoy tells of a request, piece by piece.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingRequest {
    /// Which piece; none if it is one that was not asked for.
    #[prost(oneof = "Piece", tags = "2, 4")]
    pub(crate) piece: Option<Piece>,
}

/// A piece of a request.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Piece {
    /// The headers, left unread.
    #[prost(message, tag = "2")]
    Headers(Unread),
    /// The whole body.
    #[prost(message, tag = "4")]
    Body(Body),
}

/// A message whose fields nobody looks at.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Unread {}

/// A body, which Envoy has buffered.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Body {
    /// Its bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) bytes: Bytes,
}

/// What is to become of the piece.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessingResponse {
    /// The answer to the piece of the same kind.
    #[prost(oneof = "Answer", tags = "1, 3")]
    pub(crate) answer: Option<Answer>,
}

/// The answer to a piece.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Answer {
    /// To the headers.
    #[prost(message, tag = "1")]
    Headers(Outer),
    /// To the body.
    #[prost(message, tag = "3")]
    Body(Outer),
}

/// `HeadersResponse` and `BodyResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Outer {
    /// What both have in common.
    #[prost(message, tag = "1")]
    pub(crate) common: Option<Common>,
}

/// `CommonResponse`, whose status is "continue" if it is not set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Common {
    /// Changes to the headers.
    #[prost(message, tag = "2")]
    pub(crate) headers: Option<HeaderMutation>,
}

/// Changes to headers.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderMutation {
    /// Headers to set.
    #[prost(message, repeated, tag = "1")]
    pub(crate) set: Vec<HeaderOption>,
}

/// One header to set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderOption {
    /// The header.
    #[prost(message, tag = "1")]
    pub(crate) header: Option<Header>,
    /// 2: in the place of one that is there.
    #[prost(int32, tag = "3")]
    pub(crate) action: i32,
}

/// A header.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    /// Its name.
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    /// Its value.
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) value: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_bytes_that_the_protocol_says() {
        let header = Header { name: "a".to_owned(), value: "b".into() };
        let set = vec![HeaderOption { header: Some(header), action: 2 }];
        let outer = Outer { common: Some(Common { headers: Some(HeaderMutation { set }) }) };
        let response = ProcessingResponse { answer: Some(Answer::Body(outer)) };
        let written = b"\x1a\x10\x0a\x0e\x12\x0c\x0a\x0a\x0a\x06\x0a\x01a\x1a\x01b\x18\x02";
        assert_eq!(response.encode_to_vec(), written);
    }

    #[test]
    fn pieces_that_nobody_asked_for_are_none() {
        let read = |bytes: &[u8]| ProcessingRequest::decode(bytes).unwrap().piece;
        assert_eq!(read(b"\x22\x05\x0a\x03abc"), Some(Piece::Body(Body { bytes: "abc".into() })));
        assert_eq!(read(b"\x12\x02\x18\x01"), Some(Piece::Headers(Unread {})));
        assert_eq!(read(b"\x1a\x00"), None);
    }
}
