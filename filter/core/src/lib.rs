//! All decisions of the load-balancing filter, pure: clock, randomness, store and host are arguments.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod report;
pub mod request;
pub mod store;
