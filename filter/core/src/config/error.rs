//! Why a configuration is refused.

use std::fmt;

use serde_json::Value;

use super::scope::Missing;
use super::suggest::nearest;

/// A longer value is shown by its beginning, in characters.
const SHOWN: usize = 60;

/// Why a configuration is refused. Paths are like `workers[2].url`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigError {
    /// Not JSON: the parser's message.
    Json(String),
    /// No such key.
    UnknownKey {
        /// The key as given.
        path: String,
        /// Its value as JSON, shortened.
        value: String,
        /// The known key that looks most like it.
        nearest: Option<&'static str>,
        /// All known keys.
        allowed: String,
    },
    /// A wrong type, a number out of range, an unknown name.
    Value {
        /// The key; empty for the whole document.
        path: String,
        /// The value as JSON, shortened.
        value: String,
        /// What may stand there.
        allowed: String,
    },
    /// It belongs to something that is not done here.
    OutOfScope {
        /// The key.
        path: String,
        /// The value as JSON, shortened.
        value: String,
        /// What it belongs to, and why there is none.
        missing: Missing,
    },
    /// A key that has to be there is not.
    Missing {
        /// The key.
        path: String,
    },
    /// Two names of one key are given.
    Twice {
        /// One of them.
        path: String,
        /// The other.
        other: String,
    },
    /// Two workers have one address.
    DuplicateAddress {
        /// The address.
        address: String,
        /// Where it stands first.
        first: usize,
        /// Where it stands again.
        again: usize,
    },
    /// Two workers have one URL.
    DuplicateWorker {
        /// The URL.
        url: String,
        /// Where it stands first.
        first: usize,
        /// Where it stands again.
        again: usize,
    },
    /// `power_of_two` with fewer than two workers, and none can come.
    TooFewWorkers {
        /// Configured workers.
        workers: usize,
    },
    /// The shared tables have too few slots.
    TooManyWorkers {
        /// Configured workers.
        workers: usize,
        /// Slots.
        max_workers: u32,
    },
}

impl ConfigError {
    pub(super) fn value(path: &str, value: &Value, allowed: &str) -> Self {
        Self::Value { path: path.to_owned(), value: shown(value), allowed: allowed.to_owned() }
    }

    pub(super) fn out_of_scope(path: &str, value: &Value, missing: Missing) -> Self {
        Self::OutOfScope { path: path.to_owned(), value: shown(value), missing }
    }

    pub(super) fn unknown(path: &str, value: &Value, key: &str, names: &[&'static str]) -> Self {
        let nearest = nearest(key, names.iter().copied());
        Self::UnknownKey { path: path.to_owned(), value: shown(value), nearest, allowed: names.join(", ") }
    }
}

/// A value as JSON, shortened.
fn shown(value: &Value) -> String {
    let whole = value.to_string();
    let mut shown: String = whole.chars().take(SHOWN).collect();
    if shown.len() < whole.len() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(why) => write!(f, "the configuration is not JSON: {why}"),
            Self::UnknownKey { path, value, nearest, allowed } => {
                write!(f, "`{path}` is {value}, but there is no such key; ")?;
                if let Some(nearest) = nearest {
                    write!(f, "did you mean `{nearest}`? ")?;
                }
                write!(f, "allowed: {allowed}")
            }
            Self::Value { path, value, allowed } if path.is_empty() => {
                write!(f, "the configuration is {value}; allowed: {allowed}")
            }
            Self::Value { path, value, allowed } => write!(f, "`{path}` is {value}; allowed: {allowed}"),
            Self::OutOfScope { path, value, missing: Missing { what, why } } => {
                write!(f, "`{path}` is {value}: {what} is out of scope, because {why}")
            }
            Self::Missing { path } => write!(f, "`{path}` is missing"),
            Self::Twice { path, other } => write!(f, "`{path}` and `{other}` are the same key: give one of them"),
            Self::DuplicateWorker { url, first, again } => {
                write!(f, "`workers[{again}].url` is \"{url}\", as is `workers[{first}].url`; allowed: each URL once")
            }
            Self::DuplicateAddress { address, first, again } => write!(
                f,
                "`workers[{again}]` has the address \"{address}\", as has `workers[{first}]`; allowed: each address once"
            ),
            Self::TooFewWorkers { workers } => write!(
                f,
                "Power-of-two policy requires at least 2 workers: `policy` is \"power_of_two\" and `workers` has \
                 {workers}; add one, or set `discovered_workers` to true"
            ),
            Self::TooManyWorkers { workers, max_workers } => {
                write!(f, "`workers` has {workers} entries; allowed: at most `max_workers`, {max_workers}")
            }
        }
    }
}

impl std::error::Error for ConfigError {}
