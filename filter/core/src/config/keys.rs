//! The table of all top-level keys: names, what is allowed, where the value goes.

use serde_json::{Map, Value};

use super::overrides::POSITIVE;
use super::values::{ascending, count, header, name, number, strings, whole};
use super::{
    AssignmentMode, CacheIndex, ColdStartTies, Config, ConfigError, ExposeWorkerId, LoadMetric, LogLevel,
    OnInvalidConfig, PolicyName, Role, ScoreParams, TrustRoutingHeaders, reports, scope, workers,
};

/// Reads all keys into `config`.
pub(super) fn read(members: &Map<String, Value>, config: &mut Config) -> Result<(), ConfigError> {
    for (given, value) in members {
        let Some(key) = KEYS.iter().find(|key| key.names().any(|name| name == given)) else {
            if let Some(refusal) = scope::key(given, given, value) {
                return Err(refusal);
            }
            let names: Vec<&'static str> = KEYS.iter().flat_map(Key::names).collect();
            return Err(ConfigError::unknown(given, value, given, &names));
        };
        if let Some(other) = key.names().find(|&name| name != given && members.contains_key(name)) {
            return Err(ConfigError::Twice { path: given.clone(), other: other.to_owned() });
        }
        match key.set {
            Set::Value(set) => set(config, value).ok_or_else(|| ConfigError::value(given, value, key.allowed))?,
            Set::Nothing(valid) => {
                valid(value).ok_or_else(|| ConfigError::value(given, value, key.allowed))?;
                config.without_effect.push(key.name);
            }
            Set::KeyHeaders => config.routing_key_headers = headers(given, value)?,
            Set::Reports => config.reports = reports::read(given, value)?,
            Set::Workers => {
                config.workers = workers::read(given, value)?;
                config.without_effect.extend(workers::without_effect(&config.workers));
            }
        }
    }
    Ok(())
}

struct Key {
    name: &'static str,
    /// SMG's other name of the flag.
    alias: Option<&'static str>,
    allowed: &'static str,
    set: Set,
}

enum Set {
    Value(fn(&mut Config, &Value) -> Option<()>),
    /// A flag without effect in this version, checked all the same: the configuration is to survive an upgrade.
    Nothing(fn(&Value) -> Option<()>),
    Workers,
    Reports,
    KeyHeaders,
}

impl Key {
    const fn new(name: &'static str, allowed: &'static str, set: fn(&mut Config, &Value) -> Option<()>) -> Self {
        Self { name, alias: None, allowed, set: Set::Value(set) }
    }

    const fn inert(name: &'static str, allowed: &'static str, valid: fn(&Value) -> Option<()>) -> Self {
        Self { name, alias: None, allowed, set: Set::Nothing(valid) }
    }

    const fn or(mut self, alias: &'static str) -> Self {
        self.alias = Some(alias);
        self
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.alias)
    }
}

const HEADER: &str = "a header's name";
const HEADERS: &str = "an array of header names, at least one";
const BOOLEAN: &str = "true or false";
const WHOLE: &str = "a whole number from 0 to 4294967295";
/// Up to what a number of JSON says exactly.
const LARGE: &str = "a whole number from 0 to 9007199254740992";
const SHARE: &str = "a number from 0 to 1";
const USAGE: &str = "a number above 0; 1 or more turns it off";
const NOT_NEGATIVE: &str = "a number, 0 or more";
const FACTOR: &str = "a number, 1 or more";
const POLICIES: &str = "cache_aware, least_load, power_of_two, round_robin, random, passthrough, \
     consistent_hashing, prefix_hash, manual or bucket";
const LEG_POLICIES: [&str; 9] = [
    "bucket",
    "random",
    "round_robin",
    "cache_aware",
    "power_of_two",
    "least_load",
    "prefix_hash",
    "consistent_hashing",
    "manual",
];

/// Header names, at least one.
fn headers(given: &str, value: &Value) -> Result<Vec<String>, ConfigError> {
    let names = value.as_array().filter(|names| !names.is_empty());
    let names = names.ok_or_else(|| ConfigError::value(given, value, HEADERS))?;
    let refused = |at: usize, name: &Value| ConfigError::value(&format!("{given}[{at}]"), name, HEADER);
    names.iter().enumerate().map(|(at, name)| header(name).ok_or_else(|| refused(at, name))).collect()
}

fn share(number: f64) -> bool {
    (0.0..=1.0).contains(&number)
}

fn any_count(value: &Value) -> Option<()> {
    count(value, 0).map(drop)
}

fn positive(value: &Value) -> Option<()> {
    count(value, 1).map(drop)
}

fn factor(value: &Value) -> Option<()> {
    number(value, |number| number >= 1.0).map(drop)
}

fn boolean(value: &Value) -> Option<()> {
    value.as_bool().map(drop)
}

fn put<T>(place: &mut T, value: Option<T>) -> Option<()> {
    *place = value?;
    Some(())
}

/// SMG replaces numbers that make no sense by its default, where this key says so.
fn or_default(config: &mut Config, key: &'static str, value: f64, valid: bool, default: f64) -> f64 {
    if valid {
        return value;
    }
    config.replaced.push(key);
    default
}

const KEYS: &[Key] = &[
    Key::new("role", "route or ingest", |c, v| put(&mut c.role, Role::from_name(v.as_str()?))),
    Key::new("instance", "at most 32 letters, digits, `-`, `_` and `.`", |c, v| {
        let name = v.as_str()?;
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        (name.len() <= 32 && name.bytes().all(valid)).then(|| c.instance = name.to_owned())
    }),
    Key { name: "workers", alias: Some("worker_urls"), allowed: "", set: Set::Workers },
    Key::new("discovered_workers", BOOLEAN, |c, v| put(&mut c.discovered_workers, v.as_bool().map(Some))),
    Key { name: "reports", alias: None, allowed: "", set: Set::Reports },
    Key::new("policy", POLICIES, |c, v| put(&mut c.policy, PolicyName::from_name(v.as_str()?))),
    Key::new("max_attempts", "a whole number from 1 to 16, and 1 + the route's num_retries", |c, v| {
        put(&mut c.max_attempts, count(v, 1).filter(|&attempts| attempts <= 16))
    })
    .or("retry_max_retries"),
    Key::new("clusters", "an array of cluster names", |c, v| put(&mut c.clusters, strings(v).map(Some))),
    Key::new("route_metadata", BOOLEAN, |c, v| put(&mut c.route_metadata, v.as_bool())),
    Key::new("model_header", HEADER, |c, v| put(&mut c.model_header, header(v).map(Some))),
    Key { name: "routing_key_headers", alias: None, allowed: HEADERS, set: Set::KeyHeaders },
    Key::new("trust_routing_headers", "always, internal or never", |c, v| {
        put(&mut c.trust_routing_headers, TrustRoutingHeaders::from_name(v.as_str()?))
    }),
    Key::new("expose_worker_id", "url, hash or off", |c, v| put(&mut c.expose, ExposeWorkerId::from_name(v.as_str()?))),
    Key::new("explain_decisions", BOOLEAN, |c, v| put(&mut c.explain_decisions, v.as_bool())),
    Key::new("cold_start_ties", "random or ring", |c, v| {
        put(&mut c.cold_start_ties, ColdStartTies::from_name(v.as_str()?))
    }),
    Key::new("max_workers", "a whole number from 64 to 4096", |c, v| {
        let workers = count(v, 64).filter(|&workers| workers <= 4096)?;
        put(&mut c.max_workers, Some(workers.next_multiple_of(64)))
    }),
    Key::new("max_tree_size", "a whole number of bytes from 1 to 9007199254740992", |c, v| {
        put(&mut c.max_tree_size, whole(v).filter(|&bytes| bytes > 0))
    }),
    Key::new("max_buffered_request_bytes", LARGE, |c, v| put(&mut c.max_buffered_request_bytes, whole(v))),
    Key::new("on_invalid_config", "refuse or passthrough", |c, v| {
        put(&mut c.on_invalid_config, OnInvalidConfig::from_name(v.as_str()?))
    }),
    Key::new("log_level", "trace, debug, info, warn or error", |c, v| {
        put(&mut c.log_level, LogLevel::from_name(v.as_str()?))
    }),
    // cache_aware
    Key::new("cache_threshold", SHARE, |c, v| put(&mut c.cache.threshold, number(v, share).map(|share| share as f32)))
        .or("cache_match_threshold"),
    Key::new("balance_abs_threshold", LARGE, |c, v| put(&mut c.cache.balance_abs, whole(v))).or("spill_abs_threshold"),
    Key::new("balance_rel_threshold", FACTOR, |c, v| put(&mut c.cache.balance_rel, number(v, |number| number >= 1.0)))
        .or("spill_rel_threshold"),
    Key::new("balance_token_usage_threshold", USAGE, |c, v| {
        put(&mut c.cache.balance_token_usage, number(v, |number| number > 0.0))
    }),
    Key::new("overload_token_usage_threshold", USAGE, |c, v| {
        put(&mut c.cache.overload_token_usage, number(v, |number| number > 0.0))
    }),
    Key::new("overlap_decay", NOT_NEGATIVE, |c, v| put(&mut c.cache.overlap_decay, number(v, |number| number >= 0.0))),
    Key::new("selection_temperature", NOT_NEGATIVE, |c, v| {
        put(&mut c.cache.selection_temperature, number(v, |number| number >= 0.0))
    }),
    Key::new("block_size", POSITIVE, |c, v| put(&mut c.cache.block_size, count(v, 1))),
    Key::new("cache_index", "tree or hash", |c, v| put(&mut c.cache.index, CacheIndex::from_name(v.as_str()?))),
    Key::new(
        "cache_boundaries",
        "an array of at most 16 whole numbers from 1 to 4294967295, strictly ascending",
        |c, v| {
            // Each costs a read and a write of shared data.
            put(&mut c.cache_boundaries, ascending(v).filter(|boundaries| boundaries.len() <= 16))
        },
    ),
    Key::new("cache_ttl_secs", POSITIVE, |c, v| put(&mut c.cache.ttl_secs, count(v, 1))),
    Key::new("eviction_interval", WHOLE, |c, v| put(&mut c.sticky.eviction_interval_secs, count(v, 0)))
        .or("eviction_interval_secs"),
    // least_load
    Key::new("least_load_kv_pressure_weight", "a number; below 0 is the default", |c, v| {
        let (weight, default) = (number(v, |_| true)?, ScoreParams::default().kv_pressure_weight);
        c.score.kv_pressure_weight = or_default(c, "least_load_kv_pressure_weight", weight, weight >= 0.0, default);
        Some(())
    }),
    Key::new("least_load_default_throughput", "a number; 0 and below is the default", |c, v| {
        let (rate, default) = (number(v, |_| true)?, ScoreParams::default().default_throughput);
        c.score.default_throughput = or_default(c, "least_load_default_throughput", rate, rate > 0.0, default);
        Some(())
    }),
    Key::new("least_load_mean_prefill_tokens", POSITIVE, |c, v| put(&mut c.score.mean_prefill_tokens, count(v, 1))),
    Key::new("least_load_max_waiting_requests", WHOLE, |c, v| put(&mut c.score.max_waiting, count(v, 0))),
    Key::new("power_of_two_load_metric", "expected_wait, requests or least_requests", |c, v| {
        put(&mut c.load_metric, LoadMetric::from_name(v.as_str()?))
    }),
    // prefix_hash
    Key::new("prefix_token_count", POSITIVE, |c, v| put(&mut c.prefix_hash.token_count, count(v, 1))),
    Key::new("prefix_hash_load_factor", FACTOR, |c, v| {
        put(&mut c.prefix_hash.load_factor, number(v, |number| number >= 1.0))
    }),
    Key::new("prefix_hash_balance_abs_threshold", WHOLE, |c, v| put(&mut c.prefix_hash.balance_abs, count(v, 0))),
    // manual and the routing-key override
    Key::new("routing_key_override", BOOLEAN, |c, v| put(&mut c.sticky.routing_key_override, v.as_bool()))
        .or("sticky_sessions"),
    Key::new("assignment_mode", "random, min_load, min_group or delegate", |c, v| {
        put(&mut c.sticky.assignment_mode, AssignmentMode::from_name(v.as_str()?).map(Some))
    }),
    Key::new("max_idle_secs", WHOLE, |c, v| put(&mut c.sticky.max_idle_secs, count(v, 0))).or("sticky_key_idle_secs"),
    Key::new("max_sticky_keys", "a whole number from 1,000 to 16,000,000", |c, v| {
        put(&mut c.sticky.max_keys, count(v, 1000).filter(|&keys| keys <= 16_000_000))
    }),
    Key::new("max_response_ids", "a whole number from 1,000 to 16,000,000", |c, v| {
        put(&mut c.max_response_ids, count(v, 1000).filter(|&ids| ids <= 16_000_000).map(Some))
    }),
    // Circuit breaker
    Key::new("cb_failure_threshold", POSITIVE, |c, v| put(&mut c.breaker.failure_threshold, count(v, 1))),
    Key::new("cb_success_threshold", POSITIVE, |c, v| put(&mut c.breaker.success_threshold, count(v, 1))),
    Key::new("cb_timeout_duration_secs", POSITIVE, |c, v| put(&mut c.breaker.timeout_secs, count(v, 1))),
    Key::inert("cb_window_duration_secs", POSITIVE, positive),
    Key::new("disable_circuit_breaker", BOOLEAN, |c, v| {
        put(&mut c.breaker.enabled, v.as_bool().map(|disable| !disable))
    }),
    // Overload protection
    Key::new("worker_overload_protection", BOOLEAN, |c, v| put(&mut c.overload_protection, v.as_bool())),
    Key::new("worker_overload_waiting_requests", POSITIVE, |c, v| {
        put(&mut c.overload.waiting_requests, count(v, 1).map(Some))
    }),
    Key::new("worker_overload_token_usage", "a number above 0, at most 1", |c, v| {
        put(&mut c.overload.token_usage, number(v, |usage| usage > 0.0 && usage <= 1.0).map(Some))
    }),
    // Retries are Envoy's: the route's retry policy has these settings.
    Key::inert("disable_retries", BOOLEAN, boolean),
    Key::inert("retry_initial_backoff_ms", WHOLE, any_count),
    Key::inert("retry_max_backoff_ms", WHOLE, any_count),
    Key::inert("retry_backoff_multiplier", FACTOR, factor),
    Key::inert("retry_jitter_factor", SHARE, |v| number(v, share).map(drop)),
    // Polling is the sidecar's.
    Key::inert("load_monitor_interval", POSITIVE, positive),
    Key::inert("disable_load_monitoring", BOOLEAN, boolean),
    // Policies and features of later versions
    // Until there is a prefill leg, whose policy alone has buckets.
    Key::new("bucket_adjust_interval_secs", POSITIVE, |c, v| {
        put(&mut c.bucket_adjust_secs, count(v, 1))?;
        c.without_effect.push("bucket_adjust_interval_secs");
        Some(())
    }),
    Key::inert("prefill_policy", "an SMG policy other than passthrough", |v| name(v, &LEG_POLICIES)),
    Key::inert("decode_policy", "an SMG policy other than passthrough and bucket", |v| name(v, LEG_POLICIES.get(1..)?)),
    Key::inert("encode_policy", "random, round_robin or consistent_hashing", |v| {
        name(v, &["random", "round_robin", "consistent_hashing"])
    }),
    Key::inert("pd_pairing_mode", "off, lenient or strict", |v| name(v, &["off", "lenient", "strict"])),
    Key::inert("pd_admission_wait_secs", WHOLE, any_count),
];
