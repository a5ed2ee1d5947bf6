//! What is out of scope and refused by name: whoever brings a configuration over from SMG is to read why it cannot work
//! here, and not that there is no such key.

use serde_json::Value;

use super::ConfigError;

/// A feature that there is none of here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub what: &'static str,
    /// Why there is none, and what to do instead.
    pub why: &'static str,
}

const ZMQ: Missing = Missing {
    what: "a ZMQ worker",
    why: "Envoy speaks HTTP and gRPC to its hosts, no ZMQ; start the engine with its HTTP or gRPC server and give that URL",
};
const RANKS: Missing = Missing {
    what: "data-parallel rank routing",
    why: "the rank goes into the request's body, which passes here unchanged; give the engine's URL without a rank, and \
          the engine spreads requests over its ranks itself",
};
const MULTI_GATEWAY: Missing = Missing {
    what: "the multi-gateway mode (IGW)",
    why: "it registers workers through an API of the gateway's own; here Envoy has the hosts, `workers` and the sidecar \
          name them with their models, and each model has its own pool in any case",
};

/// SMG's keys of such features, top-level and of a worker.
const KEYS: [(&str, Missing); 9] = [
    ("dp_aware", RANKS),
    ("data_parallel_size", RANKS),
    ("dp_minimum_tokens_scheduler", RANKS),
    ("dp_size", RANKS),
    ("dp_rank", RANKS),
    ("dp_base_url", RANKS),
    ("zmq_handshake_address", ZMQ),
    ("enable_igw", MULTI_GATEWAY),
    ("igw", MULTI_GATEWAY),
];

/// Why `key` at `path` is refused, if it belongs to such a feature. Spelled as a flag it is known too.
pub(super) fn key(path: &str, key: &str, value: &Value) -> Option<ConfigError> {
    let plain = key.trim_start_matches('-').replace('-', "_");
    let (_, missing) = KEYS.iter().find(|(name, _)| *name == plain)?;
    Some(ConfigError::out_of_scope(path, value, *missing))
}

/// Why the worker's URL `url` at `path` is refused, if it is one of such a feature: `zmq://…`, or with a rank (`…@2`).
/// `is_valid` says whether the URL would do without the rank.
pub(super) fn url(path: &str, url: &Value, is_valid: fn(&str) -> bool) -> Option<ConfigError> {
    let text = url.as_str()?;
    let is_zmq = text.split_once("://").is_some_and(|(scheme, _)| scheme.to_ascii_lowercase().starts_with("zmq"));
    let has_rank = || {
        text.rsplit_once('@').is_some_and(|(base, rank)| {
            !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit()) && is_valid(base)
        })
    };
    let missing = if is_zmq { Some(ZMQ) } else { has_rank().then_some(RANKS) };
    missing.map(|missing| ConfigError::out_of_scope(path, url, missing))
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn refusal(config: &str) -> String {
        Config::parse(config.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn keys_of_what_is_out_of_scope_say_so_and_why() {
        for (key, value, what) in [
            ("dp_aware", "true", "data-parallel rank routing"),
            ("dp_aware", "false", "data-parallel rank routing"),
            ("--dp-aware", "true", "data-parallel rank routing"),
            ("data_parallel_size", "8", "data-parallel rank routing"),
            ("dp_minimum_tokens_scheduler", "true", "data-parallel rank routing"),
            ("enable_igw", "true", "the multi-gateway mode (IGW)"),
            ("igw", "{\"a\":1}", "the multi-gateway mode (IGW)"),
            ("zmq_handshake_address", "\"tcp://10.0.0.1:5000\"", "a ZMQ worker"),
        ] {
            let message = refusal(&format!(r#"{{"policy":"random","{key}":{value}}}"#));
            let expected = format!("`{key}` is {value}: {what} is out of scope, because ");
            assert!(message.starts_with(&expected), "{message}");
        }
        let whole = refusal(r#"{"dp_aware":true}"#);
        assert!(whole.ends_with("the engine spreads requests over its ranks itself"), "{whole}");
    }

    #[test]
    fn workers_of_what_is_out_of_scope_say_so_and_why() {
        for (url, what) in [
            ("zmq://10.0.0.1:5000", "a ZMQ worker"),
            ("ZMQ://10.0.0.1:5000", "a ZMQ worker"),
            ("zmq+tcp://10.0.0.1:5000", "a ZMQ worker"),
            ("http://10.0.0.1:8000@0", "data-parallel rank routing"),
            ("grpc://[::1]:8000@15", "data-parallel rank routing"),
            ("http://engine@3", "data-parallel rank routing"),
        ] {
            let expected = |path: &str| format!("`{path}` is \"{url}\": {what} is out of scope, because ");
            let bare = refusal(&format!(r#"{{"workers":["http://10.0.0.9",{url:?}]}}"#));
            assert!(bare.starts_with(&expected("workers[1]")), "{bare}");
            let object = refusal(&format!(r#"{{"worker_urls":[{{"url":{url:?}}}]}}"#));
            assert!(object.starts_with(&expected("worker_urls[0].url")), "{object}");
        }
        let member = refusal(r#"{"workers":[{"url":"http://10.0.0.9","dp_rank":1}]}"#);
        assert!(member.starts_with("`workers[0].dp_rank` is 1: data-parallel rank routing is out of"), "{member}");
    }

    #[test]
    fn what_only_looks_like_it_is_refused_as_ever() {
        for url in ["http://user@host:80", "http://10.0.0.1:80@", "http://10.0.0.1:80@1a", "http://a b@1", "http://@1"]
        {
            let message = refusal(&format!(r#"{{"workers":[{url:?}]}}"#));
            assert!(message.contains("allowed: http://host[:port]"), "{message}");
        }
        assert!(refusal(r#"{"dp_awarf":1}"#).contains("there is no such key"));
    }
}
