//! The proxy-wasm filter: a thin shell over `filter-core`. No decision is taken here.
//!
//! The module exports only the callbacks it needs, since Envoy calls each exported one for every chunk of every stream:
//! response bodies never enter it, but for the module of `filter/responses`.
#![expect(unsafe_code, reason = "exported functions need unmangled names")]

#[cfg(feature = "crash-for-tests")]
mod crash;
mod host;
mod http;
mod ingest;
mod pull;
mod root;
mod vm;

use std::cell::RefCell;

use crate::http::{CONTINUE, Stream};
use crate::vm::Vm;

#[cfg(all(target_family = "wasm", not(feature = "crash-for-tests")))]
const _: () = assert!(filter_core::state::names::LAYOUT < 255, "what ships is not built together with filter/crash");

thread_local! {
    /// The VM's memory. A VM has one thread and the host never calls into it while a call out of it is under way
    /// (but for memory), so the borrow never fails; if it did, the callback would do nothing rather than trap.
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// Runs `work` on the VM, made at first use.
fn with_vm<T>(otherwise: T, work: impl FnOnce(&mut Vm) -> T) -> T {
    VM.with(|vm| match vm.try_borrow_mut() {
        Ok(mut vm) => work(vm.get_or_insert_with(Vm::new)),
        Err(_) => otherwise,
    })
}

unsafe extern "C" {
    /// Runs the static constructors of the C library under the standard library.
    fn __wasm_call_ctors();
}

/// The module's entry point, called once per VM.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: provided by the linker for this target and called exactly once, before anything else.
    unsafe { __wasm_call_ctors() };
}

/// Names the ABI's version by existing.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_vm_start(_root: u32, _size: usize) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(id: u32, parent: u32) {
    with_vm((), |vm| {
        if let Some(stream) = vm.roots.get(&parent).map(Stream::new) {
            vm.streams.insert(id, stream);
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root: u32, size: usize) -> u32 {
    with_vm(0, |vm| u32::from(root::configure(vm, root, size)))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(root: u32) {
    #[cfg(feature = "crash-for-tests")]
    crash::tick();
    with_vm((), |vm| vm.tick(root));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(_root: u32, _queue: u32) {
    with_vm((), ingest::drain);
}

/// A call of our own has ended. Streams make none.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(root: u32, number: u32, headers: u32, size: usize, _trailers: u32) {
    with_vm((), |vm| pull::on_response(vm, root, number, headers, size));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(id: u32, _count: u32, ends: u32) -> u32 {
    #[cfg(feature = "crash-for-tests")]
    crash::before("request-headers", id);
    with_vm(CONTINUE, |vm| http::on_request_headers(vm, id, ends != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(id: u32, held: usize, ends: u32) -> u32 {
    #[cfg(feature = "crash-for-tests")]
    crash::before("request-body", id);
    with_vm(CONTINUE, |vm| http::on_request_body(vm, id, held, ends != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(id: u32, _count: u32) -> u32 {
    #[cfg(feature = "crash-for-tests")]
    crash::before("request-trailers", id);
    with_vm(CONTINUE, |vm| http::on_request_trailers(vm, id))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(id: u32, _count: u32, _ends: u32) -> u32 {
    #[cfg(feature = "crash-for-tests")]
    crash::before("response-headers", id);
    with_vm(CONTINUE, |vm| http::on_response_headers(vm, id))
}

/// A part of a response. The beginning of an answer that makes a response names it.
#[cfg(feature = "responses")]
#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(id: u32, size: usize, ends: u32) -> u32 {
    with_vm(CONTINUE, |vm| http::on_response_body(vm, id, size, ends != 0))
}

/// A stream or a root context is over. Streams are cleaned up here, not in `proxy_on_delete`: one callback less.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_done(id: u32) -> u32 {
    #[cfg(feature = "crash-for-tests")]
    crash::before("done", id);
    with_vm(1, |vm| {
        vm.pulls.leave(id);
        match vm.roots.remove(&id) {
            Some(root) => vm.retire(&root),
            None => http::on_done(vm, id),
        }
        1
    })
}
