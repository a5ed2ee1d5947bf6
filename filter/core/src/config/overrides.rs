//! What a worker has of its own: circuit breaker settings and limits of overload protection.

use serde_json::{Map, Value};

use super::ConfigError;
use super::values::{count, number, statuses};
use crate::report::{Overload, Resilience};

const RESILIENCE: [&str; 6] = [
    "cb_failure_threshold",
    "cb_success_threshold",
    "cb_timeout_secs",
    "disable_circuit_breaker",
    "capacity_status_codes",
    "retryable_status_codes",
];
const OVERLOAD: [&str; 2] = ["waiting_requests", "token_usage"];
/// What a count may be that must not be 0.
pub(super) const POSITIVE: &str = "a whole number from 1 to 4294967295";
const STATUSES: &str = "an array of HTTP statuses, 100 to 599";

/// The settings in `value`, an object at `path`.
pub(super) fn resilience(path: &str, value: &Value) -> Result<Resilience, ConfigError> {
    let members = object(path, value, &RESILIENCE)?;
    let least_one = |value: &Value| count(value, 1);
    Ok(Resilience {
        cb_failure_threshold: member(path, members, "cb_failure_threshold", POSITIVE, least_one)?,
        cb_success_threshold: member(path, members, "cb_success_threshold", POSITIVE, least_one)?,
        cb_timeout_secs: member(path, members, "cb_timeout_secs", POSITIVE, least_one)?,
        disable_circuit_breaker: member(path, members, "disable_circuit_breaker", "true or false", Value::as_bool)?,
        capacity_status_codes: member(path, members, "capacity_status_codes", STATUSES, statuses)?,
        retryable_status_codes: member(path, members, "retryable_status_codes", STATUSES, statuses)?,
    })
}

/// The limits in `value`, an object at `path`.
pub(super) fn overload(path: &str, value: &Value) -> Result<Overload, ConfigError> {
    let members = object(path, value, &OVERLOAD)?;
    let usage = |value: &Value| number(value, |usage| usage > 0.0 && usage <= 1.0);
    Ok(Overload {
        waiting_requests: member(path, members, "waiting_requests", POSITIVE, |value| count(value, 1))?,
        token_usage: member(path, members, "token_usage", "a number above 0, at most 1", usage)?,
    })
}

fn object<'a>(path: &str, value: &'a Value, keys: &[&'static str]) -> Result<&'a Map<String, Value>, ConfigError> {
    let members = value.as_object().ok_or_else(|| {
        let allowed = format!("an object with any of {}", keys.join(", "));
        ConfigError::value(path, value, &allowed)
    })?;
    match members.iter().find(|(key, _)| !keys.contains(&key.as_str())) {
        Some((unknown, value)) => Err(ConfigError::unknown(&format!("{path}.{unknown}"), value, unknown, keys)),
        None => Ok(members),
    }
}

fn member<T>(
    path: &str,
    members: &Map<String, Value>,
    key: &str,
    allowed: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = members.get(key).filter(|value| !value.is_null()) else { return Ok(None) };
    read(value).map(Some).ok_or_else(|| ConfigError::value(&format!("{path}.{key}"), value, allowed))
}
