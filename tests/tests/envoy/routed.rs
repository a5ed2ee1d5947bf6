//! Routes that name a policy, and a filter behind ours that refuses what was placed already.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, eventually};

use crate::gate::Gate;
use crate::support::{SOON, WORKER_ID, chat, counts_become, no_vm_was_lost, post};

/// Chooses the route.
const ROUTE: &str = "x-route";
const KEY: &str = "x-smg-routing-key";
/// Makes the filter behind ours answer.
const ABORT: &str = "x-envoy-fault-abort-request";

const POLICIES: [&str; 10] = [
    "cache_aware",
    "least_load",
    "power_of_two",
    "round_robin",
    "random",
    "passthrough",
    "consistent_hashing",
    "prefix_hash",
    "manual",
    "bucket",
];

/// A route for requests that ask for it by name.
fn route(name: &str, metadata: &Value) -> Value {
    json!({
        "match": { "prefix": "/", "headers": [{ "name": ROUTE, "string_match": { "exact": name } }] },
        "metadata": { "filter_metadata": { "smg": metadata } },
        "route": { "cluster": "engines", "timeout": "0s" },
    })
}

fn routes() -> Vec<Value> {
    let mut routes: Vec<_> = POLICIES.iter().map(|policy| route(policy, &json!({ "policy": policy }))).collect();
    routes.push(route("spelled", &json!({ "policy": "LeastLoad" })));
    routes.push(route("unknown", &json!({ "policy": "fastest" })));
    routes.push(route("number", &json!({ "policy": 5 })));
    routes.push(route("empty", &json!({})));
    routes
}

async fn start(plugin: Value, edit: Option<fn(&mut Value)>) -> (Vec<Gate>, Envoy) {
    let gates = join_all((0..3).map(|_| Gate::start())).await;
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let routes = routes();
    let envoy = Envoy::start(EnvoyOptions { plugin, edit, routes, concurrency: 4, exact_balance: true, ..options });
    (gates, envoy.await.unwrap())
}

#[tokio::test]
async fn a_routes_metadata_names_its_policy_and_an_unknown_name_changes_nothing() {
    let plugin = json!({ "policy": "round_robin", "route_metadata": true, "explain_decisions": true });
    let (_gates, envoy) = start(plugin, None).await;
    let mut threads = envoy.connection_per_thread().await;
    let mut counted = std::collections::BTreeMap::new();
    for route in POLICIES.into_iter().chain(["spelled", "unknown", "number", "empty", "none"]) {
        let policy = match route {
            "spelled" => "least_load",
            "unknown" | "number" | "empty" | "none" => "round_robin",
            policy => policy,
        };
        let mut workers = BTreeSet::new();
        for number in 0..8 {
            let request = post(chat("m", "A question"), &[(ROUTE, route), (KEY, "one user")]);
            let reply = threads[number % 4].send(request).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK, "{route}");
            let decision = reply.header("x-smg-decision").unwrap_or_default();
            assert!(decision.starts_with(&format!("policy={policy};")), "{route}: {decision}");
            workers.insert(reply.header(WORKER_ID).unwrap().to_owned());
            *counted.entry(policy.to_owned()).or_insert(0.0) += 1.0;
        }
        match policy {
            "manual" | "consistent_hashing" | "prefix_hash" | "passthrough" => assert_eq!(workers.len(), 1, "{route}"),
            "round_robin" => assert_eq!(workers.len(), 3, "{route}"),
            _ => {}
        }
    }
    eventually(SOON, "all selections are counted by their policies", async || {
        envoy.metrics().await.by("smg_worker_selection_total", "policy") == counted
    })
    .await;
    eventually(SOON, "the key that a route's policy has given a worker is counted", async || {
        envoy.metrics().await.sum("smg_manual_policy_cache_entries", &[]) == 1.0
    })
    .await;
    let warned = |what: &str| {
        let log = envoy.log();
        log.lines().filter(|line| line.contains("a route's metadata") && line.contains(what)).count()
    };
    eventually(SOON, "each thread has warned once of the name and of the number", async || {
        warned("names no policy") == 8 && warned("\"fastest\"") == 4
    })
    .await;
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

/// Puts a filter behind ours that answers what has the header [`ABORT`] with that status.
fn with_a_filter_behind(resources: &mut Value) {
    let listeners = resources["listeners"].as_array_mut().unwrap();
    let routing = listeners.iter_mut().find(|listener| listener["name"] == "routing").unwrap();
    let filters = routing["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"].as_array_mut().unwrap();
    let fault = json!({
        "name": "envoy.filters.http.fault",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": { "header_abort": {}, "percentage": { "numerator": 100 } },
        },
    });
    filters.insert(filters.len() - 1, fault);
}

#[tokio::test]
async fn a_refusal_by_a_later_filter_leaves_no_count_and_charges_nobody() {
    for sticky in [false, true] {
        let plugin = json!({
            "policy": "round_robin", "route_metadata": true, "sticky_sessions": sticky, "cb_failure_threshold": 1,
        });
        let (gates, envoy) = start(plugin, Some(with_a_filter_behind)).await;
        let mut threads = envoy.connection_per_thread().await;
        let mut total = 0;
        for policy in POLICIES {
            // A short one, and one that is not all there when a policy that does not read it has decided.
            for text in ["A question".to_owned(), "A long question. ".repeat(40_000)] {
                for (number, status) in ["403", "503", "504", "429"].into_iter().enumerate() {
                    let key = format!("{policy} {number}");
                    let headers = [(ROUTE, policy), (KEY, &key), (ABORT, status)];
                    let thread = &mut threads[number];
                    let reply = thread.send(post(chat("m", &text), &headers)).await;
                    // An answer before the body's end closes the connection.
                    let Ok(reply) = reply else {
                        *thread = envoy.connect().await;
                        continue;
                    };
                    assert_eq!(reply.status.as_str(), status, "{policy}: {}", reply.text());
                    if reply.header("connection") == Some("close") {
                        *thread = envoy.connect().await;
                    }
                    total += 1;
                }
            }
        }
        assert!(total >= POLICIES.len() * 4, "{total} answers");
        assert_eq!(gates.iter().map(Gate::arrived).sum::<usize>(), 0, "nobody was reached");
        counts_become(&envoy, 0, "after the refusals").await;
        let keys = async || envoy.metrics().await.sum("smg_worker_routing_keys_active", &[]);
        eventually(SOON, "no key is counted", async || keys().await == 0.0).await;
        let metrics = envoy.metrics().await;
        for name in ["smg_worker_cb_outcomes_total", "smg_worker_cb_state", "smg_worker_cb_consecutive_failures"] {
            assert_eq!(metrics.sum(name, &[]), 0.0, "{name}, sticky: {sticky}");
        }
        for name in ["smg_worker_errors_total", "smg_worker_retries_total", "smg_destination_unknown_total"] {
            assert_eq!(metrics.sum(name, &[]), 0.0, "{name}, sticky: {sticky}");
        }
        // One failure would have opened a breaker.
        for policy in POLICIES {
            let mut connection = envoy.connect().await;
            let reply = connection.send(post(chat("m", "A question"), &[(ROUTE, policy)])).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK, "{policy}");
        }
        no_vm_was_lost(&envoy).await;
    }
}
