//! The header with which a client names a worker itself.

use super::keys::visible_ascii;

/// What `X-SMG-Target-Worker` says, for the policy `consistent_hashing`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Target {
    /// Nothing: it is not there, empty, or not visible ASCII.
    #[default]
    Absent,
    /// The position of a worker among those of its pool that are available. It may be past their end, which is answered
    /// like [`Target::Invalid`].
    Index(usize),
    /// Something that is no position: no worker is chosen, whatever else the request says.
    Invalid,
}

/// Reads the value of `X-SMG-Target-Worker`: decimal digits with one `+` in front of them or none. A number too big to
/// count with names no worker either.
#[must_use]
pub fn target_worker(header: &[u8]) -> Target {
    match visible_ascii(header) {
        None => Target::Absent,
        Some(number) => number.parse().map_or(Target::Invalid, Target::Index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_digits_and_at_most_one_plus() {
        for (header, index) in
            [("0", 0), ("1", 1), ("+1", 1), ("+0", 0), ("007", 7), ("128", 128), ("4294967295", 4_294_967_295)]
        {
            assert_eq!(target_worker(header.as_bytes()), Target::Index(index), "{header}");
        }
        assert_eq!(target_worker(format!("{}1", "0".repeat(128)).as_bytes()), Target::Index(1), "129 bytes");
        assert_eq!(target_worker(usize::MAX.to_string().as_bytes()), Target::Index(usize::MAX));
    }

    #[test]
    fn what_is_no_position_is_invalid() {
        for header in [
            "-1", "-0", "1.0", " 1", "1 ", "\t1", "+", "++1", "+-1", "1+", "1e3", "0x1", "1_0", "1,2", "abc", " ", "\t",
        ] {
            assert_eq!(target_worker(header.as_bytes()), Target::Invalid, "{header:?}");
        }
        for header in ["18446744073709551616".to_owned(), "9".repeat(128), "9".repeat(129), "9".repeat(4096)] {
            assert_eq!(target_worker(header.as_bytes()), Target::Invalid, "{header}");
        }
    }

    #[test]
    fn what_cannot_be_seen_is_absent() {
        for header in [b"".as_slice(), b"\x7f", b"1\x7f", b"\x001", b"1\n", b"1\x1f", b"\xff", "１".as_bytes()] {
            assert_eq!(target_worker(header), Target::Absent, "{header:?}");
        }
    }
}
