//! Test bed.
pub mod envoy;
