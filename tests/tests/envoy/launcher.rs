//! The launcher itself: what the other tests rely on.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, Filter, eventually};

use crate::upstream::Upstream;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn serves_ends_and_leaves_nothing() {
    let upstream = Upstream::named("a").await;
    let options = EnvoyOptions { filter: Filter::Absent, ..EnvoyOptions::with_workers([upstream.address]) };
    let envoy = Envoy::start(options).await.unwrap();
    let pid = envoy.pid();
    let reply = envoy.connect().await.get("/").await.unwrap();
    assert_eq!(reply.text(), "a");
    assert_eq!(envoy.stat("cluster.engines.upstream_rq_total").await, 1);
    assert_eq!(envoy.metrics().await.sum("envoy_cluster_upstream_rq_total", &[("envoy_cluster_name", "engines")]), 1.0);
    eventually(SOON, "nothing is under way", async || envoy.upstream_rq_active("engines").await == 0).await;
    drop(envoy);
    assert!(!runs(pid));
}

#[tokio::test]
async fn endpoints_change_at_run_time() {
    let (first, second) = (Upstream::named("first").await, Upstream::named("second").await);
    let options = EnvoyOptions { filter: Filter::Absent, ..EnvoyOptions::with_workers([first.address]) };
    let mut envoy = Envoy::start(options).await.unwrap();
    assert_eq!(envoy.connect().await.get("/").await.unwrap().text(), "first");
    envoy.update_engines(&[second.address]).await;
    assert_eq!(envoy.connect().await.get("/").await.unwrap().text(), "second");
}

#[tokio::test]
async fn one_connection_reaches_each_thread() {
    let upstream = Upstream::named("a").await;
    let options = EnvoyOptions {
        filter: Filter::Absent,
        concurrency: 4,
        exact_balance: true,
        ..EnvoyOptions::with_workers([upstream.address])
    };
    let envoy = Envoy::start(options).await.unwrap();
    for connection in &mut envoy.connection_per_thread().await {
        assert_eq!(connection.get("/").await.unwrap().text(), "a");
    }
}

#[tokio::test]
async fn a_plugin_configuration_is_taken_by_every_thread_or_refused() {
    let workers = [Upstream::named("a").await, Upstream::named("b").await];
    let addresses = workers.each_ref().map(|upstream| upstream.address);
    let options = EnvoyOptions { concurrency: 3, exact_balance: true, ..EnvoyOptions::with_workers(addresses) };
    let mut envoy = Envoy::start(options).await.unwrap();
    let only = |address| json!({ "policy": "round_robin", "workers": [{ "url": format!("http://{address}") }] });
    for (address, name) in [(addresses[1], "b"), (addresses[0], "a")] {
        envoy.update_plugin(only(address)).await.unwrap();
        for connection in &mut envoy.connection_per_thread().await {
            assert_eq!(connection.get("/").await.unwrap().text(), name);
        }
    }

    let rejected = envoy.update_plugin(json!({ "policy": "no_such_policy" })).await.unwrap_err();
    assert!(rejected.log.contains("no_such_policy"), "{rejected}");
    assert_eq!(envoy.plugin()["policy"], "round_robin");
    assert_eq!(envoy.connect().await.get("/").await.unwrap().text(), "a");
    envoy.update_plugin(only(addresses[1])).await.unwrap();
    assert_eq!(envoy.connect().await.get("/").await.unwrap().text(), "b");
}

#[tokio::test]
async fn a_refused_start_says_why() {
    let options = EnvoyOptions { plugin: json!({ "policy": "no_such_policy" }), ..EnvoyOptions::default() };
    let error = Envoy::start(options).await.unwrap_err();
    assert!(error.to_string().contains("no_such_policy"), "{error}");
}

/// Whether a process runs; one that is dead and not yet waited for does not.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
