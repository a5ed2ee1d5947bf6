//! Workers that are down: retries find another of the pool, the breaker learns, and the client sees nothing of it.

use futures_util::future::join_all;
use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, Reply, Worker, eventually};

use crate::gate::Gate;
use crate::support::{CHAT, Dead, SOON, WORKER_ID, chat, counts_become, no_vm_was_lost};

async fn breaker_state(envoy: &Envoy, url: &str) -> f64 {
    envoy.metrics().await.sum("smg_worker_cb_state", &[("worker", url)])
}

async fn transitions(envoy: &Envoy, url: &str, from: &str, to: &str) -> f64 {
    let labels = [("worker", url), ("from", from), ("to", to)];
    envoy.metrics().await.sum("smg_worker_cb_transitions_total", &labels)
}

/// The engine that has answered, which the gateway must have named too.
fn answered_by(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header(WORKER_ID), Some(&*format!("http://{}", reply.text())));
    reply.text()
}

#[tokio::test]
async fn a_dead_first_worker_costs_no_request_and_is_left_alone_after_10() {
    let dead = Dead::new();
    let gates = [Gate::start().await, Gate::start().await];
    let first = dead.address.to_string();
    let url = format!("http://{first}");
    // This policy names the first available worker first.
    let options = EnvoyOptions {
        plugin: json!({ "policy": "passthrough", "cb_timeout_duration_secs": 3600 }),
        concurrency: 4,
        exact_balance: true,
        ..EnvoyOptions::with_workers([dead.address, gates[0].address(), gates[1].address()])
    };
    let mut envoy = Envoy::start(options).await.unwrap();
    let mut threads = envoy.connection_per_thread().await;
    for number in 0..20 {
        let reply = threads[number % 4].post(CHAT, chat("m", &number.to_string())).await.unwrap();
        assert_eq!(answered_by(&reply), gates[0].address().to_string());
    }
    let destinations: Vec<_> = gates[0].arrivals().iter().map(|arrival| arrival.destination().to_owned()).collect();
    let to_first: Vec<_> = destinations.iter().map(|list| list.starts_with(&first)).collect();
    assert_eq!(to_first, [[true; 10], [false; 10]].concat(), "{destinations:?}");
    assert!(destinations[10..].iter().all(|list| !list.contains(&first)), "{destinations:?}");
    assert!(destinations.iter().all(|list| list.split(',').count() == 5), "{destinations:?}");
    eventually(SOON, "the breaker is seen open", async || {
        breaker_state(&envoy, &url).await == 1.0 && transitions(&envoy, &url, "closed", "open").await == 1.0
    })
    .await;
    let retries = envoy.stat("cluster.engines.upstream_rq_retry_success").await;
    assert_eq!(retries, 10);
    counts_become(&envoy, 0, "at the end").await;
    drop(threads);

    // It comes back, and its breaker, which has survived the change, lets requests through after a second.
    let revived = Gate::on(dead.revive());
    envoy.update_plugin(json!({ "cb_timeout_duration_secs": 1 })).await.unwrap();
    let mut connection = envoy.connect().await;
    eventually(SOON, "the first worker is chosen again", async || {
        let reply = connection.post(CHAT, chat("m", "Again")).await.unwrap();
        answered_by(&reply) == first
    })
    .await;
    for _ in 0..3 {
        assert_eq!(answered_by(&connection.post(CHAT, chat("m", "Again")).await.unwrap()), first);
    }
    assert!(revived.arrived() >= 4);
    eventually(SOON, "the breaker is seen closed", async || {
        breaker_state(&envoy, &url).await == 0.0
            && transitions(&envoy, &url, "open", "half_open").await == 1.0
            && transitions(&envoy, &url, "half_open", "closed").await == 1.0
    })
    .await;
    assert_eq!(transitions(&envoy, &url, "closed", "open").await, 1.0);
    counts_become(&envoy, 0, "at the end").await;
}

#[tokio::test]
async fn no_attempt_leaves_the_pool() {
    let dead: Vec<_> = (0..6).map(|_| Dead::new()).collect();
    let (alive, other) = (Gate::start().await, Gate::start().await);
    let worker = |address, model: &str| Worker::at(address).with("model_ids", json!([model]));
    // Three of the four workers with model a are dead, all three with model b, none with model c.
    let mut workers: Vec<_> = dead[..3].iter().map(|dead| worker(dead.address, "a")).collect();
    workers.push(worker(alive.address(), "a"));
    workers.extend(dead[3..].iter().map(|dead| worker(dead.address, "b")));
    workers.push(worker(other.address(), "c"));
    let envoy = Envoy::start(EnvoyOptions { workers, ..EnvoyOptions::default() }).await.unwrap();

    let ask = |model: &'static str, count: usize| {
        let envoy = &envoy;
        join_all((0..count).map(move |number| async move {
            let body = chat(model, &format!("{number} asks for {model}"));
            envoy.connect().await.post(CHAT, body).await.unwrap()
        }))
    };
    for reply in ask("a", 60).await {
        assert_eq!(answered_by(&reply), alive.address().to_string());
    }
    for reply in ask("b", 20).await {
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header(WORKER_ID), None);
    }
    assert_eq!(alive.arrived(), 60);
    assert_eq!(other.arrived(), 0);
    for reply in ask("c", 5).await {
        assert_eq!(answered_by(&reply), other.address().to_string());
    }
    eventually(SOON, "all six breakers are open", async || {
        let states = envoy.metrics().await.by("smg_worker_cb_state", "worker");
        states.values().filter(|&&state| state == 1.0).count() == 6
    })
    .await;
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}
