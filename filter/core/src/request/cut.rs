//! The string that a cut body ends in.

use memchr::memrchr_iter;

/// `body` ends inside a string or in front of one: the readable beginning of that string, still escaped,
/// or `None` if it has not begun.
pub(super) fn open_string(body: &[u8]) -> Option<&[u8]> {
    // Inside a string every quote is escaped, so the last bare one is where it begins ...
    let quote = memrchr_iter(b'"', body).find(|&at| !follows_backslash(body, at))?;
    // ... unless it is the end of the member's name and the string is still to come.
    let before = body.get(..quote)?.trim_ascii_end().last()?;
    if !matches!(before, b':' | b'[' | b',') {
        return None;
    }
    body.get(quote + 1..).map(without_half_escape)
}

/// The string without an escape that the cut has split, be it half of a surrogate pair.
fn without_half_escape(string: &[u8]) -> &[u8] {
    let string = match last_escape(string) {
        Some(at) if !is_whole(string.get(at..).unwrap_or_default()) => string.get(..at).unwrap_or_default(),
        _ => string,
    };
    match last_escape(string) {
        Some(at) if is_high_surrogate(string.get(at..).unwrap_or_default()) => string.get(..at).unwrap_or_default(),
        _ => string,
    }
}

/// Where the last escape begins, if it is not an escaped backslash (which is whole in any case).
fn last_escape(string: &[u8]) -> Option<usize> {
    let at = memrchr_iter(b'\\', string).next()?;
    (!follows_backslash(string, at)).then_some(at)
}

/// Whether the byte is the second of an escape.
fn follows_backslash(bytes: &[u8], at: usize) -> bool {
    let before = bytes.get(..at).unwrap_or_default();
    before.iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

/// Whether the escape at the beginning of `tail` has all of its bytes.
fn is_whole(tail: &[u8]) -> bool {
    match tail.get(1) {
        None => false,
        Some(b'u') => tail.len() >= 6,
        Some(_) => true,
    }
}

/// Whether `tail` is the first half of a surrogate pair and nothing else.
fn is_high_surrogate(tail: &[u8]) -> bool {
    matches!(tail, [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', _, _])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Option<&str>) {
        assert_eq!(open_string(body.as_bytes()), expected.map(str::as_bytes), "{body}");
    }

    #[test]
    fn a_string_that_has_not_begun_is_none() {
        check(r#"{"text""#, None);
        check(r#"{"text":"#, None);
        check(r#"{"text": "#, None);
        check("", None);
    }

    #[test]
    fn its_beginning_is_found_behind_escaped_quotes() {
        check(r#"{"text":"a \"b\" c"#, Some(r#"a \"b\" c"#));
        check(r#"["x\\","a\\\"b"#, Some(r#"a\\\"b"#));
        check(r#"{"text" : ""#, Some(""));
    }

    #[test]
    fn half_an_escape_is_left_out() {
        for half in ["\\", "\\u", "\\u0", "\\u00e", "\\ud83d", "\\uD83D\\", "\\ud83d\\u", "\\ud83d\\udc0"] {
            check(&format!(r#"["a{half}"#), Some("a"));
        }
        for whole in ["\\\\", "\\n", "\\u00e9", "\\ud83d\\udc04", "\\\\u00", "\\ud83dx"] {
            check(&format!(r#"["a{whole}"#), Some(&format!("a{whole}")));
        }
    }
}
