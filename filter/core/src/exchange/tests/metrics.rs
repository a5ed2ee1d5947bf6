//! What is counted of requests and answers.

use super::{Bench, Exchange, Script, chat};
use crate::balancer::tests::{config, parse, url};
use crate::config::Config;

const CLOSED: &str = "upstream_reset_before_response_started{remote_connection_failure}";

/// Two workers of the models `m` and `n`.
fn two_models() -> Config {
    parse(&format!(
        r#"{{"policy":"passthrough","max_workers":64,"workers":[{{"url":"{}","models":["m"]}},{{"url":"{}","models":["n"]}}]}}"#,
        url(0),
        url(1)
    ))
}

/// A request with its answer, 30 ms after it was let go.
fn exchanged(bench: &mut Bench, http: Script, status: u16, details: &str, attempts: u64) {
    let mut http = Script { nanos: 1_000_000_000, ..http };
    let (mut exchange, _) = bench.send(&mut http);
    http = http.answered(status, details, 0, attempts);
    http.nanos += 30_000_000;
    bench.response(&mut exchange, &mut http);
    bench.done(&mut exchange, &mut http);
}

/// What is counted under this name: the labels behind it, and the number.
fn counted(bench: &mut Bench, name: &str) -> Vec<(String, u64)> {
    let all = bench.vm.metrics().into_iter();
    let mut found: Vec<_> = all
        .filter_map(|(known, value)| Some((known.strip_prefix(name)?.strip_prefix(';')?.to_owned(), value)))
        .collect();
    found.sort();
    found
}

#[track_caller]
fn check(bench: &mut Bench, name: &str, expected: &[(&str, u64)]) {
    let found = counted(bench, name);
    assert_eq!(found.iter().map(|(labels, value)| (labels.as_str(), *value)).collect::<Vec<_>>(), expected, "{name}");
}

#[test]
fn requests_are_counted_by_model_endpoint_and_streaming() {
    let mut bench = Bench::new(two_models());
    let streamed = r#"{"model":"n","stream":true,"messages":[]}"#;
    for (path, body) in [
        ("/v1/chat/completions", &*chat("m", "a")),
        ("/v1/chat/completions", &chat("m", "b")),
        ("/v1/chat/completions", streamed),
        ("/v1/completions", r#"{"model":"m","prompt":"a"}"#),
        ("/v1/embeddings", r#"{"model":"a client's invention","input":"a"}"#),
        ("/v1/rerank?x", r#"{"model":"m","query":"a"}"#),
        ("/v1/interactions", r#"{"model":"m","input":"a"}"#),
        ("/v1/audio/translations", "--boundary"),
    ] {
        let http = Script { body: body.into(), ..Script::of("POST", path) };
        exchanged(&mut bench, http, 200, "via_upstream", 1);
    }
    exchanged(&mut bench, Script::of("GET", "/health"), 200, "via_upstream", 1);
    const OF: &str = "router_type=http;backend_type=regular;connection_mode=http;model=";
    let expected = [
        ("m;endpoint=chat;streaming=false", 2),
        ("m;endpoint=completions;streaming=false", 1),
        ("m;endpoint=interactions;streaming=false", 1),
        ("m;endpoint=rerank;streaming=false", 1),
        ("n;endpoint=chat;streaming=true", 1),
        ("unknown;endpoint=audio_transcriptions;streaming=unknown", 1),
        ("unknown;endpoint=embeddings;streaming=false", 1),
    ]
    .map(|(labels, number)| (format!("{OF}{labels}"), number));
    assert_eq!(counted(&mut bench, "smg_router_requests_total"), expected);
    let refused = format!("{OF}unknown;endpoint=embeddings;error_type=no_workers");
    check(&mut bench, "smg_router_request_errors_total", &[(&refused, 1)]);
    check(
        &mut bench,
        "smg_router_request_body_path_total",
        &[("path=buffer;reason=model_ambiguous", 7), ("path=stream;reason=pure_forward", 1)],
    );
}

#[test]
fn answers_are_counted_by_status_reason_and_fault() {
    let mut bench = Bench::new(config("passthrough", 1, r#""disable_circuit_breaker":true,"#));
    for (status, details, attempts) in [
        (200, "via_upstream", 1),
        (404, "via_upstream", 1),
        (429, "via_upstream", 5),
        (500, "via_upstream", 5),
        (501, "via_upstream", 1),
        (503, CLOSED, 5),
        (504, "upstream_response_timeout", 1),
        (413, "request_payload_too_large", 1),
    ] {
        exchanged(&mut bench, Script::chat(chat("m", "a")), status, details, attempts);
    }
    let answers = [
        ("router_type=http;status_code=200;error_code=none", 1),
        ("router_type=http;status_code=404;error_code=none", 1),
        ("router_type=http;status_code=413;error_code=other", 1),
        ("router_type=http;status_code=429;error_code=none", 1),
        ("router_type=http;status_code=500;error_code=none", 1),
        ("router_type=http;status_code=501;error_code=none", 1),
        ("router_type=http;status_code=503;error_code=upstream_reset_before_response_started", 1),
        ("router_type=http;status_code=504;error_code=upstream_response_timeout", 1),
    ];
    check(&mut bench, "smg_router_upstream_responses_total", &answers);
    let errors: Vec<_> = counted(&mut bench, "smg_router_request_errors_total")
        .into_iter()
        .map(|(labels, number)| (labels.rsplit('=').next().unwrap().to_owned(), number))
        .collect();
    let expected = [("backend_error", 3), ("internal_error", 1), ("timeout", 1), ("validation_error", 2)];
    assert_eq!(errors, expected.map(|(error, number)| (error.to_owned(), number)));
    check(&mut bench, "smg_worker_retries_total", &[("worker_type=regular;endpoint=chat", 12)]);
    check(&mut bench, "smg_worker_retries_exhausted_total", &[("worker_type=regular;endpoint=chat", 4)]);
    let errors = [
        // Four attempts before each of the last 500 and 503, and these; a 429 and what was tried before it are no errors.
        ("worker_type=regular;connection_mode=http;error_type=backend_error", 10),
        ("worker_type=regular;connection_mode=http;error_type=timeout", 1),
    ];
    check(&mut bench, "smg_worker_errors_total", &errors);
}

#[test]
fn the_connection_mode_is_that_of_the_worker() {
    let mut bench = Bench::new(parse(&format!(
        r#"{{"policy":"passthrough","max_workers":64,"workers":[{{"url":"{}","models":["m"]}},{{"url":"{}","models":["n"]}}]}}"#,
        url(0),
        url(1).replace("http://", "grpc://")
    )));
    for model in ["m", "n"] {
        exchanged(&mut bench, Script::chat(chat(model, "a")), 500, "via_upstream", 1);
    }
    let of =
        |mode: &str, model: &str| format!("router_type=http;backend_type=regular;connection_mode={mode};model={model}");
    let both = |rest: &str| {
        [("grpc", "n"), ("http", "m")].map(|(mode, model)| (of(mode, model) + ";endpoint=chat;" + rest, 1))
    };
    assert_eq!(counted(&mut bench, "smg_router_requests_total"), both("streaming=false"));
    assert_eq!(counted(&mut bench, "smg_router_request_errors_total"), both("error_type=backend_error"));
    let errors = [
        ("worker_type=regular;connection_mode=grpc;error_type=backend_error", 1),
        ("worker_type=regular;connection_mode=http;error_type=backend_error", 1),
    ];
    check(&mut bench, "smg_worker_errors_total", &errors);
}

#[test]
fn a_breaker_is_told_of_each_worker_once_per_request() {
    let mut bench = Bench::new(config("passthrough", 2, r#""max_attempts":3,"#));
    exchanged(&mut bench, Script::chat(chat("m", "a")), 200, "via_upstream", 1);
    exchanged(&mut bench, Script::chat(chat("m", "a")), 503, "via_upstream", 3);
    exchanged(&mut bench, Script::chat(chat("m", "a")), 429, "via_upstream", 3);
    let of = |number: usize, outcome: &str| format!("worker={};outcome={outcome}", url(number));
    let expected = [(of(0, "failure"), 1), (of(0, "success"), 1), (of(1, "failure"), 1)];
    assert_eq!(counted(&mut bench, "smg_worker_cb_outcomes_total"), expected);
    bench.vm.tick();
    let gauge =
        |bench: &mut Bench, name: &str, number: usize| bench.vm.metric(&format!("{name};worker={}", url(number)));
    assert_eq!([0, 1].map(|number| gauge(&mut bench, "smg_worker_cb_consecutive_failures", number)), [1, 1]);
    assert_eq!(gauge(&mut bench, "smg_worker_cb_consecutive_successes", 0), 0);
}

#[test]
fn the_time_to_the_first_byte_is_a_histogram_by_model() {
    let mut bench = Bench::new(two_models());
    for _ in 0..3 {
        exchanged(&mut bench, Script::chat(chat("m", "a")), 200, "via_upstream", 1);
    }
    exchanged(&mut bench, Script::chat(chat("m", "a")), 500, "via_upstream", 1);
    let mut slow = Script { nanos: 1, ..Script::chat(chat("m", "a")) };
    let (mut exchange, _) = bench.send(&mut slow);
    slow = slow.answered(200, "via_upstream", 0, 1);
    slow.nanos = 1_000_000_000_000;
    bench.response(&mut exchange, &mut slow);
    let bucket =
        |bench: &mut Bench, le: &str| bench.vm.metric(&format!("smg_router_ttft_seconds_bucket;model=m;le={le}"));
    let found = ["0.025", "0.05", "1.0", "120.0", "+Inf"].map(|le| bucket(&mut bench, le));
    assert_eq!(found, [0, 3, 3, 3, 4]);
    check(&mut bench, "smg_router_ttft_seconds_count", &[("model=m", 4)]);
}

#[test]
fn how_bodies_are_treated_is_counted() {
    let paths = |policy: &str, more: &str, http: Script| {
        let mut bench = Bench::new(config(policy, 2, more));
        let (held, mut http) = (http.body.len(), http);
        let mut exchange = Exchange::default();
        bench.headers(&mut exchange, &mut http, false);
        bench.body(&mut exchange, &mut http, held, false);
        bench.body(&mut exchange, &mut http, held, true);
        let found = counted(&mut bench, "smg_router_request_body_path_total");
        found.into_iter().map(|(labels, _)| labels).collect::<Vec<_>>()
    };
    let request = || Script::chat(chat("m", &"a".repeat(1000)));
    assert_eq!(paths("random", "", request()), ["path=stream;reason=pure_forward"]);
    assert_eq!(paths("cache_aware", "", request()), ["path=buffer;reason=policy_needs_text"]);
    let small = r#""max_buffered_request_bytes":100,"#;
    let cut = Script::chat(&chat("m", &"a".repeat(1000))[..500]);
    assert_eq!(paths("cache_aware", small, cut), ["path=stream;reason=too_large"]);
}
