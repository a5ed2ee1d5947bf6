//! The resources that a control plane delivers, delivered through files.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Bytes;
use axum::routing::get;
use filter_core::config::TOKEN_VARIABLE;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::sidecar::{Sidecar, TOKEN};
use crate::upstream::Upstream;

/// Where the manifests say that the module is.
const MODULES: &str = "modules.inference.svc.cluster.local";

/// Where the manifests say that the sidecar is.
const SIDECAR: &str = "sidecar-loadmonitor.inference.svc.cluster.local";

/// Everything that one proxy is told, the listener for requests first.
#[derive(Debug, Default)]
pub struct Xds {
    pub listeners: Vec<Value>,
    pub routes: Vec<Value>,
    pub clusters: Vec<Value>,
    pub endpoints: Vec<Value>,
    pub extensions: Vec<Value>,
}

/// A control plane for one proxy: files instead of a stream, the module served over HTTP, and a sidecar.
pub struct ControlPlane {
    pub sidecar: Sidecar,
    directory: TempDir,
    modules: Upstream,
    module: PathBuf,
    sha256: String,
}

impl ControlPlane {
    /// `workers` are the URLs that the sidecar knows.
    pub async fn start(workers: &[String]) -> Self {
        let sidecar = Sidecar::start(workers).await;
        let module = testbed::envoy::filter_wasm().unwrap();
        let bytes = Bytes::from(fs::read(&module).unwrap());
        let sha256 = format!("{:x}", Sha256::digest(&bytes));
        let modules = Upstream::serving(Router::new().route("/filter.wasm", get(async move || bytes))).await;
        Self { sidecar, directory: tempfile::tempdir().unwrap(), modules, module, sha256 }
    }

    /// Where the module is served.
    pub fn modules(&self) -> SocketAddr {
        self.modules.address
    }

    /// What Istio's agent does with a delivered filter: it fetches the module and names the file.
    pub fn fetch(&self, extension: &mut Value) {
        let code = &mut extension["typed_config"]["config"]["vm_config"]["code"];
        assert!(code["remote"]["http_uri"]["uri"].as_str().unwrap().contains(MODULES));
        *code = json!({ "local": { "filename": self.module } });
    }

    /// Writes the resources that listeners and clusters refer to, and returns those two for the launcher. Free ports
    /// take the place of the manifests', connections are spread evenly, and the listener's counters have a name that the
    /// tests know; all else is as given.
    pub fn deliver(&self, xds: &Xds) -> Value {
        let kinds = [
            ("envoy.config.route.v3.RouteConfiguration", "name", &xds.routes),
            ("envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name", &xds.endpoints),
            ("envoy.config.core.v3.TypedExtensionConfig", "name", &xds.extensions),
        ];
        for (kind, key, resources) in kinds {
            for resource in resources {
                let mut resource = resource.clone();
                self.settle(&mut resource);
                resource["@type"] = json!(format!("type.googleapis.com/{kind}"));
                replace(&self.path(&resource[key]), &json!({ "resources": [resource] }));
            }
        }
        let mut shape = json!({ "listeners": xds.listeners, "clusters": xds.clusters });
        self.settle(&mut shape);
        for listener in shape["listeners"].as_array_mut().unwrap() {
            listener["address"]["socket_address"]["port_value"] = json!(0);
        }
        let routing = &mut shape["listeners"][0];
        routing["address"]["socket_address"]["address"] = json!("127.0.0.1");
        routing["stat_prefix"] = json!("routing");
        routing["connection_balance_config"] = json!({ "exact_balance": {} });
        shape
    }

    /// Turns references to the control plane into files, and the manifests' module, sidecar and token into ours.
    fn settle(&self, value: &mut Value) {
        match value {
            Value::Object(members) => {
                let own_name = members.get("name").cloned().unwrap_or_default();
                for (holder, source, key) in [
                    ("rds", "config_source", "route_config_name"),
                    ("eds_cluster_config", "eds_config", "service_name"),
                    ("config_discovery", "config_source", "name"),
                ] {
                    let Some(reference) = members.get_mut(holder) else { continue };
                    let name = reference.get(key).unwrap_or(&own_name);
                    let path = json!({ "path": self.path(name) });
                    let source = reference[source].as_object_mut().unwrap();
                    assert!(source.remove("ads").is_some());
                    source.insert("path_config_source".to_owned(), path);
                }
                if let Some(sha256) = members.get_mut("sha256") {
                    *sha256 = json!(self.sha256);
                }
                if members.get("address").is_some_and(|address| address == SIDECAR) {
                    let address = self.sidecar.address();
                    members["address"] = json!(address.ip());
                    members["port_value"] = json!(address.port());
                }
                // What the pod's environment has from a Secret.
                if members.remove("host_env_keys") == Some(json!([TOKEN_VARIABLE])) {
                    members.entry("key_values").or_insert(json!({}))[TOKEN_VARIABLE] = json!(TOKEN);
                }
                members.values_mut().for_each(|member| self.settle(member));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.settle(item)),
            _ => {}
        }
    }

    fn path(&self, name: &Value) -> PathBuf {
        let name = name.as_str().unwrap_or_else(|| panic!("no name: {name}"));
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        self.directory.path().join(name.chars().map(plain).collect::<String>() + ".json")
    }
}

/// Endpoints of a cluster.
pub fn endpoints(cluster: &str, addresses: &[SocketAddr]) -> Value {
    let hosts: Value = addresses
        .iter()
        .map(|a| {
            let address = json!({ "socket_address": { "address": a.ip(), "port_value": a.port() } });
            json!({ "endpoint": { "address": address }, "health_status": "HEALTHY", "load_balancing_weight": 1 })
        })
        .collect();
    let locality = json!({ "region": "here", "zone": "here" });
    let group = json!({ "lb_endpoints": hosts, "load_balancing_weight": addresses.len(), "locality": locality });
    json!({ "cluster_name": cluster, "endpoints": [group] })
}

/// Envoy watches for renames.
fn replace(path: &Path, content: &Value) {
    let text = content.to_string();
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, text).unwrap();
    fs::rename(fresh, path).unwrap();
}
