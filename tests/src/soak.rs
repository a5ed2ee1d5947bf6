//! `make soak` for memory: what grows with the traffic must stop growing.
//!
//! Everything that a module remembers in shared data stays for ever unless its own bounds end it. So many requests that
//! are all different are sent through Envoy, and its resident memory after all of them is compared with that after a
//! quarter of them, when every table has long been full.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use http::Request;
use http_body_util::Full;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::envoy::{Connection, Envoy, EnvoyOptions};
use crate::fake_engine::{EngineOptions, FakeEngine};

/// Bytes by which Envoy may be larger in the end than after a quarter of the requests.
const GROWTH: i64 = 8 << 20;

/// Connections that send one request after the other.
const CLIENTS: usize = 16;

/// Between two looks at the gauges.
const LOOK: Duration = Duration::from_millis(200);

/// For gauges to show the end: those of the tree are set when all of its pages have been counted.
const SETTLED: Duration = Duration::from_secs(60);

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
}

/// What a soak has shown; its text is for people.
#[derive(Clone, Debug)]
pub struct SoakReport {
    soak: Soak,
    elapsed: Duration,
    /// Resident bytes of Envoy after a quarter of the requests, and after all.
    resident: [i64; 2],
    /// The largest and the last value of each gauge.
    tree_bytes: Gauge,
    /// The largest value of the tree's gauge up to the first of these two readings.
    tree_before: u64,
    keys: Gauge,
    in_flight: Gauge,
    evictions: u64,
}

/// What was seen of a gauge, summed over its labels.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    most: u64,
    last: u64,
}

impl Soak {
    fn requests(self) -> usize {
        match self {
            Self::Tree { requests, .. } | Self::Keys { requests } => requests,
        }
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
            Self::Keys { .. } => (request.header("x-smg-routing-key", format!("user {number}")), "Hello".to_owned()),
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
    let engines = [FakeEngine::start(EngineOptions::instant()), FakeEngine::start(EngineOptions::instant())];
    let addresses: Vec<SocketAddr> = engines.iter().filter_map(|engine| engine.address().parse().ok()).collect();
    let plugin = match soak {
        Soak::Tree { bytes, .. } => json!({ "max_tree_size": bytes }),
        Soak::Keys { .. } => json!({ "routing_key_headers": ["x-smg-routing-key"] }),
    };
    let envoy = Envoy::start(EnvoyOptions { plugin, ..EnvoyOptions::with_workers(addresses) }).await?;
    let began = Instant::now();
    let mut report = SoakReport {
        soak,
        elapsed: Duration::ZERO,
        resident: [0; 2],
        tree_bytes: Gauge::default(),
        tree_before: 0,
        keys: Gauge::default(),
        in_flight: Gauge::default(),
        evictions: 0,
    };
    let mut clients = join_all((0..CLIENTS).map(|_| envoy.connect())).await;
    let next = AtomicUsize::new(0);
    for (phase, until) in [soak.requests() / 4, soak.requests()].into_iter().enumerate() {
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
        report.settle(&envoy).await?;
        report.resident[phase] = resident(envoy.pid())?;
        if phase == 0 {
            report.tree_before = report.tree_bytes.most;
        }
    }
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
        let reply = client.send(soak.request(number)?).await.with_context(|| format!("request {number}"))?;
        if reply.status != 200 {
            bail!("request {number} is answered {}: {}", reply.status, reply.text());
        }
    }
}

/// Resident bytes of a process.
fn resident(pid: u32) -> Result<i64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: i64 = line.trim().trim_end_matches(" kB").parse().with_context(|| format!("VmRSS is {line}"))?;
    Ok(kilobytes << 10)
}

impl Gauge {
    fn shows(&mut self, value: u64) {
        self.last = value;
        self.most = self.most.max(value);
    }
}

impl SoakReport {
    async fn look(&mut self, envoy: &Envoy) -> Result<()> {
        let text = envoy.admin().get("/stats?filter=smg_").await?;
        let sum = |metric: &str| -> u64 {
            let values = text.lines().filter(|line| line.contains(metric)).filter_map(|line| line.rsplit_once(": "));
            values.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
        };
        self.tree_bytes.shows(sum("smg_cache_tree_bytes"));
        self.keys.shows(sum("smg_worker_routing_keys_active"));
        self.in_flight.shows(sum("smg_worker_requests_active"));
        self.evictions = sum("smg_cache_tree_evictions_total");
        Ok(())
    }

    /// Looks on until nothing is in flight any more and the tree has been counted, or the time is up.
    async fn settle(&mut self, envoy: &Envoy) -> Result<()> {
        let begin = Instant::now();
        // Once after a pause in any case: a gauge may be as old as a tick.
        tokio::time::sleep(2 * LOOK).await;
        loop {
            self.look(envoy).await?;
            let counted = self.tree_bytes.most > 0 || !matches!(self.soak, Soak::Tree { .. });
            if counted && self.in_flight.last + self.keys.last == 0 || begin.elapsed() > SETTLED {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Bytes by which Envoy has grown between a quarter of the requests and all of them.
    fn growth(&self) -> i64 {
        self.resident[1] - self.resident[0]
    }

    /// The promises that were broken, a sentence for each; none if all is well.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut promise = |kept: bool, why: String| {
            if !kept {
                broken.push(why);
            }
        };
        // What grows while the tree fills is what the tree may have.
        let filling = match self.soak {
            Soak::Tree { bytes, .. } if self.tree_before < bytes / 10 * 9 => {
                "; the tree was not seen full after a quarter of the prompts: raise N or lower TREE"
            }
            _ => "",
        };
        promise(self.growth() <= GROWTH, format!("Envoy has grown by {}{filling}", size(self.growth())));
        promise(self.in_flight.last == 0, format!("{} requests are counted after the end", self.in_flight.last));
        promise(self.keys.last == 0, format!("{} routing keys are counted after the end", self.keys.last));
        match self.soak {
            Soak::Tree { bytes, .. } => {
                let most = self.tree_bytes.most;
                promise(most <= bytes, format!("the tree has had {most} bytes and may have {bytes}"));
                promise(most > 0, "the tree was never counted".to_owned());
                promise(self.evictions > 0, "no prefix was ever evicted: send more requests".to_owned());
            }
            Soak::Keys { .. } => promise(self.keys.most > 0, "no routing key was ever counted".to_owned()),
        }
        broken
    }
}

impl Display for SoakReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let requests = self.soak.requests();
        let what = match self.soak {
            Soak::Tree { .. } => "prompts",
            Soak::Keys { .. } => "routing keys",
        };
        let [quarter, end] = self.resident;
        writeln!(f, "{requests} different {what} in {:.0?}", self.elapsed)?;
        write!(f, "Envoy's resident memory: {} after {} of them, ", size(quarter), requests / 4)?;
        writeln!(f, "{} after all: {:+} KiB", size(end), self.growth() >> 10)?;
        match self.soak {
            Soak::Tree { bytes, .. } => writeln!(
                f,
                "the tree had {} bytes at most and may have {bytes}; {} evictions",
                self.tree_bytes.most, self.evictions
            ),
            Soak::Keys { .. } => {
                writeln!(f, "{} keys in flight at most when seen, {} in the end", self.keys.most, self.keys.last)
            }
        }
    }
}

fn size(bytes: i64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
