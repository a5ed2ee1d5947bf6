//! Which kind of request this is, from its method and path.

/// A longer id of a response is nobody's, in bytes.
pub const MAX_RESPONSE_ID_BYTES: usize = 256;

/// What a request asks for, as far as routing cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /generate`, the engines' own form: text, token ids or a batch of them.
    Generate,
    /// `POST /v1/responses`.
    Responses,
    /// `POST /v1/messages`, Anthropic's form of a chat.
    Messages,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/classify` or `/classify`.
    Classify,
    /// `POST /v1/rerank` or `/rerank`.
    Rerank,
    /// `POST /v1/interactions`.
    Interactions,
    /// `POST /v1/audio/transcriptions` or `/v1/audio/translations`. Placed by the policy on its headers alone: uploads
    /// are never held, so the form's optional `prompt` is no routing text here, as it is in SMG.
    Audio,
    /// A response by its id: `GET` or `DELETE /v1/responses/{id}`, `GET …/input_items`, `POST …/cancel`.
    /// See [`response_id`].
    ResponseById,
    /// `GET /v1/models`, answered from the fleet.
    Models,
    /// Everything else: no prompt to route by.
    #[default]
    Other,
}

impl Endpoint {
    /// Those with a prompt in their JSON body.
    pub const WITH_PROMPT: [Self; 9] = [
        Self::Chat,
        Self::Completions,
        Self::Generate,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
        Self::Classify,
        Self::Rerank,
        Self::Interactions,
    ];

    /// Whether the body is JSON with a prompt in it.
    #[must_use]
    pub fn has_prompt(self) -> bool {
        self.is_inference() && self != Self::Audio
    }

    /// Whether the body may name the request, see [`super::Facts::rid`].
    #[must_use]
    pub fn has_rid(self) -> bool {
        self.has_prompt() && !matches!(self, Self::Responses | Self::Interactions)
    }

    /// Whether a model works on the request: it is counted, and placed by the policy.
    #[must_use]
    pub fn is_inference(self) -> bool {
        !matches!(self, Self::ResponseById | Self::Models | Self::Other)
    }

    /// The endpoint as a metric's label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
            Self::Classify => "classify",
            Self::Rerank => "rerank",
            Self::Interactions => "interactions",
            Self::Audio => "audio_transcriptions",
            Self::ResponseById | Self::Models | Self::Other => "other",
        }
    }
}

/// The endpoint of a request line. `path` may carry a query and a trailing slash and may hold any bytes.
#[must_use]
pub fn endpoint(method: &[u8], path: &[u8]) -> Endpoint {
    let path = bare(path);
    match (method, path) {
        (b"POST", b"/v1/chat/completions") => Endpoint::Chat,
        (b"POST", b"/v1/completions") => Endpoint::Completions,
        (b"POST", b"/generate") => Endpoint::Generate,
        (b"POST", b"/v1/responses") => Endpoint::Responses,
        (b"POST", b"/v1/messages") => Endpoint::Messages,
        (b"POST", b"/v1/embeddings") => Endpoint::Embeddings,
        (b"POST", b"/v1/classify" | b"/classify") => Endpoint::Classify,
        (b"POST", b"/v1/rerank" | b"/rerank") => Endpoint::Rerank,
        (b"POST", b"/v1/interactions") => Endpoint::Interactions,
        (b"POST", b"/v1/audio/transcriptions" | b"/v1/audio/translations") => Endpoint::Audio,
        (b"GET", b"/v1/models") => Endpoint::Models,
        _ => match (method, of_response(path)) {
            (b"GET" | b"HEAD" | b"DELETE", Some((_, b"")))
            | (b"GET" | b"HEAD", Some((_, b"input_items")))
            | (b"POST", Some((_, b"cancel"))) => Endpoint::ResponseById,
            _ => Endpoint::Other,
        },
    }
}

/// The id in the path of a request for a response, as it is written there: 1 to [`MAX_RESPONSE_ID_BYTES`] bytes.
#[must_use]
pub fn response_id(path: &[u8]) -> Option<&[u8]> {
    of_response(bare(path)).map(|(id, _)| id)
}

/// The path without its query and a trailing slash.
fn bare(path: &[u8]) -> &[u8] {
    let path = path.split(|&byte| byte == b'?' || byte == b'#').next().unwrap_or_default();
    path.strip_suffix(b"/").unwrap_or(path)
}

/// The id in a bare path of `/v1/responses/`, and what is asked of that response.
fn of_response(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = path.strip_prefix(b"/v1/responses/")?;
    let mut parts = rest.splitn(2, |&byte| byte == b'/');
    let (id, action) = (parts.next()?, parts.next().unwrap_or_default());
    let known = matches!(action, b"" | b"input_items" | b"cancel");
    (known && (1..=MAX_RESPONSE_ID_BYTES).contains(&id.len())).then_some((id, action))
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
        let cases: [(&str, &str, Endpoint); 26] = [
            ("POST", "/v1/completions", Endpoint::Completions),
            ("POST", "/generate", Endpoint::Generate),
            ("POST", "/v1/responses", Endpoint::Responses),
            ("POST", "/v1/responses/", Endpoint::Responses),
            ("POST", "/v1/messages", Endpoint::Messages),
            ("POST", "/v1/embeddings", Endpoint::Embeddings),
            ("POST", "/v1/classify", Endpoint::Classify),
            ("POST", "/classify", Endpoint::Classify),
            ("POST", "/v1/rerank", Endpoint::Rerank),
            ("POST", "/rerank", Endpoint::Rerank),
            ("POST", "/v1/interactions", Endpoint::Interactions),
            ("POST", "/v1/audio/transcriptions", Endpoint::Audio),
            ("POST", "/v1/audio/translations?x", Endpoint::Audio),
            ("POST", "/v1/audio/speech", Endpoint::Other),
            ("GET", "/v1/audio/transcriptions", Endpoint::Other),
            ("GET", "/v1/models", Endpoint::Models),
            ("GET", "/v1/chat/completions", Endpoint::Other),
            ("GET", "/v1/responses", Endpoint::Other),
            ("GET", "/v1/realtime", Endpoint::Other),
            ("post", "/generate", Endpoint::Other),
            ("POST", "/v1/models", Endpoint::Other),
            ("POST", "/v1/messages/count_tokens", Endpoint::Other),
            ("POST", "/tokenize", Endpoint::Other),
            ("POST", "/V1/embeddings", Endpoint::Other),
            ("POST", "/", Endpoint::Other),
            ("", "", Endpoint::Other),
        ];
        for (method, path, expected) in cases {
            assert_eq!(endpoint(method.as_bytes(), path.as_bytes()), expected, "{method} {path}");
        }
    }

    #[test]
    fn a_response_is_known_by_its_id() {
        for (method, path) in [
            ("GET", "/v1/responses/resp_1"),
            ("GET", "/v1/responses/resp_1/?include=x/y"),
            ("HEAD", "/v1/responses/resp_1"),
            ("DELETE", "/v1/responses/resp_1"),
            ("GET", "/v1/responses/resp_1/input_items?limit=2"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("POST", "/v1/responses/resp_1/cancel/"),
        ] {
            assert_eq!(endpoint(method.as_bytes(), path.as_bytes()), Endpoint::ResponseById, "{method} {path}");
            assert_eq!(response_id(path.as_bytes()), Some(b"resp_1".as_slice()), "{path}");
        }
        for (method, path) in [
            ("POST", "/v1/responses/resp_1"),
            ("GET", "/v1/responses/resp_1/cancel"),
            ("POST", "/v1/responses/resp_1/input_items"),
            ("PUT", "/v1/responses/resp_1"),
            ("GET", "/v1/responses//"),
            ("GET", "/v1/responses//input_items"),
            ("GET", "/v1/responses/a/b"),
            ("GET", "/v1/responses/a/cancel/b"),
            ("GET", "/v2/responses/resp_1"),
        ] {
            assert_eq!(endpoint(method.as_bytes(), path.as_bytes()), Endpoint::Other, "{method} {path}");
        }
        for path in ["/v1/responses", "/v1/responses/", "/v1/responses/?resp_1", "/v1/responses/a/b", "/x", ""] {
            assert_eq!(response_id(path.as_bytes()), None, "{path}");
        }
        for (bytes, known) in [(1, true), (256, true), (257, false), (70_000, false)] {
            let path = [b"/v1/responses/".as_slice(), &vec![0xff; bytes]].concat();
            assert_eq!(response_id(&path).map(<[u8]>::len), known.then_some(bytes));
            assert_eq!(endpoint(b"GET", &path) == Endpoint::ResponseById, known, "{bytes} bytes");
        }
    }

    #[test]
    fn a_prompt_makes_an_inference_request_and_an_upload_is_one_without() {
        assert!(Endpoint::WITH_PROMPT.iter().all(|endpoint| endpoint.has_prompt() && endpoint.is_inference()));
        assert!(Endpoint::Audio.is_inference() && !Endpoint::Audio.has_prompt());
        for endpoint in [Endpoint::ResponseById, Endpoint::Models, Endpoint::Other] {
            assert!(!endpoint.is_inference() && !endpoint.has_prompt() && endpoint.label() == "other");
        }
    }
}
