//! Envoy's shared-data rules in memory, exactly: the model that unit tests, simulations and the Wasm tier run on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Store, StoreError, Versioned, Write};

/// A shared map; clones see the same data, like the VMs of one Envoy process.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    values: HashMap<String, Versioned>,
    last_version: u32,
}

impl MemoryStore {
    /// Keys and value sizes in bytes, sorted by key: for tests of bounds.
    #[must_use]
    pub fn sizes(&self) -> Vec<(String, usize)> {
        let inner = self.lock();
        let mut sizes: Vec<_> = inner.values.iter().map(|(key, value)| (key.clone(), value.value.len())).collect();
        sizes.sort();
        sizes
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        Ok(self.lock().values.get(key).cloned())
    }

    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        let mut inner = self.lock();
        if let (Some(expected), Some(current)) = (version, inner.values.get(key))
            && current.version != expected
        {
            return Ok(Write::Conflict);
        }
        inner.last_version = inner.last_version.wrapping_add(1).max(1);
        let version = inner.last_version;
        inner.values.insert(key.to_owned(), Versioned { value: value.to_vec(), version });
        Ok(Write::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ABSENT;
    use super::*;

    #[test]
    fn a_stale_version_conflicts_and_changes_nothing() {
        let mut store = MemoryStore::default();
        store.set("k", b"1", None).unwrap();
        let seen = store.get("k").unwrap().unwrap();
        assert_eq!(store.set("k", b"2", Some(seen.version)).unwrap(), Write::Done);
        assert_eq!(store.set("k", b"3", Some(seen.version)).unwrap(), Write::Conflict);
        assert_eq!(store.get("k").unwrap().unwrap().value, b"2");
    }

    #[test]
    fn an_absent_key_never_conflicts() {
        let mut store = MemoryStore::default();
        assert_eq!(store.set("k", b"1", Some(77)).unwrap(), Write::Done);
    }

    #[test]
    fn of_two_that_create_a_key_the_second_conflicts() {
        let mut store = MemoryStore::default();
        assert_eq!(store.set("k", b"1", Some(ABSENT)).unwrap(), Write::Done);
        assert_eq!(store.set("k", b"2", Some(ABSENT)).unwrap(), Write::Conflict);
        assert_eq!(store.get("k").unwrap().unwrap().value, b"1");
    }

    #[test]
    fn an_empty_value_has_a_version() {
        let mut store = MemoryStore::default();
        store.set("k", b"", None).unwrap();
        let seen = store.get("k").unwrap().unwrap();
        assert_ne!(seen.version, 0);
        assert_eq!(store.set("k", b"x", Some(seen.version)).unwrap(), Write::Done);
    }

    #[test]
    fn clones_share_one_map() {
        let mut one = MemoryStore::default();
        let mut two = one.clone();
        one.set("k", b"1", None).unwrap();
        assert_eq!(two.get("k").unwrap().unwrap().value, b"1");
    }
}
