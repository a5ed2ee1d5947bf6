//! Load reports: from engines through the sidecar to a decision, and what is no report.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Method;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Output, Process, eventually, workspace_binary};
use testbed::fake_engine::{Control, EngineOptions, FakeEngine, Probe};

use crate::gate::Gate;
use crate::support::{CHAT, SOON, chat, no_vm_was_lost};

/// Starts a sidecar; its log goes to `directory`.
fn sidecar(envoy: &Envoy, engines: &[FakeEngine], directory: &Path) -> Process {
    let mut command = Command::new(workspace_binary("sidecar-loadmonitor").unwrap());
    command.args(engines.iter().flat_map(|engine| ["--worker".to_owned(), engine.url()]));
    command.args(["--push-url", &envoy.reports_url(), "--load-monitor-interval", "1"]);
    Process::start("sidecar", command, &Output::File(directory.join("sidecar.log"))).unwrap()
}

/// What an engine says that has a long queue.
pub fn long_queue() -> Control {
    let queue = json!({ "loads": [{
        "dp_rank": 0, "num_running_reqs": 8, "num_waiting_reqs": 100, "num_waiting_uncached_tokens": 1_000_000,
        "token_usage": 0.5, "gen_throughput": 100.0, "max_total_num_tokens": 1_000_000,
    }] });
    let lie = Probe::Body { body: queue.to_string(), status: None };
    Control { loads: Some(lie), ..Control::default() }
}

/// Sends `number` requests, one after the other, and returns how many each engine has got of them.
pub async fn spread(envoy: &Envoy, engines: &[FakeEngine], number: usize) -> Vec<u64> {
    let before: Vec<_> = engines.iter().map(|engine| engine.stats().requests).collect();
    let mut connection = envoy.connect().await;
    for _ in 0..number {
        assert_eq!(connection.post(CHAT, chat("m", "Well?")).await.unwrap().status, 200);
    }
    engines.iter().zip(before).map(|(engine, before)| engine.stats().requests - before).collect()
}

#[tokio::test]
async fn a_long_queue_is_avoided_as_long_as_a_sidecar_reports_it() {
    let engines: Vec<_> = (0..3).map(|_| FakeEngine::start(EngineOptions::instant())).collect();
    engines[0].control(long_queue());
    let options = EnvoyOptions {
        plugin: json!({ "policy": "least_load" }),
        ..EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()))
    };
    let envoy = Envoy::start(options).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let avoided = async || spread(&envoy, &engines, 30).await[0] == 0;
    let chosen = async || spread(&envoy, &engines, 30).await[0] > 0;

    // Counters are handed to Envoy on ticks.
    let reports = async || envoy.metrics().await.by("smg_load_reports_total", "outcome");
    let taken = async || reports().await.get("taken").copied().unwrap_or_default();

    assert!(chosen().await, "nobody has reported yet");
    for life in ["first", "second"] {
        let before = taken().await;
        let mut sidecar = sidecar(&envoy, &engines, directory.path());
        eventually(SOON, &format!("the queue counts, {life} sidecar"), avoided).await;
        eventually(SOON, &format!("all three count, {life} sidecar"), async || taken().await >= before + 3.0).await;
        assert!(sidecar.exited().is_none());
        sidecar.kill();
        eventually(SOON, &format!("reports grow old, {life} sidecar"), chosen).await;
    }
    // It asks to be let down gently as well.
    let before = taken().await;
    let mut last = sidecar(&envoy, &engines, directory.path());
    eventually(SOON, "the queue counts, last sidecar", avoided).await;
    eventually(SOON, "all three count, last sidecar", async || taken().await >= before + 3.0).await;
    engines[0].clear_faults();
    eventually(SOON, "the queue is gone", chosen).await;
    last.stop(SOON);
    assert!(last.exited().unwrap().success());
    assert_eq!(reports().await.len(), 1, "{:?}", reports().await);
    no_vm_was_lost(&envoy).await;
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A client of the ingest listener.
struct Ingest<'a> {
    envoy: &'a Envoy,
    client: reqwest::Client,
}

impl Ingest<'_> {
    async fn send(&self, method: Method, url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let answer = self.client.request(method, url).body(body).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
    }

    /// Posts to where reports are taken.
    async fn post(&self, body: impl Into<reqwest::Body>) -> (u16, Value) {
        self.send(Method::POST, &self.envoy.reports_url(), body).await
    }

    /// Posts a snapshot that says of each worker how many tokens wait there.
    async fn snapshot(&self, epoch: u64, sequence: u64, queued: &[(&str, f64)]) -> u16 {
        let workers: Vec<_> =
            queued.iter().map(|(url, queued)| json!({ "url": url, "load": [queued, 0, 0, 0, 100] })).collect();
        let snapshot =
            json!({ "version": 2, "epoch": epoch, "sequence": sequence, "interval_ms": 600_000, "workers": workers });
        self.post(snapshot.to_string()).await.0
    }

    /// Waits until so many reports have had this outcome.
    async fn counted(&self, outcome: &str, number: f64) {
        let mut seen = 0.0;
        eventually(SOON, &format!("{number} reports are counted as {outcome}"), async || {
            seen = self.envoy.metrics().await.sum("smg_load_reports_total", &[("outcome", outcome)]);
            assert!(seen <= number, "{seen} reports are counted as {outcome}");
            seen == number
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_no_report_is_refused_counted_and_harmless() {
    let gates = [Gate::start().await, Gate::start().await];
    let envoy = Envoy::start(EnvoyOptions {
        plugin: json!({ "policy": "least_load", "log_level": "debug" }),
        ..EnvoyOptions::with_workers(gates.each_ref().map(Gate::address))
    })
    .await
    .unwrap();
    let urls = gates.each_ref().map(|gate| format!("http://{}", gate.address()));
    let ingest = Ingest { envoy: &envoy, client: reqwest::Client::new() };
    let mut connection = envoy.connect().await;
    let mut first_gets_none = async |of: usize| {
        let before = gates[0].arrived();
        for _ in 0..of {
            assert_eq!(connection.post(CHAT, chat("m", "Well?")).await.unwrap().status, 200);
        }
        gates[0].arrived() == before
    };

    let epoch = now_ms();
    let (long, short) = ([(&*urls[0], 1e9), (&urls[1], 0.0)], [(&*urls[0], 0.0), (&urls[1], 1e9)]);
    assert_eq!(ingest.snapshot(epoch, 5, &long).await, 202);
    ingest.counted("taken", 2.0).await;
    assert!(first_gets_none(20).await);

    // Late, from the past, and of workers that nobody knows.
    for sequence in [5, 4] {
        assert_eq!(ingest.snapshot(epoch, sequence, &short).await, 202);
    }
    assert_eq!(ingest.snapshot(epoch - 1000, 900, &short).await, 202);
    ingest.counted("old", 6.0).await;
    assert_eq!(ingest.snapshot(epoch, 6, &[("http://nobody:1", 0.0), ("http://nobody:2", 0.0)]).await, 202);
    ingest.counted("foreign", 2.0).await;
    assert!(first_gets_none(20).await);

    let garbage: [(&str, Vec<u8>); 7] = [
        ("no text", vec![0xff, 0xfe, 0x00, 0x80]),
        ("no JSON", b"hello".to_vec()),
        ("cut", br#"{"version":2,"epoch":1,"#.to_vec()),
        ("another version", br#"{"version":1}"#.to_vec()),
        ("wrong types", br#"{"version":2,"epoch":"x","sequence":1,"interval_ms":1,"workers":[]}"#.to_vec()),
        ("deep", "[".repeat(100_000).into_bytes()),
        ("negative", br#"{"version":2,"epoch":-1,"sequence":1,"interval_ms":1,"workers":[]}"#.to_vec()),
    ];
    for (number, (what, body)) in garbage.into_iter().enumerate() {
        let (status, answer) = ingest.post(body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("malformed_snapshot")), "{what}");
        ingest.counted("malformed", number as f64 + 1.0).await;
    }
    assert!(envoy.log().contains("load snapshot refused"));
    let (status, answer) = ingest.post(vec![b' '; 5 << 20]).await;
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("snapshot_too_large")));
    ingest.counted("malformed", 8.0).await;
    let (status, answer) = ingest.post("").await;
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("empty_snapshot")));
    let (status, answer) = ingest.send(Method::GET, &envoy.reports_url(), "").await;
    assert_eq!((status, &answer["error"]["code"]), (405, &json!("method_not_allowed")));
    let elsewhere = envoy.reports_url().replace("/v1/reports", CHAT);
    let (status, answer) = ingest.send(Method::POST, &elsewhere, chat("m", "x")).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("not_found")));
    assert!(first_gets_none(20).await);

    // The next good one counts, as does one of a sidecar that has started later.
    assert_eq!(ingest.snapshot(epoch, 7, &short).await, 202);
    ingest.counted("taken", 4.0).await;
    assert!(!first_gets_none(20).await);
    assert_eq!(ingest.snapshot(epoch + 1, 1, &long).await, 202);
    ingest.counted("taken", 6.0).await;
    assert!(first_gets_none(20).await);
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn a_worker_with_a_host_name_serves_once_its_address_is_reported() {
    let gate = Gate::start().await;
    let url = "http://engine-a.test:8000";
    let envoy = Envoy::start(EnvoyOptions {
        plugin: json!({ "workers": [{ "url": url }] }),
        ..EnvoyOptions::with_workers([gate.address()])
    })
    .await
    .unwrap();
    let mut connection = envoy.connect().await;
    let reply = connection.post(CHAT, chat("m", "Well?")).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("x-smg-error-code")), (503, Some("no_available_workers")));

    let ingest = Ingest { envoy: &envoy, client: reqwest::Client::new() };
    let snapshot = |sequence: u64, address: SocketAddr| {
        json!({
            "version": 2, "epoch": now_ms(), "sequence": sequence, "interval_ms": 10_000,
            "workers": [{ "url": url, "address": address.to_string(), "load": [0, 0, 0, 0, 0] }],
        })
    };
    assert_eq!(ingest.post(snapshot(1, gate.address()).to_string()).await.0, 202);
    eventually(SOON, "every thread knows the address", async || {
        let mut all = true;
        for _ in 0..8 {
            all &= envoy.connect().await.post(CHAT, chat("m", "Well?")).await.unwrap().status == 200;
        }
        all
    })
    .await;
    let reply = envoy.connect().await.post(CHAT, chat("m", "Well?")).await.unwrap();
    assert_eq!(reply.header("x-smg-routed-worker-id"), Some(url));
    assert_eq!(reply.text(), gate.address().to_string());
}
