//! Everything through a real Envoy.

mod launcher;
mod prefix;
mod up;
mod upstream;
