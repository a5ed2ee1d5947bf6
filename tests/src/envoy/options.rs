//! What can be asked of an Envoy.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

/// One worker of the fleet: what the filter calls it and where Envoy reaches it.
#[derive(Debug, Clone)]
pub struct Worker {
    /// The URL as it stands in the plugin configuration.
    pub url: String,
    /// Where it is reached. Given to the filter as well when the URL does not spell it.
    pub address: SocketAddr,
    /// More members of the worker in the plugin configuration: model ids, leg, labels.
    pub extra: Map<String, Value>,
}

impl Worker {
    /// A worker of the plain URL `http://address`.
    pub fn at(address: SocketAddr) -> Self {
        Self { url: format!("http://{address}"), address, extra: Map::new() }
    }

    /// The same worker with one more member in the plugin configuration.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(key.to_owned(), value.into());
        self
    }

    pub(super) fn to_plugin(&self) -> Value {
        let mut worker = Map::from_iter([("url".to_owned(), json!(self.url))]);
        let spelled = self.url.split_once("://").map_or(&*self.url, |(_, rest)| rest).trim_end_matches('/');
        if spelled != self.address.to_string() {
            worker.insert("address".to_owned(), json!(self.address.to_string()));
        }
        worker.extend(self.extra.clone());
        Value::Object(worker)
    }
}

/// Which module runs in Envoy.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Filter {
    /// The one that `make wasm` has built.
    #[default]
    Built,
    /// The one that a request can crash, with another layout of its tables (`filter/crash`).
    Crashable,
    /// Another one.
    File(PathBuf),
    /// None: Envoy alone, with its fallback policy.
    Absent,
}

/// How to start an Envoy. The default is `envoy/envoy.yaml` on free ports with two threads.
#[derive(Debug, Clone)]
pub struct EnvoyOptions {
    /// The workers of the plugin configuration and the endpoints of the cluster `engines`.
    pub workers: Vec<Worker>,
    /// Laid over the plugin configuration of the routing listener: objects are merged, null removes, anything else
    /// replaces (RFC 7396).
    pub plugin: Value,
    /// The module.
    pub filter: Filter,
    /// Worker threads.
    pub concurrency: usize,
    /// Put in front of the route to the engines.
    pub routes: Vec<Value>,
    /// Beside the cluster `engines`.
    pub clusters: Vec<Value>,
    /// Spreads connections evenly over the threads, so that `concurrency` connections reach every thread.
    pub exact_balance: bool,
    /// Where the routing listener listens.
    pub ip: IpAddr,
    /// Port of the routing listener, 0 for a free one.
    pub port: u16,
    /// Port of the ingest listener, 0 for a free one.
    pub ingest_port: u16,
    /// Port of the admin endpoint, 0 for a free one.
    pub admin_port: u16,
    /// Envoy's log level.
    pub log_level: String,
    /// Levels of single components as in `wasm:debug,router:trace`.
    pub component_log_level: Option<String>,
    /// How long streams of an old configuration may last after an update, in seconds.
    pub drain_seconds: u32,
    /// The last word on both listeners and clusters: called with `{"listeners": […], "clusters": […]}`.
    pub edit: Option<fn(&mut Value)>,
    /// In place of the listeners and clusters of `envoy/envoy.yaml`, with everything in it (workers, plugin
    /// configuration, module): `{"listeners": […], "clusters": […], "bootstrap": {…}}`. The first listener takes the
    /// requests; one of the name `ingest`, if there is one, the reports. `bootstrap` is merged into the file's own.
    pub shape: Option<Value>,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        Self {
            workers: Vec::new(),
            plugin: json!({}),
            filter: Filter::default(),
            concurrency: 2,
            routes: Vec::new(),
            clusters: Vec::new(),
            exact_balance: false,
            ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            ingest_port: 0,
            admin_port: 0,
            log_level: "info".to_owned(),
            component_log_level: None,
            drain_seconds: 60,
            edit: None,
            shape: None,
        }
    }
}

impl EnvoyOptions {
    /// The default in front of workers at these addresses.
    pub fn with_workers(addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { workers: addresses.into_iter().map(Worker::at).collect(), ..Self::default() }
    }
}
