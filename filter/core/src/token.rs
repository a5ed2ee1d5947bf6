//! The secret that a sidecar and the filters it serves share.

use subtle::ConstantTimeEq;

/// A bearer token: 1 to [`MAX_TOKEN_BYTES`] visible ASCII characters. Its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A longer token is refused.
pub const MAX_TOKEN_BYTES: usize = 1024;

/// What may stand where a token is expected.
pub const ALLOWED: &str = "a token of 1 to 1024 visible ASCII characters";

impl Token {
    /// The token in `text`, without the white space around it: files and secrets often end with a line break.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let valid = (1..=MAX_TOKEN_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        valid.then(|| Self(text.to_owned()))
    }

    /// The value of the header `authorization` that presents it.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether the value of a header `authorization` presents it. How long that takes tells nothing of the token but its
    /// length.
    #[must_use]
    pub fn is_presented_by(&self, authorization: &[u8]) -> bool {
        let Some((scheme, presented)) = authorization.split_at_checked(b"Bearer ".len()) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && self.0.as_bytes().ct_eq(presented.trim_ascii()).into()
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_is_let_in() {
        let token = Token::new("s3cret/+=\n").unwrap();
        assert_eq!(token.authorization(), "Bearer s3cret/+=");
        for right in ["Bearer s3cret/+=", "bearer s3cret/+=", "BEARER  s3cret/+= "] {
            assert!(token.is_presented_by(right.as_bytes()), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "s3cret/+=",
            "Basic s3cret/+=",
            "Bearer s3cret/+",
            "Bearer s3cret/+==",
            "Bearer S3cret/+=",
        ] {
            assert!(!token.is_presented_by(wrong.as_bytes()), "{wrong}");
        }
        assert!(!token.is_presented_by(b"Bearer \xff\xfe"));
    }

    #[test]
    fn what_cannot_be_a_header_is_no_token_and_none_is_shown() {
        for text in ["", " \n", "two words", "line\nbreak", "caf\u{e9}", &"x".repeat(1025)] {
            assert_eq!(Token::new(text), None, "{text}");
        }
        assert_eq!(format!("{:?}", Token::new("secret")), "Some(Token(…))");
    }
}
