//! Envoy's proxy-wasm host (ABI 0.2.1) in wasmtime: runs `filter.wasm` without Envoy, deterministically.
//!
//! A [`Process`] is one Envoy: it owns what all threads share (shared data, queues, metrics, the clock).
//! A [`Vm`] is one worker thread's instance of the module, with its own memory; its root contexts are plugin
//! configurations. An [`Exchange`] is one request and its response; many can be open in one VM.
//!
//! ```no_run
//! # use testbed::wasm::{filter_wasm, Process, Request, Response};
//! let process = Process::new(&filter_wasm()).unwrap();
//! let vm = process.vm();
//! let root = vm.configure(r#"{"workers": []}"#).unwrap();
//! let mut exchange = vm.send(root, Request::post("/v1/chat/completions", r#"{"messages": []}"#)).unwrap();
//! let engine = exchange.destination().unwrap();
//! exchange.respond(Response::from_engine(200, &engine)).unwrap();
//! assert!(exchange.finish().unwrap().host_calls_total() < 30);
//! ```
//!
//! Everything runs on the calling thread, in an order that the test decides; a hook on shared data
//! ([`Process::intercept`]) can run another VM in the middle of a callback, or make a write fail.
//!
//! Where it is stricter than Envoy: request headers can be neither read nor written once they have been let go,
//! also when a body callback let them go. Where it is simpler: every VM has the same `vm_id` and code; a refused
//! configuration leaves its VM usable; side calls go to clusters of any name but an empty one, and tests answer them.

mod abi;
mod counters;
mod exchange;
mod flow;
mod imports;
mod message;
mod module;
mod plugin;
mod process;
mod shared;
mod side_call;
mod state;
mod stream;
mod vm;

pub use abi::Status;
pub use counters::Counters;
pub use exchange::{Answer, Decision, Exchange, Reply};
pub use message::{Headers, Request, Response, int};
pub use module::{crashable_wasm, filter_wasm, responses_wasm};
pub use plugin::{Plugin, RootId, VmError};
pub use process::{Access, Process};
pub use shared::{LogLine, Metric};
pub use side_call::SideCall;
pub use vm::Vm;

/// The header in which the filter names the endpoints, best first.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";
