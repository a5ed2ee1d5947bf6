//! Everything through a real Envoy.

mod launcher;
mod upstream;
