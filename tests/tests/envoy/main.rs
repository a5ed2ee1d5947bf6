//! Everything through a real Envoy.

mod balance;
mod gate;
mod launcher;
mod prefix;
mod support;
mod upstream;
