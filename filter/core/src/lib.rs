//! All decisions of the load-balancing filter, pure: clock, randomness, store and host are arguments.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod answer;
pub mod balancer;
pub mod breaker;
pub mod config;
pub mod exchange;
pub mod fleet;
#[cfg(any(test, fuzzing))]
pub mod hostile;
pub mod ingest;
pub mod metrics;
pub mod policy;
pub mod prefix;
pub mod pull;
pub mod report;
pub mod request;
pub mod state;
pub mod store;
pub mod token;
