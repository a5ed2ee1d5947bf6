//! Which engine it is, and what it says of itself besides its load.

use serde_json::Value;

/// An engine's software.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runtime {
    Sglang,
    Vllm,
    Trtllm,
    TokenSpeed,
    Mlx,
    LlamaCpp,
    Triton,
    /// It is none of these.
    Other,
}

/// What an engine says it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Identity {
    /// Which software it is, if that can be told.
    pub(crate) runtime: Option<Runtime>,
    /// The ids of its models, adapters too.
    pub(crate) models: Vec<String>,
    /// Data-parallel ranks, if told.
    pub(crate) dp_size: Option<u32>,
    /// Facts that go into labels.
    pub(crate) labels: Vec<(&'static str, String)>,
}

/// Models of one engine at most, and the bytes of their ids in all as they are written in JSON: of a worker of which more
/// than 4,096 bytes are said in all the filter keeps nothing.
const MAX_MODELS: (usize, usize) = (256, 3 << 10);

impl Runtime {
    /// The one that SMG's word stands for; none if the word says nothing of the software.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word.to_ascii_lowercase().as_str() {
            "sglang" => Some(Self::Sglang),
            "vllm" => Some(Self::Vllm),
            "trtllm" | "tensorrt_llm" | "tensorrt-llm" => Some(Self::Trtllm),
            "tokenspeed" => Some(Self::TokenSpeed),
            "mlx" => Some(Self::Mlx),
            "llamacpp" | "llama.cpp" => Some(Self::LlamaCpp),
            "triton" => Some(Self::Triton),
            _ => None,
        }
    }

    /// Who owns the models in `GET /v1/models`. "nvidia" is left open: it is said of several.
    pub(crate) fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            owner if owner.contains("tensorrt") || owner.contains("trtllm") => Some(Self::Trtllm),
            "" | "nvidia" => None,
            owner => Some(Self::parse(owner).unwrap_or(Self::Other)),
        }
    }

    /// SMG's word, which may be empty.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
            Self::Trtllm => "trtllm",
            Self::TokenSpeed => "tokenspeed",
            Self::Mlx => "mlx",
            Self::LlamaCpp => "llamacpp",
            Self::Triton => "triton",
            Self::Other => "",
        }
    }
}

/// Ids that can be used, each once, as many as there is room for.
pub(crate) fn models(ids: impl Iterator<Item = String>) -> Vec<String> {
    let (most, mut bytes) = MAX_MODELS;
    let mut models: Vec<String> = Vec::new();
    for id in ids.filter(|id| !id.is_empty() && !id.chars().any(char::is_control)) {
        let size = serde_json::to_string(&id).map_or(usize::MAX, |written| written.len() + 1);
        if models.len() == most || size > bytes {
            tracing::warn!(kept = models.len(), "an engine lists more models than fit; the others are left out");
            break;
        }
        if !models.contains(&id) {
            bytes -= size;
            models.push(id);
        }
    }
    models
}

/// Models and owner of the first in the answer to `GET /v1/models`.
pub(crate) fn listed(body: &[u8]) -> Option<(Vec<String>, String)> {
    let document: Value = serde_json::from_slice(body).ok()?;
    let data = document.get("data")?.as_array()?;
    let ids = data.iter().filter_map(|model| text(model, "id"));
    let owner = data.first().and_then(|first| text(first, "owned_by")).unwrap_or_default();
    Some((models(ids), owner))
}

/// What `GET /server_info` of SGLang says: ranks, and the name of the model. None if it is not SGLang's.
pub(crate) fn server_info(body: &[u8]) -> Option<(Option<u32>, Option<String>)> {
    let document: Value = serde_json::from_slice(body).ok()?;
    // Members that SGLang has had in all its releases; TensorRT-LLM has a route of this name, too.
    let ours = document.get("model_path").is_some() && document.get("dp_size").is_some();
    let name = text(&document, "served_model_name").or_else(|| text(&document, "model_path"));
    let size = document.get("dp_size").and_then(Value::as_u64).and_then(|size| u32::try_from(size).ok());
    ours.then_some((size.filter(|size| *size > 0), name))
}

fn text(value: &Value, name: &str) -> Option<String> {
    value.get(name)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_owns_the_models_tells_the_engine() {
        for (owner, runtime) in [
            ("sglang", Some(Runtime::Sglang)),
            ("vllm", Some(Runtime::Vllm)),
            ("llamacpp", Some(Runtime::LlamaCpp)),
            ("tensorrt_llm", Some(Runtime::Trtllm)),
            ("tensorrt-llm", Some(Runtime::Trtllm)),
            ("organization-owner", Some(Runtime::Other)),
            ("nvidia", None),
            ("", None),
        ] {
            assert_eq!(Runtime::of_owner(owner), runtime, "{owner}");
        }
        assert_eq!(Runtime::parse("unspecified"), None);
    }

    #[test]
    fn adapters_are_listed_too_and_each_id_once() {
        let body =
            br#"{"data":[{"id":"m","owned_by":"vllm"},{"id":"lora","parent":"m"},{"id":"m"},{"id":""},{"no":1}]}"#;
        assert_eq!(listed(body), Some((vec!["m".to_owned(), "lora".to_owned()], "vllm".to_owned())));
        assert_eq!(listed(b"{\"data\":[]}"), Some((vec![], String::new())));
        for other in [&b"[]"[..], b"{}", b"nonsense", b"{\"data\":1}"] {
            assert_eq!(listed(other), None);
        }
    }

    #[test]
    fn an_engine_cannot_fill_the_snapshot_with_names() {
        assert_eq!(models((0..1000).map(|number| format!("m{number}"))).len(), 256);
        assert_eq!(models([String::from("m"), "x".repeat(9000), String::from("n")].into_iter()), ["m"]);
    }

    #[test]
    fn server_info_of_sglang_only() {
        let body = br#"{"model_path":"/m","served_model_name":"q","dp_size":4,"internal_states":[{}]}"#;
        assert_eq!(server_info(body), Some((Some(4), Some("q".to_owned()))));
        assert_eq!(server_info(br#"{"disaggregation":{},"backend":"pytorch"}"#), None);
    }
}
