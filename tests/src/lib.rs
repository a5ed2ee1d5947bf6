//! Test bed.

pub mod fake_engine;
pub mod workload;
