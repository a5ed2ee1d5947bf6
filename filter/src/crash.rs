//! A way to make the VM trap, for tests: the module that ships is built without this file.
//!
//! The request header `x-crash-for-tests` names the point. The host's own way of losing a VM is thus exercised at every
//! stage of a request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use filter_core::exchange::Exchange;
use filter_core::store::Store;

use crate::host::{self, REQUEST_HEADERS};

const HEADER: &str = "x-crash-for-tests";

/// Shared data that is not empty while some request has asked for the leader's death.
const LEADER: &str = "crash-leader";

/// Shared data that changes when some request has asked for the death of all VMs, those without requests among them.
const EVERYONE: &str = "crash-everyone";

thread_local! {
    static ARMED: RefCell<HashMap<u32, Vec<u8>>> = RefCell::default();
    static TICK: Cell<bool> = const { Cell::new(false) };
    /// The VM is to trap between its change of the load table and the write of its row.
    static HALF: Cell<bool> = const { Cell::new(false) };
    /// [`EVERYONE`] as it was when this VM began.
    static SEEN: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Called in front of each callback of a stream, with the callback's name.
pub(crate) fn before(callback: &str, stream: u32) {
    SEEN.with_borrow_mut(|seen| {
        seen.get_or_insert_with(everyone);
    });
    if callback == "request-headers"
        && let Some(point) = host::header(REQUEST_HEADERS, HEADER)
    {
        match point.as_slice() {
            b"tick" => TICK.set(true),
            b"half-counted" => HALF.set(true),
            b"leader" => drop(host::SharedData.set(LEADER, b"1", None)),
            b"everyone" => {
                let more = [everyone().as_slice(), b"1"].concat();
                let _ = host::SharedData.set(EVERYONE, &more, None);
            }
            _ => drop(ARMED.with_borrow_mut(|armed| armed.insert(stream, point))),
        }
    }
    if is_armed(stream, callback) {
        std::process::abort();
    }
    if callback == "done" {
        ARMED.with_borrow_mut(|armed| armed.remove(&stream));
    }
}

/// Called after each event of a stream.
pub(crate) fn after(stream: u32, exchange: &Exchange) {
    if exchange.is_counted() && is_armed(stream, "counted") {
        std::process::abort();
    }
}

/// Called in front of each tick.
pub(crate) fn tick() {
    let now = everyone();
    if TICK.get() || SEEN.with_borrow_mut(|seen| *seen.get_or_insert_with(|| now.clone()) != now) {
        std::process::abort();
    }
}

/// Called in front of each write to shared data.
pub(crate) fn write(key: &str) {
    // The names of rows begin with a v; that of the lease, which the leader writes on its ticks, with an m.
    if key.starts_with('v') && HALF.get() {
        std::process::abort();
    }
    if key.starts_with('m')
        && let Ok(Some(found)) = host::SharedData.get(LEADER)
        && !found.value.is_empty()
    {
        let _ = host::SharedData.set(LEADER, b"", None);
        std::process::abort();
    }
}

fn everyone() -> Vec<u8> {
    host::SharedData.get(EVERYONE).ok().flatten().map(|found| found.value).unwrap_or_default()
}

fn is_armed(stream: u32, point: &str) -> bool {
    ARMED.with_borrow(|armed| armed.get(&stream).is_some_and(|armed| armed == point.as_bytes()))
}
