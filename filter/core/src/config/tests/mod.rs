//! Each default, each key's effect, each rejection by its message.

mod accepted;
mod refused;

use super::{Config, ConfigError};

#[track_caller]
fn parse(text: &str) -> Config {
    Config::parse(text.as_bytes()).unwrap()
}

#[track_caller]
fn refusal(text: &str) -> String {
    let error: ConfigError = Config::parse(text.as_bytes()).unwrap_err();
    error.to_string()
}
