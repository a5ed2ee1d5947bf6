//! The state of one exchange inside the proxy, as far as a filter can see or change it.

use std::collections::{BTreeMap, VecDeque};

use super::counters::Counters;
use super::message::{End, Headers, Request, property_path};

/// One of the two directions of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Request,
    Response,
}

impl Direction {
    pub(super) fn on_headers(self) -> &'static str {
        match self {
            Self::Request => "proxy_on_request_headers",
            Self::Response => "proxy_on_response_headers",
        }
    }

    pub(super) fn on_body(self) -> &'static str {
        match self {
            Self::Request => "proxy_on_request_body",
            Self::Response => "proxy_on_response_body",
        }
    }

    pub(super) fn on_trailers(self) -> &'static str {
        match self {
            Self::Request => "proxy_on_request_trailers",
            Self::Response => "proxy_on_response_trailers",
        }
    }
}

/// How far a direction is held at the filter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// Headers have passed.
    #[default]
    Passed,
    /// Headers wait, body callbacks come (Envoy's StopIteration).
    Headers,
    /// Headers wait and so does everything behind them (Envoy's StopAllIterationAndWatermark).
    Everything,
}

/// What follows the headers.
#[derive(Debug)]
pub(super) enum Piece {
    Data { bytes: Vec<u8>, end: bool },
    Trailers(Headers),
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub(super) headers: Headers,
    /// The module may use the headers: from their callback until they are let go.
    pub(super) headers_open: bool,
    pub(super) trailers: Headers,
    pub(super) trailers_open: bool,
    pub(super) hold: Hold,
    pub(super) trailers_held: bool,
    /// What body calls see: all that is held, or the chunk of the running callback.
    pub(super) body: Vec<u8>,
    /// The last body callback paused: the next chunk is added to `body`.
    pub(super) buffering: bool,
    /// Not yet shown to the filter.
    pub(super) arrived: VecDeque<Piece>,
    /// The body that has gone past the filter.
    pub(super) passed: Vec<u8>,
    /// Nothing more goes past the filter in this direction: it, or the proxy, has answered itself.
    pub(super) cut: bool,
}

impl Half {
    /// Held at the filter, whatever for.
    pub(super) fn paused(&self) -> bool {
        self.hold != Hold::Passed || self.buffering || self.trailers_held
    }

    pub(super) fn release_headers(&mut self) {
        self.hold = Hold::Passed;
        self.headers_open = false;
    }

    pub(super) fn release_body(&mut self) {
        self.buffering = false;
        let body = std::mem::take(&mut self.body);
        self.passed.extend(body);
    }

    /// Joins what has piled up, as Envoy does when it lets a stream go on that was held whole.
    pub(super) fn join_arrived(&mut self) {
        let mut joined = Vec::new();
        let mut ended = None;
        for piece in std::mem::take(&mut self.arrived) {
            match piece {
                Piece::Data { bytes, end } => {
                    joined.extend(bytes);
                    ended = Some(end);
                }
                Piece::Trailers(_) => self.arrived.push_back(piece),
            }
        }
        if let Some(end) = ended {
            self.arrived.push_front(Piece::Data { bytes: joined, end });
        }
    }
}

/// A reply that the filter sends itself.
#[derive(Debug, Clone)]
pub(super) struct LocalReply {
    pub(super) headers: Headers,
    pub(super) body: Vec<u8>,
    pub(super) details: String,
}

/// One exchange.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) root: u32,
    /// The plugin's `allow_on_headers_stop_iteration`.
    pub(super) stop_iteration: bool,
    pub(super) request: Half,
    pub(super) response: Half,
    pub(super) responding: bool,
    pub(super) reply: Option<LocalReply>,
    pub(super) properties: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `proxy_on_log` runs: all headers can be read again.
    pub(super) logging: bool,
    pub(super) finished: bool,
    pub(super) counters: Counters,
}

impl Stream {
    /// The stream of `request`, and whether its headers end it.
    pub(super) fn new(id: u32, root: u32, stop_iteration: bool, request: Request) -> (Self, bool) {
        let Request { headers, chunks, trailers, end, properties } = request;
        let headers_end = chunks.is_empty() && trailers.is_none() && end == End::Last;
        let mut half = Half { headers, ..Half::default() };
        let last = chunks.len().saturating_sub(1);
        let chunk_ends = end == End::Last && trailers.is_none();
        half.arrived.extend(
            chunks
                .into_iter()
                .enumerate()
                .map(|(index, bytes)| Piece::Data { bytes, end: chunk_ends && index == last }),
        );
        match trailers {
            Some(trailers) => half.arrived.push_back(Piece::Trailers(trailers)),
            None if end == End::Apart => half.arrived.push_back(Piece::Data { bytes: Vec::new(), end: true }),
            None => {}
        }
        let stream = Self {
            id,
            root,
            stop_iteration,
            request: half,
            response: Half::default(),
            responding: false,
            reply: None,
            properties: properties.into_iter().collect(),
            logging: false,
            finished: false,
            counters: Counters::default(),
        };
        (stream, headers_end)
    }

    pub(super) fn half(&mut self, direction: Direction) -> &mut Half {
        match direction {
            Direction::Request => &mut self.request,
            Direction::Response => &mut self.response,
        }
    }

    pub(super) fn set_property(&mut self, path: &[&str], value: impl AsRef<[u8]>) {
        self.properties.insert(property_path(path), value.as_ref().to_vec());
    }
}
