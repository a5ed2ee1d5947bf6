//! Test bed.

pub mod wasm;
