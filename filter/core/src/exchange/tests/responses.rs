//! What answers say of the workers, and the ends of requests.

use super::super::WorkerId;
use super::{Bench, Script, chat, routed};
use crate::balancer::tests::{config, parse, url};

const DETAILS: &str = "response.code_details";

/// A placed request at the first of `workers` workers.
fn placed(workers: usize) -> (Bench, super::Exchange, Script) {
    let mut bench = Bench::new(config("passthrough", workers, ""));
    let mut http = Script::chat(chat("m", "hi"));
    let (exchange, step) = bench.send(&mut http);
    assert_eq!(routed(&step), 0);
    (bench, exchange, http)
}

/// The failures that worker 0, which had one before, has after an answer of `status` with these details.
fn failures(status: u16, details: &str) -> u16 {
    let mut bench = Bench::new(config("passthrough", 1, ""));
    bench.vm.fail(0, 1);
    let mut http = Script::chat(chat("m", "hi"));
    let (mut exchange, _) = bench.send(&mut http);
    http = http.answered(status, details, 0, 1);
    bench.response(&mut exchange, &mut http);
    bench.done(&mut exchange, &mut http);
    assert_eq!(bench.in_flight(1), 0);
    bench.vm.slot(0).failures
}

#[test]
fn what_a_worker_says_counts_as_specified() {
    for (status, expected) in
        [(200, 0), (400, 0), (404, 0), (413, 0), (501, 0), (429, 1), (408, 2), (500, 2), (502, 2), (503, 2), (504, 2)]
    {
        assert_eq!(failures(status, "via_upstream"), expected, "{status}");
    }
}

#[test]
fn what_envoy_says_counts_where_the_worker_is_to_blame() {
    for (status, details, expected) in [
        (503, "upstream_reset_before_response_started{connection_failure|delayed_connect_error:_111}", 2),
        (503, "upstream_reset_before_response_started{remote_connection_failure}", 2),
        (503, "upstream_reset_before_response_started{connection_termination}", 2),
        (503, "upstream_reset_before_response_started{overflow}", 1),
        // To a gRPC client Envoy's own errors are 200, and a body too large to be sent again is 507.
        (200, "upstream_reset_before_response_started{connection_failure|delayed_connect_error:_111}", 2),
        (200, "cluster_not_found", 1),
        (507, "request_payload_exceeded_retry_buffer_limit", 1),
        (504, "upstream_response_timeout", 2),
        (504, "response_timeout", 2),
        (504, "upstream_per_try_timeout", 2),
        (504, "upstream_max_stream_duration_reached", 2),
        (504, "stream_idle_timeout", 2),
        (408, "stream_idle_timeout", 1),
        (408, "request_overall_timeout", 1),
        (413, "request_payload_too_large", 1),
        (503, "no_healthy_upstream", 1),
        (503, "cluster_not_found", 1),
        (429, "request_rate_limited", 1),
        (500, "filter_chain_not_found", 1),
    ] {
        assert_eq!(failures(status, details), expected, "{status} {details}");
    }
}

#[test]
fn the_client_is_told_who_answered() {
    let (mut bench, mut exchange, mut http) = placed(3);
    http = http.answered(200, "via_upstream", 0, 1);
    let step = bench.response(&mut exchange, &mut http);
    assert_eq!((step.worker_id, step.strip_error_code), (WorkerId::Set(url(0)), false));
    http.response.insert("x-smg-error-code".into(), b"an engine's".to_vec());
    assert!(bench.response(&mut exchange, &mut http).strip_error_code);
    http.response.insert("x-smg-decision".into(), b"an engine's".to_vec());
    assert!(bench.response(&mut exchange, &mut http).strip_decision);
    let (mut bench, mut exchange, mut http) = placed(3);
    http = http.answered(200, "via_upstream", 2, 3);
    assert_eq!(bench.response(&mut exchange, &mut http).worker_id, WorkerId::Set(url(2)), "after two retries");
    assert_eq!(bench.vm.in_flight(3), [0, 0, 1]);
    assert_eq!([bench.vm.slot(0).failures, bench.vm.slot(1).failures, bench.vm.slot(2).failures], [1, 1, 0]);
}

#[test]
fn what_an_engine_answers_to_an_upgrade_is_the_engines() {
    let (mut bench, mut exchange, mut http) = placed(2);
    http = http.answered(200, "via_upstream", 0, 1).property(DETAILS, "websocket_handshake_unsuccessful");
    assert_eq!(bench.response(&mut exchange, &mut http).worker_id, WorkerId::Set(url(0)));
}

#[test]
fn a_client_is_not_told_of_a_worker_that_did_not_answer() {
    let (mut bench, mut exchange, mut http) = placed(1);
    http.response.insert(":status".into(), b"503".to_vec());
    http = http.property("response.code_details", "no_healthy_upstream");
    assert_eq!(bench.response(&mut exchange, &mut http).worker_id, WorkerId::Remove);
    let (mut bench, mut exchange, mut http) = placed(1);
    http = http.answered(200, "via_upstream", 7, 1);
    let worker_id = bench.response(&mut exchange, &mut http).worker_id;
    assert_eq!(worker_id, WorkerId::Remove, "a host that we do not know");
    assert_eq!(bench.in_flight(1), 1, "it is still in flight, here");
}

#[test]
fn properties_of_any_shape_are_borne() {
    for (path, value) in [
        ("upstream.request_attempt_count", &b"\x01\x02"[..]),
        ("upstream.request_attempt_count", &[0xff; 8]),
        ("upstream.request_attempt_count", &[0; 8]),
        ("upstream.address", b"\xff\xfe"),
        ("upstream.address", b""),
        ("response.code_details", b"\xff"),
    ] {
        for status in [&b"200"[..], b"503", b"", b"\xff", b"99999"] {
            let (mut bench, mut exchange, mut http) = placed(2);
            http = http.answered(200, "via_upstream", 0, 1).property(path, value);
            http.response.insert(":status".into(), status.to_vec());
            bench.response(&mut exchange, &mut http);
            bench.done(&mut exchange, &mut http);
            assert_eq!(bench.in_flight(2), 0, "{path} {value:?} {status:?}");
        }
    }
}

#[test]
fn every_end_is_one_end() {
    type Fate = fn(&mut Bench, &mut super::Exchange, &mut Script);
    let fates: [Fate; 4] = [
        |_, _, _| (),
        |bench, exchange, http| {
            *http = http.clone().answered(200, "via_upstream", 0, 1);
            bench.response(exchange, http);
        },
        |bench, exchange, http| {
            *http = http.clone().answered(504, "upstream_response_timeout", 1, 2);
            bench.response(exchange, http);
        },
        |bench, exchange, http| {
            bench.response(exchange, http);
            bench.response(exchange, http);
        },
    ];
    for fate in fates {
        let (mut bench, mut exchange, mut http) = placed(2);
        assert!(exchange.is_counted());
        fate(&mut bench, &mut exchange, &mut http);
        assert_eq!(bench.in_flight(2), 1);
        for _ in 0..3 {
            bench.done(&mut exchange, &mut http);
            assert_eq!(bench.in_flight(2), 0);
            assert!(!exchange.is_counted());
        }
    }
}

#[test]
fn a_failed_worker_is_out_after_ten_exchanges() {
    let mut bench = Bench::new(config("passthrough", 2, ""));
    let mut picks = Vec::new();
    for _ in 0..20 {
        let mut http = Script::chat(chat("m", "hi"));
        let (mut exchange, step) = bench.send(&mut http);
        picks.push(routed(&step));
        let failed = picks.last() == Some(&0);
        http = http.answered(200, "via_upstream", 1, if failed { 2 } else { 1 });
        assert_eq!(bench.response(&mut exchange, &mut http).worker_id, WorkerId::Set(url(1)));
        bench.done(&mut exchange, &mut http);
    }
    assert_eq!(picks, [[0; 10], [1; 10]].concat());
}

#[test]
fn a_workers_own_lists_replace_the_usual_ones() {
    let failures = |resilience: &str, status: u16| {
        let text = format!(r#"{{"max_workers":64,"workers":[{{"url":"{}","resilience":{resilience}}}]}}"#, url(0));
        let mut bench = Bench::new(parse(&text));
        bench.vm.fail(0, 1);
        let mut http = Script::chat(chat("m", "hi"));
        let (mut exchange, _) = bench.send(&mut http);
        http = http.answered(status, "via_upstream", 0, 1);
        bench.response(&mut exchange, &mut http);
        bench.vm.slot(0).failures
    };
    let capacity = r#"{"capacity_status_codes":[503]}"#;
    assert_eq!([503, 429, 500, 200].map(|status| failures(capacity, status)), [1, 2, 2, 0]);
    let retryable = r#"{"retryable_status_codes":[418, 429]}"#;
    assert_eq!([418, 429, 503, 200].map(|status| failures(retryable, status)), [2, 1, 0, 0]);
    let neither = r#"{"capacity_status_codes":[],"retryable_status_codes":[429]}"#;
    assert_eq!([429, 500].map(|status| failures(neither, status)), [2, 0]);
}

#[test]
fn a_grpc_status_in_the_head_counts_as_the_status_it_stands_for() {
    for (code, expected) in [("0", 0), ("14", 2), ("4", 2), ("8", 1), ("3", 0), ("5", 0), ("x", 0)] {
        let mut bench = Bench::new(config("passthrough", 1, ""));
        bench.vm.fail(0, 1);
        let mut http = Script::chat(chat("m", "hi"));
        let (mut exchange, _) = bench.send(&mut http);
        http = http.answered(200, "via_upstream", 0, 1);
        http.response.insert("grpc-status".into(), code.into());
        bench.response(&mut exchange, &mut http);
        assert_eq!(bench.vm.slot(0).failures, expected, "{code}");
    }
}
