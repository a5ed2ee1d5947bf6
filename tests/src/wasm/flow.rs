//! Carries headers, body and trailers to the filter and does with them what its answers say, as Envoy's filter
//! manager would.

use std::cell::RefCell;
use std::rc::Rc;

use super::message::Headers;
use super::plugin::VmError;
use super::state::{Context, Deferred};
use super::stream::{Direction, Hold, LocalReply, Piece, Stream};
use super::vm::Vm;

/// A stream together with the VM that it lives in.
#[derive(Clone)]
pub(super) struct Flow {
    pub(super) vm: Vm,
    pub(super) generation: u64,
    pub(super) stream: Rc<RefCell<Stream>>,
}

const CONTINUE: u32 = 0;

impl Flow {
    fn id(&self) -> u32 {
        self.stream.borrow().id
    }

    /// Shows the headers of one direction, then what has arrived behind them.
    pub(super) fn headers(&self, direction: Direction, end: bool) -> Result<(), VmError> {
        let (id, count, stop_iteration) = {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            half.headers_open = true;
            let count = half.headers.len() as u32;
            (stream.id, count, stream.stop_iteration)
        };
        let action = self.vm.call(self.generation, id, direction.on_headers(), (id, count, u32::from(end)))?;
        let replied = self.has_replied();
        {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            match action.unwrap_or(CONTINUE) {
                CONTINUE if !replied => half.release_headers(),
                _ if stop_iteration && !replied => half.hold = Hold::Headers,
                _ => half.hold = Hold::Everything,
            }
        }
        settle(&self.vm, self.generation)?;
        self.pump(direction)
    }

    /// Shows what has arrived, as long as nothing holds it.
    pub(super) fn pump(&self, direction: Direction) -> Result<(), VmError> {
        loop {
            let piece = {
                let mut stream = self.stream.borrow_mut();
                let half = stream.half(direction);
                if half.cut || half.hold == Hold::Everything {
                    return Ok(());
                }
                half.arrived.pop_front()
            };
            match piece {
                Some(Piece::Data { bytes, end }) => self.data(direction, bytes, end)?,
                Some(Piece::Trailers(trailers)) => self.trailers(direction, trailers)?,
                None => return Ok(()),
            }
        }
    }

    fn data(&self, direction: Direction, bytes: Vec<u8>, end: bool) -> Result<(), VmError> {
        let (id, size) = {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            if half.buffering {
                half.body.extend(bytes);
            } else {
                half.body = bytes;
            }
            let size = half.body.len() as u32;
            (stream.id, size)
        };
        let action = self.vm.call(self.generation, id, direction.on_body(), (id, size, u32::from(end)))?;
        let replied = self.has_replied();
        {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            if action.unwrap_or(CONTINUE) == CONTINUE && !replied {
                half.release_headers();
                half.release_body();
            } else {
                half.buffering = true;
            }
        }
        settle(&self.vm, self.generation)
    }

    fn trailers(&self, direction: Direction, trailers: Headers) -> Result<(), VmError> {
        let (id, count) = {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            half.trailers = trailers;
            half.trailers_open = true;
            let count = half.trailers.len() as u32;
            (stream.id, count)
        };
        let action = self.vm.call(self.generation, id, direction.on_trailers(), (id, count))?;
        let replied = self.has_replied();
        {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            if action.unwrap_or(CONTINUE) == CONTINUE && !replied {
                half.release_headers();
                half.release_body();
                half.trailers_open = false;
            } else {
                half.trailers_held = true;
            }
        }
        settle(&self.vm, self.generation)
    }

    /// The callback that has just run has sent a reply: whatever it returned, nothing goes on.
    fn has_replied(&self) -> bool {
        let id = self.id();
        self.vm.with_state(|state| state.deferred.iter().any(|d| matches!(d, Deferred::Reply(of, _) if *of == id)))
    }

    fn resume(&self, direction: Direction) -> Result<(), VmError> {
        {
            let mut stream = self.stream.borrow_mut();
            let half = stream.half(direction);
            if half.cut {
                return Ok(());
            }
            let held = half.hold;
            half.release_headers();
            half.trailers_open = false;
            half.trailers_held = false;
            if held == Hold::Everything {
                half.join_arrived();
            } else {
                half.release_body();
            }
        }
        self.pump(direction)
    }

    /// Sends the filter's own reply. Before any response it passes the filter's response phase like any other
    /// response; in place of a held response it does not; after the response's headers have left it is too late.
    fn reply(&self, reply: LocalReply) -> Result<(), VmError> {
        {
            let mut stream = self.stream.borrow_mut();
            let late = stream.responding && stream.response.hold == Hold::Passed;
            if late || stream.finished || stream.reply.is_some() {
                let message = b"host: a reply came too late and was dropped".as_slice();
                self.vm.process().log(self.vm.index(), 3, message);
                return Ok(());
            }
            stream.request.cut = true;
            stream.set_property(&["response", "code_details"], &reply.details);
            let replaces = stream.responding;
            stream.response.headers = reply.headers.clone();
            stream.reply = Some(reply.clone());
            if replaces {
                stream.response.release_headers();
                stream.response.cut = true;
                stream.response.passed = reply.body;
                return Ok(());
            }
            if !reply.body.is_empty() {
                stream.response.arrived.push_back(Piece::Data { bytes: reply.body.clone(), end: true });
            }
        }
        self.respond(reply.body.is_empty())
    }

    /// Begins the response whose headers are in place.
    pub(super) fn respond(&self, end: bool) -> Result<(), VmError> {
        {
            let mut stream = self.stream.borrow_mut();
            stream.responding = true;
            let status =
                stream.response.headers.text(":status").and_then(|status| status.parse().ok()).unwrap_or(0_u64);
            stream.set_property(&["response", "code"], status.to_le_bytes());
        }
        self.headers(Direction::Response, end)
    }

    /// The last callbacks of a stream.
    pub(super) fn end(&self) -> Result<(), VmError> {
        let id = self.id();
        self.stream.borrow_mut().finished = true;
        self.stream.borrow_mut().logging = true;
        let logged: Result<Option<()>, _> = self.vm.call(self.generation, id, "proxy_on_log", id);
        self.stream.borrow_mut().logging = false;
        logged?;
        settle(&self.vm, self.generation)?;
        let _: Option<u32> = self.vm.call(self.generation, id, "proxy_on_done", id)?;
        settle(&self.vm, self.generation)?;
        self.vm.delete_context(self.generation, id)
    }
}

/// Does what the last callback asked for and what may happen only after it.
pub(super) fn settle(vm: &Vm, generation: u64) -> Result<(), VmError> {
    for deferred in vm.with_state(|state| std::mem::take(&mut state.deferred)) {
        match deferred {
            Deferred::Resume(id, direction) => match flow(vm, generation, id) {
                Some(flow) => flow.resume(direction)?,
                None => continue,
            },
            Deferred::Reply(id, reply) => match flow(vm, generation, id) {
                Some(flow) => flow.reply(reply)?,
                None => continue,
            },
            Deferred::Retire(id) => vm.delete_context(generation, id)?,
        }
    }
    Ok(())
}

fn flow(vm: &Vm, generation: u64, id: u32) -> Option<Flow> {
    vm.with_state(|state| match state.contexts.get(&id) {
        Some(Context::Stream(stream)) => Some(Rc::clone(stream)),
        _ => None,
    })
    .map(|stream| Flow { vm: vm.clone(), generation, stream })
}
