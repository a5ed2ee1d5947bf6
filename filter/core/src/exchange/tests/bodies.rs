//! Requests that are held until their bodies tell enough.

use super::{Bench, Exchange, Script, Step, TOKENS_HEADER, chat, chat_model_last, replied, routed};
use crate::balancer::tests::{config, parse};

/// Workers 0 of model a and 1 of model b, under a configuration with these members.
fn two_models(more: &str) -> Bench {
    Bench::new(parse(&format!(
        r#"{{{more}"workers":[{{"url":"http://10.0.0.1:8000","models":["a"]}},
            {{"url":"http://10.0.0.1:8001","models":["b"]}}]}}"#
    )))
}

fn long(text: &str) -> String {
    format!("{text} ").repeat(200)
}

fn matches(bench: &mut Bench) -> u64 {
    bench.vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match")
}

#[test]
fn the_end_of_the_body_decides() {
    let mut bench = Bench::new(config("cache_aware", 4, ""));
    let mut http = Script::chat(chat("m", &long("a prompt")));
    let size = http.body.len();
    let mut exchange = Exchange::default();
    assert_eq!(bench.headers(&mut exchange, &mut http, false), Step::Pause);
    for held in [1, 100, size / 2, size] {
        assert!(exchange.is_holding());
        assert_eq!(bench.body(&mut exchange, &mut http, held, false), Step::Pause);
        assert_eq!(bench.in_flight(4), 0);
    }
    let first = routed(&bench.body(&mut exchange, &mut http, size, true));
    assert!(!exchange.is_holding() && exchange.wants_response() && exchange.is_counted());
    assert_eq!(routed(&bench.send(&mut http).1), first);
    assert_eq!(matches(&mut bench), 1);
}

#[test]
fn trailers_decide_where_they_are_the_end() {
    let mut bench = Bench::new(config("cache_aware", 4, ""));
    let mut http = Script::chat(chat("m", &long("a prompt")));
    let first = routed(&bench.send(&mut http).1);
    let mut exchange = Exchange::default();
    assert_eq!(bench.headers(&mut exchange, &mut http, false), Step::Pause);
    let held = http.body.len();
    assert_eq!(bench.body(&mut exchange, &mut http, held, false), Step::Pause);
    let step = bench.on(&mut http, |scene| exchange.on_request_trailers(scene));
    assert_eq!((routed(&step), matches(&mut bench)), (first, 1));
    assert_eq!(bench.on(&mut http, |scene| exchange.on_request_trailers(scene)), Step::Continue);
}

#[test]
fn enough_of_a_long_body_decides() {
    let mut bench = Bench::new(config("cache_aware", 4, r#""max_buffered_request_bytes":2000,"#));
    let prompt = long("a prompt that goes on and on");
    let mut http = Script::chat(chat("m", &prompt));
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    assert_eq!(bench.body(&mut exchange, &mut http, 1999, false), Step::Pause);
    let first = routed(&bench.body(&mut exchange, &mut http, 2000, false));
    assert_eq!(bench.body(&mut exchange, &mut http, 4000, false), Step::Continue, "the rest streams past");
    assert_eq!(bench.body(&mut exchange, &mut http, 5800, true), Step::Continue);
    assert_eq!(bench.in_flight(4), 1);
    let mut again = Exchange::default();
    bench.headers(&mut again, &mut http, false);
    assert_eq!(routed(&bench.body(&mut again, &mut http, 2500, false)), first);
    assert_eq!(matches(&mut bench), 1, "what was cut off matches what was cut off");
}

#[test]
fn a_model_that_must_be_known_is_waited_for_beyond_the_threshold() {
    let mut bench = two_models(r#""max_buffered_request_bytes":1000,"#);
    let mut http = Script::chat(chat_model_last("b", &long("a prompt")));
    let size = http.body.len();
    assert!(size > 1500);
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    for held in [1000, 1200, 1500] {
        assert_eq!(bench.body(&mut exchange, &mut http, held, false), Step::Pause);
    }
    assert_eq!(http.reads, 1, "looked at again when it has doubled, not with every part");
    assert_eq!(routed(&bench.body(&mut exchange, &mut http, size, true)), 1);
    let mut known = Exchange::default();
    let mut first = Script::chat(format!(r#"{{"model":"b",{}"#, &chat("x", &long("a prompt"))[1..]));
    bench.headers(&mut known, &mut first, false);
    assert_eq!(routed(&bench.body(&mut known, &mut first, 1000, false)), 1, "a model in front is enough");
}

#[test]
fn one_model_everywhere_is_not_waited_for() {
    let mut bench = Bench::new(config("cache_aware", 2, r#""max_buffered_request_bytes":1000,"#));
    let mut http = Script::chat(chat_model_last("b", &long("a prompt")));
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    routed(&bench.body(&mut exchange, &mut http, 1000, false));
}

#[test]
fn a_header_only_policy_waits_for_a_model_that_must_be_known() {
    let mut bench = two_models(r#""policy":"round_robin","#);
    for (model, worker) in [("a", 0), ("b", 1), ("a", 0)] {
        let mut http = Script::chat(chat(model, "hi"));
        assert_eq!(bench.headers(&mut Exchange::default(), &mut http, false), Step::Pause);
        assert_eq!(routed(&bench.send(&mut http).1), worker);
    }
    assert_eq!(replied(bench.send(&mut Script::chat(chat("c", "hi"))).1).status, 404);
}

#[test]
fn token_ids_in_the_header_win_over_the_body_that_names_the_model() {
    let text = r#"{"workers":[{"url":"http://10.0.0.1:8000","models":["a"]},
        {"url":"http://10.0.0.1:8001","models":["b"]},{"url":"http://10.0.0.1:8002","models":["b"]}]}"#;
    let mut bench = Bench::new(parse(text));
    let ids: Vec<String> = (0..64).map(|id| id.to_string()).collect();
    let picks: Vec<usize> = ["one prompt", "another one", "a third"]
        .into_iter()
        .map(|prompt| {
            let mut http = Script::chat(chat("b", &long(prompt))).header(TOKENS_HEADER, ids.join(","));
            routed(&bench.send(&mut http).1)
        })
        .collect();
    assert!(picks[0] > 0 && picks == [picks[0]; 3], "{picks:?}");
}

#[test]
fn a_body_that_cannot_be_read_is_routed_without_it() {
    let deep = "[".repeat(10_000);
    for body in ["", "{", "null", "not json", "{\"model\":7,\"messages\":\"x\"}", "\u{0}\u{1}", deep.as_str()] {
        let mut bench = Bench::new(config("cache_aware", 2, ""));
        let mut http = Script::chat(body);
        let mut exchange = Exchange::default();
        assert_eq!(bench.headers(&mut exchange, &mut http, false), Step::Pause);
        routed(&bench.body(&mut exchange, &mut http, body.len(), true));
        bench.done(&mut exchange, &mut http);
        assert_eq!(bench.in_flight(2), 0);
    }
}

#[test]
fn a_last_callback_with_nothing_held_decides() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat("");
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    routed(&bench.body(&mut exchange, &mut http, 0, true));
}

#[test]
fn exchanges_that_are_held_at_once_do_not_mix() {
    let mut bench = two_models("");
    let mut requests = [
        (Exchange::default(), Script::chat(chat("a", &long("one"))), 0),
        (Exchange::default(), Script::chat(chat("b", &long("two"))).header(TOKENS_HEADER, "1,2,3"), 1),
        (Exchange::default(), Script::chat(chat("a", &long("three"))).header(TOKENS_HEADER, "x"), 0),
    ];
    for (exchange, http, _) in &mut requests {
        assert_eq!(bench.headers(exchange, http, false), Step::Pause);
    }
    for (exchange, http, _) in &mut requests {
        assert_eq!(bench.body(exchange, http, 50, false), Step::Pause);
    }
    for (exchange, http, worker) in requests.iter_mut().rev() {
        let held = http.body.len();
        assert_eq!(routed(&bench.body(exchange, http, held, true)), *worker);
    }
}

#[test]
fn token_ids_of_one_exchange_are_not_taken_for_anothers() {
    let mut bench = two_models("");
    let mut hinted = Script::chat(chat("a", &long("one"))).header(TOKENS_HEADER, vec!["7"; 64].join(","));
    for text in ["two", "three"] {
        let (mut one, mut plain) = (Exchange::default(), Script::chat(chat("a", &long(text))));
        bench.headers(&mut one, &mut plain, false);
        bench.headers(&mut Exchange::default(), &mut hinted, false);
        let held = plain.body.len();
        routed(&bench.body(&mut one, &mut plain, held, true));
    }
    assert_eq!(matches(&mut bench), 0);
}

#[test]
fn a_client_that_leaves_while_it_is_held_leaves_nothing() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", "hi"));
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    assert_eq!(bench.body(&mut exchange, &mut http, 5, false), Step::Pause);
    assert!(!exchange.is_counted());
    bench.done(&mut exchange, &mut http);
    assert!(!exchange.is_holding());
    assert_eq!(bench.in_flight(2), 0);
}

#[test]
fn a_body_too_large_for_envoy_leaves_nothing() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", "hi"));
    let mut exchange = Exchange::default();
    bench.headers(&mut exchange, &mut http, false);
    http.response.insert(":status".into(), b"413".to_vec());
    http = http.property("response.code_details", "request_payload_too_large");
    let step = bench.response(&mut exchange, &mut http);
    assert_eq!(step, super::ResponseStep::default());
    assert_eq!(bench.body(&mut exchange, &mut http, 10, true), Step::Continue, "an answered request is not placed");
    bench.done(&mut exchange, &mut http);
    assert_eq!(bench.in_flight(2), 0);
}
