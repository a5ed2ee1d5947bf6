//! A plugin configuration, the root context that it becomes, and the ways in which a VM says no.

use std::fmt;

use super::shared::LogLine;

/// A plugin configuration, as an Envoy listener carries it.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub(super) config: Vec<u8>,
    pub(super) stop_iteration: bool,
}

impl Plugin {
    /// A plugin with `allow_on_headers_stop_iteration`, as this project configures it.
    pub fn new(config: impl AsRef<[u8]>) -> Self {
        Self { config: config.as_ref().to_vec(), stop_iteration: true }
    }

    /// A plugin without that flag: a request paused on its headers gets no body callback until it is resumed.
    #[must_use]
    pub fn without_stop_iteration(mut self) -> Self {
        self.stop_iteration = false;
        self
    }
}

impl<T: AsRef<[u8]>> From<T> for Plugin {
    fn from(config: T) -> Self {
        Self::new(config)
    }
}

/// A root context of one VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootId {
    pub(super) generation: u64,
    pub(super) id: u32,
}

/// Why a VM did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VmError {
    /// The module refused the configuration.
    Refused {
        /// What it logged meanwhile.
        logs: Vec<LogLine>,
    },
    /// The VM trapped now or earlier, was killed, or has been replaced.
    Dead {
        /// What killed it.
        reason: String,
    },
}

impl fmt::Display for VmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { logs } => {
                let lines: Vec<_> = logs.iter().map(|line| line.message.as_str()).collect();
                write!(f, "configuration refused: {}", lines.join("; "))
            }
            Self::Dead { reason } => write!(f, "the VM is dead: {reason}"),
        }
    }
}

impl std::error::Error for VmError {}
