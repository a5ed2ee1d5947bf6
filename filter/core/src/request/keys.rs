//! The keys that tie requests to workers: what a header's value or a body's `rid` is worth as one.

/// A longer routing key is passed over, in bytes.
pub const MAX_ROUTING_KEY_BYTES: usize = 128;

/// What stands in for a routing key of the client's own, in this order: see [`implicit_key`].
pub const IMPLICIT_KEY_HEADERS: [&str; 3] = ["authorization", "x-forwarded-for", "cookie"];

/// The routing key in a header's value: 1 to [`MAX_ROUTING_KEY_BYTES`] bytes of UTF-8. `None` means that the next
/// configured header is tried.
#[must_use]
pub fn routing_key(header: &[u8]) -> Option<&str> {
    if header.is_empty() || header.len() > MAX_ROUTING_KEY_BYTES {
        return None;
    }
    std::str::from_utf8(header).ok()
}

/// The key of the policy `manual` in the value of `X-SMG-Routing-Key`: visible ASCII of any length but 0.
#[must_use]
pub fn manual_key(header: &[u8]) -> Option<&str> {
    visible_ascii(header)
}

/// The key of a request that names none itself. Of [`IMPLICIT_KEY_HEADERS`] the first that is present is the only one
/// looked at, so `header` is not asked for those behind it; its whole value is the key if it is visible ASCII and not
/// empty, and if not, there is no key.
#[must_use]
pub fn implicit_key(header: impl FnMut(&str) -> Option<Vec<u8>>) -> Option<String> {
    let value = IMPLICIT_KEY_HEADERS.into_iter().find_map(header)?;
    visible_ascii(&value)?;
    String::from_utf8(value).ok()
}

/// The key in a body's `rid`: stripped of its lineage, 1 to [`MAX_ROUTING_KEY_BYTES`] bytes.
#[must_use]
pub fn rid_key(rid: &str) -> Option<&str> {
    let key = strip_lineage(rid);
    (1..=MAX_ROUTING_KEY_BYTES).contains(&key.len()).then_some(key)
}

/// The key without the marks of turn and retry, so that all turns of a conversation have one key: first a trailing
/// `_r<digits>` is taken off, then a trailing `_t<digits>`, each once at most. A key that would be left with nothing
/// stays as it is.
#[must_use]
pub fn strip_lineage(key: &str) -> &str {
    match without_mark(without_mark(key, "_r"), "_t") {
        "" => key,
        stripped => stripped,
    }
}

fn without_mark<'k>(key: &'k str, mark: &str) -> &'k str {
    let front = key.trim_end_matches(|character: char| character.is_ascii_digit());
    if front.len() == key.len() { key } else { front.strip_suffix(mark).unwrap_or(key) }
}

/// The value as text if it is not empty and every byte is one of those that `http::HeaderValue::to_str` takes for
/// visible: 0x20 to 0x7e and the tab.
pub(super) fn visible_ascii(value: &[u8]) -> Option<&str> {
    if value.is_empty() || !value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t')) {
        return None;
    }
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes at both ends of what is visible, as a value among letters.
    const VISIBLE: [&[u8]; 5] = [b"a b", b" a ", b"~", b"a\tb", b"user-123"];
    const INVISIBLE: [&[u8]; 7] = [b"", b"a\x1fb", b"a\x7f", b"a\nb", b"\0", b"a\x80", "ключ".as_bytes()];

    #[test]
    fn routing_keys_are_short_text() {
        assert_eq!(routing_key(b"user-123"), Some("user-123"));
        assert_eq!(routing_key("ключ".as_bytes()), Some("ключ"));
        assert_eq!(routing_key(b"\x7f\x01"), Some("\x7f\x01"), "UTF-8, visible or not");
        assert_eq!(routing_key(b"conv_t2"), Some("conv_t2"), "as it stands");
        assert_eq!(routing_key(b""), None);
        assert_eq!(routing_key(b"\xff"), None);
        for (bytes, valid) in [(1, true), (128, true), (129, false), (300, false)] {
            assert_eq!(routing_key(&vec![b'k'; bytes]).is_some(), valid, "{bytes} bytes");
        }
        assert!(routing_key("é".repeat(64).as_bytes()).is_some(), "64 characters are 128 bytes");
        assert!(routing_key("é".repeat(65).as_bytes()).is_none(), "65 characters are 130 bytes");
    }

    #[test]
    fn manual_keys_are_visible_and_of_any_length() {
        for key in VISIBLE {
            assert_eq!(manual_key(key).map(str::as_bytes), Some(key));
        }
        for key in INVISIBLE {
            assert_eq!(manual_key(key), None, "{key:?}");
        }
        for bytes in [1, 128, 129, 8192] {
            assert_eq!(manual_key(&vec![b'k'; bytes]).map(str::len), Some(bytes));
        }
    }

    /// The implicit key of a request with these headers, and the names that were asked for.
    fn implied(present: &[(&str, &[u8])]) -> (Option<String>, Vec<String>) {
        let mut asked = Vec::new();
        let key = implicit_key(|name| {
            asked.push(name.to_owned());
            present.iter().find(|(header, _)| *header == name).map(|(_, value)| value.to_vec())
        });
        (key, asked)
    }

    #[test]
    fn only_the_first_header_that_is_present_implies_a_key() {
        const NONE: &[(&str, &[u8])] = &[];
        let cases = [
            (NONE, None, 3),
            (&[("authorization", b"Bearer sk-abc"), ("cookie", b"c")], Some("Bearer sk-abc"), 1),
            (&[("x-forwarded-for", b"10.0.0.1, 10.0.0.2"), ("cookie", b"c")], Some("10.0.0.1, 10.0.0.2"), 2),
            (&[("cookie", b"a=b; c=d")], Some("a=b; c=d"), 3),
            (&[("authorization", b"Bearer \xff"), ("cookie", b"c")], None, 1),
            (&[("authorization", b""), ("x-forwarded-for", b"10.0.0.1")], None, 1),
        ];
        for (present, key, asked) in cases {
            let (found, names) = implied(present);
            assert_eq!((found.as_deref(), names.len()), (key, asked), "{present:?}");
        }
        for value in VISIBLE {
            assert_eq!(implied(&[("cookie", value)]).0.map(String::into_bytes), Some(value.to_vec()));
        }
        for value in INVISIBLE {
            assert_eq!(implied(&[("cookie", value)]).0, None, "{value:?}");
        }
        for bytes in [1, 128, 129, 8192] {
            let token = vec![b'k'; bytes];
            assert_eq!(implied(&[("authorization", &token)]).0.map(|key| key.len()), Some(bytes), "no limit");
        }
    }

    #[test]
    fn marks_of_turn_and_retry_are_taken_off() {
        for (key, stripped) in [
            ("conv", "conv"),
            ("conv_t2", "conv"),
            ("conv_r1", "conv"),
            ("conv_t2_r1", "conv"),
            ("conv_t1_t2", "conv_t1"),
            ("conv_r1_t2", "conv_r1"),
            ("conv_r1_r2", "conv_r1"),
            ("conv_t", "conv_t"),
            ("conv_tx1", "conv_tx1"),
            ("conv_T2", "conv_T2"),
            ("conv_R2", "conv_R2"),
            ("under_scored_id", "under_scored_id"),
            ("_t1", "_t1"),
            ("_r1", "_r1"),
            ("_t1_r1", "_t1_r1"),
            ("a_t1_r", "a_t1_r"),
            ("a_t00000000000000000000000001", "a"),
            ("a_t-1", "a_t-1"),
            ("a_t1 ", "a_t1 "),
            ("a_t١", "a_t١"),
            ("ключ_t1", "ключ"),
            ("a__t1", "a_"),
            ("12", "12"),
            ("t1", "t1"),
            ("", ""),
        ] {
            assert_eq!(strip_lineage(key), stripped, "{key}");
        }
    }

    #[test]
    fn a_rid_counts_by_its_length_without_lineage() {
        let of = |bytes: usize, mark: &str| format!("{}{mark}", "r".repeat(bytes));
        assert_eq!(rid_key("r_t1"), Some("r"));
        assert_eq!(rid_key(""), None);
        assert_eq!(rid_key("_t1"), Some("_t1"));
        for (bytes, valid) in [(1, true), (128, true), (129, false)] {
            for mark in ["", "_t1", "_t22_r333"] {
                assert_eq!(rid_key(&of(bytes, mark)).is_some(), valid, "{bytes} bytes and {mark}");
            }
        }
    }
}
