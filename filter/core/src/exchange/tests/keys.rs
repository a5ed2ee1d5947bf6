//! Which headers and which part of the body name a key, and who is believed.

use super::{Bench, Exchange, Route, Script, Step, chat, replied, routed};
use crate::balancer::tests::{config, load, snapshot};
use crate::exchange::{KEY_HEADER, TARGET_HEADER};

/// A chat of one message that names itself `rid`.
fn named(rid: &str) -> Script {
    Script::chat(serde_json::json!({"model": "m", "messages": [], "rid": rid}).to_string())
}

/// How often 20 equal requests go to the worker of the first.
fn sticks(bench: &mut Bench, http: &Script) -> usize {
    let mut ask = || {
        let (mut exchange, step) = bench.send(&mut http.clone());
        bench.done(&mut exchange, &mut http.clone());
        routed(&step)
    };
    let home = ask();
    (0..20).filter(|_| ask() == home).count()
}

#[test]
fn policies_that_go_by_headers_hold_nothing() {
    for policy in ["consistent_hashing", "manual", "power_of_two", "bucket"] {
        let mut bench = Bench::new(config(policy, 3, ""));
        let mut http = Script::chat(chat("m", "hi")).header(KEY_HEADER, "k");
        assert!(matches!(bench.headers(&mut Exchange::default(), &mut http, false), Step::Route(_)), "{policy}");
        assert_eq!(http.reads, 0);
    }
}

#[test]
fn a_target_is_consumed_and_one_past_the_end_is_refused_at_once() {
    let mut bench = Bench::new(config("consistent_hashing", 3, ""));
    for (target, worker) in [("0", 0), ("+2", 2), ("1", 1)] {
        let mut http = Script::chat(chat("m", "hi")).header(TARGET_HEADER, target).header(KEY_HEADER, "k");
        let step = bench.headers(&mut Exchange::default(), &mut http, false);
        assert!(matches!(step, Step::Route(Route { consumes_target: true, .. })));
        assert_eq!(routed(&step), worker);
    }
    for target in ["3", "-1", "1.0", " 1", "abc", "18446744073709551616"] {
        let mut http = Script::chat(chat("m", "hi")).header(TARGET_HEADER, target).header(KEY_HEADER, "k");
        let answer = replied(bench.headers(&mut Exchange::default(), &mut http, false));
        assert_eq!(answer.status, 503, "{target}");
        assert!(answer.headers.contains(&("x-smg-error-code", "no_available_workers".into())));
    }
    let mut other = Bench::new(config("round_robin", 3, ""));
    let mut http = Script::chat(chat("m", "hi")).header(TARGET_HEADER, "9");
    routed(&other.headers(&mut Exchange::default(), &mut http, false));
    for empty in [b"".as_slice(), b"\xff"] {
        let http = Script::chat(chat("m", "hi")).header(TARGET_HEADER, empty).header(KEY_HEADER, "k");
        assert_eq!(sticks(&mut bench, &http), 20, "as if it were not there");
    }
}

#[test]
fn consistent_hashing_goes_from_key_to_key() {
    let mut bench = Bench::new(config("consistent_hashing", 8, r#""routing_key_headers":["x-a","x-b"],"#));
    let owner = |bench: &mut Bench, headers: &[(&str, &[u8])]| {
        let script = Script::chat(chat("m", "hi"));
        let http = headers.iter().fold(script, |http, (name, value)| http.header(name, value));
        let home = routed(&bench.send(&mut http.clone()).1);
        (sticks(bench, &http) == 20).then_some(home)
    };
    let long = [b'k'; 129];
    let k = owner(&mut bench, &[("x-a", b"k")]).unwrap();
    assert_eq!(owner(&mut bench, &[("x-a", b""), ("x-b", b"k")]), Some(k));
    assert_eq!(owner(&mut bench, &[("x-a", &long), ("x-b", b"k")]), Some(k));
    assert_eq!(owner(&mut bench, &[("x-a", b"\xff"), ("x-b", b"k")]), Some(k));
    assert_eq!(owner(&mut bench, &[(KEY_HEADER, b"k")]), Some(k), "SMG's own header is the last key header");
    assert_eq!(owner(&mut bench, &[("authorization", b"k"), ("cookie", b"c")]), Some(k));
    assert_eq!(owner(&mut bench, &[("x-forwarded-for", b"k")]), Some(k));
    assert_eq!(owner(&mut bench, &[("cookie", b"k")]), Some(k));
    assert_eq!(owner(&mut bench, &[("authorization", b"\xff"), ("cookie", b"k")]), None, "no step to the next");
    assert_eq!(owner(&mut bench, &[]), None);
}

#[test]
fn prefix_hash_waits_for_the_head_only_without_a_key() {
    let mut bench = Bench::new(config("prefix_hash", 4, ""));
    let mut keyed = Script::chat(chat("m", "hi")).header(KEY_HEADER, "k");
    assert!(matches!(bench.headers(&mut Exchange::default(), &mut keyed, false), Step::Route(_)));
    let mut hinted = Script::chat(chat("m", "hi")).header("x-smg-routing-tokens", "1,2,3");
    assert!(matches!(bench.headers(&mut Exchange::default(), &mut hinted, false), Step::Route(_)));
    assert_eq!(sticks(&mut bench, &Script::chat(chat("m", "one and the same head"))), 20);
}

#[test]
fn the_override_takes_the_bodys_name_before_a_header() {
    let mut bench = Bench::new(config("random", 8, r#""sticky_sessions":true,"#));
    let home = routed(&bench.send(&mut named("conv")).1);
    for rid in ["conv_t1", "conv_r1", "conv_t2_r3"] {
        let (mut exchange, step) = bench.send(&mut named(rid).header(KEY_HEADER, rid));
        assert_eq!(routed(&step), home, "{rid}");
        bench.done(&mut exchange, &mut Script::default());
    }
    let mut http = named(&"k".repeat(129)).header(KEY_HEADER, "conv_t9");
    assert_eq!(routed(&bench.send(&mut http).1), home, "too long a name gives way to the header");
    assert_eq!(bench.vm.metric("smg_routing_key_source_total;source=rid"), 4);
    assert_eq!(bench.vm.metric("smg_routing_key_source_total;source=header"), 1);
    assert_eq!(bench.vm.metric("smg_router_request_body_path_total;path=buffer;reason=routing_key_override"), 5);
    let mut responses = Script { body: b"{}".to_vec(), ..Script::of("POST", "/v1/responses") }.header(KEY_HEADER, "k");
    let step = bench.headers(&mut Exchange::default(), &mut responses, false);
    assert!(matches!(step, Step::Route(_)), "a response has no name in its body");
}

#[test]
fn without_the_override_the_body_names_nobody() {
    let mut bench = Bench::new(config("manual", 8, ""));
    assert!(matches!(bench.headers(&mut Exchange::default(), &mut named("conv"), false), Step::Route(_)));
    assert!(sticks(&mut bench, &named("conv")) < 20);
    let long = "k".repeat(4000);
    assert_eq!(sticks(&mut bench, &Script::chat("{}").header(KEY_HEADER, &long)), 20, "no bound on its length");
}

#[test]
fn who_is_not_trusted_names_nothing() {
    for (trust, internal, believed) in [
        ("always", None, true),
        ("internal", Some("true"), true),
        ("internal", None, false),
        ("never", Some("true"), false),
    ] {
        let more = format!(r#""trust_routing_headers":"{trust}","#);
        let mut http = Script::chat(chat("m", "hi")).header(TARGET_HEADER, "5").header(KEY_HEADER, "k");
        if let Some(internal) = internal {
            http = http.header("x-envoy-internal", internal);
        }
        let mut hashing = Bench::new(config("consistent_hashing", 2, &more));
        let step = hashing.headers(&mut Exchange::default(), &mut http.clone(), false);
        assert_eq!(matches!(step, Step::Reply(_)), believed, "{trust} {internal:?}");
        let mut manual = Bench::new(config("manual", 8, &more));
        assert_eq!(sticks(&mut manual, &http) == 20, believed, "{trust} {internal:?}");
        let mut cache = Bench::new(config("cache_aware", 2, &more));
        let mut hinted = http.header("x-smg-routing-tokens", "1,2,3");
        let step = cache.headers(&mut Exchange::default(), &mut hinted, false);
        assert_eq!(matches!(step, Step::Route(_)), believed, "token ids, {trust} {internal:?}");
    }
}

#[test]
fn a_decision_is_explained_where_that_is_wanted() {
    let mut bench = Bench::new(config("cache_aware", 2, r#""explain_decisions":true,"#));
    bench.vm.take(&snapshot(1, &[(0, load(0.0, 0.0, 0.1, 100.0)), (1, load(9000.0, 9.0, 0.1, 100.0))]));
    bench.vm.pass(1500);
    let text = "a prompt of some length ".repeat(20);
    let mut http = Script::chat(chat("m", &text)).answered(200, "via_upstream", 0, 1);
    let (mut exchange, step) = bench.send(&mut http);
    let Step::Route(Route { decision: Some(decision), .. }) = step else { panic!("{step:?}") };
    assert_eq!(
        &*decision,
        "policy=cache_aware;branch=expected_wait_fallback;matched=0;total=480;score=0.0167;\
         runner_up=http://10.0.0.1:8001;report_age_ms=1500"
    );
    assert_eq!(bench.response(&mut exchange, &mut http).decision, Some(decision));
    let (_, step) = bench.send(&mut http);
    let Step::Route(Route { decision: Some(decision), .. }) = step else { panic!("{step:?}") };
    assert!(decision.starts_with("policy=cache_aware;branch=tree_match;matched=384;total=480;"), "{decision}");
    let mut silent = Bench::new(config("cache_aware", 2, ""));
    assert!(matches!(silent.send(&mut http).1, Step::Route(Route { decision: None, .. })));
}

#[test]
fn workers_have_the_names_that_clients_may_know() {
    for (expose, expected) in [("url", 20), ("hash", 16), ("off", 0)] {
        let mut bench = Bench::new(config("random", 1, &format!(r#""expose_worker_id":"{expose}","#)));
        let mut http = Script::chat(chat("m", "hi")).answered(200, "via_upstream", 0, 1);
        let (mut exchange, _) = bench.send(&mut http);
        let named = match bench.response(&mut exchange, &mut http).worker_id {
            crate::exchange::WorkerId::Set(name) => name.len(),
            _ => 0,
        };
        assert_eq!(named, expected, "{expose}");
    }
}

#[test]
fn a_model_with_a_policy_of_its_own_is_waited_for() {
    let workers = [0, 1].map(|number| {
        format!(
            r#"{{"url":"{}","models":["m"],"labels":{{"policy":"passthrough"}}}}"#,
            crate::balancer::tests::url(number)
        )
    });
    let text = format!(r#"{{"policy":"round_robin","workers":[{}]}}"#, workers.join(","));
    let mut bench = Bench::new(crate::balancer::tests::parse(&text));
    let picks: Vec<usize> = (0..6).map(|_| routed(&bench.send(&mut Script::chat(chat("m", "hi"))).1)).collect();
    assert_eq!(picks, [0; 6], "the label decides, not the configuration");
    let picks: Vec<usize> = (0..4).map(|_| routed(&bench.send(&mut Script::chat("{}")).1)).collect();
    assert_eq!(picks, [0, 1, 0, 1], "a request that names no model has the default policy");
}

#[test]
fn a_target_is_an_index_into_the_workers_of_the_model() {
    let worker = |number: usize, model: &str| {
        format!(r#"{{"url":"{}","models":["{model}"]}}"#, crate::balancer::tests::url(number))
    };
    let workers = [worker(0, "a"), worker(1, "a"), worker(2, "b"), worker(3, "b")].join(",");
    let text = format!(r#"{{"policy":"consistent_hashing","workers":[{workers}]}}"#);
    let mut bench = Bench::new(crate::balancer::tests::parse(&text));
    let aimed = |model: &str, target: &str| Script::chat(chat(model, "hi")).header(TARGET_HEADER, target);
    assert_eq!(routed(&bench.send(&mut aimed("b", "0")).1), 2);
    assert_eq!(routed(&bench.send(&mut aimed("a", "1")).1), 1);
    assert_eq!(replied(bench.send(&mut aimed("b", "2")).1).status, 503);
    assert_eq!(replied(bench.send(&mut aimed("nobody's", "0")).1).status, 404);
}
