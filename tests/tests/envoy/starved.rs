//! Plugins without `allow_on_headers_stop_iteration`, which neither Istio nor Envoy Gateway can set by themselves, and
//! plugins with a configuration that cannot be used.

use std::collections::BTreeSet;

use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Connection, Envoy, EnvoyOptions, eventually};

use crate::gate::Gate;
use crate::support::{CHAT, DESTINATION, SOON, WORKER_ID, chat, counts_become, no_vm_was_lost, post};

/// Takes the flag out of every Wasm filter.
fn without_flag(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("allow_on_headers_stop_iteration");
            members.values_mut().for_each(without_flag);
        }
        Value::Array(items) => items.iter_mut().for_each(without_flag),
        _ => {}
    }
}

async fn in_front_of(gates: &[Gate], plugin: Value) -> Envoy {
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let edit: fn(&mut Value) = without_flag;
    Envoy::start(EnvoyOptions { plugin, exact_balance: true, edit: Some(edit), ..options }).await.unwrap()
}

async fn degraded(envoy: &Envoy) -> f64 {
    envoy.metrics().await.sum("smg_degraded", &[("reason", "no_stop_iteration")])
}

fn prompt() -> bytes::Bytes {
    chat("m", &"This is long enough to have a prefix in the tree. ".repeat(80))
}

#[tokio::test]
async fn without_the_flag_cache_aware_degrades_to_least_load_and_says_so() {
    let gates = [Gate::start().await, Gate::start().await];
    let envoy = in_front_of(&gates, json!({})).await;
    let mut threads = envoy.connection_per_thread().await;
    for connection in &mut threads {
        for _ in 0..20 {
            let reply = connection.post(CHAT, prompt()).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
            assert!(reply.header(WORKER_ID).is_some());
        }
    }
    eventually(SOON, "it says so", async || degraded(&envoy).await == 1.0).await;
    // One line a thread.
    assert_eq!(envoy.log().matches("lacks allow_on_headers_stop_iteration").count(), threads.len(), "{}", envoy.log());
    eventually(SOON, "all were placed by least_load", async || {
        envoy.metrics().await.by("smg_worker_selection_total", "policy") == [("least_load".to_owned(), 40.0)].into()
    })
    .await;
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn without_the_flag_policies_that_need_no_body_work_as_ever() {
    let gates = [Gate::start().await, Gate::start().await];
    let envoy = in_front_of(&gates, json!({ "policy": "round_robin" })).await;
    let mut threads = envoy.connection_per_thread().await;
    for connection in &mut threads {
        for _ in 0..10 {
            assert_eq!(connection.post(CHAT, prompt()).await.unwrap().status, StatusCode::OK);
        }
    }
    assert_eq!(gates.each_ref().map(Gate::arrived), [10, 10]);
    counts_become(&envoy, 0, "at the end").await;
    assert_eq!(degraded(&envoy).await, 0.0);
    assert!(!envoy.log().contains("lacks allow_on_headers_stop_iteration"));
}

#[tokio::test]
async fn an_invalid_configuration_may_let_requests_pass() {
    let gates = [Gate::start().await, Gate::start().await];
    let plugin = json!({ "on_invalid_config": "passthrough", "cache_treshold": 0.5 });
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let mut envoy = Envoy::start(EnvoyOptions { plugin, ..options }).await.unwrap();
    let invalid = async |envoy: &Envoy| envoy.metrics().await.sum("smg_config_invalid", &[]);
    let mut connection = envoy.connect().await;
    let mut chosen = BTreeSet::new();
    for _ in 0..40 {
        // Nor does anybody choose the endpoint meanwhile.
        let named = gates[0].address().to_string();
        let reply = connection.send(post(prompt(), &[(DESTINATION, &named)])).await.unwrap();
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header(WORKER_ID), None);
        chosen = (0..2).filter(|&gate| gates[gate].arrived() > 0).collect();
    }
    assert_eq!(chosen.len(), 2, "the cluster's own policy has spread them");
    assert_eq!(invalid(&envoy).await, 1.0);
    assert!(envoy.log().contains("did you mean `cache_threshold`?") && envoy.log().contains("requests pass unrouted"));

    envoy.update_plugin(json!({ "cache_treshold": null })).await.unwrap();
    let mut connection: Connection = envoy.connect().await;
    assert!(connection.post(CHAT, prompt()).await.unwrap().header(WORKER_ID).is_some());
    assert_eq!(invalid(&envoy).await, 0.0);
    no_vm_was_lost(&envoy).await;
}
