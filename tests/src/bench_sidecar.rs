//! What the sidecar costs: its CPU time and memory with a thousand engines that answer at once.

use std::fmt::{self, Write as _};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use filter_core::report::{Health, Snapshot};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::bench::cpu;
use crate::envoy::{Output, Process, lift_open_files};

/// Of one core.
const GOAL_CPU: f64 = 0.25;
/// Resident memory in bytes.
const GOAL_MEMORY: u64 = 100_000_000;
/// For connections to be opened, and every worker to become ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How many engines there are.
    pub engines: usize,
    /// Seconds from one poll of an engine to the next.
    pub interval: f64,
    /// How long is measured.
    pub time: Duration,
    /// The sidecar as one would deploy it.
    pub sidecar: std::path::PathBuf,
}

/// What was measured.
#[derive(Debug, Clone)]
pub struct Outcome {
    settings: Settings,
    /// Of one core.
    cpu: f64,
    /// In bytes.
    memory: u64,
    polls: u64,
    snapshots: u64,
    snapshot_bytes: u64,
}

#[derive(Debug, Default)]
struct Counts {
    polls: AtomicU64,
    snapshots: AtomicU64,
    snapshot_bytes: AtomicU64,
    /// Workers that the last full snapshot calls ready and loaded.
    ready: AtomicU64,
}

/// Measures.
///
/// # Errors
/// When a process does not start or ends too soon, or not all engines are polled; says which.
pub async fn run(settings: Settings) -> Result<Outcome> {
    lift_open_files();
    let counts = Arc::new(Counts::default());
    let mut urls = Vec::with_capacity(settings.engines);
    for number in 0..settings.engines {
        urls.push(engine(number, Arc::clone(&counts)).await?);
    }
    let push = ingest(Arc::clone(&counts)).await?;
    let directory = tempfile::tempdir()?;
    let workers = directory.path().join("workers.json");
    fs::write(&workers, json!(urls).to_string())?;
    let mut command = Command::new(&settings.sidecar);
    command.arg("--workers-file").arg(workers).args(["--push-url", &push, "--listen", "127.0.0.1:0"]);
    command.args(["--load-monitor-interval", &settings.interval.to_string()]);
    let output = Output::File(directory.path().join("sidecar.log"));
    let mut sidecar = Process::start("sidecar-loadmonitor", command, &output)?;

    let start = Instant::now();
    while counts.ready.load(Ordering::Relaxed) < settings.engines as u64 {
        ensure!(sidecar.exited().is_none(), "the sidecar has ended:\n{}", sidecar.log());
        ensure!(start.elapsed() < PATIENCE, "after {PATIENCE:?} not all engines report:\n{}", sidecar.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let before = (read(&counts.polls), read(&counts.snapshots), read(&counts.snapshot_bytes));
    let (used, start) = (cpu::used(&[sidecar.pid()])?, Instant::now());
    tokio::time::sleep(settings.time).await;
    let (used, time) = (cpu::used(&[sidecar.pid()])? - used, start.elapsed());
    let outcome = Outcome {
        cpu: used.as_secs_f64() / time.as_secs_f64(),
        memory: resident(sidecar.pid())?,
        polls: read(&counts.polls) - before.0,
        snapshots: read(&counts.snapshots) - before.1,
        snapshot_bytes: read(&counts.snapshot_bytes) - before.2,
        settings,
    };
    let expected = outcome.settings.engines as f64 * time.as_secs_f64() / outcome.settings.interval;
    if (outcome.polls as f64) < expected * 0.9 {
        bail!("{} polls in {time:?}, where {expected:.0} were due: the machine is too busy", outcome.polls);
    }
    Ok(outcome)
}

/// Resident memory of a process in bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}

/// A tiny engine on a port of its own; its URL.
async fn engine(number: usize, counts: Arc<Counts>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(talk(stream, number, Arc::clone(&counts)));
        }
    });
    Ok(url)
}

/// Answers one request after the other: `/v1/loads` with numbers that change, everything else with nothing.
async fn talk(mut stream: TcpStream, number: usize, counts: Arc<Counts>) {
    let mut request = Vec::with_capacity(1024);
    let mut polls = 0;
    loop {
        request.clear();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_buf(&mut request).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let body = if request.starts_with(b"GET /v1/loads") {
            counts.polls.fetch_add(1, Ordering::Relaxed);
            polls += 1;
            format!(
                r#"{{"timestamp":"2026-01-01T00:00:00Z","dp_rank_count":1,"loads":[{{"dp_rank":0,"num_running_reqs":{},"num_waiting_reqs":{},"num_waiting_uncached_tokens":{},"num_used_tokens":1000,"max_total_num_tokens":100000,"token_usage":0.25,"gen_throughput":812.4,"cache_hit_rate":0.5}}]}}"#,
                number % 17,
                polls % 5,
                polls % 7 * 512
            )
        } else {
            String::new()
        };
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A listener for snapshots; its URL.
async fn ingest(counts: Arc<Counts>) -> Result<String> {
    let take = async move |body: Bytes| {
        counts.snapshots.fetch_add(1, Ordering::Relaxed);
        counts.snapshot_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        if let Ok(snapshot) = Snapshot::parse(&body) {
            let ready = |worker: &&filter_core::report::WorkerReport| {
                worker.load.is_some() && worker.health == Some(Health::Ready)
            };
            counts.ready.fetch_max(snapshot.workers.iter().filter(ready).count() as u64, Ordering::Relaxed);
        }
        StatusCode::NO_CONTENT
    };
    let router = Router::new().route("/v1/reports", post(take)).layer(axum::extract::DefaultBodyLimit::disable());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/v1/reports", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(url)
}

impl Outcome {
    /// Goals that were missed.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        if self.cpu > GOAL_CPU {
            missed.push(format!("{:.1} % of a core, {:.0} % meant", self.cpu * 100.0, GOAL_CPU * 100.0));
        }
        if self.memory > GOAL_MEMORY {
            missed.push(format!("{} MB, {} meant", self.memory / 1_000_000, GOAL_MEMORY / 1_000_000));
        }
        missed
    }

    /// For a file.
    pub fn to_json(&self) -> Value {
        json!({
            "engines": self.settings.engines, "interval_seconds": self.settings.interval,
            "seconds": self.settings.time.as_secs_f64(), "cpu_cores": self.cpu, "resident_bytes": self.memory,
            "polls": self.polls, "snapshots": self.snapshots, "snapshot_bytes": self.snapshot_bytes,
            "missed": self.missed(),
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings { engines, interval, time, .. } = &self.settings;
        let mut text = String::new();
        writeln!(text, "{engines} engines, one poll each in {interval} s, over {time:?}")?;
        writeln!(
            text,
            "CPU       {:>6.1} % of a core ({:.0} µs per poll; goal {:.0} %)",
            self.cpu * 100.0,
            self.cpu * time.as_secs_f64() * 1e6 / self.polls.max(1) as f64,
            GOAL_CPU * 100.0
        )?;
        writeln!(text, "resident  {:>6.1} MB (goal {} MB)", self.memory as f64 / 1e6, GOAL_MEMORY / 1_000_000)?;
        writeln!(
            text,
            "polls {}, snapshots {} of {:.0} KB",
            self.polls,
            self.snapshots,
            self.snapshot_bytes as f64 / 1000.0 / self.snapshots.max(1) as f64
        )?;
        for missed in self.missed() {
            writeln!(text, "missed: {missed}")?;
        }
        f.write_str(&text)
    }
}
