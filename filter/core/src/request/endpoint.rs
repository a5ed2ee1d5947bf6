//! Which kind of request this is, from its method and path.

/// What a request asks for, as far as routing cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /generate`, the engines' own form: text, token ids or a batch of them.
    Generate,
    /// The other ones whose JSON body names a model: responses, messages, embeddings, classify, rerank, interactions.
    OtherInference,
    /// `GET /v1/models`, answered from the fleet.
    Models,
    /// Everything else: no prompt to route by.
    #[default]
    Other,
}

impl Endpoint {
    /// Whether the body is JSON with a prompt in it.
    #[must_use]
    pub fn has_prompt(self) -> bool {
        !matches!(self, Self::Models | Self::Other)
    }
}

/// The endpoint of a request line. `path` may carry a query and a trailing slash and may hold any bytes.
#[must_use]
pub fn endpoint(method: &[u8], path: &[u8]) -> Endpoint {
    let path = path.split(|&byte| byte == b'?' || byte == b'#').next().unwrap_or_default();
    let path = path.strip_suffix(b"/").unwrap_or(path);
    match (method, path) {
        (b"POST", b"/v1/chat/completions") => Endpoint::Chat,
        (b"POST", b"/v1/completions") => Endpoint::Completions,
        (b"POST", b"/generate") => Endpoint::Generate,
        (
            b"POST",
            b"/v1/responses" | b"/v1/messages" | b"/v1/embeddings" | b"/v1/classify" | b"/classify" | b"/v1/rerank"
            | b"/rerank" | b"/v1/interactions",
        ) => Endpoint::OtherInference,
        (b"GET", b"/v1/models") => Endpoint::Models,
        _ => Endpoint::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_and_a_trailing_slash_do_not_matter() {
        for path in
            ["/v1/chat/completions", "/v1/chat/completions/", "/v1/chat/completions?x=/y", "/v1/chat/completions/?"]
        {
            assert_eq!(endpoint(b"POST", path.as_bytes()), Endpoint::Chat, "{path}");
        }
    }

    #[test]
    fn each_endpoint_is_known_by_method_and_path() {
        let cases: [(&str, &str, Endpoint); 12] = [
            ("POST", "/v1/completions", Endpoint::Completions),
            ("POST", "/generate", Endpoint::Generate),
            ("POST", "/v1/embeddings", Endpoint::OtherInference),
            ("POST", "/rerank", Endpoint::OtherInference),
            ("GET", "/v1/models", Endpoint::Models),
            ("GET", "/v1/chat/completions", Endpoint::Other),
            ("post", "/generate", Endpoint::Other),
            ("POST", "/v1/responses/resp_1/cancel", Endpoint::Other),
            ("POST", "/v1/models", Endpoint::Other),
            ("POST", "/tokenize", Endpoint::Other),
            ("POST", "/", Endpoint::Other),
            ("", "", Endpoint::Other),
        ];
        for (method, path, expected) in cases {
            assert_eq!(endpoint(method.as_bytes(), path.as_bytes()), expected, "{method} {path}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_some_other_endpoint() {
        assert_eq!(endpoint(b"\xff", b"/\xfe\x00?\xff"), Endpoint::Other);
    }
}
