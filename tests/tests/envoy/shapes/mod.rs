//! Envoy configured in the shapes in which Envoy Gateway and Istio deliver it, patched by the manifests of
//! `envoy/kubernetes`: the main job works on each, and what does not is noticed.

mod gateway;
mod istio;
mod job;
mod manifests;
mod xds;

use std::collections::BTreeSet;

use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, eventually};

use crate::gate::Gate;
use crate::support::{CHAT, DESTINATION, Dead, SOON, WORKER_ID, chat, no_vm_was_lost, post};
use job::{Fleet, prompt, urls};
use manifests::{Manifests, named};
use xds::{ControlPlane, Xds};

async fn start(shape: Value, bootstrap: Value) -> Envoy {
    let mut shape = shape;
    shape["bootstrap"] = bootstrap;
    Envoy::start(EnvoyOptions { concurrency: 4, shape: Some(shape), ..EnvoyOptions::default() }).await.unwrap()
}

async fn metric(envoy: &Envoy, name: &str) -> f64 {
    envoy.metrics().await.sum(name, &[])
}

#[tokio::test]
async fn envoy_gateway() {
    let fleet = Fleet::start(gateway::CLUSTER).await;
    let plane = ControlPlane::start(&urls()).await;
    let manifests = gateway::manifests();
    let mut plugin = gateway::plugin(&manifests);

    // The filter alone sees no bodies. Nobody reports yet, so the workers are named by their addresses.
    plugin["workers"] = fleet.urls_of_addresses();
    let emitted = |plugin: &Value| gateway::emitted(&manifests, plugin, &fleet.addresses(), plane.modules());
    let mut envoy = start(plane.deliver(&emitted(&plugin)), json!({})).await;
    let reply = envoy.connect().await.post(CHAT, prompt(0)).await.unwrap();
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    assert!(reply.header(WORKER_ID).is_some());
    eventually(SOON, "it says that it sees no bodies", async || metric(&envoy, "smg_degraded").await == 1.0).await;

    // The patches, buffers as they come.
    let plugin = gateway::plugin(&manifests);
    let mut patched = emitted(&plugin);
    manifests.patch("smg", &mut patched);
    envoy.update_shape(&plane.deliver(&patched)).await.unwrap();
    fleet.report(&plane.sidecar, &envoy).await;
    fleet.does_the_main_job(&envoy).await;
    eventually(SOON, "it sees bodies again", async || metric(&envoy, "smg_degraded").await == 0.0).await;
    let large = |kib: usize| chat("m", &"Too long for small buffers. ".repeat(kib * 1024 / 28));
    let mut connection = envoy.connect().await;
    assert_eq!(connection.post(CHAT, large(100)).await.unwrap().status, StatusCode::PAYLOAD_TOO_LARGE);

    // The buffers and the client's header.
    gateway::add_client_policy(&manifests, &mut patched);
    envoy.update_shape(&plane.deliver(&patched)).await.unwrap();
    fleet.takes_large_bodies(&envoy).await;
    fleet.keeps_clients_from_choosing(&envoy).await;

    // A route that has not turned the filter on.
    let named = fleet.addresses()[0].to_string();
    let mut request = post(prompt(0), &[(DESTINATION, &named)]);
    *request.uri_mut() = "/plain/v1/chat/completions".parse().unwrap();
    let reply = envoy.connect().await.send(request).await.unwrap();
    assert_eq!((reply.status, reply.header(WORKER_ID)), (StatusCode::OK, None));
    let plain = fleet.arrivals().into_iter().find(|arrival| arrival.path.starts_with("/plain")).unwrap();
    assert_eq!(plain.destination(), "");
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn istio() {
    let fleet = Fleet::start(istio::STATS).await;
    let plane = ControlPlane::start(&urls()).await;
    let manifests = Manifests::read("istio/smg.yaml");
    let mut xds = istio::emitted(&fleet.addresses());
    manifests.filter("smg", &mut xds);
    manifests.filter("smg-surroundings", &mut xds);
    xds.extensions.iter_mut().for_each(|extension| plane.fetch(extension));
    let envoy = start(plane.deliver(&xds), istio::bootstrap()).await;
    fleet.report(&plane.sidecar, &envoy).await;
    fleet.does_the_main_job(&envoy).await;
    fleet.takes_large_bodies(&envoy).await;
    fleet.keeps_clients_from_choosing(&envoy).await;
    assert_eq!(metric(&envoy, "smg_degraded").await, 0.0);
    assert_eq!(metric(&envoy, "smg_destination_unknown_total").await, 0.0);
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn a_wasm_plugin_of_istio_and_the_cluster_that_does_not_follow_it() {
    let fleet = Fleet::start(istio::STATS).await;
    let plane = ControlPlane::start(&urls()).await;
    let mut plugin = Manifests::read("istio/wasmplugin.yaml").spec("WasmPlugin", "smg").clone();
    plugin["pluginConfig"]["workers"] = fleet.urls_of_addresses();
    let mut xds = istio::emitted(&fleet.addresses());
    istio::add_plugin(&plugin, &mut xds);
    xds.extensions.iter_mut().for_each(|extension| plane.fetch(extension));

    // Envoy's own policy ignores the header, and one like an InferencePool's looks elsewhere. Both are noticed.
    let mut envoy = start(plane.deliver(&xds), istio::bootstrap()).await;
    for pool in [false, true] {
        if pool {
            let cluster = named(&mut xds.clusters, istio::CLUSTER);
            cluster["load_balancing_policy"] = picks_by_metadata();
            // Only listeners are waited for.
            xds.listeners[0]["per_connection_buffer_limit_bytes"] = json!(1 << 20);
            envoy.update_shape(&plane.deliver(&xds)).await.unwrap();
        }
        let before = metric(&envoy, "smg_destination_unknown_total").await;
        let mut connection = envoy.connect().await;
        let mut answered = BTreeSet::new();
        for number in 0..40 {
            let reply = connection.post(CHAT, prompt(number)).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK);
            // Whoever answers is named, chosen or not.
            assert_eq!(reply.header(WORKER_ID), Some(&*format!("http://{}", reply.text())));
            answered.insert(reply.text());
        }
        assert_eq!(answered.len(), 2);
        eventually(SOON, "that the choice is ignored", async || {
            metric(&envoy, "smg_destination_unknown_total").await > before
        })
        .await;
        assert!(envoy.log().contains("Envoy sent a request for"), "{}", envoy.log());
        fleet.counts_become(&envoy, 0, "requests that went elsewhere").await;
    }

    // With the policy it is followed.
    let cluster = named(&mut xds.clusters, istio::CLUSTER);
    cluster.as_object_mut().unwrap().remove("load_balancing_policy");
    Manifests::read("istio/smg.yaml").filter("smg-surroundings", &mut xds);
    envoy.update_shape(&plane.deliver(&xds)).await.unwrap();
    eventually(SOON, "the cluster follows", async || {
        let before = fleet.arrived();
        let mut connection = envoy.connect().await;
        for number in 0..20 {
            assert_eq!(connection.post(CHAT, prompt(number)).await.unwrap().status, StatusCode::OK);
        }
        let after = fleet.arrived();
        [after[0] - before[0], after[1] - before[1]] == [10, 10]
    })
    .await;
    fleet.counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

/// The policy of the cluster of an InferencePool.
fn picks_by_metadata() -> Value {
    let least_request = json!({ "policies": [{ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
        },
    } }] });
    json!({ "policies": [{ "typed_extension_config": {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
            "override_host_sources": [{ "metadata": { "key": "envoy.lb", "path": [{ "key": DESTINATION }] } }],
            "fallback_policy": least_request,
        },
    } }] })
}

/// Both control planes deliver retries that turn down a host which was tried before, and the filter's list names one
/// worker several times where there are fewer workers than attempts. Envoy asks that of hosts that its own policies have
/// chosen only, so such a list is followed.
#[tokio::test]
async fn retries_stay_in_the_pool() {
    let (dead, other) = (Dead::new(), Gate::start().await);
    let plane = ControlPlane::start(&urls()).await;
    let manifests = gateway::manifests();
    let mut plugin = gateway::plugin(&manifests);
    plugin["workers"] = json!([
        { "url": format!("http://{}", dead.address), "model_ids": ["dead"] },
        { "url": format!("http://{}", other.address()), "model_ids": ["other"] },
    ]);
    plugin["disable_circuit_breaker"] = json!(true);
    let mut xds: Xds = gateway::emitted(&manifests, &plugin, &[dead.address, other.address()], plane.modules());
    gateway::make_older(&mut xds);
    manifests.patch("smg", &mut xds);
    assert!(Value::from(xds.routes.clone()).to_string().contains("previous_hosts"));
    let envoy = start(plane.deliver(&xds), json!({})).await;
    let mut connection = envoy.connect().await;
    for _ in 0..10 {
        let reply = connection.post(CHAT, chat("dead", "Well?")).await.unwrap();
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(envoy.stat(&format!("cluster.{}.upstream_rq_retry", gateway::CLUSTER)).await, 40);
    assert_eq!(other.arrived(), 0);
    assert_eq!(connection.post(CHAT, chat("other", "Well?")).await.unwrap().status, StatusCode::OK);
}
