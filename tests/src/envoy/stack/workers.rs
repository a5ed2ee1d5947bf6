//! The engines that an operator names, by URL or in the plugin configuration, and the addresses behind their names.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use filter_core::config::Config;
use serde_json::{Map, Value, json};

use super::super::options::Worker;

/// One worker of a plugin configuration.
#[derive(Debug)]
pub(super) struct Listed {
    url: String,
    address: Option<String>,
    extra: Map<String, Value>,
}

/// Takes the workers out of a plugin configuration, if it has some.
pub(super) fn take(plugin: &mut Value) -> Result<Option<Vec<Listed>>> {
    let Some(members) = plugin.as_object_mut() else { return Ok(None) };
    let mut own = Map::new();
    for key in ["workers", "worker_urls"] {
        own.extend(members.remove(key).filter(|value| !value.is_null()).map(|value| (key.to_owned(), value)));
    }
    let given: Vec<Value> = own.values().filter_map(Value::as_array).flatten().cloned().collect();
    let config = Config::parse(Value::Object(own).to_string().as_bytes()).context("plugin configuration")?;
    if config.workers.is_empty() {
        return Ok(None);
    }
    let listed = config.workers.into_iter().zip(given).map(|(worker, given)| {
        let mut extra = given.as_object().cloned().unwrap_or_default();
        extra.retain(|key, _| key != "url" && key != "address");
        Listed { url: worker.url, address: worker.address, extra }
    });
    Ok(Some(listed.collect()))
}

/// The workers of a plugin configuration with their addresses; names without one are looked up.
pub(super) async fn resolved(listed: Vec<Listed>) -> Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for Listed { url, address, extra } in listed {
        let worker = match address {
            Some(address) => Worker { address: address.parse()?, url, extra },
            None => Worker { extra, ..resolve(&url).await? },
        };
        if !worker.url.starts_with("http://") {
            bail!("worker {}: the engines are reached by HTTP without TLS; write it as http://host:port", worker.url);
        }
        workers.push(worker);
    }
    distinct(workers)
}

/// The workers at these URLs.
pub(super) async fn from_urls(urls: &[String]) -> Result<Vec<Worker>> {
    let mut workers = Vec::new();
    for url in urls {
        workers.push(resolve(url).await.context("WORKERS")?);
    }
    distinct(workers).context("WORKERS")
}

/// Envoy needs the address behind a host's name.
async fn resolve(given: &str) -> Result<Worker> {
    // Filter and sidecar compare URLs byte by byte, so both get it without the slash.
    let url = given.strip_suffix('/').unwrap_or(given);
    let example = "write it as http://host:port, several separated by spaces";
    if let Err(error) = Config::parse(json!({ "workers": [url] }).to_string().as_bytes()) {
        // The filter's message names the place in a list that the operator has not written.
        let why = if given.contains("://") { "not a URL of a worker" } else { "a URL starts with http://" };
        bail!("`{given}`: {why}; {example} ({})", error.to_string().replace("workers[0]", "url"));
    }
    let parsed: reqwest::Url = url.parse().with_context(|| format!("`{given}`: not a URL; {example}"))?;
    if parsed.scheme() != "http" {
        bail!("`{given}`: the engines are reached by HTTP without TLS; {example}");
    }
    let host = parsed.host_str().unwrap_or_default();
    let port = parsed.port_or_known_default().unwrap_or(80);
    // IPv6 stands in brackets in a URL.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = tokio::net::lookup_host((name, port))
        .await
        .with_context(|| format!("`{given}`: the name {name} does not resolve; check it, or write the IP address"))?
        .collect();
    // Engines listen on IPv4 by default, and "localhost" is often ::1 first.
    let address = found.iter().find(|address| address.is_ipv4()).or(found.first());
    let address = *address.with_context(|| format!("`{given}`: {name} has no address; write the IP address"))?;
    Ok(Worker { url: url.to_owned(), ..Worker::at(address) })
}

/// Two names of one engine would count its load twice.
fn distinct(workers: Vec<Worker>) -> Result<Vec<Worker>> {
    let mut seen = BTreeMap::new();
    for worker in &workers {
        if let Some(other) = seen.insert(worker.address, &worker.url) {
            bail!("{other} and {} are the same engine, {}; name it once", worker.url, worker.address);
        }
    }
    Ok(workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_resolved_and_addresses_kept() {
        for (url, address) in [
            ("http://127.0.0.1:8001/", "127.0.0.1:8001"),
            ("http://localhost:8002", "127.0.0.1:8002"),
            ("http://[::1]:8003", "[::1]:8003"),
            ("http://127.0.0.1", "127.0.0.1:80"),
        ] {
            let worker = resolve(url).await.unwrap();
            assert_eq!(worker.address.to_string(), address);
            assert_eq!(worker.url, url.trim_end_matches('/'));
        }
    }

    #[tokio::test]
    async fn refusals_say_what_is_wrong() {
        for (urls, part) in [
            ("127.0.0.1:8001", "WORKERS: `127.0.0.1:8001`: a URL starts with http://; write it as http://host:port"),
            ("https://127.0.0.1:1", "`https://127.0.0.1:1`: the engines are reached by HTTP without TLS"),
            ("http://127.0.0.1:1/v1", "`http://127.0.0.1:1/v1`: not a URL of a worker; write it as"),
            ("http://127.0.0.1:99999", "not a URL of a worker; write it as"),
            ("http://", "not a URL of a worker"),
            ("http://nowhere.invalid:1", "the name nowhere.invalid does not resolve; check it, or write the IP"),
            ("http://localhost:1 http://127.0.0.1:1", "are the same engine, 127.0.0.1:1; name it once"),
        ] {
            let urls: Vec<_> = urls.split(' ').map(str::to_owned).collect();
            let error = format!("{:#}", from_urls(&urls).await.unwrap_err());
            assert!(error.contains(part), "{error}\nlacks\n{part}");
        }
    }

    #[tokio::test]
    async fn workers_of_a_plugin_configuration_keep_their_members() {
        let mut plugin = json!({ "policy": "random", "workers": [
            "http://localhost:1",
            { "url": "http://engine-1:8000", "address": "127.0.0.2:2", "model_ids": ["m"] },
        ] });
        let workers = resolved(take(&mut plugin).unwrap().unwrap()).await.unwrap();
        assert_eq!(plugin, json!({ "policy": "random" }));
        let found: Vec<_> = workers.iter().map(Worker::to_plugin).collect();
        assert_eq!(
            Value::from(found),
            json!([
                { "url": "http://localhost:1", "address": "127.0.0.1:1" },
                { "url": "http://engine-1:8000", "address": "127.0.0.2:2", "model_ids": ["m"] },
            ])
        );
        assert!(take(&mut plugin).unwrap().is_none());
        let error = take(&mut json!({ "workers": [{ "url": "http://a", "lag": "x" }] })).unwrap_err();
        assert!(format!("{error:#}").contains("did you mean `leg`"), "{error:#}");
    }
}
