//! What refers to a response goes to the worker that holds it.

use super::{Bench, Exchange, Script, chat, routed};
use crate::balancer::tests::config;
use crate::exchange::{KEY_HEADER, TARGET_HEADER};

fn remembering(policy: &str, more: &str) -> Bench {
    let mut bench = Bench::new(config(policy, 4, more));
    bench.vm.balancer.remember_responses();
    bench
}

/// A request for a response that goes on from `previous`.
fn after(previous: &str) -> Script {
    let body = serde_json::json!({ "model": "m", "input": "Well?", "previous_response_id": previous });
    Script { body: body.to_string().into_bytes(), ..Script::of("POST", "/v1/responses") }
}

/// Worker `number` answers a new request with `status` and this body, in these parts.
fn answer(bench: &mut Bench, number: usize, status: u16, parts: &[&str]) -> Exchange {
    let body = br#"{"model":"m","input":"Hello"}"#.to_vec();
    let mut http = Script { body, ..Script::of("POST", "/v1/responses") };
    let (mut exchange, step) = bench.send(&mut http);
    routed(&step);
    let mut http = http.answered(status, "via_upstream", number, 2);
    bench.response(&mut exchange, &mut http);
    for (at, part) in parts.iter().enumerate() {
        if exchange.wants_answer() > 0 {
            let ends = at + 1 == parts.len();
            bench.on(&mut http, |scene| exchange.on_response_body(scene, part.as_bytes(), ends));
        }
    }
    bench.done(&mut exchange, &mut http);
    exchange
}

/// Where such a request goes, if it is the same worker 20 times.
fn home(bench: &mut Bench, http: &Script) -> Option<usize> {
    let mut ask = || {
        let (mut exchange, step) = bench.send(&mut http.clone());
        bench.done(&mut exchange, &mut http.clone());
        routed(&step)
    };
    let first = ask();
    (0..20).all(|_| ask() == first).then_some(first)
}

#[test]
fn the_worker_that_has_answered_gets_what_refers_to_its_answer() {
    for policy in ["random", "power_of_two", "cache_aware", "manual", "consistent_hashing"] {
        let mut bench = remembering(policy, "");
        answer(&mut bench, 2, 200, &[r#"{"id":"resp_1","#, r#""object":"response"}"#]);
        answer(&mut bench, 3, 200, &["data: {\"response\":{\"id\":\"re", "sp_2\"}}\n\n", "data: [DONE]\n\n"]);
        for (id, worker) in [("resp_1", 2), ("resp_2", 3)] {
            assert_eq!(home(&mut bench, &after(id)), Some(worker), "{policy}");
            for (method, path) in [("GET", ""), ("DELETE", "/"), ("GET", "/input_items?limit=2"), ("POST", "/cancel")] {
                let http = Script::of(method, &format!("/v1/responses/{id}{path}"));
                assert_eq!(home(&mut bench, &http), Some(worker), "{policy}: {method} {path}");
            }
        }
        assert_eq!(bench.in_flight(4), 0);
        bench.vm.tick();
        assert_eq!(bench.vm.metric("smg_response_lookup_total;branch=response_held"), 210);
    }
}

#[test]
fn what_is_not_known_is_placed_by_the_policy() {
    let mut bench = remembering("round_robin", "");
    for (status, text) in [(500, r#"{"id":"resp_1"}"#), (200, r#"{"object":"response"}"#), (200, "")] {
        answer(&mut bench, 1, status, &[text]);
    }
    assert_eq!(home(&mut bench, &Script::chat(chat("m", "hi"))), None);
    assert_eq!(bench.vm.metric("smg_response_lookup_total;branch=response_unknown"), 0);
    assert_eq!(home(&mut bench, &after("resp_1")), None);
    assert!(bench.vm.metric("smg_response_lookup_total;branch=response_unknown") > 0);
}

#[test]
fn a_module_that_reads_no_answers_holds_nothing_for_them() {
    let mut bench = Bench::new(config("round_robin", 4, ""));
    let exchange = answer(&mut bench, 1, 200, &[r#"{"id":"resp_1"}"#]);
    assert_eq!(exchange.wants_answer(), 0);
    let mut http = after("resp_1");
    bench.headers(&mut Exchange::default(), &mut http, false);
    assert_eq!(http.reads, 0);
    assert_eq!(home(&mut bench, &after("resp_1")), None);
}

#[test]
fn a_holder_that_is_out_is_stood_in_for() {
    let mut bench = remembering("round_robin", "");
    answer(&mut bench, 2, 200, &[r#"{"id":"resp_1"}"#]);
    bench.vm.fail(2, 10);
    let (_, step) = bench.send(&mut after("resp_1"));
    assert_ne!(routed(&step), 2);
    bench.vm.tick();
    assert_eq!(bench.vm.metric("smg_response_lookup_total;branch=response_out"), 1);
}

#[test]
fn a_response_goes_before_a_key_and_a_named_worker_before_a_response() {
    let mut bench = remembering("manual", "");
    let keyed = Script::chat(chat("m", "hi")).header(KEY_HEADER, "k");
    let home_of_key = home(&mut bench, &keyed).unwrap();
    let other = (home_of_key + 1) % 4;
    answer(&mut bench, other, 200, &[r#"{"id":"resp_1"}"#]);
    assert_eq!(home(&mut bench, &after("resp_1").header(KEY_HEADER, "k")), Some(other));
    assert_eq!(home(&mut bench, &keyed), Some(home_of_key));

    let mut bench = remembering("consistent_hashing", "");
    answer(&mut bench, 2, 200, &[r#"{"id":"resp_1"}"#]);
    assert_eq!(home(&mut bench, &after("resp_1").header(TARGET_HEADER, "1")), Some(1));
}

/// Its text is not the beginning of its prompt.
#[test]
fn what_goes_on_from_a_response_is_no_prefix() {
    let text = "word ".repeat(1000);
    let ask = |previous: Option<&str>| {
        let body = serde_json::json!({ "model": "m", "input": text, "previous_response_id": previous });
        Script { body: body.to_string().into_bytes(), ..Script::of("POST", "/v1/responses") }
    };
    let mut bench = remembering("cache_aware", "");
    answer(&mut bench, 2, 200, &[r#"{"id":"resp_1"}"#]);
    for (previous, matches) in [(Some("resp_1"), 0), (Some("unknown"), 0), (None, 0), (None, 1)] {
        bench.send(&mut ask(previous));
        assert_eq!(bench.vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), matches, "{previous:?}");
    }
}
