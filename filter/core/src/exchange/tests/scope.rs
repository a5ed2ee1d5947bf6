//! Which requests are balanced, and which are let go untouched.

use super::super::WorkerId;
use super::{Bench, Exchange, ResponseStep, Script, Step, chat, replied, routed};
use crate::balancer::tests::{address, config, parse, url};
use crate::report::{Info, Snapshot, WorkerReport};

const CLUSTER: &str = "xds.cluster_name";
const ENABLED: &str = "xds.route_metadata.filter_metadata.smg.enabled";
const POLICY: &str = "xds.route_metadata.filter_metadata.smg.policy";

/// Whether a chat with these properties is balanced under the configuration members `more`.
fn is_balanced(more: &str, properties: &[(&str, &[u8])]) -> bool {
    let mut bench = Bench::new(config("least_load", 2, more));
    let mut http = Script::chat(chat("m", "hi"));
    for (path, value) in properties {
        http = http.property(path, value);
    }
    match bench.send(&mut http).1 {
        Step::Pass => {
            assert_eq!(bench.in_flight(2), 0);
            false
        }
        step => {
            routed(&step);
            true
        }
    }
}

#[test]
fn all_clusters_are_balanced_unless_some_are_named() {
    assert!(is_balanced("", &[]));
    assert!(is_balanced("", &[(CLUSTER, b"anything")]));
    let named = r#""clusters":["engines","more"],"#;
    assert!(is_balanced(named, &[(CLUSTER, b"engines")]));
    assert!(is_balanced(named, &[(CLUSTER, b"more")]));
    assert!(!is_balanced(named, &[(CLUSTER, b"engines2")]));
    assert!(!is_balanced(named, &[(CLUSTER, b"\xff")]));
    assert!(!is_balanced(named, &[]));
    assert!(!is_balanced(r#""clusters":[],"#, &[(CLUSTER, b"engines")]));
}

#[test]
fn a_route_can_ask_for_it_where_routes_are_asked() {
    let asked = r#""clusters":["engines"],"route_metadata":true,"#;
    assert!(is_balanced(asked, &[(CLUSTER, b"other"), (ENABLED, &[1])]));
    assert!(!is_balanced(asked, &[(CLUSTER, b"other"), (ENABLED, &[0])]));
    assert!(!is_balanced(asked, &[(CLUSTER, b"other"), (ENABLED, b"")]));
    assert!(!is_balanced(asked, &[(CLUSTER, b"other")]));
    assert!(!is_balanced(r#""clusters":["engines"],"#, &[(CLUSTER, b"other"), (ENABLED, &[1])]));
}

/// The workers of four requests, one after the other, on a route whose metadata names `policy`.
fn picks(bench: &mut Bench, policy: impl AsRef<[u8]>) -> Vec<usize> {
    let mut pick = || routed(&bench.send(&mut Script::chat(chat("m", "hi")).property(POLICY, &policy)).1);
    (0..4).map(|_| pick()).collect()
}

#[test]
fn a_route_may_spell_its_policy_as_labels_do() {
    for spelled in ["passthrough", "PassThrough", "pass_through"] {
        let mut bench = Bench::new(config("round_robin", 4, r#""route_metadata":true,"#));
        assert_eq!(picks(&mut bench, spelled), [0, 0, 0, 0], "{spelled}");
        bench.vm.tick();
        assert_eq!(bench.vm.world.log.warnings(), [""; 0], "{spelled}");
    }
}

#[test]
fn a_route_that_names_no_policy_is_warned_of_once_and_changes_nothing() {
    let mut bench = Bench::new(config("round_robin", 4, r#""route_metadata":true,"#));
    for _ in 0..3 {
        for name in [&b"raund_robin"[..], b"fastest", b"\0\xff", b""] {
            let mut workers = picks(&mut bench, name);
            workers.sort_unstable();
            assert_eq!(workers, [0, 1, 2, 3], "{name:?}");
        }
        bench.vm.tick();
    }
    let warned = bench.vm.world.log.warnings();
    assert_eq!(warned.len(), 3, "{warned:?}");
    for name in ["raund_robin", "fastest", "\\0"] {
        let line = format!("policy: \"{name}");
        assert!(warned.iter().any(|warning| warning.contains(&line) && warning.contains("least_load")), "{warned:?}");
    }
}

#[test]
fn however_many_policies_routes_name_in_vain_the_warnings_are_few_and_short() {
    let mut bench = Bench::new(config("round_robin", 4, r#""route_metadata":true,"#));
    for number in 0..500 {
        picks(&mut bench, format!("{number}{}", "x".repeat(9999)));
    }
    bench.vm.tick();
    let warned = bench.vm.world.log.warnings();
    assert!(warned.len() == 16 && warned.iter().all(|line| line.len() < 500), "{} warnings", warned.len());
}

/// Clusters "a", "b" and "c" under `policy`, with the workers that a sidecar has found in clusters of these names (empty
/// where it does not say), each with its model.
fn found(policy: &str, workers: &[(&str, &str)]) -> Bench {
    let text = r#""clusters":["a","b","c"],"route_metadata":true,"max_attempts":4,"max_workers":64"#;
    let mut bench = Bench::new(parse(&format!(r#"{{{text},"policy":"{policy}"}}"#)));
    let report = |(number, (cluster, model)): (usize, &(&str, &str))| {
        let cluster = (!cluster.is_empty()).then(|| (*cluster).to_owned());
        let info = Info { models: vec![(*model).to_owned()], cluster, ..Info::default() };
        let address = Some(address(number));
        WorkerReport { url: url(number), address, info: Some(Box::new(info)), ..WorkerReport::default() }
    };
    let reports = workers.iter().enumerate().map(report).collect();
    bench.vm.take(&Snapshot::of(1, 1, 10_000, reports));
    bench.vm.tick();
    bench
}

/// All workers that a request for `model` on a route to `cluster` may be sent to.
fn reach(bench: &mut Bench, cluster: &str, model: &str) -> Vec<String> {
    let request = Script::chat(chat(model, "a prompt that is long enough"));
    let mut http = request.property(CLUSTER, cluster).property(ENABLED, [1]).header("x-smg-routing-key", "k");
    let (mut exchange, step) = bench.send(&mut http);
    let Step::Route(route) = step else { panic!("{cluster}: {step:?}") };
    bench.done(&mut exchange, &mut http);
    let mut workers: Vec<String> = route.destination.split(',').map(str::to_owned).collect();
    workers.sort_unstable();
    workers.dedup();
    workers
}

#[test]
fn who_was_found_in_a_cluster_takes_the_requests_of_that_one() {
    let policies = ["cache_aware", "round_robin", "consistent_hashing", "manual", "prefix_hash", "least_load"];
    for policy in policies {
        let mut bench = found(policy, &[("a", "m"), ("b", "m"), ("", "m"), ("elsewhere", "m")]);
        for _ in 0..3 {
            for model in ["m", ""] {
                assert_eq!(reach(&mut bench, "a", model), [address(0), address(2)], "{policy}");
                assert_eq!(reach(&mut bench, "b", model), [address(1), address(2)], "{policy}");
                // Nobody is known to be in c, whose hosts may be told as those of a cluster that shares them; and of
                // other clusters nothing is known, where a route asks for them.
                for other in ["c", "else", ""] {
                    assert_eq!(reach(&mut bench, other, model), [address(0), address(1), address(2)], "{policy}");
                }
            }
        }
        assert_eq!(bench.in_flight(3), 0);
    }
}

#[test]
fn a_model_that_only_another_cluster_serves_is_unknown_in_this_one() {
    let mut bench = found("least_load", &[("a", "one"), ("b", "two")]);
    for (cluster, model, worker) in [("a", "one", 0), ("b", "two", 1), ("c", "two", 1)] {
        assert_eq!(reach(&mut bench, cluster, model), [address(worker)]);
    }
    let answer = replied(bench.send(&mut Script::chat(chat("two", "hi")).property(CLUSTER, "a")).1);
    assert_eq!(answer.status, 404);
}

#[test]
fn with_workers_of_one_cluster_all_take_any_request() {
    let mut bench = found("round_robin", &[("a", "m"), ("a", "m"), ("", "m")]);
    for cluster in ["a", "b", "c"] {
        assert_eq!(reach(&mut bench, cluster, "m").len(), 3, "{cluster}");
    }
}

#[test]
fn what_is_not_balanced_is_left_alone_to_its_end() {
    let mut bench = Bench::new(config("cache_aware", 2, r#""clusters":["engines"],"#));
    let mut http = Script::chat(chat("m", "hi")).property(CLUSTER, "other");
    let mut exchange = Exchange::default();
    assert_eq!(bench.headers(&mut exchange, &mut http, false), Step::Pass);
    assert_eq!(bench.body(&mut exchange, &mut http, 10, true), Step::Continue);
    assert_eq!(bench.on(&mut http, |scene| exchange.on_request_trailers(scene)), Step::Continue);
    http = http.answered(503, "via_upstream", 0, 1);
    assert_eq!(bench.response(&mut exchange, &mut http), ResponseStep::default());
    bench.done(&mut exchange, &mut http);
    assert!(!exchange.is_holding() && !exchange.wants_response() && !exchange.is_counted());
    assert_eq!((bench.in_flight(2), bench.vm.slot(0).failures), (0, 0));
}

#[test]
fn what_is_no_inference_request_never_waits_and_goes_to_the_least_loaded() {
    for policy in ["cache_aware", "least_load", "round_robin", "random", "passthrough"] {
        let mut bench = Bench::new(config(policy, 8, ""));
        let mut picks: Vec<usize> = [
            Script::of("GET", "/health"),
            Script::of("OPTIONS", "/v1/chat/completions"),
            Script::of("POST", "/tokenize"),
            Script::of("CONNECT", ""),
            Script::of("PUT", "/v1/files/1"),
            Script::of("POST", "/v1/chat/completions").header("upgrade", "websocket"),
            Script::of("", ""),
            Script::of("GET", "/v1/realtime").header("upgrade", "websocket"),
        ]
        .into_iter()
        .map(|mut http| routed(&bench.headers(&mut Exchange::default(), &mut http, false)))
        .collect();
        picks.sort_unstable();
        assert_eq!(picks, [0, 1, 2, 3, 4, 5, 6, 7], "{policy}");
    }
}

#[test]
fn what_is_no_inference_request_is_never_refused() {
    let mut bench = Bench::new(config("cache_aware", 1, ""));
    bench.vm.fail(0, 10);
    let (mut exchange, mut http) = (Exchange::default(), Script::of("GET", "/health"));
    assert_eq!(bench.headers(&mut exchange, &mut http, true), Step::Pass);
    http = http.answered(200, "via_upstream", 0, 1);
    let expected =
        ResponseStep { strip_error_code: true, strip_decision: true, worker_id: WorkerId::Remove, decision: None };
    assert_eq!(bench.response(&mut exchange, &mut http), expected, "whoever answers");
    bench.done(&mut exchange, &mut http);
    let mut empty = Bench::new(config("cache_aware", 0, ""));
    assert_eq!(empty.headers(&mut Exchange::default(), &mut Script::of("GET", "/health"), true), Step::Pass);
}

#[test]
fn the_fleet_answers_for_its_models() {
    let workers = r#"{"workers":[{"url":"http://10.0.0.1:8000","models":["b","a"]}]}"#;
    let mut bench = Bench::new(parse(workers));
    let mut exchange = Exchange::default();
    let answer = replied(bench.headers(&mut exchange, &mut Script::of("GET", "/v1/models"), true));
    assert_eq!(answer.status, 200);
    let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let ids: Vec<&str> = body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(!exchange.wants_response() && bench.in_flight(1) == 0);
    let mut unnamed = Bench::new(config("cache_aware", 1, ""));
    let step = unnamed.headers(&mut Exchange::default(), &mut Script::of("GET", "/v1/models"), true);
    assert_eq!(routed(&step), 0, "an engine knows better than a fleet that names no model");
}
