//! What mutated requests are made of.

use serde_json::{Value, json};

use super::dice::Dice;
use crate::gate::HOLD;
use crate::support::{CHAT, DESTINATION};

const METHODS: [&str; 16] = [
    "POST",
    "GET",
    "PUT",
    "DELETE",
    "OPTIONS",
    "HEAD",
    "PATCH",
    "TRACE",
    "CONNECT",
    "PRI",
    "post",
    "M-SEARCH",
    "PROPFIND",
    "X",
    "GETGETGETGETGETGETGETGETGETGETGETGETGET",
    "!#$%&'*+-.^_`|~",
];

const PATHS: [&str; 24] = [
    CHAT,
    "/v1/completions",
    "/generate",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/rerank",
    "/v1/models",
    "/health",
    "/tokenize",
    "/v1/responses/resp_1/cancel",
    "/",
    "//v1/chat/completions",
    "/v1/chat/completions/",
    "/v1/chat/completions?model=n",
    "/v1/./chat/../chat/completions",
    "/%76%31/chat/completions",
    "/%00",
    "/%ff%fe",
    "*",
    "http://test/v1/chat/completions",
    "/v1/audio/transcriptions",
    "/x?a=b#c;d=%",
];

/// A method, most often the one that is balanced by its body.
pub fn method(dice: &mut Dice) -> &'static str {
    let among = if dice.once_in(3) { METHODS.len() } else { 1 };
    METHODS[dice.below(among)]
}

/// A path, most often one that is balanced by its body.
pub fn path(dice: &mut Dice) -> String {
    match dice.below(20) {
        0 => format!("/{}", "x".repeat(dice.below(20_000))),
        1..=8 => dice.pick(&PATHS).to_string(),
        _ => dice.pick(&PATHS[..8]).to_string(),
    }
}

/// One header that may mean something to the filter, to Envoy or to the engine.
pub fn header(dice: &mut Dice, evil: &str) -> (String, Vec<u8>) {
    let url = format!("http://{evil}");
    let named: [(&str, &str); 46] = [
        (DESTINATION, evil),
        (DESTINATION, ""),
        (DESTINATION, ",,,,"),
        ("x-gateway-destination-endpoint-subset", evil),
        ("x-smg-target-worker", "-1"),
        ("x-smg-target-worker", &url),
        ("x-smg-routing-key", "a"),
        ("x-smg-routing-key", ""),
        ("x-smg-routing-tokens", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"),
        ("x-smg-routing-tokens", "1,,2"),
        ("x-smg-routing-tokens", "4294967296"),
        ("x-smg-routed-worker-id", &url),
        ("x-smg-error-code", "evil"),
        ("x-model", "n"),
        ("x-model", "z"),
        ("x-model", "nobody's"),
        ("x-crash-for-tests", "request-headers"),
        ("content-type", "application/grpc"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "text/plain; charset=utf-7"),
        ("content-encoding", "gzip"),
        ("accept", "text/event-stream"),
        ("expect", "100-continue"),
        ("expect", "nonsense"),
        ("te", "trailers"),
        ("host", evil),
        ("authorization", "Bearer x"),
        ("cookie", "a=b; c=d"),
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-for", "256.0.0.1, ::1, x"),
        ("x-forwarded-proto", "gopher"),
        ("x-request-id", "not-a-uuid"),
        ("traceparent", "00-0-0-0"),
        ("x-envoy-internal", "true"),
        ("x-envoy-max-retries", "100"),
        ("x-envoy-retry-on", "5xx,gateway-error,reset,retriable-status-codes"),
        ("x-envoy-retriable-status-codes", "200,404"),
        ("x-envoy-upstream-rq-timeout-ms", "1"),
        ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
        ("x-envoy-hedge-on-per-try-timeout", "true"),
        ("x-envoy-original-path", "/generate"),
        ("x-envoy-original-dst-host", evil),
        ("x-envoy-force-trace", "1"),
        ("x-envoy-attempt-count", "1000000"),
        ("grpc-timeout", "1n"),
        (HOLD, "body"),
    ];
    match dice.below(12) {
        0 => ("x-long".to_owned(), vec![b'x'; dice.below(70_000)]),
        1 => {
            let (name, _) = *dice.pick(&named);
            let size = dice.below(200);
            // Line ends would make other headers of it: that is what damage to the bytes is for.
            (name.to_owned(), dice.bytes(size).into_iter().filter(|byte| !matches!(byte, b'\r' | b'\n' | 0)).collect())
        }
        _ => {
            let (name, value) = *dice.pick(&named);
            (name.to_owned(), value.into())
        }
    }
}

/// Anything that could stand as a value in a body.
fn value(dice: &mut Dice) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1e308),
        4 => json!(u64::MAX),
        5 => json!("x".repeat(dice.below(3000))),
        6 => json!("é\u{0}\u{ffff}😀\u{1}"),
        7 => json!([]),
        8 => json!({}),
        9 => json!([value(dice), value(dice)]),
        10 => json!({ "role": value(dice), "content": value(dice), "text": value(dice), "type": "text" }),
        11 => json!((0..dice.below(100)).collect::<Vec<_>>()),
        12 => json!(["a", ["b", ["c"]]]),
        _ => json!("Once upon a time"),
    }
}

/// A body for an endpoint, or for another one, or for none.
pub fn body(dice: &mut Dice) -> Vec<u8> {
    let text = format!("Chat {} has a beginning of its own. ", dice.below(50)).repeat(dice.below(30));
    let model = *dice.pick(&["m", "n", "z", "nobody's", "unknown", ""]);
    let mut document = match dice.below(6) {
        0 => json!({ "model": model, "prompt": text }),
        1 => json!({ "text": text, "input_ids": (0..dice.below(300)).collect::<Vec<_>>() }),
        2 => {
            json!({ "model": model, "input": [{ "role": "user", "content": [{ "type": "input_text", "text": text }] }] })
        }
        3 => json!({ "messages": [{ "role": "user", "content": text }], "model": model, "stream": true }),
        _ => {
            json!({ "model": model, "messages": [{ "role": "system", "content": text }, { "role": "user", "content": "?" }] })
        }
    };
    let members =
        ["model", "messages", "prompt", "text", "input_ids", "input", "rid", "cache_salt", "lora_path", "stream", "x"];
    for _ in 0..dice.below(3) {
        let member = *dice.pick(&members);
        document[member] = value(dice);
    }
    let mut bytes = document.to_string().into_bytes();
    match dice.below(12) {
        0..=2 => dice.damage(&mut bytes),
        3 => {
            let depth = dice.below(5000);
            bytes = [b"[".repeat(depth), b"{\"model\":".repeat(depth / 2), bytes].concat();
        }
        4 => {
            let size = dice.below(3000);
            bytes = dice.bytes(size);
        }
        5 => bytes.clear(),
        6 => bytes.extend_from_within(..),
        _ => {}
    }
    if dice.once_in(400) {
        bytes.resize(bytes.len() + (3 << 20), b' ');
    }
    bytes
}
