//! What Prometheus is shown of the shared state.

use std::collections::BTreeMap;

use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, eventually};

use crate::gate::{Gate, HOLD};
use crate::support::{Dead, Held, SOON, chat, no_vm_was_lost, post};

const KEYS: &str = "smg_worker_routing_keys_active";

#[tokio::test]
async fn a_worker_shows_the_distinct_routing_keys_it_has_in_flight() {
    let gate = Gate::start().await;
    let plugin = json!({ "routing_key_headers": ["X-Session", "x-smg-routing-key"] });
    let options = EnvoyOptions::with_workers([gate.address()]);
    let envoy = Envoy::start(EnvoyOptions { plugin, concurrency: 4, exact_balance: true, ..options }).await.unwrap();
    let too_long = "k".repeat(300);
    let mut held = Vec::new();
    for headers in [
        &[("x-session", "a")][..],
        &[("x-session", "a")],
        &[("x-session", "a")],
        &[("x-smg-routing-key", "a")],
        &[("x-session", "b")],
        // A key that is none is passed over for the next header's.
        &[("x-session", &too_long), ("x-smg-routing-key", "b")],
        &[("x-session", ""), ("x-smg-routing-key", "c")],
        &[("x-smg-routing-key", &too_long)],
        &[],
    ] {
        let headers = [&[(HOLD, "body")], headers].concat();
        held.push(Held::start_with(&envoy, post(chat("m", "Hello"), &headers)).await);
    }
    eventually(SOON, "three keys are in flight", async || envoy.metrics().await.sum(KEYS, &[]) == 3.0).await;
    gate.open();
    for held in held {
        held.finish().await;
    }
    eventually(SOON, "no key is in flight", async || envoy.metrics().await.sum(KEYS, &[]) == 0.0).await;
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn requests_and_answers_are_shown_with_their_labels() {
    let gate = Gate::start().await;
    let dead = Dead::new();
    let plugin = json!({ "policy": "passthrough", "workers": [{ "url": format!("http://{}", dead.address) },
                                                              { "url": format!("http://{}", gate.address()) }] });
    let options = EnvoyOptions::with_workers([dead.address, gate.address()]);
    let envoy = Envoy::start(EnvoyOptions { plugin, concurrency: 1, ..options }).await.unwrap();
    let mut connection = envoy.connect().await;
    for _ in 0..3 {
        assert_eq!(connection.send(post(chat("m", "Hello"), &[])).await.unwrap().status, 200);
    }
    for (name, labels, expected) in [
        (
            "smg_router_requests_total",
            &[
                ("router_type", "http"),
                ("backend_type", "regular"),
                ("connection_mode", "http"),
                ("model", "unknown"),
                ("endpoint", "chat"),
                ("streaming", "unknown"),
            ][..],
            3.0,
        ),
        (
            "smg_router_upstream_responses_total",
            &[("router_type", "http"), ("status_code", "200"), ("error_code", "none")],
            3.0,
        ),
        ("smg_router_request_body_path_total", &[("path", "stream"), ("reason", "pure_forward")], 3.0),
        ("smg_worker_retries_total", &[("worker_type", "regular"), ("endpoint", "chat")], 3.0),
        (
            "smg_worker_errors_total",
            &[("worker_type", "regular"), ("connection_mode", "http"), ("error_type", "backend_error")],
            3.0,
        ),
        (
            "smg_worker_cb_outcomes_total",
            &[("worker", &*format!("http://{}", dead.address)), ("outcome", "failure")],
            3.0,
        ),
        ("smg_worker_cb_consecutive_failures", &[("worker", &*format!("http://{}", dead.address))], 3.0),
        ("smg_router_ttft_seconds_bucket", &[("model", "unknown"), ("le", "+Inf")], 3.0),
        ("smg_router_ttft_seconds_count", &[("model", "unknown")], 3.0),
    ] {
        eventually(SOON, &format!("{name} {labels:?}"), async || envoy.metrics().await.sum(name, labels) == expected)
            .await;
    }
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn the_prefix_trees_are_shown_by_model() {
    let gates = [Gate::start().await, Gate::start().await];
    let worker = |gate: &Gate, model| json!({ "url": format!("http://{}", gate.address()), "models": [model] });
    let plugin = json!({
        "max_tree_size": 1 << 20, "workers": [worker(&gates[0], "large"), worker(&gates[1], "small")]
    });
    let options = EnvoyOptions::with_workers(gates.each_ref().map(|gate| gate.address()));
    let envoy = Envoy::start(EnvoyOptions { plugin, concurrency: 2, ..options }).await.unwrap();
    let mut connection = envoy.connect().await;
    let text = "Some of this is remembered. ".repeat(40);
    for model in ["large", "small", "small"] {
        assert_eq!(connection.send(post(chat(model, &text), &[])).await.unwrap().status, 200);
    }
    let ids = ["7"; 64].join(",");
    let hinted = post(chat("small", ""), &[("x-smg-routing-tokens", &ids)]);
    assert_eq!(connection.send(hinted).await.unwrap().status, 200);
    let by_model = async |name: &str| envoy.metrics().await.by(name, "model");
    let shown = |values: &[(&str, f64)]| {
        values.iter().map(|(model, value)| ((*model).to_owned(), *value)).collect::<BTreeMap<_, _>>()
    };
    // The text is remembered up to the deepest cut, at 864 bytes. One count of all pages takes several ticks, so the first
    // may have seen one page before the last request and another after it.
    eventually(SOON, "ids and texts are counted", async || {
        by_model("smg_cache_tree_tokens").await == shown(&[("large", 0.0), ("small", 64.0), ("unknown", 0.0)])
            && by_model("smg_cache_tree_chars").await == shown(&[("large", 864.0), ("small", 864.0), ("unknown", 0.0)])
    })
    .await;
    let metrics = envoy.metrics().await;
    for (model, tree, workers) in
        [("large", "string", 1.0), ("large", "token", 0.0), ("small", "string", 1.0), ("small", "token", 1.0)]
    {
        assert_eq!(
            metrics.sum("smg_cache_tree_tenants", &[("model", model), ("tree", tree)]),
            workers,
            "{model} {tree}"
        );
    }
}
