//! The key-value store that every thread of the proxy shares: Envoy's shared data, or a model of it.
//!
//! Values are copied in and out under one process-wide lock.
//! Each value has a version; a write that names the version it has read fails if another write came between.
//! A versioned write to an absent key always succeeds, so a write that names [`ABSENT`] creates a value atomically.
//! There is no delete.

mod memory;

pub use memory::MemoryStore;

/// A value together with the version that a compare-and-swap must name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versioned {
    /// The stored bytes; may be empty, and an empty value has a version too.
    pub value: Vec<u8>,
    /// Never 0.
    pub version: u32,
}

/// The version to name for a key that was found absent: if another has created it meanwhile, the write conflicts.
/// The host numbers its writes and gets here once in four billion of them.
pub const ABSENT: u32 = u32::MAX;

/// The version that a write must name after a read that has found `stored`.
#[must_use]
pub fn version_of(stored: Option<&Versioned>) -> Option<u32> {
    Some(stored.map_or(ABSENT, |stored| stored.version))
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// The value is stored.
    Done,
    /// Somebody else wrote since the version was read: nothing is stored.
    Conflict,
}

/// The host refused the operation for a reason other than a conflict (its status code).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreError(pub u32);

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shared data: the host answered status {}", self.0)
    }
}

impl std::error::Error for StoreError {}

/// Shared data as the core sees it.
pub trait Store {
    /// The value of `key`, or `None` if it was never written.
    ///
    /// # Errors
    /// When the host cannot answer.
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError>;

    /// As [`Store::get`], for a value of at most `room` bytes that may grow: one that can reserves so many for it, and
    /// reading then costs the same whatever its size.
    ///
    /// # Errors
    /// When the host cannot answer.
    fn get_with_room(&mut self, key: &str, room: usize) -> Result<Option<Versioned>, StoreError> {
        let _ = room;
        self.get(key)
    }

    /// Writes `key`. With `version: Some(v)` only if its version is still `v` (or the key is absent);
    /// with `None` unconditionally.
    ///
    /// # Errors
    /// When the host cannot store the value.
    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError>;
}
