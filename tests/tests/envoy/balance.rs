//! How requests of all threads together are spread over the workers.

use futures_util::future::join_all;
use http::StatusCode;
use serde_json::json;
use testbed::envoy::{Connection, Envoy, EnvoyOptions, eventually};

use crate::gate::{Gate, HOLD};
use crate::support::{CHAT, Held, SOON, chat, counts_become, no_vm_was_lost, post};

async fn gates(number: usize) -> Vec<Gate> {
    join_all((0..number).map(|_| Gate::start())).await
}

async fn in_front_of(gates: &[Gate], plugin: serde_json::Value) -> Envoy {
    let workers = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    Envoy::start(EnvoyOptions { plugin, concurrency: 4, exact_balance: true, ..workers }).await.unwrap()
}

#[tokio::test]
async fn least_load_gives_each_of_8_idle_workers_8_of_64_simultaneous_requests() {
    let gates = gates(8).await;
    let envoy = in_front_of(&gates, json!({ "policy": "least_load" })).await;
    let mut connections = Vec::new();
    for _ in 0..64 {
        connections.push(envoy.connect().await);
    }
    let requests = join_all(connections.iter_mut().enumerate().map(|(number, connection)| {
        let body = chat("m", &format!("Question {number}"));
        connection.send(post(body, &[(HOLD, "head")]))
    }));
    let watch = async {
        eventually(SOON, "all 64 are with the engines", async || gates.iter().map(Gate::arrived).sum::<usize>() == 64)
            .await;
        counts_become(&envoy, 64, "while the engines hold them").await;
        let by_worker = envoy.metrics().await.by("smg_worker_requests_active", "worker");
        assert!(by_worker.values().all(|&number| number == 8.0), "{by_worker:?}");
        gates.iter().for_each(Gate::open);
    };
    let (replies, ()) = tokio::join!(requests, watch);
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap().status == StatusCode::OK));
    let arrived: Vec<_> = gates.iter().map(Gate::arrived).collect();
    assert_eq!(arrived, [8; 8]);
    counts_become(&envoy, 0, "at the end").await;
}

#[tokio::test]
async fn round_robin_over_4_threads_gives_each_of_3_workers_1000_of_3000_requests() {
    let gates = gates(3).await;
    let envoy = in_front_of(&gates, json!({ "policy": "round_robin" })).await;
    let mut threads = envoy.connection_per_thread().await;
    join_all(threads.iter_mut().map(async |connection: &mut Connection| {
        for number in 0..750 {
            let reply = connection.post(CHAT, chat("m", &number.to_string())).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK);
        }
    }))
    .await;
    let arrived: Vec<_> = gates.iter().map(Gate::arrived).collect();
    assert_eq!(arrived, [1000; 3]);
}

#[tokio::test]
async fn carries_2000_streams_at_once() {
    let gates = gates(4).await;
    let envoy = in_front_of(&gates, json!({})).await;
    let streams = join_all((0..2000).map(|number| {
        let text = format!("{number} is the number of this question, so that it shares its beginning with none. ");
        let envoy = &envoy;
        async move { Held::start(envoy, "m", &text.repeat(4)).await }
    }))
    .await;
    counts_become(&envoy, 2000, "at the peak").await;
    gates.iter().for_each(Gate::open);
    let ends = join_all(streams.into_iter().map(Held::finish)).await;
    assert!(ends.iter().all(|end| end.ends_with(b"[DONE]\n\n")));
    counts_become(&envoy, 0, "at the end").await;
    assert_eq!(envoy.stat("cluster.engines.upstream_rq_retry").await, 0);
    no_vm_was_lost(&envoy).await;
}
