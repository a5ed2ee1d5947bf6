//! Decisions on headers alone, and answers of our own.

use super::{Bench, Exchange, Route, Script, Step, TOKENS_HEADER, chat, replied, routed};
use crate::balancer::tests::{config, load, parse, snapshot};

#[test]
fn header_only_policies_never_wait_for_the_body() {
    for policy in ["least_load", "round_robin", "random", "passthrough"] {
        let mut bench = Bench::new(config(policy, 3, ""));
        let mut exchange = Exchange::default();
        let mut http = Script::chat(chat("m", "hi"));
        let step = bench.headers(&mut exchange, &mut http, false);
        let Step::Route(Route { destination, .. }) = step else { panic!("{policy}: {step:?}") };
        assert_eq!(destination.split(',').count(), 5);
        assert_eq!(bench.body(&mut exchange, &mut http, 10, false), Step::Continue);
        assert_eq!(bench.in_flight(3), 1, "{policy}");
    }
}

#[test]
fn a_request_without_a_body_never_waits() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::of("POST", "/v1/chat/completions");
    routed(&bench.headers(&mut Exchange::default(), &mut http, true));
}

#[test]
fn an_empty_upgrade_is_none() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", "hi")).header("upgrade", "");
    assert_eq!(bench.headers(&mut Exchange::default(), &mut http, false), Step::Pause);
}

#[test]
fn an_upload_is_placed_by_the_policy_and_never_held() {
    for path in ["/v1/audio/transcriptions", "/v1/audio/translations"] {
        let mut bench = Bench::new(config("cache_aware", 3, ""));
        let mut http = Script { body: b"--x\r\n".to_vec(), ..Script::of("POST", path) };
        let mut exchange = Exchange::default();
        routed(&bench.headers(&mut exchange, &mut http, false));
        assert!(!exchange.wants_body(), "{path}");
        assert_eq!(bench.body(&mut exchange, &mut http, 5, true), Step::Continue);
        assert_eq!((http.reads, bench.in_flight(3)), (0, 1), "{path}");
        assert_eq!(bench.vm.metric("smg_cache_aware_policy_branch_total;branch=expected_wait_fallback"), 1, "{path}");
        bench.done(&mut exchange, &mut http);
        assert_eq!(bench.in_flight(3), 0);
    }
}

#[test]
fn token_ids_in_the_header_decide_at_once_and_are_consumed() {
    let mut bench = Bench::new(config("cache_aware", 8, ""));
    let ids: Vec<String> = (0..64).map(|id| id.to_string()).collect();
    let mut http = Script::chat(chat("m", "hi")).header(TOKENS_HEADER, ids.join(","));
    let mut picks = Vec::new();
    for _ in 0..3 {
        let step = bench.headers(&mut Exchange::default(), &mut http, false);
        assert!(matches!(step, Step::Route(Route { consumes_tokens: true, .. })), "{step:?}");
        picks.push(routed(&step));
    }
    assert_eq!(picks, [picks[0]; 3]);
    assert_eq!(bench.vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 2);
}

#[test]
fn token_ids_that_are_none_are_consumed_and_the_body_decides() {
    for hint in ["", "1,,2", "one", "1, 2", "-1"] {
        let mut bench = Bench::new(config("cache_aware", 2, ""));
        let mut http = Script::chat(chat("m", "hi")).header(TOKENS_HEADER, hint);
        let mut exchange = Exchange::default();
        assert_eq!(bench.headers(&mut exchange, &mut http, false), Step::Pause, "{hint}");
        let held = http.body.len();
        let step = bench.body(&mut exchange, &mut http, held, true);
        assert!(matches!(step, Step::Route(Route { consumes_tokens: true, .. })), "{step:?}");
    }
}

#[test]
fn a_known_size_is_credited_where_load_decides() {
    let mut bench = Bench::new(config("least_load", 2, ""));
    bench.vm.take(&snapshot(1, &[(0, load(4096.0, 0.0, 0.5, 0.0)), (1, load(1e6, 0.0, 0.0, 0.0))]));
    let mut http = Script::chat(chat("m", "hi")).header(TOKENS_HEADER, vec!["7"; 512].join(","));
    let step = bench.headers(&mut Exchange::default(), &mut http, false);
    assert!(matches!(step, Step::Route(Route { consumes_tokens: true, .. })), "{step:?}");
    assert_eq!((routed(&step), bench.vm.slot(0).tally_tokens), (0, 512));
}

#[test]
fn a_header_can_name_the_model_in_place_of_the_body() {
    let text = r#"{"policy":"round_robin","model_header":"x-model","workers":[
        {"url":"http://10.0.0.1:8000","models":["a"]},{"url":"http://10.0.0.1:8001","models":["b"]}]}"#;
    let mut bench = Bench::new(parse(text));
    let mut named = Script::chat(chat("a", "hi")).header("x-model", "b");
    assert_eq!(routed(&bench.headers(&mut Exchange::default(), &mut named, false)), 1);
    let unnamed = Script::chat(chat("a", "hi"));
    for mut unnamed in [unnamed.clone(), unnamed.header("x-model", "")] {
        assert_eq!(bench.headers(&mut Exchange::default(), &mut unnamed, false), Step::Pause);
        assert_eq!(routed(&bench.send(&mut unnamed).1), 0);
    }
    let mut unknown = Script::chat(chat("a", "hi")).header("x-model", "c");
    assert_eq!(replied(bench.headers(&mut Exchange::default(), &mut unknown, false)).status, 404);
}

#[test]
fn an_unknown_model_is_answered_and_counts_nothing() {
    let text = r#"{"workers":[{"url":"http://10.0.0.1:8000","models":["a"]}]}"#;
    for policy in ["cache_aware", "least_load"] {
        let mut bench = Bench::new(parse(&text.replacen('{', &format!("{{\"policy\":\"{policy}\","), 1)));
        let mut http = Script::chat(chat("nobody's", "hi"));
        let mut exchange = Exchange::default();
        if bench.headers(&mut exchange, &mut http, false) != Step::Pause {
            // One model everywhere need not be named, so a policy of headers does not look.
            assert_eq!(policy, "least_load");
            continue;
        }
        let held = http.body.len();
        let answer = replied(bench.body(&mut exchange, &mut http, held, true));
        assert_eq!(answer.status, 404);
        assert!(answer.headers.contains(&("x-smg-error-code", "model_not_found".into())));
        assert!(answer.body.contains("No worker available for model 'nobody's'"));
        assert!(!exchange.wants_response() && bench.in_flight(1) == 0);
        assert_eq!(bench.body(&mut exchange, &mut http, held, true), Step::Continue);
    }
}

#[test]
fn a_fleet_that_is_out_is_answered_for() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    bench.vm.fail(0, 10);
    bench.vm.fail(1, 10);
    let (exchange, step) = bench.send(&mut Script::chat(chat("m", "hi")));
    let answer = replied(step);
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains(&("x-smg-error-code", "no_available_workers".into())));
    assert!(answer.headers.contains(&("retry-after", "1".into())));
    assert!(!exchange.wants_response() && bench.in_flight(2) == 0);
}
