//! Engines by signals: each engine that people run, with requests in it, and the load that arrives of it.

use std::time::Duration;

use filter_core::report::{Load, WorkerReport};
use testbed::fake_engine::{Control, EngineOptions, FakeEngine, Probe, Runtime};

use crate::fakes::{Ingest, eventually, patient_sidecar, spawn};

/// What of the truth an engine of a kind tells.
struct Tells {
    queue: bool,
    kv_usage: bool,
    /// Data-parallel ranks other than the first.
    all_ranks: bool,
}

const EVERYTHING: Tells = Tells { queue: true, kv_usage: true, all_ranks: true };

/// An engine of two ranks in which requests run and wait for as long as it lives.
async fn busy(runtime: Runtime) -> FakeEngine {
    let engine = FakeEngine::start(EngineOptions {
        runtime,
        dp_ranks: 2,
        max_running: 2,
        cache_tokens: 10_000,
        prefill_tokens_per_second: 0.0,
        decode_step: Duration::from_secs(3600),
        ..EngineOptions::default()
    });
    let url = format!("{}/generate", engine.url());
    for number in 0..9 {
        let body = format!(r#"{{"text":"{number}{}"}}"#, "x".repeat(3999));
        let request = reqwest::Client::new().post(&url).body(body);
        std::mem::forget(spawn(async move {
            let _ = request.send().await;
        }));
    }
    let counts = || engine.loads().iter().map(|rank| (rank.running, rank.waiting)).collect::<Vec<_>>();
    eventually("a queue", || {
        (counts().iter().map(|(running, waiting)| running + waiting).sum::<usize>() == 9
            && counts().iter().all(|(running, _)| *running == 2))
        .then_some(())
    })
    .await;
    engine
}

/// The load of an engine as one tells it who tells so much.
fn truth(engine: &FakeEngine, tells: &Tells) -> Load {
    let all = engine.loads();
    let ranks = if tells.all_ranks { &all[..] } else { &all[..1] };
    let sum = |field: fn(&testbed::fake_engine::RankLoad) -> usize| ranks.iter().map(field).sum::<usize>() as f64;
    let usage = ranks.iter().map(|rank| rank.used_tokens as f64 / 10_000.0).sum::<f64>() / ranks.len() as f64;
    Load {
        queued_tokens: if tells.queue { sum(|rank| rank.waiting_uncached_tokens) } else { 0.0 },
        waiting: sum(|rank| rank.waiting),
        running: sum(|rank| rank.running),
        kv_usage: if tells.kv_usage { usage } else { 0.0 },
        throughput: 0.0,
    }
}

fn same(reported: Load, truth: Load) -> bool {
    // Gauges have two decimals.
    (reported.kv_usage - truth.kv_usage).abs() < 0.006
        && Load { kv_usage: 0.0, ..reported } == Load { kv_usage: 0.0, ..truth.as_sent() }
}

/// The URL as its engine is named to the sidecar.
fn url(engine: &FakeEngine, runtime: Runtime) -> String {
    match runtime {
        Runtime::SglangGrpc | Runtime::VllmGrpc | Runtime::TrtllmGrpc | Runtime::TokenspeedGrpc | Runtime::MlxGrpc => {
            format!("grpc://{}", engine.address())
        }
        _ => engine.url(),
    }
}

async fn arrives(runtime: Runtime, tells: &Tells) -> FakeEngine {
    let engine = busy(runtime).await;
    let url = url(&engine, runtime);
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&["--worker", &url, "--push-url", &push, "--load-monitor-interval", "0.2"]);
    let told = |report: &WorkerReport| report.load.is_some();
    let report = ingest.wait_report(&url, told).await;
    let (reported, expected) = (report.load.unwrap(), truth(&engine, tells));
    assert!(same(reported, expected), "{runtime:?} reports {reported:?}, not {expected:?}");
    assert!(expected.running > 0.0 && expected.waiting > 0.0, "{expected:?}");
    assert_eq!(report.address, Some(engine.address()));
    engine
}

#[tokio::test]
async fn sglang_by_json() {
    arrives(Runtime::Loads, &EVERYTHING).await;
    arrives(Runtime::Sglang, &EVERYTHING).await;
    arrives(Runtime::SglangOld, &Tells { queue: false, ..EVERYTHING }).await;
}

#[tokio::test]
async fn prometheus_pages() {
    let gauges = Tells { queue: false, ..EVERYTHING };
    arrives(Runtime::SglangMetrics, &gauges).await;
    arrives(Runtime::Vllm, &gauges).await;
    arrives(Runtime::LlamaCpp, &Tells { kv_usage: false, ..gauges }).await;
}

#[tokio::test]
async fn tensorrt_llm_is_read_without_taking_anything_from_others() {
    let engine = arrives(Runtime::Trtllm, &Tells { queue: false, kv_usage: true, all_ranks: false }).await;
    assert_eq!(engine.stats().drained, 0);
}

#[tokio::test]
async fn tensorrt_llm_that_publishes_nothing_is_left_alone() {
    let engine = busy(Runtime::Trtllm).await;
    engine.control(Control { metrics: Some(Probe::Status { status: 404 }), ..Control::default() });
    let url = engine.url();
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&["--worker", &url, "--push-url", &push, "--load-monitor-interval", "0.1"]);
    let snapshots = ingest.wait(5).await;
    assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load.is_none()), "{snapshots:?}");
    let stats = engine.stats();
    assert_eq!((stats.drained, stats.metrics_polls), (0, 1), "asked once, and not for what it would miss");
}

#[tokio::test]
async fn grpc_services() {
    arrives(Runtime::SglangGrpc, &EVERYTHING).await;
    arrives(Runtime::VllmGrpc, &Tells { queue: false, kv_usage: true, all_ranks: false }).await;
    arrives(Runtime::TokenspeedGrpc, &Tells { queue: false, ..EVERYTHING }).await;
}

#[tokio::test]
async fn a_grpc_service_without_loads_is_asked_once() {
    for runtime in [Runtime::TrtllmGrpc, Runtime::MlxGrpc, Runtime::SglangGrpc] {
        let engine = busy(runtime).await;
        // An older servicer that does not have the method yet.
        engine.control(Control { loads: Some(Probe::Status { status: 501 }), ..Control::default() });
        let url = url(&engine, runtime);
        let (ingest, push) = Ingest::start().await;
        let _sidecar = patient_sidecar(&["--worker", &url, "--push-url", &push, "--load-monitor-interval", "0.1"]);
        let snapshots = ingest.wait(5).await;
        assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load.is_none()), "{snapshots:?}");
        assert!(engine.stats().loads_polls <= 1, "{:?}", engine.stats());
        assert_eq!(engine.stats().health_polls, 1, "the service is found once");
    }
}
