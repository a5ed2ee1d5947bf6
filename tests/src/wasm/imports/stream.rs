//! Log, clock, properties, buffers, and what moves streams.

use std::time::Duration;

use wasmtime::Linker;

use super::data::VM_ID;
use super::{Fault, Guest, GuestMemory, decode_pairs, host_calls};
use crate::wasm::abi::{Status, buffer};
use crate::wasm::message::Headers;
use crate::wasm::side_call::SideCall;
use crate::wasm::state::{Deferred, HostState};
use crate::wasm::stream::{Direction, LocalReply};

const LAST_LOG_LEVEL: u32 = 5;

pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    host_calls! { linker, "env",
        fn proxy_log(guest, level: u32, message: u32, message_size: u32) {
            if level > LAST_LOG_LEVEL {
                return Err(Status::BadArgument.into());
            }
            let message = guest.bytes(message, message_size)?;
            guest.data().process.log(guest.data().vm, level, &message);
            Ok(())
        }
        fn proxy_get_current_time_nanoseconds(guest, time_to: u32) {
            let now = guest.data().process.now().as_nanos() as u64;
            guest.put(time_to, &now.to_le_bytes())
        }
        fn proxy_set_tick_period_milliseconds(guest, milliseconds: u32) {
            let id = guest.data().root_id();
            let root = guest.data_mut().root(id).ok_or(Status::BadArgument)?;
            root.tick_period = (milliseconds != 0).then_some(Duration::from_millis(milliseconds.into()));
            Ok(())
        }
        fn proxy_get_property(guest, path: u32, path_size: u32, value_to: u32, size_to: u32) {
            let path = guest.bytes(path, path_size)?;
            let value = property(guest, path.strip_suffix(b"\0").unwrap_or(&path)).ok_or(Status::NotFound)?;
            guest.give(&value, value_to, size_to)
        }
        fn proxy_set_property(guest, path: u32, path_size: u32, value: u32, value_size: u32) {
            let (path, value) = (guest.bytes(path, path_size)?, guest.bytes(value, value_size)?);
            let path = String::from_utf8_lossy(&path).into_owned();
            let stream = guest.data().stream().cloned().ok_or(Status::NotFound)?;
            stream.borrow_mut().set_property(&["wasm", &path], value);
            Ok(())
        }
        fn proxy_get_buffer_bytes(guest, kind: u32, start: u32, max_size: u32, bytes_to: u32, size_to: u32) {
            let (start, end) = (start as usize, start.checked_add(max_size).ok_or(Status::BadArgument)? as usize);
            let part = with_buffer(guest, kind, |bytes| {
                if start > bytes.len() { None } else { bytes.get(start..end.min(bytes.len())).map(<[u8]>::to_vec) }
            })?;
            let part = part.ok_or(Status::BadArgument)?;
            // Envoy writes neither pointer nor size when there is nothing to give.
            if part.is_empty() { Ok(()) } else { guest.give(&part, bytes_to, size_to) }
        }
        fn proxy_continue_stream(guest, stream: u32) {
            let direction = direction(stream)?;
            let of = guest.data().stream().cloned().ok_or(Status::BadArgument)?;
            let mut of = of.borrow_mut();
            // Envoy forgets the request's headers whichever direction is resumed.
            of.request.headers_open = false;
            of.request.trailers_open = false;
            guest.data_mut().deferred.push(Deferred::Resume(of.id, direction));
            Ok(())
        }
        fn proxy_send_local_response(
            guest, status: u32, details: u32, details_size: u32, body: u32, body_size: u32,
            headers: u32, headers_size: u32, _grpc_status: u32,
        ) {
            let details = guest.bytes(details, details_size)?;
            let body = guest.bytes(body, body_size)?;
            let pairs = guest.bytes(headers, headers_size)?;
            let added = decode_pairs(&pairs).ok_or(Status::BadArgument)?;
            let details = String::from_utf8_lossy(&details).into_owned();
            let id = guest.data().stream().ok_or(Status::BadArgument)?.borrow().id;
            let reply = LocalReply { headers: reply_headers(status, added, body.len()), body, details };
            guest.data_mut().deferred.push(Deferred::Reply(id, reply));
            Ok(())
        }
        fn proxy_set_effective_context(guest, context: u32) {
            if !guest.data().contexts.contains_key(&context) {
                return Err(Status::BadArgument.into());
            }
            guest.data_mut().effective = context;
            Ok(())
        }
        fn proxy_done(guest) {
            let id = guest.data().acting();
            let root = guest.data_mut().root(id).filter(|root| root.retiring).ok_or(Status::NotFound)?;
            root.retiring = false;
            guest.data_mut().deferred.push(Deferred::Retire(id));
            Ok(())
        }
        fn proxy_http_call(
            guest, cluster: u32, cluster_size: u32, headers: u32, headers_size: u32, _body: u32, _body_size: u32,
            _trailers: u32, _trailers_size: u32, timeout_ms: u32, number_to: u32,
        ) {
            let cluster = String::from_utf8_lossy(&guest.bytes(cluster, cluster_size)?).into_owned();
            let pairs = decode_pairs(&guest.bytes(headers, headers_size)?).ok_or(Status::BadArgument)?;
            let mut headers = Headers::default();
            pairs.into_iter().for_each(|(name, value)| headers.add(name, value));
            let complete = [":method", ":path", ":authority"].iter().all(|name| headers.get(*name).is_some());
            if cluster.is_empty() || !complete {
                return Err(Status::BadArgument.into());
            }
            let (context, made) = (guest.data().acting(), guest.data().process.now());
            let calls = &mut guest.data_mut().side_calls;
            calls.made += 1;
            let number = calls.made;
            calls.open.push(SideCall { number, context, made, cluster, headers, timeout_ms });
            guest.put_u32(number_to, number)
        }
    }
    Ok(())
}

fn direction(stream: u32) -> Result<Direction, Fault> {
    match stream {
        0 => Ok(Direction::Request),
        1 => Ok(Direction::Response),
        _ => Err(Status::BadArgument.into()),
    }
}

/// Envoy adds length and type to a local reply; a type given by the filter wins.
fn reply_headers(status: u32, added: Vec<(Vec<u8>, Vec<u8>)>, body_size: usize) -> Headers {
    let mut headers = Headers::default();
    headers.add(":status", status.to_string());
    for (name, value) in added {
        headers.add(name, value);
    }
    if body_size > 0 {
        headers.set("content-length", body_size.to_string());
        if headers.get("content-type").is_none() {
            headers.add("content-type", "text/plain");
        }
    }
    headers
}

fn property(guest: &Guest<'_>, path: &[u8]) -> Option<Vec<u8>> {
    if path == b"plugin_vm_id" {
        return Some(VM_ID.to_vec());
    }
    guest.data().stream()?.borrow().properties.get(path).cloned()
}

fn with_buffer<T>(guest: &mut Guest<'_>, kind: u32, work: impl FnOnce(&[u8]) -> T) -> Result<T, Fault> {
    let state = guest.data_mut();
    match kind {
        buffer::REQUEST_BODY | buffer::RESPONSE_BODY => {
            let stream = state.stream().ok_or(Status::NotFound)?.borrow();
            Ok(work(if kind == buffer::REQUEST_BODY { &stream.request.body } else { &stream.response.body }))
        }
        buffer::CALL_BODY => {
            let answer = state.side_calls.answer.as_ref().ok_or(Status::NotFound)?;
            Ok(work(&answer.1))
        }
        buffer::VM_CONFIGURATION => Ok(work(b"")),
        buffer::PLUGIN_CONFIGURATION => {
            let id = state.acting();
            let root = state.root(id).filter(|root| root.configuring).ok_or(Status::NotFound)?;
            Ok(work(&root.plugin.config))
        }
        0..=buffer::LAST => Err(Status::NotFound.into()),
        _ => Err(Status::BadArgument.into()),
    }
}
