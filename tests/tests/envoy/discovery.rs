//! Workers that a sidecar finds in Envoy itself.

use std::process::Command;

use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Output, Process, eventually, workspace_binary};
use testbed::fake_engine::{Control, EngineOptions, FakeEngine};

use crate::support::{CHAT, SOON, address_for_later, chat, no_vm_was_lost};

/// Active health checks of the cluster, several a second.
fn with_health_checks(both: &mut Value) {
    for cluster in both["clusters"].as_array_mut().unwrap().iter_mut().filter(|cluster| cluster["name"] == "engines") {
        cluster["health_checks"] = json!([{
            "timeout": "2s", "interval": "0.2s", "no_traffic_interval": "0.2s", "unhealthy_interval": "0.2s",
            "unhealthy_threshold": 1, "healthy_threshold": 1, "http_health_check": { "path": "/health" },
        }]);
    }
}

#[tokio::test]
async fn engines_are_found_in_envoy_and_so_is_its_word_on_their_health() {
    let engines: Vec<_> = (0..3).map(|_| FakeEngine::start(EngineOptions::instant())).collect();
    let options = EnvoyOptions {
        // Nobody is listed twice: the filter is told of no worker, nor is the sidecar.
        plugin: json!({ "policy": "round_robin", "workers": null }),
        edit: Some(with_health_checks),
        ..EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()))
    };
    let envoy = Envoy::start(options).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let face = address_for_later().to_string();
    let mut command = Command::new(workspace_binary("sidecar-loadmonitor").unwrap());
    command.args(["--envoy-admin", &envoy.admin().url(), "--envoy-cluster", "engines", "--listen", &face]);
    command.args(["--push-url", &envoy.reports_url(), "--load-monitor-interval", "1", "--discovery-interval", "0.2"]);
    // Only Envoy probes.
    command.arg("--disable-health-check");
    let _sidecar = Process::start("sidecar", command, &Output::File(directory.path().join("sidecar.log"))).unwrap();

    let client = reqwest::Client::new();
    let health = async |engine: &FakeEngine| {
        let answer = client.get(format!("http://{face}/workers")).send().await.ok()?;
        let workers: Value = answer.json().await.ok()?;
        let worker = workers.as_array()?.iter().find(|worker| worker["url"] == engine.url())?;
        assert_eq!(worker["info"]["cluster"], "engines");
        worker["health"].as_str().map(str::to_owned)
    };
    let becomes = async |engine: &FakeEngine, expected: &str| {
        let what = format!("{} is {expected}", engine.url());
        eventually(SOON, &what, async || health(engine).await.as_deref() == Some(expected)).await;
    };
    for engine in &engines {
        becomes(engine, "ready").await;
    }
    let shares = async || {
        let before: Vec<_> = engines.iter().map(|engine| engine.stats().requests).collect();
        let mut answered = 0;
        for _ in 0..12 {
            // Each on a connection of its own: Envoy closes one on which a request was refused before its body was read.
            let reply = envoy.connect().await.post(CHAT, chat("m", "Well?")).await;
            answered += u64::from(reply.is_ok_and(|reply| reply.status == 200));
        }
        let shares: Vec<_> =
            engines.iter().zip(before).map(|(engine, before)| engine.stats().requests - before).collect();
        (answered, shares)
    };
    eventually(SOON, "all three are sent requests", async || {
        let (answered, shares) = shares().await;
        answered == 12 && shares.iter().all(|share| *share > 0)
    })
    .await;

    engines[1].control(Control { health: Some(500), ..Control::default() });
    becomes(&engines[1], "not_ready").await;
    eventually(SOON, "the sick engine is left alone", async || shares().await == (12, vec![6, 0, 6])).await;
    // Envoy would go there if it were named.
    assert_eq!(shares().await, (12, vec![6, 0, 6]));
    engines[1].clear_faults();
    becomes(&engines[1], "ready").await;
    eventually(SOON, "the engine is back", async || shares().await == (12, vec![4, 4, 4])).await;
    no_vm_was_lost(&envoy).await;
}
