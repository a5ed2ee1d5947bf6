//! Envoys that are away, refuse or stall.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use tokio::{net::TcpListener, time::sleep};

use crate::fakes::{
    Ingest, PATIENCE, dead_port, eventually, healthy, load, loads, patient_sidecar, push_url, serve, serve_raw,
    sidecar, spawn,
};

/// An engine whose waiting requests count its polls.
async fn counting() -> (String, Arc<AtomicU32>) {
    let polls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&polls);
    let router =
        Router::new().route("/v1/loads", get(move || async move { loads(count.fetch_add(1, Ordering::SeqCst) + 1) }));
    (format!("http://{}", serve(router).await), polls)
}

#[tokio::test]
async fn an_envoy_that_returns_gets_the_newest_snapshot_first() {
    let (worker, polls) = counting().await;
    let envoy = dead_port().await;
    let push = push_url(envoy);
    let _sidecar = patient_sidecar(&["--worker", &worker, "--push-url", &push, "--load-monitor-interval", "0.1"]);
    eventually("polls", || (polls.load(Ordering::SeqCst) >= 8).then_some(())).await;

    let ingest = Ingest::default();
    let listener = TcpListener::bind(envoy).await.unwrap();
    let before = polls.load(Ordering::SeqCst);
    let router = ingest.router();
    let _envoy = spawn(async move { axum::serve(listener, router).await.unwrap() });
    let snapshots = ingest.wait(3).await;
    let (first, last) = (&snapshots[0], &snapshots[2]);
    assert!(first.sequence >= 4, "old snapshots were queued: {first:?}");
    let waiting = first.workers[0].load.unwrap().waiting;
    assert!(waiting >= f64::from(before) - 3.0, "{waiting} is older than {before}");
    assert!(last.sequence > first.sequence);
}

#[tokio::test]
async fn an_envoy_that_stalls_or_is_away_delays_no_other() {
    let stalling = serve_raw(|stream, _| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let (ingest, push) = Ingest::start().await;
    let envoys = [push_url(stalling), push_url(dead_port().await), push].join(" ");
    let worker = format!("http://{}", healthy(1).await);
    let _sidecar = patient_sidecar(&["--worker", &worker, "--push-url", &envoys, "--load-monitor-interval", "0.2"]);
    let snapshots = ingest.wait(5).await;
    assert!(snapshots.is_sorted_by(|one, next| one.sequence < next.sequence), "{snapshots:?}");
}

#[tokio::test]
async fn a_refused_snapshot_does_not_stop_the_next() {
    for status in [400, 404, 413, 503] {
        let (ingest, push) = Ingest::start().await;
        ingest.status.store(status, Ordering::SeqCst);
        let (worker, polls) = counting().await;
        let _sidecar = patient_sidecar(&["--worker", &worker, "--push-url", &push, "--load-monitor-interval", "0.1"]);
        eventually("polls", || (polls.load(Ordering::SeqCst) >= 3).then_some(())).await;
        assert!(ingest.received().is_empty());
        ingest.status.store(0, Ordering::SeqCst);
        ingest.wait(2).await;
    }
}

/// Short pauses at first: an Envoy that starts just after the sidecar knows the workers long before the next round.
#[tokio::test]
async fn a_late_envoy_need_not_wait_for_the_next_round() {
    let envoy = dead_port().await;
    let worker = format!("http://{}", healthy(1).await);
    let _sidecar = sidecar(&["--worker", &worker, "--push-url", &push_url(envoy), "--load-monitor-interval", "600"]);
    sleep(Duration::from_millis(300)).await;
    let ingest = Ingest::default();
    let listener = TcpListener::bind(envoy).await.unwrap();
    let router = ingest.router();
    let _envoy = spawn(async move { axum::serve(listener, router).await.unwrap() });
    let snapshots = ingest.wait(1).await;
    assert_eq!(snapshots[0].workers[0].load, Some(load(1)));
}
