//! What a piece of work cost, counted and not timed, so that it is the same on every machine.

use std::collections::BTreeMap;

/// Calls across the border of the module, and the work inside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls from the module to the host, by import name.
    pub host_calls: BTreeMap<&'static str, u64>,
    /// Calls from the host into the module, by export name (allocations excepted).
    pub callbacks: BTreeMap<&'static str, u64>,
    /// WebAssembly instructions, nearly: wasmtime's fuel.
    pub fuel: u64,
}

impl Counters {
    /// How often `name` was called by the module.
    pub fn host_calls_of(&self, name: &str) -> u64 {
        self.host_calls.get(name).copied().unwrap_or_default()
    }

    /// All calls of the module.
    pub fn host_calls_total(&self) -> u64 {
        self.host_calls.values().sum()
    }

    /// All calls into the module.
    pub fn callbacks_total(&self) -> u64 {
        self.callbacks.values().sum()
    }

    /// Adds what another piece of work cost.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.host_calls {
            *self.host_calls.entry(name).or_default() += count;
        }
        for (name, count) in &other.callbacks {
            *self.callbacks.entry(name).or_default() += count;
        }
        self.fuel += other.fuel;
    }
}
