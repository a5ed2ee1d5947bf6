//! `envoy/envoy.yaml`, parsed and overridden: pure functions from options to Envoy's configuration.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::options::{EnvoyOptions, Worker};

const ROUTING: &str = "routing";
const INGEST: &str = "ingest";
/// The cluster of the workers.
pub(super) const ENGINES: &str = "engines";

/// Listeners and clusters as Envoy shall see them, and the plugin configuration of the routing listener.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// `admin`, `stats_config` and whatever else is neither listener nor cluster.
    pub(super) bootstrap: Value,
    listeners: Value,
    clusters: Value,
    plugin: Value,
    /// The routing listener is there.
    offered: bool,
}

impl Layout {
    /// Reads the text of `envoy.yaml` and lays the options over it; `wasm` is the module's path, or none for an Envoy
    /// without the filter.
    pub(super) fn new(yaml: &str, options: &EnvoyOptions, wasm: Option<&Path>) -> Result<Self> {
        let mut bootstrap: Value = serde_norway::from_str(yaml).context("envoy.yaml is not YAML")?;
        let mut listeners = bootstrap["static_resources"]["listeners"].take();
        let mut clusters = bootstrap["static_resources"]["clusters"].take();
        bootstrap["static_resources"] = json!({});
        bootstrap["admin"]["address"]["socket_address"]["port_value"] = json!(options.admin_port);
        if let Some(shape) = &options.shape {
            merge(&mut bootstrap, shape.get("bootstrap").unwrap_or(&json!({})));
            let mut layout = Self { bootstrap, listeners, clusters, plugin: Value::Null, offered: true };
            layout.take_shape(shape);
            return Ok(layout);
        }

        *port_of(named(&mut listeners, INGEST)?) = json!(options.ingest_port);
        let routing = named(&mut listeners, ROUTING)?;
        routing["address"]["socket_address"]["address"] = json!(options.ip);
        *port_of(routing) = json!(options.port);
        if options.exact_balance {
            routing["connection_balance_config"] = json!({ "exact_balance": {} });
        }
        let routes =
            routing.pointer_mut(ROUTES).and_then(Value::as_array_mut).context("the routing listener's routes")?;
        routes.splice(0..0, options.routes.iter().cloned());

        let mut plugin = Value::Null;
        for listener in list(&mut listeners)? {
            let is_routing = listener["name"] == ROUTING;
            let filters =
                listener.pointer_mut(FILTERS).and_then(Value::as_array_mut).context("a listener without filters")?;
            let position = filters.iter().position(|f| f["name"] == "smg").context("a listener without the filter")?;
            if is_routing {
                let text =
                    filters[position].pointer(PLUGIN).and_then(Value::as_str).context("no plugin configuration")?;
                plugin = serde_json::from_str(text).context("the plugin configuration in envoy.yaml is not JSON")?;
            }
            match wasm {
                Some(path) => *filters[position].pointer_mut(FILENAME).context("no module path")? = json!(path),
                None => drop(filters.remove(position)),
            }
        }
        if !options.workers.is_empty() {
            plugin["workers"] = options.workers.iter().map(Worker::to_plugin).collect();
        }

        let mut layout = Self { bootstrap, listeners, clusters: Value::Null, plugin, offered: true };
        if !options.workers.is_empty() {
            set_endpoints(named(&mut clusters, ENGINES)?, options.workers.iter().map(|worker| worker.address));
        }
        list(&mut clusters)?.extend(options.clusters.iter().cloned());
        layout.clusters = clusters;
        layout.lay_over_plugin(&options.plugin)?;
        if let Some(edit) = options.edit {
            let mut both = json!({ "listeners": layout.listeners, "clusters": layout.clusters });
            edit(&mut both);
            layout.listeners = both["listeners"].take();
            layout.clusters = both["clusters"].take();
        }
        Ok(layout)
    }

    /// Other listeners and clusters altogether, see [`EnvoyOptions::shape`].
    pub(super) fn take_shape(&mut self, shape: &Value) {
        self.listeners = shape["listeners"].clone();
        self.clusters = shape["clusters"].clone();
    }

    /// The name of the listener that takes the requests.
    pub(super) fn routing(&self) -> &str {
        self.listeners[0]["name"].as_str().unwrap_or(ROUTING)
    }

    /// The name of the listener that takes the reports, if there is one.
    pub(super) fn ingest(&self) -> Option<&str> {
        let all = self.listeners.as_array().into_iter().flatten();
        all.map(|listener| &listener["name"]).find(|name| **name == INGEST).and_then(Value::as_str)
    }

    /// Merges `overlay` into the plugin configuration of the routing listener.
    pub(super) fn lay_over_plugin(&mut self, overlay: &Value) -> Result<()> {
        merge(&mut self.plugin, overlay);
        let text = serde_json::to_string(&self.plugin)?;
        let filters = named(&mut self.listeners, ROUTING)?.pointer_mut(FILTERS).and_then(Value::as_array_mut);
        if let Some(filter) = filters.context("filters")?.iter_mut().find(|filter| filter["name"] == "smg") {
            *filter.pointer_mut(PLUGIN).context("no plugin configuration")? = json!(text);
        }
        Ok(())
    }

    /// Names another module in both listeners.
    pub(super) fn set_module(&mut self, wasm: Option<&Path>) -> Result<()> {
        for listener in list(&mut self.listeners)? {
            let filters = listener.pointer_mut(FILTERS).and_then(Value::as_array_mut).context("filters")?;
            let filter = filters.iter_mut().find(|filter| filter["name"] == "smg").context("no filter to replace")?;
            *filter.pointer_mut(FILENAME).context("no module path")? = json!(wasm.context("no module")?);
        }
        Ok(())
    }

    /// Puts the routing listener among the listeners, or leaves it out.
    pub(super) fn offer_routing(&mut self, offered: bool) {
        self.offered = offered;
    }

    /// Names other endpoints of the cluster `engines`.
    pub(super) fn set_engines(&mut self, addresses: impl Iterator<Item = SocketAddr>) -> Result<()> {
        set_endpoints(named(&mut self.clusters, ENGINES)?, addresses);
        Ok(())
    }

    /// The plugin configuration of the routing listener.
    pub(super) fn plugin(&self) -> &Value {
        &self.plugin
    }

    /// How many listeners another layout does not have, or not like this.
    pub(super) fn changed_listeners(&self, other: &Self) -> usize {
        let all = |layout: &Self| layout.listeners.as_array().cloned().unwrap_or_default();
        let known = all(other);
        all(self).iter().filter(|listener| !known.contains(listener)).count()
    }

    /// The listeners as a discovery response.
    pub(super) fn listener_resources(&self) -> Value {
        let mut listeners = self.listeners.clone();
        if let Some(listeners) = listeners.as_array_mut().filter(|_| !self.offered) {
            listeners.retain(|listener| listener["name"] != ROUTING);
        }
        resources(&listeners, "type.googleapis.com/envoy.config.listener.v3.Listener")
    }

    /// The clusters as a discovery response.
    pub(super) fn cluster_resources(&self) -> Value {
        resources(&self.clusters, "type.googleapis.com/envoy.config.cluster.v3.Cluster")
    }
}

const FILTERS: &str = "/filter_chains/0/filters/0/typed_config/http_filters";
const ROUTES: &str = "/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes";
const PLUGIN: &str = "/typed_config/config/configuration/value";
const FILENAME: &str = "/typed_config/config/vm_config/code/local/filename";

fn list(value: &mut Value) -> Result<&mut Vec<Value>> {
    value.as_array_mut().context("envoy.yaml lacks a list of listeners or clusters")
}

fn named<'a>(values: &'a mut Value, name: &str) -> Result<&'a mut Value> {
    match list(values)?.iter_mut().find(|value| value["name"] == name) {
        Some(value) => Ok(value),
        None => bail!("envoy.yaml has nothing with the name {name}"),
    }
}

fn port_of(listener: &mut Value) -> &mut Value {
    &mut listener["address"]["socket_address"]["port_value"]
}

fn set_endpoints(cluster: &mut Value, addresses: impl Iterator<Item = SocketAddr>) {
    cluster["load_assignment"]["endpoints"] = endpoints(addresses);
}

fn endpoints(addresses: impl Iterator<Item = SocketAddr>) -> Value {
    let endpoints: Value = addresses
        .map(|a| json!({"endpoint": {"address": {"socket_address": {"address": a.ip(), "port_value": a.port()}}}}))
        .collect();
    json!([{ "lb_endpoints": endpoints }])
}

fn resources(values: &Value, kind: &str) -> Value {
    let typed: Value = values
        .as_array()
        .into_iter()
        .flatten()
        .map(|value| {
            let mut value = value.clone();
            value["@type"] = json!(kind);
            value
        })
        .collect();
    json!({ "resources": typed })
}

/// JSON Merge Patch, RFC 7396.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// A cluster without the filter's business: round robin over these addresses.
pub fn plain_cluster(name: &str, addresses: &[SocketAddr]) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "load_assignment": { "cluster_name": name, "endpoints": endpoints(addresses.iter().copied()) },
    })
}

/// A route of all paths below `prefix` to a cluster, without time limit, WebSocket allowed.
pub fn prefix_route(prefix: &str, cluster: &str) -> Value {
    json!({ "match": { "prefix": prefix }, "route": { "cluster": cluster, "timeout": "0s" } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = include_str!("../../../envoy/envoy.yaml");

    fn attempts(layout: &mut Layout) -> u64 {
        let routing = named(&mut layout.listeners, ROUTING).unwrap();
        let route = routing.pointer(ROUTES).unwrap().as_array().unwrap().last().unwrap();
        1 + route["route"]["retry_policy"]["num_retries"].as_u64().unwrap()
    }

    #[test]
    fn the_file_is_consistent() {
        let mut layout = Layout::new(YAML, &EnvoyOptions::default(), Some(Path::new("/x.wasm"))).unwrap();
        let attempts = attempts(&mut layout);
        assert_eq!(layout.plugin["max_attempts"], attempts);

        let named_workers: Vec<_> = layout.plugin["workers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["url"].as_str().unwrap().to_owned())
            .collect();
        let reached: Vec<_> = layout.clusters[0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| &e["endpoint"]["address"]["socket_address"])
            .map(|a| format!("http://{}:{}", a["address"].as_str().unwrap(), a["port_value"]))
            .collect();
        assert_eq!(named_workers, reached);

        let held = layout.plugin["max_buffered_request_bytes"].as_u64().unwrap();
        let routing = named(&mut layout.listeners, ROUTING).unwrap();
        let piece = routing["per_connection_buffer_limit_bytes"].as_u64().unwrap();
        let limit = routing.pointer(ROUTES).unwrap()[0]["request_body_buffer_limit"].as_u64().unwrap();
        assert!(limit > held + piece, "a decision could be answered 413");
    }

    #[test]
    fn workers_and_overrides_replace_the_defaults() {
        let mut worker = Worker::at("127.0.0.1:7001".parse().unwrap()).with("model_ids", json!(["m"]));
        worker.url = "http://engine-0:8000".to_owned();
        let options = EnvoyOptions {
            workers: vec![worker, Worker::at("[::1]:7002".parse().unwrap())],
            plugin: json!({ "policy": "random", "max_attempts": null }),
            ..EnvoyOptions::default()
        };
        let layout = Layout::new(YAML, &options, Some(Path::new("/x.wasm"))).unwrap();
        assert_eq!(layout.plugin["policy"], "random");
        assert_eq!(layout.plugin.get("max_attempts"), None);
        assert_eq!(
            layout.plugin["workers"],
            json!([
                {"url": "http://engine-0:8000", "address": "127.0.0.1:7001", "model_ids": ["m"]},
                {"url": "http://[::1]:7002"}
            ])
        );
        assert!(layout.listener_resources().to_string().contains("/x.wasm"));
    }
}
