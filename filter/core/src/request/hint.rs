//! The header in which a client gives the token ids of its prompt.

/// A longer `x-smg-routing-tokens` is ignored, in bytes.
pub const MAX_HINT_BYTES: usize = 4096;

/// An `x-smg-routing-tokens` with more ids is ignored.
pub const MAX_HINT_IDS: usize = 512;

/// Reads the header `x-smg-routing-tokens`, decimal 32-bit ids with commas and nothing else between them.
/// True, and the ids in `into`, if the whole header is valid; otherwise `into` is left empty.
pub fn routing_tokens(header: &[u8], into: &mut Vec<u32>) -> bool {
    into.clear();
    if header.is_empty() || header.len() > MAX_HINT_BYTES {
        return false;
    }
    for item in header.split(|&byte| byte == b',') {
        match id(item) {
            Some(id) if into.len() < MAX_HINT_IDS => into.push(id),
            _ => {
                into.clear();
                return false;
            }
        }
    }
    true
}

fn id(digits: &[u8]) -> Option<u32> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u32, |id, byte| match byte {
        b'0'..=b'9' => id.checked_mul(10)?.checked_add(u32::from(byte - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &[u8], expected: Option<&[u32]>) {
        let mut ids = vec![7];
        assert_eq!(routing_tokens(header, &mut ids), expected.is_some());
        assert_eq!(ids, expected.unwrap_or_default());
    }

    #[test]
    fn ids_are_read_up_to_both_bounds() {
        check(b"1", Some(&[1]));
        check(b"0,4294967295,007", Some(&[0, u32::MAX, 7]));
        let most = vec!["1"; MAX_HINT_IDS].join(",");
        check(most.as_bytes(), Some(&[1; MAX_HINT_IDS]));
        let longest = format!("{}1", "0".repeat(MAX_HINT_BYTES - 1));
        check(longest.as_bytes(), Some(&[1]));
    }

    #[test]
    fn one_bad_byte_voids_the_whole_header() {
        for header in ["", ",", "1,", ",1", "1,,2", "1, 2", " 1", "+1", "-1", "1.0", "4294967296", "1;2", "0x1", "a"] {
            check(header.as_bytes(), None);
        }
        check(b"1,\xff", None);
        check("١".as_bytes(), None);
        check(vec!["1"; MAX_HINT_IDS + 1].join(",").as_bytes(), None);
        check(format!("{}1", "0".repeat(MAX_HINT_BYTES)).as_bytes(), None);
    }
}
