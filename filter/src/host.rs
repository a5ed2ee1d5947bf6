//! The host: every call into Envoy, and nothing else. Each returns what the host answered; none can panic.
//!
//! The imports are declared here because the SDK's own wrappers panic on statuses that Envoy does return, and a panic
//! kills every stream of the thread.
#![expect(unsafe_code, reason = "calls into the host pass raw pointers")]

use std::cell::Cell;

use filter_core::store::{Store, StoreError, Versioned, Write};

/// A status that is not "ok".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) u32);

const OK: u32 = 0;
const NOT_FOUND: u32 = 1;
const EMPTY: u32 = 7;
const CAS_MISMATCH: u32 = 8;

/// The maps and buffers of the ABI.
pub(crate) const REQUEST_HEADERS: u32 = 0;
pub(crate) const RESPONSE_HEADERS: u32 = 2;
pub(crate) const REQUEST_BODY: u32 = 0;
#[cfg(feature = "responses")]
pub(crate) const RESPONSE_BODY: u32 = 1;
pub(crate) const PLUGIN_CONFIGURATION: u32 = 7;
/// Of the answer to a call of our own, while it is told of.
pub(crate) const CALL_HEADERS: u32 = 6;
/// See [`CALL_HEADERS`].
pub(crate) const CALL_BODY: u32 = 4;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_log(level: u32, text: *const u8, length: usize) -> u32;
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_property(path: *const u8, length: usize, value: *const u8, value_length: usize) -> u32;
    fn proxy_get_property(path: *const u8, length: usize, value: *mut *mut u8, value_length: *mut usize) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        most: usize,
        value: *mut *mut u8,
        value_length: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_length: usize,
        value: *mut *mut u8,
        value_length: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, value: *mut *mut u8, value_length: *mut usize) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        name: *const u8,
        name_length: usize,
        value: *const u8,
        value_length: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, name: *const u8, name_length: usize) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_length: usize,
        body: *const u8,
        body_length: usize,
        headers: *const u8,
        headers_length: usize,
        grpc_status: i32,
    ) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_length: usize,
        value: *mut *mut u8,
        value_length: *mut usize,
        version: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_length: usize,
        value: *const u8,
        value_length: usize,
        version: u32,
    ) -> u32;
    fn proxy_register_shared_queue(name: *const u8, name_length: usize, queue: *mut u32) -> u32;
    fn proxy_enqueue_shared_queue(queue: u32, value: *const u8, value_length: usize) -> u32;
    fn proxy_dequeue_shared_queue(queue: u32, value: *mut *mut u8, value_length: *mut usize) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_length: usize, metric: *mut u32) -> u32;
    fn proxy_increment_metric(metric: u32, by: i64) -> u32;
    fn proxy_record_metric(metric: u32, value: u64) -> u32;
    fn proxy_http_call(
        cluster: *const u8,
        cluster_length: usize,
        headers: *const u8,
        headers_length: usize,
        body: *const u8,
        body_length: usize,
        trailers: *const u8,
        trailers_length: usize,
        timeout_ms: u32,
        number: *mut u32,
    ) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_continue_stream(stream: u32) -> u32;
}

/// Memory for a value that the host is about to write. The host hands it back through one of the calls below.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    let mut room = Vec::<u8>::with_capacity(room_for(size));
    let pointer = room.as_mut_ptr();
    std::mem::forget(room);
    pointer
}

/// What the value of so many bytes gets.
fn room_for(size: usize) -> usize {
    LEAST_ROOM.with(|least| size.max(least.get()))
}

/// Takes a value the host has written into memory of [`proxy_on_memory_allocate`].
fn owned(pointer: *mut u8, length: usize) -> Vec<u8> {
    if pointer.is_null() {
        return Vec::new();
    }
    // SAFETY: the host returns exactly what it asked proxy_on_memory_allocate for: a Vec of this capacity,
    // whose first bytes it has filled. The least room is the same before and after a call.
    unsafe { Vec::from_raw_parts(pointer, length, room_for(length)) }
}

/// Runs a call that returns a value through two out-pointers.
fn value_of(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, Refused> {
    let (mut pointer, mut length) = (std::ptr::null_mut(), 0);
    match call(&raw mut pointer, &raw mut length) {
        OK => Ok(owned(pointer, length)),
        status => Err(Refused(status)),
    }
}

fn check(status: u32) -> Result<(), Refused> {
    if status == OK { Ok(()) } else { Err(Refused(status)) }
}

/// Writes a line to Envoy's log. Levels: 1 debug, 2 info, 3 warn, 4 error.
pub(crate) fn log(level: u32, text: &str) {
    // SAFETY: the pointer is valid for the length given. A host that cannot log has no way to be told.
    let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
}

/// The wall clock, in Unix nanoseconds.
pub(crate) fn now_nanos() -> u64 {
    let mut time = 0;
    // SAFETY: the out-pointer is valid. On failure the time stays 0: the epoch.
    let _ = unsafe { proxy_get_current_time_nanoseconds(&raw mut time) };
    time
}

/// A property by its path.
pub(crate) fn property(path: &[&str]) -> Result<Vec<u8>, Refused> {
    let path = path.join("\0");
    // SAFETY: all pointers are valid for the call.
    value_of(|value, length| unsafe { proxy_get_property(path.as_ptr(), path.len(), value, length) })
}

/// Sets the property `name` of the stream: Envoy keeps it in the filter state as `wasm.<name>`, for access logs.
pub(crate) fn set_property(name: &str, value: &str) -> Result<(), Refused> {
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

/// Up to `most` bytes of a buffer.
pub(crate) fn buffer(buffer: u32, most: usize) -> Result<Vec<u8>, Refused> {
    // SAFETY: all pointers are valid for the call.
    value_of(|value, length| unsafe { proxy_get_buffer_bytes(buffer, 0, most, value, length) })
}

/// A header's value, if it is there; of several of one name the first. An empty one is there.
pub(crate) fn header(map: u32, name: &str) -> Option<Vec<u8>> {
    // SAFETY: all pointers are valid for the call.
    value_of(|value, length| unsafe { proxy_get_header_map_value(map, name.as_ptr(), name.len(), value, length) }).ok()
}

/// All headers of a map, for who wants more than one or two of them: one call in place of one for each.
pub(crate) fn headers(map: u32) -> Result<Headers, Refused> {
    // SAFETY: all pointers are valid for the call.
    let bytes = value_of(|value, length| unsafe { proxy_get_header_map_pairs(map, value, length) })?;
    if bytes.is_empty() { Err(Refused(EMPTY)) } else { Ok(Headers(bytes)) }
}

/// Sets a header to exactly this value.
pub(crate) fn set_header(map: u32, name: &str, value: &str) -> Result<(), Refused> {
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_replace_header_map_value(map, name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

/// Removes a header.
pub(crate) fn remove_header(map: u32, name: &str) -> Result<(), Refused> {
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_remove_header_map_value(map, name.as_ptr(), name.len()) })
}

/// Makes `context` the one that the following calls are about.
pub(crate) fn set_effective_context(context: u32) -> Result<(), Refused> {
    // SAFETY: no pointers.
    check(unsafe { proxy_set_effective_context(context) })
}

/// Lets the held request of the effective context go on.
pub(crate) fn continue_request() -> Result<(), Refused> {
    // SAFETY: no pointers. 0 is the request's side of the stream.
    check(unsafe { proxy_continue_stream(0) })
}

/// Answers the request of the current stream.
pub(crate) fn respond(status: u16, headers: &[(&str, &str)], body: &str) -> Result<(), Refused> {
    let headers = serialized(headers);
    let details = "smg";
    // SAFETY: all pointers are valid for the call. -1 is "no gRPC status".
    check(unsafe {
        proxy_send_local_response(
            u32::from(status),
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            -1,
        )
    })
}

/// The ABI's form of a header map: the count, each pair's two lengths, then the bytes, each NUL-terminated.
fn serialized(headers: &[(&str, &str)]) -> Vec<u8> {
    let length = |text: &str| u32::try_from(text.len()).unwrap_or(0).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&u32::try_from(headers.len()).unwrap_or(0).to_le_bytes());
    for (name, value) in headers {
        bytes.extend_from_slice(&length(name));
        bytes.extend_from_slice(&length(value));
    }
    for (name, value) in headers {
        for text in [name, value] {
            bytes.extend_from_slice(text.as_bytes());
            bytes.push(0);
        }
    }
    bytes
}

/// A header map as the host has written it, see [`serialized`].
#[derive(Debug, Default)]
pub(crate) struct Headers(Vec<u8>);

impl Headers {
    /// A header's value, if it is there; of several of one name the first. An empty one is there.
    pub(crate) fn get(&self, wanted: &str) -> Option<&[u8]> {
        let number = |raw: &[u8]| raw.first_chunk().map_or(0, |raw| u32::from_le_bytes(*raw) as usize);
        let (count, rest) = self.0.split_at_checked(4)?;
        // Behind the lengths stand the texts, each with a NUL behind it.
        let (lengths, mut texts) = rest.split_at_checked(number(count).checked_mul(8)?)?;
        for pair in lengths.chunks_exact(8) {
            let (name, value) = pair.split_at(4);
            let (name, value) = (number(name), number(value));
            if name == wanted.len() && texts.get(..name)? == wanted.as_bytes() {
                return texts.get(name.saturating_add(1)..)?.get(..value);
            }
            texts = texts.get(name.saturating_add(1)..)?.get(value.saturating_add(1)..)?;
        }
        None
    }
}

/// Registers the shared queue: its messages are announced to the current root context.
pub(crate) fn register_queue(name: &str) -> Result<u32, Refused> {
    let mut queue = 0;
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut queue) })?;
    Ok(queue)
}

/// Puts a message on a queue.
pub(crate) fn enqueue(queue: u32, message: &[u8]) -> Result<(), Refused> {
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_enqueue_shared_queue(queue, message.as_ptr(), message.len()) })
}

/// Takes the oldest message of a queue, if there is one.
pub(crate) fn dequeue(queue: u32) -> Result<Option<Vec<u8>>, Refused> {
    // SAFETY: all pointers are valid for the call.
    match value_of(|value, length| unsafe { proxy_dequeue_shared_queue(queue, value, length) }) {
        Ok(message) => Ok(Some(message)),
        Err(Refused(EMPTY)) => Ok(None),
        Err(refused) => Err(refused),
    }
}

/// Defines a metric: 0 is a counter, 1 a gauge.
pub(crate) fn define_metric(kind: u32, name: &str) -> Result<u32, Refused> {
    let mut metric = 0;
    // SAFETY: all pointers are valid for the call.
    check(unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &raw mut metric) })?;
    Ok(metric)
}

/// Adds to a counter.
pub(crate) fn increment_metric(metric: u32, by: u64) -> Result<(), Refused> {
    // SAFETY: no pointers.
    check(unsafe { proxy_increment_metric(metric, i64::try_from(by).unwrap_or(i64::MAX)) })
}

/// Sets a gauge.
pub(crate) fn record_metric(metric: u32, value: u64) -> Result<(), Refused> {
    // SAFETY: no pointers.
    check(unsafe { proxy_record_metric(metric, value) })
}

/// Makes a call without a body, and returns its number. Its end comes to the current root context.
pub(crate) fn http_call(cluster: &str, headers: &[(&str, &str)], timeout_ms: u32) -> Result<u32, Refused> {
    let headers = serialized(headers);
    let (nothing, mut number) = (serialized(&[]), 0);
    // SAFETY: all pointers are valid for the call.
    check(unsafe {
        proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            nothing.as_ptr(),
            0,
            nothing.as_ptr(),
            nothing.len(),
            timeout_ms,
            &raw mut number,
        )
    })?;
    Ok(number)
}

/// Asks for ticks, in milliseconds.
pub(crate) fn set_tick_period(period_ms: u32) -> Result<(), Refused> {
    // SAFETY: no pointers.
    check(unsafe { proxy_set_tick_period_milliseconds(period_ms) })
}

/// Envoy's shared data.
#[derive(Debug, Default)]
pub(crate) struct SharedData;

impl Store for SharedData {
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        let mut version = 0;
        // SAFETY: all pointers are valid for the call.
        let value = value_of(|value, length| unsafe {
            proxy_get_shared_data(key.as_ptr(), key.len(), value, length, &raw mut version)
        });
        match value {
            Ok(value) => Ok(Some(Versioned { value, version })),
            Err(Refused(NOT_FOUND)) => Ok(None),
            Err(Refused(status)) => Err(StoreError(status)),
        }
    }

    fn get_with_room(&mut self, key: &str, room: usize) -> Result<Option<Versioned>, StoreError> {
        LEAST_ROOM.with(|least| least.set(room));
        let stored = self.get(key);
        LEAST_ROOM.with(|least| least.set(0));
        stored
    }

    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        #[cfg(feature = "crash-for-tests")]
        crate::crash::write(key);
        // SAFETY: all pointers are valid for the call. Version 0 is "unconditionally".
        let status = unsafe {
            proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), version.unwrap_or(0))
        };
        match status {
            OK => Ok(Write::Done),
            CAS_MISMATCH => {
                CONFLICTS.with(|conflicts| conflicts.set(conflicts.get() + 1));
                Ok(Write::Conflict)
            }
            status => Err(StoreError(status)),
        }
    }
}

thread_local! {
    static CONFLICTS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that a value from the host gets at least; 0 but for [`Store::get_with_room`].
    static LEAST_ROOM: Cell<usize> = const { Cell::new(0) };
}

/// How many writes to shared data have lost their races since the last time.
pub(crate) fn take_conflicts() -> u64 {
    CONFLICTS.with(|conflicts| conflicts.replace(0))
}
