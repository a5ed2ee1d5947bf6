//! The binary: its exit, its signals, its log.

use std::time::Duration;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, timeout},
};

use crate::fakes::{Ingest, PATIENCE, Route, binary, dead_port, engine, healthy, loads, push_url, serve_raw};

async fn signal(child: &Child, name: &str) {
    let command = format!("kill -{name} {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &command]).status().await.unwrap().success());
}

#[tokio::test]
async fn sigterm_and_sigint_stop_it_cleanly_whatever_is_under_way() {
    let stalling = serve_raw(|stream, _| async move {
        tokio::time::sleep(PATIENCE).await;
        drop(stream);
    })
    .await;
    for name in ["TERM", "INT"] {
        let (ingest, push) = Ingest::start().await;
        let workers = format!("http://{stalling} http://{} http://nowhere.invalid", healthy(1).await);
        let push = format!("{push} {}", push_url(stalling));
        let slow = ["--load-monitor-interval", "100", "--timeout", "100"];
        let mut child = binary(&slow).env("WORKERS", workers).env("PUSH_URL", push).spawn().unwrap();
        ingest.wait(1).await;
        signal(&child, name).await;
        let asked = Instant::now();
        let status = timeout(PATIENCE, child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}");
        // It takes milliseconds; the polls and pushes under way would take a minute.
        assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    }
}

/// What a reader is answered that knows this much.
async fn news(face: &str, taken: &str) -> Option<serde_json::Value> {
    let answer = reqwest::get(format!("http://{face}/v1/snapshot?wait_ms=60000{taken}")).await.ok()?;
    answer.json().await.ok()
}

#[tokio::test]
async fn a_stop_does_not_wait_for_those_who_wait_for_news() {
    let face = dead_port().await.to_string();
    let worker = format!("http://{}", healthy(1).await);
    let slow = ["--load-monitor-interval", "600", "--listen", &face, "--worker", &worker];
    let mut child = binary(&slow).spawn().unwrap();
    let first = async {
        loop {
            match news(&face, "").await {
                Some(first) => return first,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let first = timeout(PATIENCE, first).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut known = Some(first);
        while let Some(last) = known {
            known = news(&face, &format!("&epoch={}&sequence={}", last["epoch"], last["sequence"])).await;
        }
    });
    // By now it knows everything, and waits.
    tokio::time::sleep(Duration::from_millis(500)).await;
    signal(&child, "TERM").await;
    let asked = Instant::now();
    assert!(timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    timeout(PATIENCE, reader).await.unwrap().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_change_of_state_is_logged_once_with_its_reason() {
    let (ingest, push) = Ingest::start().await;
    let (route, metrics) = (Route::new(503, ""), Route::new(404, ""));
    let worker = format!("http://{}", engine(&route, &metrics).await);
    let away = push_url(dead_port().await);
    let mut child = binary(&["--worker", &worker, "--push-url", &push, "--push-url", &away])
        .env("LOAD_MONITOR_INTERVAL", "1")
        .spawn()
        .unwrap();
    ingest.wait(4).await;
    route.answers(200, loads(1));
    ingest.wait_report(&worker, |report| report.load.is_some()).await;
    ingest.clear();
    ingest.wait(4).await;
    signal(&child, "TERM").await;
    let (mut log, mut output) = (String::new(), String::new());
    child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    child.stdout.take().unwrap().read_to_string(&mut output).await.unwrap();

    let lines = |part: &str| log.lines().filter(|line| line.contains(part)).collect::<Vec<_>>();
    assert_eq!(lines("worker does not report").len(), 1, "{log}");
    assert!(lines("worker does not report")[0].contains("/v1/loads answered 503; /metrics answered 404"), "{log}");
    assert_eq!(lines("worker reports").len(), 1, "{log}");
    assert_eq!(lines("snapshots do not arrive").len(), 1, "{log}");
    assert!(lines("snapshots do not arrive")[0].contains("Connection refused"), "{log}");
    assert_eq!(lines("snapshots arrive").len(), 1, "{log}");
    assert!(lines("polling")[0].contains("workers=1"), "{log}");
    assert_eq!(output, "");
}

#[tokio::test]
async fn the_body_of_a_refusal_is_logged_on_one_line() {
    let (ingest, push) = Ingest::start().await;
    ingest.status.store(400, std::sync::atomic::Ordering::SeqCst);
    let worker = format!("http://{}", healthy(1).await);
    let mut child = binary(&["--worker", &worker, "--push-url", &push]).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let refusal = async {
        loop {
            let line = lines.next_line().await.unwrap().unwrap();
            if line.contains("snapshots do not arrive") {
                return line;
            }
        }
    };
    let line = timeout(PATIENCE, refusal).await.unwrap();
    assert!(line.contains("answered 400") && line.contains("today"), "{line}");
}

#[tokio::test]
async fn a_wrong_configuration_ends_it_with_status_2_and_a_word() {
    for (arguments, part) in [
        (&[][..], "no worker to poll"),
        (&["--worker", "10.0.0.1:8000", "--push-url", "http://e"][..], "--worker \"10.0.0.1:8000\": not a URL"),
        (&["--worker", "http://a", "--load-monitor-interval", "0"][..], "must be a number of seconds"),
    ] {
        let output = binary(arguments).output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_file_configures_it_and_the_environment_goes_before() {
    let (ingest, push) = Ingest::start().await;
    let (good, other) = (format!("http://{}", healthy(1).await), dead_port().await);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("binary.yaml");
    let text = format!("worker: [http://{other}]\npush-url: {push}\nlog-format: json\nreporter-name: filed\n");
    std::fs::write(&file, text).unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let mut child = binary(&config).env("WORKERS", &good).env("REPORTER_NAME", "").spawn().unwrap();
    let snapshots = ingest.wait(1).await;
    assert_eq!((snapshots[0].reporter.as_str(), snapshots[0].workers[0].url.as_str()), ("filed", good.as_str()));
    signal(&child, "TERM").await;
    let mut log = String::new();
    child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(line["message"].is_string() && line["level"].is_string(), "{line}");
    }
    assert!(log.contains("\"worker\":"), "{log}");
}

#[tokio::test]
async fn help_names_every_flag_with_its_variable() {
    let output = binary(&["--help"]).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for (flag, variable) in [
        ("--config", "SIDECAR_CONFIG"),
        ("--workers-file", "WORKERS_FILE"),
        ("--dns", "WORKERS_DNS"),
        ("--dns-interval", "DNS_INTERVAL"),
        ("--envoy-admin", "ENVOY_ADMIN"),
        ("--envoy-cluster", "ENVOY_CLUSTER"),
        ("--discovery-interval", "DISCOVERY_INTERVAL"),
        ("--discovered-scheme", "DISCOVERED_SCHEME"),
        ("--health-check-interval-secs", "HEALTH_CHECK_INTERVAL_SECS"),
        ("--health-check-timeout-secs", "HEALTH_CHECK_TIMEOUT_SECS"),
        ("--health-failure-threshold", "HEALTH_FAILURE_THRESHOLD"),
        ("--health-success-threshold", "HEALTH_SUCCESS_THRESHOLD"),
        ("--health-check-endpoint", "HEALTH_CHECK_ENDPOINT"),
        ("--disable-health-check", "DISABLE_HEALTH_CHECK"),
        ("--remove-unhealthy-workers", "REMOVE_UNHEALTHY_WORKERS"),
        ("--drain-settle-secs", "DRAIN_SETTLE_SECS"),
        ("--disable-load-monitoring", "DISABLE_LOAD_MONITORING"),
        ("--reporter-name", "REPORTER_NAME"),
        ("--listen", "LISTEN"),
        ("--token-file", "TOKEN_FILE"),
        ("--log-format", "LOG_FORMAT"),
        ("--worker", "WORKERS"),
        ("--push-url", "PUSH_URL"),
        ("--load-monitor-interval", "LOAD_MONITOR_INTERVAL"),
        ("--timeout", "POLL_TIMEOUT"),
        ("--api-key", "API_KEY"),
        ("--api-key-file", "API_KEY_FILE"),
        ("--ca-file", "CA_FILE"),
        ("--log-level", "LOG_LEVEL"),
    ] {
        assert!(text.contains(flag) && text.contains(variable), "{flag} {variable}: {text}");
    }
}
