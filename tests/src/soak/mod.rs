//! `make soak` for memory: what grows with the traffic must stop growing.
//!
//! Everything that a module remembers in shared data stays for ever unless its own bounds end it. So many requests that
//! are all different are sent through Envoy, and its resident memory after all of them is compared with that after a
//! quarter of them, when every table has long been full, or with what the table may take that still fills.

mod report;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use filter_core::state::pins::PinTable;
use futures_util::future::{join_all, try_join_all};
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub use self::report::SoakReport;
use crate::envoy::{Connection, Envoy, EnvoyOptions};
use crate::fake_engine::{EngineOptions, FakeEngine};

/// Connections that send one request after the other.
const CLIENTS: usize = 16;

/// Between two looks at the gauges.
const LOOK: Duration = Duration::from_millis(200);

/// The first so many keys are asked for again in the end.
const SAMPLE: usize = 1000;

/// What is different in every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Soak {
    /// The prompt; the prefix tree may have so many bytes.
    Tree {
        /// `max_tree_size` of the plugin configuration.
        bytes: u64,
        /// Requests to send.
        requests: usize,
    },
    /// The routing key.
    Keys {
        /// Requests to send, and so keys.
        requests: usize,
    },
    /// The routing key, which the policy `manual` gives a worker.
    Pins {
        /// `max_sticky_keys` of the plugin configuration.
        most: u32,
        /// Requests to send, and so keys.
        requests: usize,
    },
}

impl Soak {
    fn requests(self) -> usize {
        match self {
            Self::Tree { requests, .. } | Self::Keys { requests } | Self::Pins { requests, .. } => requests,
        }
    }

    /// How many of the first keys are asked for again.
    fn sample(self) -> usize {
        if let Self::Pins { requests, .. } = self { SAMPLE.min(requests / 4) } else { 0 }
    }

    /// The table of keys that have a worker, if that is what is filled.
    fn pins(self) -> Option<PinTable> {
        if let Self::Pins { most, .. } = self { Some(PinTable::new("", most)) } else { None }
    }

    /// Request `number`.
    fn request(self, number: usize) -> Result<Request<Full<Bytes>>> {
        let request = Request::post("/v1/chat/completions").header("content-type", "application/json");
        let (request, text) = match self {
            // Different from the first byte on, so that no two prompts have a prefix in common.
            Self::Tree { .. } => {
                (request, format!("{number} is what this prompt is about, and nothing else. ").repeat(14))
            }
            // Too short for the tree.
            Self::Keys { .. } | Self::Pins { .. } => {
                (request.header("x-smg-routing-key", format!("user {number}")), "Hello".to_owned())
            }
        };
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] }).to_string();
        Ok(request.body(Full::new(body.into()))?)
    }
}

/// Sends the requests and says what was seen; the report tells which promises were broken.
///
/// # Errors
/// When a process cannot be started, or a request is not answered by an engine.
pub async fn run(soak: Soak) -> Result<SoakReport> {
    let engines = [(); 4].map(|()| FakeEngine::start(EngineOptions::instant()));
    let addresses: Vec<SocketAddr> = engines.iter().filter_map(|engine| engine.address().parse().ok()).collect();
    let plugin = match soak {
        Soak::Tree { bytes, .. } => json!({ "max_tree_size": bytes }),
        Soak::Keys { .. } => json!({ "routing_key_headers": ["x-smg-routing-key"] }),
        Soak::Pins { most, .. } => json!({ "policy": "manual", "max_sticky_keys": most }),
    };
    let envoy = Envoy::start(EnvoyOptions { plugin, ..EnvoyOptions::with_workers(addresses) }).await?;
    let began = Instant::now();
    let mut report = SoakReport::new(soak);
    let mut clients = join_all((0..CLIENTS).map(|_| envoy.connect())).await;
    let first_workers = workers(soak, &mut clients).await?;
    report.began_with(resident(envoy.pid())?);
    let next = AtomicUsize::new(soak.sample());
    for until in [soak.requests() / 4, soak.requests()] {
        let sent = CancellationToken::new();
        let send = async {
            // Wakes the watcher when it goes, in an error as well.
            let _guard = sent.clone().drop_guard();
            try_join_all(clients.iter_mut().map(|client| send(soak, client, &next, until))).await.map(drop)
        };
        let watch = async {
            while !sent.is_cancelled() {
                report.look(&envoy).await?;
                tokio::select! { () = tokio::time::sleep(LOOK) => {}, () = sent.cancelled() => {} }
            }
            Ok(())
        };
        tokio::try_join!(send, watch)?;
        next.store(until, Ordering::Relaxed);
        report.settle(&envoy, until).await?;
        report.ended_with(resident(envoy.pid())?);
    }
    let last_workers = workers(soak, &mut clients).await?;
    report.sampled(first_workers.iter().zip(&last_workers).filter(|(first, last)| first == last).count());
    report.elapsed = began.elapsed();
    envoy.stop();
    Ok(report)
}

/// Sends requests until the one of number `until` is next.
async fn send(soak: Soak, client: &mut Connection, next: &AtomicUsize, until: usize) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= until {
            return Ok(());
        }
        ask(soak, client, number).await?;
    }
}

/// The workers of the first keys.
async fn workers(soak: Soak, clients: &mut [Connection]) -> Result<Vec<String>> {
    let mut workers = Vec::new();
    for number in 0..soak.sample() {
        let of = number % clients.len();
        workers.push(ask(soak, &mut clients[of], number).await?);
    }
    Ok(workers)
}

/// Sends request `number` and tells which worker has answered it.
async fn ask(soak: Soak, client: &mut Connection, number: usize) -> Result<String> {
    let reply = client.send(soak.request(number)?).await.with_context(|| format!("request {number}"))?;
    if reply.status != 200 {
        bail!("request {number} is answered {}: {}", reply.status, reply.text());
    }
    let worker = reply.header("x-smg-routed-worker-id").with_context(|| format!("request {number}: no worker"))?;
    Ok(worker.to_owned())
}

/// Resident bytes of a process.
fn resident(pid: u32) -> Result<i64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: i64 = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("VmRSS is {line}"))?;
    Ok(kilobytes << 10)
}
