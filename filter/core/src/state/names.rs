//! Names of shared keys.
//!
//! A name carries the layout version, the instance and the table's geometry, so that old code, new code and
//! configurations with other sizes never read each other's bytes. All names stay under 16 bytes: those need no
//! allocation under the host's process-wide lock.

use xxhash_rust::xxh3::xxh3_64;

/// Grows when the bytes of any table change their meaning.
pub const LAYOUT: u8 = if cfg!(feature = "layout-for-tests") { 255 } else { 4 };

/// The instance as tables name it that remember slots: with another `max_workers` the fleet table is another one, and
/// gives the same numbers to other workers.
#[must_use]
pub fn with_slots(instance: &str, max_workers: u32) -> String {
    format!("{instance}\0{max_workers}")
}

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// The names of one table: a prefix of 8 bytes and an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    prefix: String,
}

impl Name {
    /// The table `kind` of `instance`. Tables of another `geometry` get other names.
    #[must_use]
    pub fn new(kind: char, instance: &str, geometry: u64) -> Self {
        let mut identity = Vec::with_capacity(instance.len() + 9);
        identity.extend_from_slice(instance.as_bytes());
        identity.push(LAYOUT);
        identity.extend_from_slice(&geometry.to_le_bytes());
        let mut prefix = String::with_capacity(16);
        prefix.push(kind);
        push_digits(&mut prefix, xxh3_64(&identity) >> 29, 7);
        Self { prefix }
    }

    /// The name of part `index`.
    #[must_use]
    pub fn part(&self, index: u32) -> String {
        let mut name = String::with_capacity(16);
        name.push_str(&self.prefix);
        push_digits(&mut name, u64::from(index), 1);
        name
    }
}

/// Appends `value` in base 32, in at least `least` digits.
fn push_digits(out: &mut String, value: u64, least: u32) {
    let needed = (64 - value.leading_zeros()).div_ceil(5).max(least);
    for place in (0..needed).rev() {
        let digit = (value.checked_shr(place * 5).unwrap_or(0) & 31) as usize;
        out.push(char::from(DIGITS.get(digit).copied().unwrap_or(b'0')));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_short_and_distinct() {
        let table = Name::new('t', "some-instance-of-32-bytes-in-all", 16_384);
        let names: HashSet<String> = (0..70_000).map(|part| table.part(part)).collect();
        assert_eq!(names.len(), 70_000);
        assert!(names.iter().all(|name| name.len() <= 15));
    }

    #[test]
    fn instance_and_geometry_are_in_the_name() {
        let name = |instance, geometry| Name::new('l', instance, geometry).part(0);
        assert_ne!(name("a", 1), name("b", 1));
        assert_ne!(name("a", 1), name("a", 2));
        assert_eq!(name("a", 1), name("a", 1));
    }
}
