//! The Wasm tier: `filter.wasm` in an emulation of Envoy's host, and the emulation itself.

mod guest;
mod host_data;
mod host_phases;
mod host_vms;
