//! Engines that behave, each in its way.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{Router, extract::Request, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fakes::{
    Ingest, Route, dead_port, engine, eventually, healthy, load, loads, patient_sidecar, serve, serve_raw, vllm,
};

/// Rounds as short as a slow machine allows.
const FAST: [&str; 2] = ["--load-monitor-interval", "0.1"];

fn arguments<'a>(worker: &'a str, push: &'a str) -> Vec<&'a str> {
    [&["--worker", worker, "--push-url", push][..], &FAST[..]].concat()
}

#[tokio::test]
async fn a_report_carries_the_url_as_given_and_the_address() {
    let (ingest, push) = Ingest::start().await;
    let port = healthy(3).await.port();
    let url = format!("http://localhost:{port}/");
    let _sidecar = patient_sidecar(&arguments(&url, &push));
    let report = ingest.wait_report(&url, |report| report.load.is_some()).await;
    assert_eq!(report.address, Some(format!("127.0.0.1:{port}")));
    assert_eq!(report.load, Some(load(3)));
}

#[tokio::test]
async fn snapshots_are_numbered_and_name_every_worker() {
    let (ingest, push) = Ingest::start().await;
    let urls = [format!("http://{}", healthy(1).await), format!("http://{}", dead_port().await)];
    let _sidecar = patient_sidecar(&arguments(&urls.join(","), &push));
    let snapshots = ingest.wait(4).await;
    for (snapshot, sequence) in snapshots.iter().zip(1..) {
        assert_eq!((snapshot.sequence, snapshot.epoch), (sequence, snapshots[0].epoch));
        assert_eq!(snapshot.interval_ms, 100);
    }
    let dead = ingest.first_report(&urls[1]).await;
    assert_eq!((dead.address, dead.load), (Some(urls[1].replace("http://", "")), None));
    assert_eq!(ingest.first_report(&urls[0]).await.load, Some(load(1)));
}

#[tokio::test]
async fn one_connection_serves_many_polls() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let address = serve_raw(move |mut stream, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let body = loads(1);
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&arguments(&format!("http://{address}"), &push));
    let snapshots = ingest.wait(6).await;
    assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load.is_some()), "{snapshots:?}");
    // One more while it was asked what it is.
    assert!(connections.load(Ordering::SeqCst) <= 2, "{connections:?}");
}

/// What uvicorn does to a poll that comes as late as its keep-alive allows.
#[tokio::test]
async fn an_engine_that_closes_a_kept_connection_under_the_request_still_reports() {
    let address = serve_raw(|mut stream, _| async move {
        let body = loads(1);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        let _ = stream.read(&mut request).await;
    })
    .await;
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&arguments(&format!("http://{address}"), &push));
    let snapshots = ingest.wait(6).await;
    assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load.is_some()), "{snapshots:?}");
}

#[tokio::test]
async fn the_poll_asks_for_the_sections_with_the_key_under_the_path_of_the_url() {
    let seen = Arc::new(Mutex::new(String::new()));
    let note = Arc::clone(&seen);
    let router = Router::new().route(
        "/tenant/v1/loads",
        get(move |request: Request| async move {
            let key = request.headers()["authorization"].to_str().unwrap();
            *note.lock().unwrap() = format!("{} {key}", request.uri());
            loads(1)
        }),
    );
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine.key");
    std::fs::write(&file, "s3cret\n").unwrap();
    let url = format!("http://{}/tenant/", serve(router).await);
    let (ingest, push) = Ingest::start().await;
    let key = ["--api-key-file", file.to_str().unwrap()];
    let _sidecar = patient_sidecar(&[arguments(&url, &push), key.to_vec()].concat());
    ingest.first_report(&url).await;
    let expected = "/tenant/v1/loads?include=core,disagg,queues,memory Bearer s3cret";
    assert_eq!(seen.lock().unwrap().as_str(), expected);
}

#[tokio::test]
async fn an_engine_without_load_reports_is_read_through_its_metrics_and_not_asked_again() {
    for (status, body) in [(404, ""), (405, ""), (501, "")] {
        let (route, metrics) = (Route::new(status, body), Route::new(200, vllm(7)));
        let url = format!("http://{}", engine(&route, &metrics).await);
        let (ingest, push) = Ingest::start().await;
        let _sidecar = patient_sidecar(&arguments(&url, &push));
        let snapshots = ingest.wait(5).await;
        assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load == Some(load(7))), "{snapshots:?}");
        assert_eq!(route.asked(), 1, "{status} {body}");
        assert!(metrics.asked() >= 5);
    }
}

#[tokio::test]
async fn an_engine_that_only_fails_now_is_asked_again() {
    for (status, body) in [(500, ""), (503, "loading"), (401, ""), (200, "{\"loads\":[]}"), (200, "<html>hello</html>")]
    {
        let (route, metrics) = (Route::new(status, body), Route::new(200, vllm(7)));
        let url = format!("http://{}", engine(&route, &metrics).await);
        let (ingest, push) = Ingest::start().await;
        let _sidecar = patient_sidecar(&arguments(&url, &push));
        ingest.wait_report(&url, |report| report.load == Some(load(7))).await;
        route.answers(200, loads(2));
        ingest.wait_report(&url, |report| report.load == Some(load(2))).await;
        let asked = metrics.asked();
        ingest.clear();
        ingest.wait(3).await;
        assert!(metrics.asked() <= asked + 1, "the better source is enough");
    }
}

#[tokio::test]
async fn an_engine_that_starts_is_unknown_not_idle() {
    let route = Route::new(200, r#"{"loads":[{"dp_rank":0,"num_running_reqs":0,"max_total_num_tokens":0}]}"#);
    let metrics = Route::new(200, "sglang:token_usage 0\n");
    let url = format!("http://{}", engine(&route, &metrics).await);
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&arguments(&url, &push));
    let snapshots = ingest.wait(3).await;
    assert!(snapshots.iter().all(|snapshot| snapshot.workers[0].load.is_none()), "{snapshots:?}");
    assert_eq!(metrics.asked(), 0);
    route.answers(200, r#"{"loads":[{"dp_rank":0,"num_running_reqs":0,"max_total_num_tokens":9000}]}"#);
    ingest.wait_report(&url, |report| report.load.is_some()).await;
}

#[tokio::test]
async fn an_engine_that_recovers_as_another_one_is_asked_from_the_best_source_on() {
    let (route, metrics) = (Route::new(404, ""), Route::new(200, vllm(7)));
    let url = format!("http://{}", engine(&route, &metrics).await);
    let (ingest, push) = Ingest::start().await;
    let _sidecar = patient_sidecar(&arguments(&url, &push));
    ingest.wait_report(&url, |report| report.load == Some(load(7))).await;
    metrics.answers(503, "");
    ingest.wait_report(&url, |report| report.load.is_none()).await;
    route.answers(200, loads(1));
    ingest.wait_report(&url, |report| report.load == Some(load(1))).await;
    assert!(eventually("polls", || (route.asked() > 1).then_some(true)).await);
}
