//! What Envoy Gateway makes of the manifests: the names, the filter that is off until a route turns it on, the vm_id per
//! policy, the module from its own cluster, endpoints by discovery and small buffers.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::manifests::{Manifests, list, named};
use super::xds::{Xds, endpoints};

pub const CLUSTER: &str = "httproute/inference/engines/rule/0";
/// The cluster of a route that has no policy attached.
const PLAIN: &str = "httproute/inference/plain/rule/0";
const LISTENER: &str = "inference/llm/http";
const FILTER: &str = "envoy.filters.http.wasm/envoyextensionpolicy/inference/smg/wasm/0";

pub fn manifests() -> Manifests {
    Manifests::read("envoy-gateway/smg.yaml")
}

/// The plugin configuration of the policy.
pub fn plugin(manifests: &Manifests) -> Value {
    manifests.spec("EnvoyExtensionPolicy", "smg")["wasm"][0]["config"].clone()
}

/// What is delivered before the EnvoyPatchPolicy and the ClientTrafficPolicy are there. `modules` is where Envoy
/// Gateway serves its copy of the module.
pub fn emitted(manifests: &Manifests, plugin: &Value, engines: &[SocketAddr], modules: SocketAddr) -> Xds {
    let policy = &manifests.spec("EnvoyExtensionPolicy", "smg")["wasm"][0];
    let code = json!({ "remote": {
        "http_uri": { "uri": "https://envoy-gateway:18002/filter.wasm", "cluster": "wasm_cluster", "timeout": "10s" },
        "sha256": policy["code"]["http"]["sha256"],
    } });
    let wasm = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "config": {
            "name": policy["name"],
            "root_id": policy["rootID"],
            "vm_config": {
                "vm_id": FILTER.split_once('/').unwrap().1,
                "runtime": "envoy.wasm.runtime.v8",
                "code": code,
            },
            "configuration": {
                "@type": "type.googleapis.com/google.protobuf.StringValue",
                "value": plugin.to_string(),
            },
        },
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http-10080",
        "common_http_protocol_options": { "headers_with_underscores_action": "REJECT_REQUEST" },
        "http2_protocol_options": {
            "initial_connection_window_size": 1_048_576,
            "initial_stream_window_size": 65_536,
            "max_concurrent_streams": 100,
        },
        "merge_slashes": true,
        "normalize_path": true,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": true,
        "http_filters": [
            { "name": FILTER, "disabled": true, "typed_config": wasm },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": true,
                },
            },
        ],
        "rds": { "config_source": { "ads": {}, "resource_api_version": "V3" }, "route_config_name": LISTENER },
    });
    let listener = json!({
        "name": LISTENER,
        "address": { "socket_address": { "address": "0.0.0.0", "port_value": 10080 } },
        "per_connection_buffer_limit_bytes": 32_768,
        "default_filter_chain": {
            "name": LISTENER,
            "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
        },
    });
    Xds {
        listeners: vec![listener],
        routes: vec![routes(manifests)],
        clusters: vec![cluster(manifests, CLUSTER), cluster(manifests, PLAIN), modules_cluster(modules)],
        endpoints: vec![endpoints(CLUSTER, engines), endpoints(PLAIN, engines)],
        extensions: Vec::new(),
    }
}

/// How Envoy Gateway 1.4 delivers the cluster of the engines, instead of 1.5.
pub fn make_older(xds: &mut Xds) {
    let cluster = named(&mut xds.clusters, CLUSTER).as_object_mut().unwrap();
    cluster.remove("load_balancing_policy").unwrap();
    cluster.insert("common_lb_config".to_owned(), json!({ "locality_weighted_lb_config": {} }));
}

/// What the ClientTrafficPolicy adds.
pub fn add_client_policy(manifests: &Manifests, xds: &mut Xds) {
    let policy = manifests.spec("ClientTrafficPolicy", "llm");
    let mebibytes: u64 = policy["connection"]["bufferLimit"].as_str().unwrap().trim_end_matches("Mi").parse().unwrap();
    let listener = &mut xds.listeners[0];
    listener["per_connection_buffer_limit_bytes"] = json!(mebibytes << 20);
    let removed = list(&policy["headers"]["earlyRequestHeaders"]["remove"]);
    let mutations: Value = removed.iter().map(|name| json!({ "remove": name })).collect();
    listener["default_filter_chain"]["filters"][0]["typed_config"]["early_header_mutation_extensions"] = json!([{
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": mutations,
        },
    }]);
}

fn routes(manifests: &Manifests) -> Value {
    let traffic = manifests.spec("BackendTrafficPolicy", "engines");
    let retry = &traffic["retry"];
    let triggers: Vec<_> = list(&retry["retryOn"]["triggers"]).iter().map(|one| one.as_str().unwrap()).collect();
    let retry_policy = json!({
        "retry_on": triggers.join(","),
        "retriable_status_codes": retry["retryOn"]["httpStatusCodes"],
        "num_retries": retry["numRetries"],
        "retry_back_off": { "base_interval": "0.05s", "max_interval": "30s" },
        "host_selection_retry_max_attempts": "5",
        "retry_host_predicate": [{
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
            },
        }],
    });
    let upgrades = json!([{ "upgrade_type": "websocket" }]);
    let engines = json!({
        "name": format!("{CLUSTER}/match/0/*"),
        "match": { "prefix": "/" },
        "route": {
            "cluster": CLUSTER,
            "timeout": traffic["timeout"]["http"]["requestTimeout"],
            "retry_policy": retry_policy,
            "upgrade_configs": upgrades,
        },
        "typed_per_filter_config": {
            FILTER: { "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {} },
        },
    });
    let plain = json!({
        "name": format!("{PLAIN}/match/0/*"),
        "match": { "path_separated_prefix": "/plain" },
        "route": { "cluster": PLAIN, "upgrade_configs": upgrades },
    });
    json!({
        "name": LISTENER,
        "ignore_port_in_host_matching": true,
        "virtual_hosts": [{ "name": format!("{LISTENER}/*"), "domains": ["*"], "routes": [plain, engines] }],
    })
}

fn cluster(manifests: &Manifests, name: &str) -> Value {
    let traffic = manifests.spec("BackendTrafficPolicy", "engines");
    let limits = &traffic["circuitBreaker"];
    json!({
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {
            "eds_config": { "ads": {}, "resource_api_version": "V3" },
            "service_name": name,
        },
        "circuit_breakers": { "thresholds": [{
            "max_connections": limits["maxConnections"],
            "max_pending_requests": limits["maxPendingRequests"],
            "max_requests": limits["maxParallelRequests"],
            "max_retries": limits["maxParallelRetries"],
        }] },
        "common_lb_config": {},
        "connect_timeout": traffic["timeout"]["tcp"]["connectTimeout"],
        "dns_lookup_family": "V4_PREFERRED",
        "ignore_health_on_host_removal": true,
        "lb_policy": "LEAST_REQUEST",
        "load_balancing_policy": { "policies": [{ "typed_extension_config": {
            "name": "envoy.load_balancing_policies.least_request",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
                "locality_lb_config": { "locality_weighted_lb_config": {} },
            },
        } }] },
        "outlier_detection": {},
        "per_connection_buffer_limit_bytes": 32_768,
    })
}

fn modules_cluster(modules: SocketAddr) -> Value {
    json!({
        "name": "wasm_cluster",
        "type": "STRICT_DNS",
        "connect_timeout": "10s",
        "load_assignment": endpoints("wasm_cluster", &[modules]),
    })
}
