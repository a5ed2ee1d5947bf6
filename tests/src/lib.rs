//! Test bed.

pub mod fake_engine;
pub mod load;
pub mod workload;
