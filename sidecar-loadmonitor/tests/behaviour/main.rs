//! The sidecar from outside: small engines and ingest listeners on loopback, real HTTP, and what arrives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "these are tests")]

mod bad_grpc;
mod binary;
mod checking;
mod discovery;
mod engines;
mod face;
mod fakes;
mod matrix;
mod misbehaviour;
mod pushing;
mod rotation;
mod tls;
