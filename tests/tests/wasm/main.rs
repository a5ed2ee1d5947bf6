//! The Wasm tier: `filter.wasm` in an emulation of Envoy's host, and the emulation itself.

mod filter_budget;
mod filter_ends;
mod filter_gauges;
mod filter_hostile;
mod filter_keys;
mod filter_pulls;
mod filter_responses;
mod filter_routes;
mod filter_shares;
mod filter_ships;
mod filter_starved;
mod fleet;
mod guest;
mod host_data;
mod host_phases;
mod host_vms;
mod interleavings;
mod tables;
mod traps;
