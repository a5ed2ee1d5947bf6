//! Header maps.

use wasmtime::Linker;

use super::{Fault, Guest, GuestMemory, encode_pairs, host_calls};
use crate::wasm::abi::{Status, map};
use crate::wasm::message::Headers;
use crate::wasm::state::HostState;
use crate::wasm::stream::Stream;

pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    host_calls! { linker, "env",
        fn proxy_get_header_map_value(guest, map: u32, name: u32, name_size: u32, value_to: u32, size_to: u32) {
            let name = guest.bytes(name, name_size)?;
            let value = read(guest, map, |headers| headers.get(&name).map(<[u8]>::to_vec))?;
            guest.give(&value.ok_or(Status::NotFound)?, value_to, size_to)
        }
        fn proxy_get_header_map_pairs(guest, map: u32, pairs_to: u32, size_to: u32) {
            // A map that is not there any more reads as empty here, as it does in Envoy.
            let pairs = read(guest, map, |headers| encode_pairs(headers.iter())).or_else(|fault| match fault {
                Fault::Status(_) if map <= map::RESPONSE_TRAILERS => Ok(Vec::new()),
                fault => Err(fault),
            })?;
            guest.give(&pairs, pairs_to, size_to)
        }
        fn proxy_add_header_map_value(guest, map: u32, name: u32, name_size: u32, value: u32, value_size: u32) {
            let (name, value) = (guest.bytes(name, name_size)?, guest.bytes(value, value_size)?);
            change(guest, map, |headers| headers.add(name, value))
        }
        fn proxy_replace_header_map_value(guest, map: u32, name: u32, name_size: u32, value: u32, value_size: u32) {
            let (name, value) = (guest.bytes(name, name_size)?, guest.bytes(value, value_size)?);
            change(guest, map, |headers| headers.set(name, value))
        }
        fn proxy_remove_header_map_value(guest, map: u32, name: u32, name_size: u32) {
            let name = guest.bytes(name, name_size)?;
            change(guest, map, |headers| headers.remove(name))
        }
    }
    Ok(())
}

fn read<T>(guest: &Guest<'_>, map: u32, work: impl FnOnce(&Headers) -> T) -> Result<T, Fault> {
    if map == map::CALL_HEADERS {
        return Ok(work(&guest.data().side_calls.answer.as_ref().ok_or(Status::BadArgument)?.0));
    }
    let stream = guest.data().stream().ok_or(Status::BadArgument)?;
    let mut stream = stream.borrow_mut();
    let logging = stream.logging;
    let (headers, open) = select(&mut stream, map)?;
    if open || logging { Ok(work(headers)) } else { Err(Status::BadArgument.into()) }
}

fn change(guest: &Guest<'_>, map: u32, work: impl FnOnce(&mut Headers)) -> Result<(), Fault> {
    let stream = guest.data().stream().ok_or(Status::BadArgument)?;
    let mut stream = stream.borrow_mut();
    let (headers, open) = select(&mut stream, map)?;
    if !open {
        return Err(Status::BadArgument.into());
    }
    work(headers);
    Ok(())
}

fn select(stream: &mut Stream, map: u32) -> Result<(&mut Headers, bool), Fault> {
    let Stream { request, response, .. } = stream;
    Ok(match map {
        map::REQUEST_HEADERS => (&mut request.headers, request.headers_open),
        map::REQUEST_TRAILERS => (&mut request.trailers, request.trailers_open),
        map::RESPONSE_HEADERS => (&mut response.headers, response.headers_open),
        map::RESPONSE_TRAILERS => (&mut response.trailers, response.trailers_open),
        _ => return Err(Status::BadArgument.into()),
    })
}
