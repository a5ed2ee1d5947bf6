//! What Istio makes of the manifests: the names, endpoints by discovery, retries that avoid previous hosts, and filters
//! by extension discovery whose module its agent has fetched.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::manifests::{Manifests, list};
use super::xds::{Xds, endpoints};

pub const CLUSTER: &str = "outbound|8000||engine.inference.svc.cluster.local";
/// Under this name Envoy counts.
pub const STATS: &str = "outbound|8000||engine.inference.svc.cluster.local;";

const ROUTER: &str = "envoy.filters.http.router";

/// Which counters Istio's bootstrap lets Envoy have, and what these tests want to see besides.
pub fn bootstrap() -> Value {
    let istio = ["reporter=", "cluster_manager", "listener_manager", "server", "cluster.xds-grpc", "wasm", "component"];
    let tests = ["cluster.outbound", "listener.routing"];
    let patterns: Value = istio.iter().chain(&tests).map(|prefix| json!({ "prefix": prefix })).collect();
    json!({ "stats_config": { "stats_matcher": { "inclusion_list": { "patterns": patterns } } } })
}

/// The gateway of `gateway.yaml` without any filter of ours.
pub fn emitted(engines: &[SocketAddr]) -> Xds {
    let manifests = Manifests::read("istio/gateway.yaml");
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "outbound_0.0.0.0_8080",
        "normalize_path": true,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "server_name": "istio-envoy",
        "stream_idle_timeout": "0s",
        "use_remote_address": true,
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": { "subject": true, "cert": true, "dns": true, "uri": true },
        "upgrade_configs": [{ "upgrade_type": "websocket" }],
        "http_filters": [{
            "name": ROUTER,
            "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
        }],
        "rds": {
            "config_source": { "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" },
            "route_config_name": "http.8080",
        },
    });
    let listener = json!({
        "name": "0.0.0.0_8080",
        "address": { "socket_address": { "address": "0.0.0.0", "port_value": 8080 } },
        "traffic_direction": "OUTBOUND",
        "filter_chains": [{
            "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
        }],
    });
    let cluster = json!({
        "name": CLUSTER,
        "alt_stat_name": STATS,
        "type": "EDS",
        "eds_cluster_config": {
            "eds_config": { "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" },
            "service_name": CLUSTER,
        },
        "circuit_breakers": { "thresholds": [{
            "max_connections": u32::MAX,
            "max_pending_requests": u32::MAX,
            "max_requests": u32::MAX,
            "max_retries": u32::MAX,
            "track_remaining": true,
        }] },
        "common_lb_config": {},
        "connect_timeout": manifests.spec("DestinationRule", "engines")["trafficPolicy"]["connectionPool"]["tcp"]["connectTimeout"],
        "lb_policy": "LEAST_REQUEST",
    });
    Xds {
        listeners: vec![listener],
        routes: vec![routes(&manifests)],
        clusters: vec![cluster],
        endpoints: vec![endpoints(CLUSTER, engines)],
        extensions: Vec::new(),
    }
}

/// What a WasmPlugin adds.
pub fn add_plugin(spec: &Value, xds: &mut Xds) {
    assert_eq!(spec["phase"], "UNSPECIFIED_PHASE", "another phase has another place");
    let name = "extensions.istio.io/wasmplugin/inference.smg";
    let wasm = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm";
    let reference = json!({
        "name": name,
        "config_discovery": {
            "config_source": { "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" },
            "type_urls": [wasm, "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"],
        },
    });
    let from_host = list(&spec["vmConfig"]["env"]).iter().filter(|variable| variable["valueFrom"] == "HOST");
    let hosts: Value = from_host.map(|variable| variable["name"].clone()).collect();
    let manager = &mut xds.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"];
    manager["http_filters"].as_array_mut().unwrap().insert(0, reference);
    xds.extensions.push(json!({
        "name": name,
        "typed_config": {
            "@type": wasm,
            "config": {
                "name": "inference.smg",
                "root_id": spec["pluginName"],
                "failure_policy": spec["failStrategy"],
                "configuration": {
                    "@type": "type.googleapis.com/google.protobuf.StringValue",
                    "value": spec["pluginConfig"].to_string(),
                },
                "vm_config": {
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": { "remote": {
                        "http_uri": { "uri": spec["url"], "cluster": "_", "timeout": "30s" },
                        "sha256": spec["sha256"],
                    } },
                    "environment_variables": {
                        "host_env_keys": hosts,
                        "key_values": { "ISTIO_META_WASM_PLUGIN_RESOURCE_VERSION": "4711" },
                    },
                },
            },
        },
    }));
}

fn routes(manifests: &Manifests) -> Value {
    let route = &manifests.spec("VirtualService", "engines")["http"][0];
    let retries = &route["retries"];
    let (codes, causes): (Vec<&str>, Vec<&str>) =
        retries["retryOn"].as_str().unwrap().split(',').partition(|word| word.parse::<u16>().is_ok());
    let codes: Vec<u16> = codes.iter().map(|code| code.parse().unwrap()).collect();
    let predicate = json!({
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
        },
    });
    let host = &list(&route["route"])[0]["destination"];
    let cluster = format!("outbound|{}||{}", host["port"]["number"], host["host"].as_str().unwrap());
    assert_eq!(cluster, CLUSTER);
    json!({
        "name": "http.8080",
        "validate_clusters": false,
        "virtual_hosts": [{
            "name": "*:8080",
            "domains": ["*"],
            "include_request_attempt_count": true,
            "routes": [{
                "name": route["name"],
                "match": { "prefix": "/" },
                "decorator": { "operation": "engine.inference.svc.cluster.local:8000/*" },
                "route": {
                    "cluster": cluster,
                    "timeout": "0s",
                    "max_grpc_timeout": "0s",
                    "retry_policy": {
                        "retry_on": format!("{},retriable-status-codes", causes.join(",")),
                        "retriable_status_codes": codes,
                        "num_retries": retries["attempts"],
                        "retry_back_off": { "base_interval": "0.05s" },
                        "host_selection_retry_max_attempts": "5",
                        "retry_host_predicate": [predicate],
                    },
                },
            }],
        }],
    })
}
