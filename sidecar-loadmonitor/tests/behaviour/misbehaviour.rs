//! Engines that do what no engine should: none of them may delay or spoil another's report.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, http::StatusCode, http::header::LOCATION, routing::get};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use crate::fakes::{Ingest, PATIENCE, dead_port, healthy, load, serve, serve_raw, sidecar, vllm};

/// A sidecar with a healthy worker and `bad`: the healthy one reports, `bad` is named without a load. Returns the
/// listener for more.
pub(crate) async fn spares_the_others(bad: &str) -> Ingest {
    let (ingest, push) = Ingest::start().await;
    let good = format!("http://{}", healthy(3).await);
    let _sidecar = sidecar(&["--worker", bad, "--worker", &good, "--push-url", &push, "--load-monitor-interval", "2"]);
    assert_eq!(ingest.first_report(&good).await.load, Some(load(3)));
    assert_eq!(ingest.first_report(bad).await.load, None);
    ingest.wait(2).await;
    let of_good = ingest.received().into_iter().flat_map(|snapshot| snapshot.workers).filter(|w| w.url == good);
    assert!(of_good.into_iter().all(|worker| worker.load == Some(load(3))));
    ingest
}

async fn request(stream: &mut TcpStream) {
    let mut request = [0; 4096];
    let _ = stream.read(&mut request).await;
}

#[tokio::test]
async fn a_dead_engine() {
    spares_the_others(&format!("http://{}", dead_port().await)).await;
}

#[tokio::test]
async fn an_engine_whose_name_does_not_resolve() {
    let url = "http://nowhere.invalid:8000";
    let ingest = spares_the_others(url).await;
    assert_eq!(ingest.first_report(url).await.address, None);
}

#[tokio::test]
async fn an_engine_that_accepts_and_never_answers() {
    let address = serve_raw(|stream, _| async move {
        sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    let url = format!("http://{address}");
    spares_the_others(&url).await;
    // Its poll would take longer than the test.
    let (ingest, push) = Ingest::start().await;
    let good = format!("http://{}", healthy(3).await);
    let slow = ["--load-monitor-interval", "600", "--timeout", "600"];
    let _sidecar = sidecar(&[&["--worker", &url, "--worker", &good, "--push-url", &push], &slow[..]].concat());
    ingest.wait_report(&good, |report| report.load == Some(load(3))).await;
}

#[tokio::test]
async fn an_engine_that_answers_a_byte_a_second() {
    let address = serve_raw(|mut stream, _| async move {
        request(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{}", " ".repeat(500));
        for byte in answer.bytes() {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    spares_the_others(&format!("http://{address}")).await;
}

#[tokio::test]
async fn an_engine_with_a_page_of_50_megabytes() {
    for chunked in [false, true] {
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        let address = serve_raw(move |mut stream, _| {
            let count = Arc::clone(&count);
            async move {
                request(&mut stream).await;
                let length = if chunked { "transfer-encoding: chunked" } else { "content-length: 52428800" };
                let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{length}\r\n\r\n").as_bytes()).await;
                let piece = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
                for _ in 0..800 {
                    if stream.write_all(piece.as_bytes()).await.is_err() {
                        return;
                    }
                    count.fetch_add(0x10000, Ordering::SeqCst);
                }
            }
        })
        .await;
        // Two requests a poll, a few polls: 50 MB each would show.
        spares_the_others(&format!("http://{address}")).await;
        assert!(written.load(Ordering::SeqCst) < 100 << 20, "{written:?}");
    }
}

#[tokio::test]
async fn an_engine_that_speaks_something_else() {
    let address = serve_raw(|mut stream, _| async move {
        let _ = stream.write_all(b"\x15\x03\x01\x00\x02\x02\x0aSSH-2.0-hello\r\n").await;
        sleep(PATIENCE).await;
    })
    .await;
    spares_the_others(&format!("http://{address}")).await;
}

#[tokio::test]
async fn an_engine_whose_pages_are_garbage() {
    let garbage = || async { (0..4096_u32).map(|n| (n * 7 % 256) as u8).collect::<Vec<_>>() };
    let router = Router::new().route("/v1/loads", get(garbage)).route("/metrics", get(garbage));
    spares_the_others(&format!("http://{}", serve(router).await)).await;
}

#[tokio::test]
async fn an_engine_that_closes_in_the_middle() {
    let address = serve_raw(|mut stream, _| async move {
        request(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"loads\":[").await;
    })
    .await;
    spares_the_others(&format!("http://{address}")).await;
}

#[tokio::test]
async fn an_engine_that_redirects_is_not_followed() {
    let followed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&followed);
    let elsewhere = Router::new().fallback(move || {
        count.fetch_add(1, Ordering::SeqCst);
        async { crate::fakes::loads(1) }
    });
    let target = format!("http://{}/v1/loads", serve(elsewhere).await);
    let router = Router::new().fallback(move || {
        let target = target.clone();
        async move { (StatusCode::FOUND, [(LOCATION, target)]) }
    });
    spares_the_others(&format!("http://{}", serve(router).await)).await;
    assert_eq!(followed.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_source_that_stalls_leaves_time_for_the_other() {
    let router = Router::new()
        .route(
            "/v1/loads",
            get(|| async {
                sleep(PATIENCE).await;
                ""
            }),
        )
        .route("/metrics", get(|| async { vllm(7) }));
    let url = format!("http://{}", serve(router).await);
    let (ingest, push) = Ingest::start().await;
    let _sidecar = sidecar(&["--worker", &url, "--push-url", &push, "--load-monitor-interval", "2"]);
    ingest.wait_report(&url, |report| report.load == Some(load(7))).await;
}
