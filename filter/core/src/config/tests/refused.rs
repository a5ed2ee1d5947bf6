//! What refuses a configuration, and what the operator reads then.

use proptest::prelude::*;

use super::super::Config;
use super::refusal;

/// `key` set to `value` is refused with a message that names both and has `allowed` in it.
#[track_caller]
fn check(key: &str, value: &str, allowed: &str) {
    let message = refusal(&format!(r#"{{"{key}":{value}}}"#));
    assert_eq!(message, format!("`{key}` is {value}; allowed: {allowed}"));
}

#[test]
fn what_is_no_object() {
    assert_eq!(refusal("[1]"), "the configuration is [1]; allowed: one JSON object");
    assert_eq!(refusal("null"), "the configuration is null; allowed: one JSON object");
    assert!(refusal("{").starts_with("the configuration is not JSON: EOF while parsing"));
    assert!(refusal(r#"{"policy":"random",}"#).starts_with("the configuration is not JSON: trailing comma at line 1"));
    assert!(refusal(r#"{"overlap_decay":1e999}"#).starts_with("the configuration is not JSON: number out of range"));
    assert!(Config::parse(b"\xff\xfe").is_err());
    assert!(Config::parse("[".repeat(100_000).as_bytes()).is_err());
}

#[test]
fn an_unknown_key_with_the_nearest_known_one() {
    for (config, expected) in [
        (
            r#"{"polcy":"random"}"#,
            "`polcy` is \"random\", but there is no such key; did you mean `policy`? allowed: role, ",
        ),
        (
            r#"{"--cache-threshold":0.3}"#,
            "`--cache-threshold` is 0.3, but there is no such key; did you mean `cache_threshold`? allowed: ",
        ),
        (r#"{"Workers":[]}"#, "`Workers` is [], but there is no such key; did you mean `workers`? allowed: "),
        (r#"{"colour":"red"}"#, "`colour` is \"red\", but there is no such key; allowed: role, instance, workers, "),
        (r#"{"":1}"#, "`` is 1, but there is no such key; allowed: "),
    ] {
        let refusal = refusal(config);
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}

#[test]
fn a_policy_that_does_not_exist() {
    for policy in ["fastest", "Random"] {
        check("policy", &format!("{policy:?}"), POLICIES);
    }
}

const POLICIES: &str = "cache_aware, least_load, power_of_two, round_robin, random, passthrough, \
     consistent_hashing, prefix_hash, manual or bucket";

#[test]
fn names_that_do_not_exist() {
    check("role", "\"router\"", "route or ingest");
    check("log_level", "\"verbose\"", "trace, debug, info, warn or error");
    check("cache_index", "\"trie\"", "tree or hash");
    check("power_of_two_load_metric", "\"load\"", "expected_wait, requests or least_requests");
    check("assignment_mode", "\"best\"", "random, min_load, min_group or delegate");
    check("trust_routing_headers", "true", "always, internal or never");
    check("expose_worker_id", "\"name\"", "url, hash or off");
    check("cold_start_ties", "\"hash\"", "random or ring");
    check("prefill_policy", "\"passthrough\"", "an SMG policy other than passthrough");
    check("decode_policy", "\"bucket\"", "an SMG policy other than passthrough and bucket");
    check("encode_policy", "\"least_load\"", "random, round_robin or consistent_hashing");
    check("pd_pairing_mode", "\"on\"", "off, lenient or strict");
}

#[test]
fn numbers_out_of_range() {
    let whole = "a whole number from 0 to 4294967295";
    let large = "a whole number from 0 to 9007199254740992";
    let positive = "a whole number from 1 to 4294967295";
    check("cache_threshold", "1.5", "a number from 0 to 1");
    check("cache_match_threshold", "-0.1", "a number from 0 to 1");
    check("balance_abs_threshold", "-1", large);
    check("balance_abs_threshold", "1.5", large);
    check("balance_abs_threshold", "1e+20", large);
    check("balance_rel_threshold", "0.9", "a number, 1 or more");
    check("balance_token_usage_threshold", "0", "a number above 0; 1 or more turns it off");
    check("overload_token_usage_threshold", "0", "a number above 0; 1 or more turns it off");
    check("overlap_decay", "-1", "a number, 0 or more");
    check("selection_temperature", "-0.5", "a number, 0 or more");
    check("block_size", "0", positive);
    check("block_size", "4294967296", positive);
    check("max_idle_secs", "4294967296", whole);
    check("eviction_interval", "4294967296", whole);
    for size in ["0", "1e+20"] {
        check("max_tree_size", size, "a whole number of bytes from 1 to 9007199254740992");
    }
    check("max_workers", "63", "a whole number from 64 to 4096");
    check("max_workers", "4097", "a whole number from 64 to 4096");
    check("max_attempts", "0", "a whole number from 1 to 16, and 1 + the route's num_retries");
    check("max_attempts", "17", "a whole number from 1 to 16, and 1 + the route's num_retries");
    check("max_buffered_request_bytes", "-1", large);
    check("least_load_mean_prefill_tokens", "0", positive);
    check("least_load_max_waiting_requests", "4294967296", whole);
    check("cb_failure_threshold", "0", positive);
    check("cb_success_threshold", "0", positive);
    check("cb_timeout_duration_secs", "0", positive);
    check("cb_window_duration_secs", "0", positive);
    check("cache_ttl_secs", "0", positive);
    check("cache_ttl_secs", "4294967296", positive);
    let boundaries = "an array of at most 16 whole numbers from 1 to 4294967295, strictly ascending";
    check("cache_boundaries", "[8,4294967296]", boundaries);
    check("cache_boundaries", "[8,8]", boundaries);
    check("cache_boundaries", "[9,8]", boundaries);
    check("cache_boundaries", "[0,8]", boundaries);
    check("cache_boundaries", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", boundaries);
    check("prefix_token_count", "0", positive);
    check("prefix_token_count", "4294967296", positive);
    check("prefix_hash_load_factor", "0.5", "a number, 1 or more");
    check("prefix_hash_balance_abs_threshold", "-1", whole);
    check("bucket_adjust_interval_secs", "0", positive);
    check("load_monitor_interval", "0", positive);
    check("retry_backoff_multiplier", "0.5", "a number, 1 or more");
    check("retry_jitter_factor", "1.5", "a number from 0 to 1");
    check("worker_overload_waiting_requests", "0", positive);
    check("worker_overload_token_usage", "0", "a number above 0, at most 1");
    check("worker_overload_token_usage", "1.5", "a number above 0, at most 1");
}

#[test]
fn wrong_types() {
    check("policy", "5", POLICIES);
    check("cache_threshold", "\"0.3\"", "a number from 0 to 1");
    check("least_load_kv_pressure_weight", "null", "a number; below 0 is the default");
    check("least_load_default_throughput", "[]", "a number; 0 and below is the default");
    check("disable_circuit_breaker", "1", "true or false");
    check("routing_key_override", "\"yes\"", "true or false");
    check("route_metadata", "{}", "true or false");
    check("clusters", "\"a\"", "an array of cluster names");
    check("clusters", "[\"a\",\"\"]", "an array of cluster names");
    check("workers", "\"http://a\"", "an array of workers");
    check("model_header", "\":path\"", "a header's name");
    check("model_header", "\"a b\"", "a header's name");
    check("routing_key_headers", "[]", "an array of header names, at least one");
    check("routing_key_headers", "\"x-a\"", "an array of header names, at least one");
    let items = [(r#"["a b"]"#, "[0]` is \"a b\""), (r#"["x-a","ü"]"#, "[1]` is \"ü\""), (r#"["x-a",5]"#, "[1]` is 5")];
    for (value, named) in items {
        let message = refusal(&format!(r#"{{"routing_key_headers":{value}}}"#));
        assert_eq!(message, format!("`routing_key_headers{named}; allowed: a header's name"));
    }
    check("instance", "\"a/b\"", "at most 32 letters, digits, `-`, `_` and `.`");
    check("instance", "\"123456789012345678901234567890123\"", "at most 32 letters, digits, `-`, `_` and `.`");
}

#[test]
fn a_long_value_is_shown_by_its_beginning() {
    let message = refusal(&format!(r#"{{"role":"{}"}}"#, "ü".repeat(1000)));
    assert_eq!(message, format!("`role` is \"{}…; allowed: route or ingest", "ü".repeat(59)));
}

#[test]
fn keys_that_contradict_each_other() {
    let message = "`eviction_interval` is 0; allowed: at least 1 second with the policy cache_aware";
    assert_eq!(refusal(r#"{"eviction_interval":0}"#), message);
    let message = "`cache_index` is \"hash\"; allowed: tree, or hash together with at least one of cache_boundaries";
    assert_eq!(refusal(r#"{"cache_index":"hash"}"#), message);
    assert_eq!(refusal(r#"{"cache_index":"hash","cache_boundaries":[]}"#), message);
    let message = "`retry_initial_backoff_ms` is 200; allowed: at most retry_max_backoff_ms, 100";
    assert_eq!(refusal(r#"{"retry_initial_backoff_ms":200,"retry_max_backoff_ms":100}"#), message);
    let message = "`retry_initial_backoff_ms` is 30001; allowed: at most retry_max_backoff_ms, 30000";
    assert_eq!(refusal(r#"{"retry_initial_backoff_ms":30001}"#), message);
    let message = refusal(r#"{"cache_threshold":0.5,"cache_match_threshold":0.5}"#);
    assert_eq!(message, "`cache_match_threshold` and `cache_threshold` are the same key: give one of them");
}

#[test]
fn two_workers_of_one_url() {
    let message = refusal(r#"{"workers":["http://10.0.0.1","http://b",{"url":"http://10.0.0.1"}]}"#);
    let expected = "`workers[2].url` is \"http://10.0.0.1\", as is `workers[0].url`; allowed: each URL once";
    assert_eq!(message, expected);
}

#[test]
fn more_workers_than_slots() {
    let urls: Vec<String> = (0..65).map(|n| format!("\"http://w{n}\"")).collect();
    let message = refusal(&format!(r#"{{"max_workers":64,"workers":[{}]}}"#, urls.join(",")));
    assert_eq!(message, "`workers` has 65 entries; allowed: at most `max_workers`, 64");
}

#[test]
fn power_of_two_with_one_worker_and_nobody_to_come() {
    let with = |rest: &str| refusal(&format!(r#"{{"policy":"power_of_two",{rest}}}"#));
    for (rest, workers) in [
        (r#""workers":["http://a"]"#, 1),
        (r#""discovered_workers":false"#, 0),
        (r#""discovered_workers":false,"workers":["http://a"]"#, 1),
    ] {
        let expected = format!(
            "Power-of-two policy requires at least 2 workers: `policy` is \"power_of_two\" and `workers` has {workers}; \
             add one, or set `discovered_workers` to true"
        );
        assert_eq!(with(rest), expected);
    }
}

#[test]
fn a_worker_that_is_wrong_somewhere() {
    let worker = |member: &str| refusal(&format!(r#"{{"workers":["http://a",{{"url":"http://b",{member}}}]}}"#));
    for (member, expected) in [
        (r#""address":"10.0.0.1""#, r#"`workers[1].address` is "10.0.0.1"; allowed: ip:port, IPv6 in brackets"#),
        (r#""address":"a:80""#, r#"`workers[1].address` is "a:80"; allowed: ip:port, IPv6 in brackets"#),
        (r#""address":"10.0.0.1:0""#, r#"`workers[1].address` is "10.0.0.1:0"; allowed: ip:port, IPv6 in brackets"#),
        (r#""models":"m""#, r#"`workers[1].models` is "m"; allowed: an array of model ids"#),
        (r#""model_ids":[""]"#, r#"`workers[1].model_ids` is [""]; allowed: an array of model ids"#),
        (r#""model":["m"]"#, r#"`workers[1].model` is ["m"]; allowed: a model id"#),
        (
            r#""model":"m","models":["m"]"#,
            "`workers[1].models` and `workers[1].model` are the same key: give one of them",
        ),
        (r#""leg":"encode""#, r#"`workers[1].leg` is "encode"; allowed: regular, prefill or decode"#),
        (r#""runtime":"""#, r#"`workers[1].runtime` is ""; allowed: an engine's name, such as sglang or vllm"#),
        (r#""labels":{"a":1}"#, r#"`workers[1].labels` is {"a":1}; allowed: an object of strings"#),
        (r#""bootstrap_port":0"#, "`workers[1].bootstrap_port` is 0; allowed: 1 to 65535, or null"),
        (r#""bootstrap_port":65536"#, "`workers[1].bootstrap_port` is 65536; allowed: 1 to 65535, or null"),
        (r#""bootstrap_port":"none""#, "`workers[1].bootstrap_port` is \"none\"; allowed: 1 to 65535, or null"),
        (
            r#""adress":"10.0.0.1:1""#,
            "`workers[1].adress` is \"10.0.0.1:1\", but there is no such key; did you mean `address`? allowed: url, address, \
             models, model_ids, model, model_id, leg, runtime, labels, bootstrap_port, resilience, overload",
        ),
        (
            r#""resilience":{"cb_timeout_sec":1}"#,
            "`workers[1].resilience.cb_timeout_sec` is 1, but there is no such key; did you mean `cb_timeout_secs`? allowed: \
             cb_failure_threshold, cb_success_threshold, cb_timeout_secs, disable_circuit_breaker, capacity_status_codes, \
             retryable_status_codes",
        ),
        (
            r#""resilience":{"cb_failure_threshold":0}"#,
            "`workers[1].resilience.cb_failure_threshold` is 0; allowed: a whole number from 1 to 4294967295",
        ),
        (
            r#""resilience":{"retryable_status_codes":[600]}"#,
            "`workers[1].resilience.retryable_status_codes` is [600]; allowed: an array of HTTP statuses, 100 to 599",
        ),
        (
            r#""overload":{"token_usage":1.1}"#,
            "`workers[1].overload.token_usage` is 1.1; allowed: a number above 0, at most 1",
        ),
        (
            r#""overload":true"#,
            "`workers[1].overload` is true; allowed: an object with any of waiting_requests, token_usage",
        ),
    ] {
        assert_eq!(worker(member), expected);
    }
    assert_eq!(refusal(r#"{"workers":[{"model":"m"}]}"#), "`workers[0].url` is missing");
    assert_eq!(refusal(r#"{"workers":[5]}"#), "`workers[0]` is 5; allowed: a URL or an object with a url");
    assert_eq!(
        refusal(r#"{"workers":[{"url":5}]}"#),
        "`workers[0].url` is 5; allowed: http://host[:port], https://host[:port], grpc://host:port or \
         grpcs://host:port"
    );
}

#[test]
fn urls_that_reach_no_worker() {
    for url in [
        "",
        "10.0.0.1:8000",
        "grpc://10.0.0.1",
        "ftp://10.0.0.1:8000",
        "http://",
        "http:///",
        "http://:80",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://a:+80",
        "http://a:8000/v1",
        "http://a?x",
        "http://user@a",
        "http://a b",
        "http://[::1",
        "http://[::1]8000",
        "http://[10.0.0.1]:80",
        "http://[fe80::1%1]:80",
        "http://::1:80",
        "http://\u{fc}",
    ] {
        let message = refusal(&format!(r#"{{"workers":["{url}"]}}"#));
        let expected = format!(
            "`workers[0]` is \"{url}\"; allowed: http://host[:port], https://host[:port], grpc://host:port or \
         grpcs://host:port"
        );
        assert_eq!(message, expected);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Config::parse(&bytes);
    }

    #[test]
    fn any_url_is_read_or_refused(url in "(http://|https://|grpcs?://)?[\\[\\]:/0-9a-z.@%]{0,20}") {
        let text = format!(r#"{{"workers":["{url}"]}}"#);
        match Config::parse(text.as_bytes()) {
            Ok(config) => {
                let worker = &config.workers[0];
                prop_assert_eq!(&worker.url, &url);
                if let Some(address) = &worker.address {
                    prop_assert!(address.parse::<std::net::SocketAddr>().is_ok());
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("workers[0]")),
        }
    }
}

#[test]
fn a_worker_twice_with_and_without_a_slash() {
    assert_eq!(
        refusal(r#"{"workers":["http://10.0.0.1:80","http://10.0.0.1:80/"]}"#),
        "`workers[1].url` is \"http://10.0.0.1:80/\", as is `workers[0].url`; allowed: each URL once"
    );
}

#[test]
fn an_address_twice() {
    let expected = "`workers[1]` has the address \"127.0.0.1:80\", as has `workers[0]`; allowed: each address once";
    for second in [r#"{"url":"http://engine:80","address":"127.0.0.1:80"}"#, r#""http://127.0.0.1:80""#] {
        assert_eq!(refusal(&format!(r#"{{"workers":["http://127.0.0.1",{second}]}}"#)), expected);
    }
}

#[test]
fn what_an_invalid_configuration_wants_is_known_all_the_same() {
    use crate::config::OnInvalidConfig::{Passthrough, Refuse};
    for (text, wants) in [
        (r#"{"on_invalid_config":"passthrough","typo":1}"#, Passthrough),
        (r#"{"on_invalid_config":"refuse","typo":1}"#, Refuse),
        (r#"{"on_invalid_config":"maybe"}"#, Refuse),
        (r#"{"on_invalid_config":3}"#, Refuse),
        (r#"{"typo":1}"#, Refuse),
        (r#"[{"on_invalid_config":"passthrough"}]"#, Refuse),
        // Cut off or otherwise no JSON.
        ("{ \"on_invalid_config\" :\n \"passthrough\", \"workers\": [", Passthrough),
        (r#"{"on_invalid_config":"passthrough"#, Refuse),
        (r#"{"on_invalid_config":"refuse","#, Refuse),
        ("{", Refuse),
        ("", Refuse),
    ] {
        assert_eq!(crate::config::OnInvalidConfig::of_invalid(text.as_bytes()), wants, "{text}");
    }
    check("on_invalid_config", "\"maybe\"", "refuse or passthrough");
}
