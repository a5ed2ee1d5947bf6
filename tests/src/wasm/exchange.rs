//! One request and its response, as a test drives and sees them.

use std::cell::RefCell;
use std::rc::Rc;

use super::DESTINATION;
use super::counters::Counters;
use super::flow::{self, Flow};
use super::message::{Headers, Request, Response};
use super::plugin::VmError;
use super::state::Context;
use super::stream::{Direction, Piece, Stream};
use super::vm::Vm;

/// What has become of a request so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Held at the filter.
    Paused,
    /// Let go: the proxy routes it.
    Continued,
    /// Answered by the filter.
    LocalReply(Reply),
}

/// An answer of the filter's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// All headers, `:status` included, after the filter's own response phase.
    pub headers: Headers,
    /// The body.
    pub body: Vec<u8>,
    /// What the filter gave as `response.code_details`.
    pub details: String,
}

/// A response as the client gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The filter holds the response back.
    pub paused: bool,
    /// The HTTP status.
    pub status: u16,
    /// All headers, as the filter left them.
    pub headers: Headers,
}

/// An exchange in flight. Dropping it without [`finish`](Self::finish) or [`abort`](Self::abort) leaves it open.
pub struct Exchange {
    flow: Flow,
}

impl Exchange {
    pub(super) fn open(vm: &Vm, generation: u64, root: u32, request: Request) -> Result<Self, VmError> {
        vm.process().step(|| {
            vm.check_alive(generation)?;
            let (stream, end) = vm.with_state(|state| {
                let stop_iteration = state.root(root).is_none_or(|root| root.plugin.stop_iteration);
                let id = state.allocate_context();
                let (stream, end) = Stream::new(id, root, stop_iteration, request);
                let stream = Rc::new(RefCell::new(stream));
                state.contexts.insert(id, Context::Stream(Rc::clone(&stream)));
                (stream, end)
            });
            let id = stream.borrow().id;
            let flow = Flow { vm: vm.clone(), generation, stream };
            let _: Option<()> = vm.call(generation, id, "proxy_on_context_create", (id, root))?;
            flow::settle(vm, generation)?;
            flow.headers(Direction::Request, end)?;
            Ok(Self { flow })
        })
    }

    /// What the filter has done with the request.
    pub fn decision(&self) -> Decision {
        let stream = self.flow.stream.borrow();
        match &stream.reply {
            Some(reply) => Decision::LocalReply(Reply {
                status: status(&stream.response.headers),
                headers: stream.response.headers.clone(),
                body: reply.body.clone(),
                details: reply.details.clone(),
            }),
            None if stream.request.paused() => Decision::Paused,
            None => Decision::Continued,
        }
    }

    /// The endpoints that the filter has named, best first and separated by commas.
    pub fn destination(&self) -> Option<String> {
        self.flow.stream.borrow().request.headers.text(DESTINATION)
    }

    /// The request's headers as they stand.
    pub fn request_headers(&self) -> Headers {
        self.flow.stream.borrow().request.headers.clone()
    }

    /// The part of the request's body that has gone past the filter.
    pub fn forwarded(&self) -> Vec<u8> {
        self.flow.stream.borrow().request.passed.clone()
    }

    /// More of a request's body; `end` tells that it is the last.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn push(&mut self, bytes: impl AsRef<[u8]>, end: bool) -> Result<(), VmError> {
        self.arrive(Direction::Request, Piece::Data { bytes: bytes.as_ref().to_vec(), end })
    }

    /// The trailers that end an unfinished request.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn push_trailers(&mut self, trailers: Headers) -> Result<(), VmError> {
        self.arrive(Direction::Request, Piece::Trailers(trailers))
    }

    /// The response's headers arrive. An engine cannot answer a request that is held; the proxy can (413, timeout).
    ///
    /// # Errors
    /// When the VM is dead or dies.
    ///
    /// # Panics
    /// When the test asks for the impossible: a second response, or an engine's to a request that never left.
    pub fn respond(&mut self, response: Response) -> Result<Answer, VmError> {
        {
            let mut stream = self.flow.stream.borrow_mut();
            assert!(!stream.responding, "this exchange has its response already");
            match response.upstream {
                Some(upstream) => {
                    assert!(!stream.request.paused(), "the request is held: no engine can have seen it");
                    stream.set_property(&["upstream", "address"], upstream);
                }
                None => stream.request.cut = true,
            }
            if let Some(attempts) = response.attempts {
                stream.set_property(&["upstream", "request_attempt_count"], attempts.to_le_bytes());
            }
            stream.set_property(&["response", "code_details"], response.details);
            stream.response.headers = response.headers;
        }
        self.flow.vm.process().clone().step(|| self.flow.respond(response.end))?;
        Ok(self.answer())
    }

    /// The response as it stands.
    pub fn answer(&self) -> Answer {
        let stream = self.flow.stream.borrow();
        let headers = stream.response.headers.clone();
        Answer { paused: stream.response.paused(), status: status(&headers), headers }
    }

    /// A piece of the response's body; `end` tells that it is the last.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn response_body(&mut self, bytes: impl AsRef<[u8]>, end: bool) -> Result<(), VmError> {
        self.arrive(Direction::Response, Piece::Data { bytes: bytes.as_ref().to_vec(), end })
    }

    /// The trailers that end a response.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn response_trailers(&mut self, trailers: Headers) -> Result<(), VmError> {
        self.arrive(Direction::Response, Piece::Trailers(trailers))
    }

    /// The part of the response's body that the client has got.
    pub fn delivered(&self) -> Vec<u8> {
        self.flow.stream.borrow().response.passed.clone()
    }

    /// What the exchange has cost up to now.
    pub fn counters(&self) -> Counters {
        self.flow.stream.borrow().counters.clone()
    }

    /// Ends the exchange: `proxy_on_log`, `proxy_on_done`, `proxy_on_delete`. Returns all that it has cost.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn finish(self) -> Result<Counters, VmError> {
        let process = self.flow.vm.process().clone();
        process.step(|| self.flow.end())?;
        Ok(self.counters())
    }

    /// The client leaves, at whatever stage: the same last callbacks, with Envoy's name for the reason.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn abort(self) -> Result<Counters, VmError> {
        {
            let mut stream = self.flow.stream.borrow_mut();
            stream.set_property(&["response", "code_details"], "downstream_remote_disconnect");
            stream.request.cut = true;
            stream.response.cut = true;
        }
        self.finish()
    }

    fn arrive(&self, direction: Direction, piece: Piece) -> Result<(), VmError> {
        self.flow.stream.borrow_mut().half(direction).arrived.push_back(piece);
        self.flow.vm.process().clone().step(|| self.flow.pump(direction))
    }
}

fn status(headers: &Headers) -> u16 {
    headers.text(":status").and_then(|status| status.parse().ok()).unwrap_or(0)
}
