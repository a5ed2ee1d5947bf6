//! Workers that a sidecar finds in Envoy itself.

use std::net::TcpListener;
use std::process::Command;

use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Output, Process, eventually, workspace_binary};
use testbed::fake_engine::{Control, EngineOptions, FakeEngine};

use crate::support::{CHAT, SOON, chat, no_vm_was_lost};

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
        plugin: json!({ "policy": "round_robin" }),
        edit: Some(with_health_checks),
        ..EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()))
    };
    let envoy = Envoy::start(options).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let face = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
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
    eventually(SOON, "the filter takes reports of all three", async || {
        envoy.metrics().await.by("smg_load_reports_total", "outcome").get("taken").is_some_and(|taken| *taken >= 3.0)
    })
    .await;

    engines[1].control(Control { health: Some(500), ..Control::default() });
    becomes(&engines[1], "not_ready").await;
    becomes(&engines[0], "ready").await;
    engines[1].clear_faults();
    becomes(&engines[1], "ready").await;

    let mut connection = envoy.connect().await;
    for _ in 0..6 {
        assert_eq!(connection.post(CHAT, chat("m", "Well?")).await.unwrap().status, 200);
    }
    no_vm_was_lost(&envoy).await;
}
