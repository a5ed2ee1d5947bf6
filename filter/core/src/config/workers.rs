//! The list of workers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Map, Value};

use super::values::{count, strings, text};
use super::{ConfigError, named, overrides, scope};
use crate::report::{Overload, Resilience};

named! {
    /// What part of a request a worker does.
    Leg {
        /// All of it.
        Regular = "regular",
        /// The prompt.
        Prefill = "prefill",
        /// The answer.
        Decode = "decode",
    }
}

/// One configured worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorkerConfig {
    /// The worker's URL, byte for byte as configured: its name everywhere.
    pub url: String,
    /// Where it is reached, `ip:port` with IPv6 in brackets. `None` for a host name that nobody has resolved yet.
    pub address: Option<String>,
    /// The ids of the models that it serves, each once. None: what a sidecar says, or any.
    pub models: Vec<String>,
    /// What part of a request it does. `None`: what a sidecar says, or all of it.
    pub leg: Option<Leg>,
    /// The engine, in lower case (`sglang`, `vllm`); empty if not said.
    pub runtime: String,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// The port of SGLang's bootstrap server on a prefill worker.
    pub bootstrap_port: Option<u16>,
    /// Its own circuit breaker settings; what is absent is the configuration's.
    pub resilience: Resilience,
    /// Its own limits of overload protection; what is absent is the configuration's.
    pub overload: Overload,
}

const KEYS: [&str; 12] = [
    "url",
    "address",
    "models",
    "model_ids",
    "model",
    "model_id",
    "leg",
    "runtime",
    "labels",
    "bootstrap_port",
    "resilience",
    "overload",
];
const MODEL_KEYS: [&str; 4] = ["models", "model_ids", "model", "model_id"];
const URL: &str = "http://host[:port], https://host[:port], grpc://host:port or grpcs://host:port";

/// The workers in the array `value`, each an object or just a URL.
pub(super) fn read(key: &str, value: &Value) -> Result<Vec<WorkerConfig>, ConfigError> {
    let array = value.as_array().ok_or_else(|| ConfigError::value(key, value, "an array of workers"))?;
    let mut workers = Vec::with_capacity(array.len());
    let (mut seen, mut addresses) = (BTreeMap::new(), BTreeMap::new());
    for (at, value) in array.iter().enumerate() {
        let worker = read_one(&format!("{key}[{at}]"), value)?;
        if let Some(first) = seen.insert(worker.url.trim_end_matches('/').to_owned(), at) {
            return Err(ConfigError::DuplicateWorker { url: worker.url, first, again: at });
        }
        // One engine under two names would have two counts, and its answers could not be told apart.
        if let Some(address) = &worker.address
            && let Some(first) = addresses.insert(address.clone(), at)
        {
            return Err(ConfigError::DuplicateAddress { address: address.clone(), first, again: at });
        }
        workers.push(worker);
    }
    Ok(workers)
}

/// The members that are given and change nothing in this version.
pub(super) fn without_effect(workers: &[WorkerConfig]) -> Vec<&'static str> {
    let given = |given: fn(&WorkerConfig) -> bool| workers.iter().any(given);
    [
        (
            given(|worker| !matches!(worker.leg, None | Some(Leg::Regular))),
            "workers[].leg (prefill and decode workers take no requests)",
        ),
        (given(|worker| !worker.runtime.is_empty()), "workers[].runtime"),
        (given(|worker| worker.labels.keys().any(|label| label != "policy")), "workers[].labels (but for policy)"),
        (given(|worker| worker.bootstrap_port.is_some()), "workers[].bootstrap_port"),
    ]
    .into_iter()
    .filter_map(|(given, name)| given.then_some(name))
    .collect()
}

fn read_one(path: &str, value: &Value) -> Result<WorkerConfig, ConfigError> {
    let members = match value {
        Value::String(_) => return read_url(path, value),
        Value::Object(members) => members,
        _ => return Err(ConfigError::value(path, value, "a URL or an object with a url")),
    };
    if let Some((unknown, value)) = members.iter().find(|(key, _)| !KEYS.contains(&key.as_str())) {
        let path = format!("{path}.{unknown}");
        let refusal = scope::key(&path, unknown, value);
        return Err(refusal.unwrap_or_else(|| ConfigError::unknown(&path, value, unknown, &KEYS)));
    }
    let url = members.get("url").ok_or_else(|| ConfigError::Missing { path: format!("{path}.url") })?;
    let mut worker = read_url(&format!("{path}.url"), url)?;
    worker.models = read_models(path, members)?;
    let wrong = |key: &str, value: &Value, allowed: &str| ConfigError::value(&format!("{path}.{key}"), value, allowed);
    if let Some(value) = members.get("address") {
        let address = value.as_str().and_then(socket_address);
        worker.address = Some(address.ok_or_else(|| wrong("address", value, "ip:port, IPv6 in brackets"))?);
    }
    if let Some(value) = members.get("leg") {
        let leg = value.as_str().and_then(Leg::from_name);
        worker.leg = Some(leg.ok_or_else(|| wrong("leg", value, "regular, prefill or decode"))?);
    }
    if let Some(value) = members.get("runtime") {
        let runtime = text(value).ok_or_else(|| wrong("runtime", value, "an engine's name, such as sglang or vllm"))?;
        worker.runtime = runtime.to_lowercase();
    }
    if let Some(value) = members.get("labels") {
        worker.labels = labels(value).ok_or_else(|| wrong("labels", value, "an object of strings"))?;
    }
    if let Some(value) = members.get("bootstrap_port").filter(|value| !value.is_null()) {
        let port = count(value, 1).and_then(|port| u16::try_from(port).ok());
        worker.bootstrap_port = Some(port.ok_or_else(|| wrong("bootstrap_port", value, "1 to 65535, or null"))?);
    }
    if let Some(value) = members.get("resilience") {
        worker.resilience = overrides::resilience(&format!("{path}.resilience"), value)?;
    }
    if let Some(value) = members.get("overload") {
        worker.overload = overrides::overload(&format!("{path}.overload"), value)?;
    }
    Ok(worker)
}

fn read_url(path: &str, value: &Value) -> Result<WorkerConfig, ConfigError> {
    let wrong = || scope::url(path, value, is_worker_url).unwrap_or_else(|| ConfigError::value(path, value, URL));
    let url = value.as_str().ok_or_else(wrong)?;
    let address = address_of(url).ok_or_else(wrong)?;
    Ok(WorkerConfig { url: url.to_owned(), address, ..WorkerConfig::default() })
}

fn read_models(path: &str, members: &Map<String, Value>) -> Result<Vec<String>, ConfigError> {
    let mut given = MODEL_KEYS.into_iter().filter_map(|key| Some((key, members.get(key)?)));
    let Some((key, value)) = given.next() else { return Ok(Vec::new()) };
    if let Some((other, _)) = given.next() {
        return Err(ConfigError::Twice { path: format!("{path}.{key}"), other: format!("{path}.{other}") });
    }
    let (models, allowed) = match key {
        "models" | "model_ids" => (strings(value), "an array of model ids"),
        _ => (text(value).map(|model| vec![model]), "a model id"),
    };
    let models = models.ok_or_else(|| ConfigError::value(&format!("{path}.{key}"), value, allowed))?;
    let mut once = Vec::with_capacity(models.len());
    for model in models {
        if !once.contains(&model) {
            once.push(model);
        }
    }
    Ok(once)
}

fn labels(value: &Value) -> Option<BTreeMap<String, String>> {
    value.as_object()?.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Whether a worker can have this URL.
#[must_use]
pub fn is_worker_url(url: &str) -> bool {
    address_of(url).is_some()
}

/// The address that a worker's URL spells, `ip:port`; none if it has a host name.
#[must_use]
pub fn spelled_address(url: &str) -> Option<String> {
    address_of(url).flatten()
}

/// The address of a valid URL: `Some(None)` for a host name, `None` if the URL is not valid. A path is not valid:
/// requests go to the worker with the path that the client sent.
fn address_of(url: &str) -> Option<Option<String>> {
    let (scheme, authority) = url.split_once("://")?;
    let default_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        "grpc" | "grpcs" => None,
        _ => return None,
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (IpAddr::V6(host.parse().ok()?).to_string(), port)
        }
        None => {
            let host = authority.split(':').next()?;
            (host.to_owned(), authority.get(host.len()..)?)
        }
    };
    let port = match port {
        "" => default_port?,
        port => port_number(port.strip_prefix(':')?)?,
    };
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(Some(SocketAddr::new(ip, port).to_string()));
    }
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (!host.is_empty() && host.len() <= 253 && host.bytes().all(valid)).then_some(None)
}

fn socket_address(text: &str) -> Option<String> {
    let address: SocketAddr = text.parse().ok()?;
    (address.port() > 0 && !text.contains('%')).then(|| address.to_string())
}

fn port_number(digits: &str) -> Option<u16> {
    let port: u16 = digits.parse().ok()?;
    (port > 0 && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(port)
}
