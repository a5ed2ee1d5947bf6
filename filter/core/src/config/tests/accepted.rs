//! What a valid configuration means.

use std::collections::BTreeMap;

use super::super::{
    AssignmentMode, CacheIndex, ColdStartTies, Config, ExposeWorkerId, Leg, LoadMetric, LogLevel, PolicyName,
    PrefixHash, Role, Sticky, TrustRoutingHeaders, WorkerConfig,
};
use super::parse;
use crate::report::{Overload, Resilience};

#[test]
fn nothing_is_all_defaults() {
    for text in ["", " \n", "{}"] {
        assert_eq!(parse(text), Config::default(), "{text:?}");
    }
}

#[test]
fn the_defaults_are_smgs() {
    let config = Config::default();
    assert_eq!((config.role, config.instance.as_str()), (Role::Route, ""));
    assert_eq!(config.policy, PolicyName::CacheAware);
    let cache = config.cache;
    assert_eq!((cache.threshold, cache.balance_abs, cache.balance_rel, cache.block_size), (0.3, 64, 1.5, 16));
    assert_eq!((cache.balance_token_usage, cache.overload_token_usage), (1.0, 1.0));
    assert_eq!((cache.overlap_decay, cache.selection_temperature), (0.0, 0.0));
    assert_eq!((cache.index, cache.ttl_secs, config.cache_boundaries.len()), (CacheIndex::Tree, 180, 0));
    let score = config.score;
    assert_eq!((score.kv_pressure_weight, score.default_throughput), (0.15, 2000.0));
    assert_eq!((score.mean_prefill_tokens, score.max_waiting), (1024, 0));
    assert_eq!(config.bucket_adjust_secs, 5);
    assert_eq!(config.load_metric, LoadMetric::ExpectedWait);
    let breaker = config.breaker;
    assert_eq!((breaker.failure_threshold, breaker.success_threshold, breaker.timeout_secs), (10, 3, 60));
    assert!(breaker.enabled);
    assert!(config.workers.is_empty() && config.clusters.is_none() && !config.route_metadata);
    assert_eq!((config.max_attempts, config.model_header), (5, None));
    assert_eq!((config.max_buffered_request_bytes, config.max_tree_size), (1_048_576, 67_108_864));
    assert_eq!((config.max_workers, config.log_level), (1024, LogLevel::Info));
    assert!(config.without_effect.is_empty() && config.replaced.is_empty());
}

#[test]
fn every_key_with_an_effect_has_it() {
    let config = parse(
        r#"{"role":"ingest","instance":"east-1","policy":"least_load","max_attempts":3,"clusters":["a","b"],
            "route_metadata":true,"model_header":"X-Gateway-Model-Name","max_workers":65,"max_tree_size":1,
            "max_buffered_request_bytes":0,"log_level":"debug","cache_threshold":0,"balance_abs_threshold":0,
            "balance_rel_threshold":1,"balance_token_usage_threshold":0.3,"overload_token_usage_threshold":0.95,
            "overlap_decay":1.5,"selection_temperature":0.5,"block_size":32,"least_load_kv_pressure_weight":0,
            "least_load_default_throughput":0.5,"least_load_mean_prefill_tokens":1,"least_load_max_waiting_requests":48,
            "cb_failure_threshold":1,"cb_success_threshold":2,"cb_timeout_duration_secs":3,
            "disable_circuit_breaker":true,"cache_index":"hash","cache_boundaries":[8,2048],"cache_ttl_secs":1,"discovered_workers":true,"power_of_two_load_metric":"requests",
            "worker_overload_protection":true,"worker_overload_waiting_requests":1,"worker_overload_token_usage":1}"#,
    );
    let mut expected = Config {
        role: Role::Ingest,
        instance: "east-1".into(),
        policy: PolicyName::LeastLoad,
        load_metric: LoadMetric::Requests,
        max_attempts: 3,
        clusters: Some(vec!["a".into(), "b".into()]),
        route_metadata: true,
        model_header: Some("x-gateway-model-name".into()),
        max_workers: 128,
        max_tree_size: 1,
        max_buffered_request_bytes: 0,
        log_level: LogLevel::Debug,
        ..Config::default()
    };
    let cache = &mut expected.cache;
    (cache.threshold, cache.balance_abs, cache.balance_rel, cache.block_size) = (0.0, 0, 1.0, 32);
    (cache.balance_token_usage, cache.overload_token_usage) = (0.3, 0.95);
    (cache.overlap_decay, cache.selection_temperature) = (1.5, 0.5);
    (cache.index, cache.ttl_secs) = (CacheIndex::Hash, 1);
    expected.cache_boundaries = vec![8, 2048];
    let score = &mut expected.score;
    (score.kv_pressure_weight, score.default_throughput) = (0.0, 0.5);
    (score.mean_prefill_tokens, score.max_waiting) = (1, 48);
    let breaker = &mut expected.breaker;
    (breaker.failure_threshold, breaker.success_threshold, breaker.timeout_secs) = (1, 2, 3);
    breaker.enabled = false;
    expected.discovered_workers = Some(true);
    expected.overload_protection = true;
    expected.overload = Overload { waiting_requests: Some(1), token_usage: Some(1.0) };
    assert_eq!(config, expected);
}

#[test]
fn smgs_other_names_of_a_flag_mean_the_same() {
    for (alias, name, value) in [
        ("cache_match_threshold", "cache_threshold", "0.7"),
        ("spill_abs_threshold", "balance_abs_threshold", "7"),
        ("spill_rel_threshold", "balance_rel_threshold", "7"),
        ("eviction_interval_secs", "eviction_interval", "7"),
        ("sticky_key_idle_secs", "max_idle_secs", "7"),
        ("sticky_sessions", "routing_key_override", "true"),
        ("retry_max_retries", "max_attempts", "7"),
        ("worker_urls", "workers", r#"["http://a"]"#),
    ] {
        let with = |key: &str| parse(&format!(r#"{{"{key}":{value}}}"#));
        assert_eq!(with(alias), with(name), "{alias}");
        assert_ne!(with(name), Config::default(), "{name}");
    }
}

#[test]
fn flags_without_effect_are_checked_and_listed() {
    let flags = [
        ("cb_window_duration_secs", "120"),
        ("disable_retries", "false"),
        ("retry_initial_backoff_ms", "50"),
        ("retry_max_backoff_ms", "30000"),
        ("retry_backoff_multiplier", "1.5"),
        ("retry_jitter_factor", "0.2"),
        ("load_monitor_interval", "10"),
        ("disable_load_monitoring", "true"),
        ("bucket_adjust_interval_secs", "5"),
        ("prefill_policy", "\"bucket\""),
        ("decode_policy", "\"power_of_two\""),
        ("encode_policy", "\"random\""),
        ("pd_pairing_mode", "\"strict\""),
        ("pd_admission_wait_secs", "30"),
    ];
    for (name, value) in flags {
        let config = parse(&format!(r#"{{"{name}":{value}}}"#));
        assert_eq!(config, Config { without_effect: vec![name], ..Config::default() });
    }
}

#[test]
fn weights_that_make_no_sense_stand_for_the_default() {
    let config = parse(r#"{"least_load_kv_pressure_weight":-1,"least_load_default_throughput":0}"#);
    assert_eq!((config.score.kv_pressure_weight, config.score.default_throughput), (0.15, 2000.0));
    let mut replaced = config.replaced;
    replaced.sort_unstable();
    assert_eq!(replaced, ["least_load_default_throughput", "least_load_kv_pressure_weight"]);
}

#[test]
fn whole_numbers_may_look_like_fractions() {
    assert_eq!(parse(r#"{"block_size":32.0,"max_tree_size":1e6}"#).max_tree_size, 1_000_000);
}

#[test]
fn the_eviction_interval_may_be_0_without_a_tree() {
    assert_eq!(parse(r#"{"policy":"random","eviction_interval":0}"#).sticky.eviction_interval_secs, 0);
}

#[test]
fn keys_and_heads_are_tuned_by_smgs_flags() {
    let config = parse(
        r#"{"prefix_token_count":7,"prefix_hash_load_factor":2,"prefix_hash_balance_abs_threshold":0,
            "cache_boundaries":[2048,8192],"sticky_sessions":true,"assignment_mode":"min_group","sticky_key_idle_secs":0,
            "eviction_interval":5,"max_sticky_keys":1000,"routing_key_headers":["X-A","x-b"],
            "trust_routing_headers":"internal","expose_worker_id":"hash","explain_decisions":true,
            "cold_start_ties":"ring"}"#,
    );
    assert_eq!(config.prefix_hash, PrefixHash { token_count: 7, load_factor: 2.0, balance_abs: 0 });
    assert_eq!(config.cache_boundaries, [2048, 8192]);
    let sticky = Sticky {
        routing_key_override: true,
        assignment_mode: Some(AssignmentMode::MinGroup),
        max_idle_secs: 0,
        eviction_interval_secs: 5,
        max_keys: 1000,
    };
    assert_eq!(config.sticky, sticky);
    assert_eq!(config.routing_key_headers, ["x-a", "x-b"]);
    let exposed = (config.trust_routing_headers, config.expose, config.explain_decisions, config.cold_start_ties);
    assert_eq!(exposed, (TrustRoutingHeaders::Internal, ExposeWorkerId::Hash, true, ColdStartTies::Ring));
    assert!(config.without_effect.is_empty());
}

#[test]
fn a_worker_has_all_it_says() {
    let worker = &parse(
        r#"{"workers":[{"url":"http://engine-a:8000","address":"[2001:db8:0::1]:9000","models":["m","n","m"],"leg":"prefill",
            "runtime":"SGLang","labels":{"zone":"a","policy":"least_load"},"bootstrap_port":8998,
            "resilience":{"cb_failure_threshold":1,"cb_success_threshold":2,"cb_timeout_secs":3,
                "disable_circuit_breaker":false,"capacity_status_codes":[],"retryable_status_codes":[500.0]},
            "overload":{"waiting_requests":16,"token_usage":0.9}}]}"#,
    )
    .workers[0];
    let labels = [("zone", "a"), ("policy", "least_load")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let expected = WorkerConfig {
        url: "http://engine-a:8000".into(),
        address: Some("[2001:db8::1]:9000".into()),
        models: vec!["m".into(), "n".into()],
        leg: Some(Leg::Prefill),
        runtime: "sglang".into(),
        labels: BTreeMap::from(labels),
        bootstrap_port: Some(8998),
        resilience: Resilience {
            cb_failure_threshold: Some(1),
            cb_success_threshold: Some(2),
            cb_timeout_secs: Some(3),
            disable_circuit_breaker: Some(false),
            capacity_status_codes: Some(vec![]),
            retryable_status_codes: Some(vec![500]),
        },
        overload: Overload { waiting_requests: Some(16), token_usage: Some(0.9) },
    };
    assert_eq!(*worker, expected);
}

#[test]
fn a_url_alone_is_a_worker() {
    let workers =
        parse(r#"{"workers":["http://10.0.0.1:8000",{"url":"http://10.0.0.2:8000","bootstrap_port":null}]}"#).workers;
    let expected = |url: &str, address: &str| WorkerConfig {
        url: url.into(),
        address: Some(address.into()),
        ..WorkerConfig::default()
    };
    assert_eq!(
        workers,
        [expected("http://10.0.0.1:8000", "10.0.0.1:8000"), expected("http://10.0.0.2:8000", "10.0.0.2:8000")]
    );
}

#[test]
fn an_ip_in_the_url_is_the_address() {
    for (url, expected) in [
        ("http://10.0.0.1:8000", Some("10.0.0.1:8000")),
        ("http://10.0.0.1", Some("10.0.0.1:80")),
        ("https://10.0.0.1/", Some("10.0.0.1:443")),
        ("http://[::1]:8000", Some("[::1]:8000")),
        ("https://[2001:DB8:0:0::1]", Some("[2001:db8::1]:443")),
        ("http://engine-0.engines.svc.cluster.local:8000/", None),
        ("http://localhost", None),
        ("grpc://10.0.0.1:50051", Some("10.0.0.1:50051")),
        ("grpcs://engine-0:50051", None),
    ] {
        let worker = &parse(&format!(r#"{{"workers":["{url}"]}}"#)).workers[0];
        assert_eq!((worker.url.as_str(), worker.address.as_deref()), (url, expected));
    }
}

#[test]
fn models_have_four_names() {
    for models in [r#""models":["m"]"#, r#""model_ids":["m"]"#, r#""model":"m""#, r#""model_id":"m""#] {
        assert_eq!(parse(&format!(r#"{{"workers":[{{"url":"http://a",{models}}}]}}"#)).workers[0].models, ["m"]);
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for &policy in PolicyName::ALL {
        assert_eq!(parse(&format!(r#"{{"policy":"{policy}"}}"#)).policy, policy);
    }
    for &leg in Leg::ALL {
        assert_eq!(Leg::from_name(leg.as_str()), Some(leg));
    }
}

#[test]
fn members_of_a_worker_that_do_nothing_yet_are_named() {
    let config =
        Config::parse(br#"{"workers":[{"url":"http://10.0.0.1:80","leg":"decode","runtime":"vllm"}]}"#).unwrap();
    assert_eq!(
        config.without_effect,
        ["workers[].leg (prefill and decode workers take no requests)", "workers[].runtime"]
    );
    let labels = |labels: &str| {
        let text = format!(r#"{{"workers":[{{"url":"http://10.0.0.1:80","labels":{labels}}}]}}"#);
        Config::parse(text.as_bytes()).unwrap().without_effect
    };
    assert!(labels(r#"{"policy":"least_load"}"#).is_empty());
    assert_eq!(labels(r#"{"policy":"least_load","zone":"a"}"#), ["workers[].labels (but for policy)"]);
}

#[test]
fn any_limit_turns_overload_protection_on() {
    let limits = |text: &str| {
        let limits = parse(text).limits();
        (limits.waiting_requests, limits.token_usage)
    };
    assert_eq!(limits("{}"), (None, None));
    assert_eq!(limits(r#"{"worker_overload_protection":true}"#), (None, Some(0.9)));
    assert_eq!(limits(r#"{"worker_overload_waiting_requests":16}"#), (Some(16), None));
    assert_eq!(limits(r#"{"worker_overload_token_usage":0.5}"#), (None, Some(0.5)));
    let both = r#"{"worker_overload_protection":true,"worker_overload_waiting_requests":16}"#;
    assert_eq!(limits(both), (Some(16), Some(0.9)));
}

#[test]
fn power_of_two_wants_two_workers_only_where_no_more_can_come() {
    for rest in [
        r#""max_attempts":2"#,
        r#""workers":["http://a","http://b"]"#,
        r#""workers":["http://a"],"discovered_workers":true"#,
        r#""workers":["http://a","http://b"],"discovered_workers":false"#,
    ] {
        assert_eq!(parse(&format!(r#"{{"policy":"power_of_two",{rest}}}"#)).policy, PolicyName::PowerOfTwo);
    }
}

#[test]
fn the_interval_of_buckets_is_kept_for_a_prefill_leg() {
    assert_eq!(parse(r#"{"bucket_adjust_interval_secs":1}"#).bucket_adjust_secs, 1);
}

#[test]
fn workers_are_discovered_where_none_is_configured() {
    assert!(parse("{}").discovers() && parse(r#"{"workers":[]}"#).discovers());
    assert!(!parse(r#"{"workers":["http://a"]}"#).discovers());
    assert!(parse(r#"{"discovered_workers":true,"workers":["http://a"]}"#).discovers());
    assert!(!parse(r#"{"discovered_workers":false}"#).discovers());
}
