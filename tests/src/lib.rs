//! What the tests, the demo and the benchmarks are made of: fake engines, a Wasm host, an Envoy launcher, load, a simulation.

pub mod bench;
pub mod bench_sidecar;
pub mod chaos;
pub mod demo;
pub mod envoy;
pub mod fake_engine;
pub mod load;
pub mod program;
pub mod simulate;
pub mod soak;
pub mod wasm;
pub mod workload;
