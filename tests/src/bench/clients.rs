//! Clients that send one request after the other on connections of their own, and what that cost the proxy.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::task::JoinSet;

use super::cpu;
use super::prompts::Bodies;
use crate::envoy::Connection;
use crate::load::Percentiles;

/// Routing keys in use: after the first requests nearly all are known.
const KEYS: usize = 64;
const CHAT: &str = "/v1/chat/completions";

/// What requests have cost and what became of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Measurement {
    /// CPU time of the proxy per request, in microseconds.
    pub(super) cpu_us: f64,
    /// From sending a request to the end of its answer.
    pub(super) latency: Percentiles,
    /// What went wrong, and how often, the requests before included.
    pub(super) failures: BTreeMap<String, usize>,
    /// Real time of the measured requests.
    pub(super) elapsed: Duration,
}

/// Sends what goes before, then what is measured; `keyed` gives each request one of [`KEYS`] routing keys.
///
/// # Errors
/// When the proxy has ended or takes no connections.
pub(super) async fn measure(
    address: SocketAddr,
    leaders: &[u32],
    clients: usize,
    bodies: &Bodies,
    keyed: bool,
) -> Result<Measurement> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(Connection::open(address).await?);
    }
    let processes = cpu::groups(leaders)?;
    let (connections, before) = send(address, connections, &bodies.before, keyed).await?;
    let (start, used) = (Instant::now(), cpu::used(&processes)?);
    let (_open, outcome) = send(address, connections, &bodies.measured, keyed).await?;
    let used = cpu::used(&processes)?.saturating_sub(used);
    let elapsed = start.elapsed();
    let mut failures = before.failures;
    for (what, number) in outcome.failures {
        *failures.entry(what).or_default() += number;
    }
    Ok(Measurement {
        cpu_us: used.as_secs_f64() * 1e6 / bodies.measured.len().max(1) as f64,
        latency: Percentiles::of(outcome.latencies.into_iter()),
        failures,
        elapsed,
    })
}

#[derive(Debug, Default)]
struct Outcome {
    latencies: Vec<Duration>,
    failures: BTreeMap<String, usize>,
}

/// Sends all bodies in their order, each by the next connection that is free.
async fn send(
    address: SocketAddr,
    connections: Vec<Connection>,
    bodies: &[Bytes],
    keyed: bool,
) -> Result<(Vec<Connection>, Outcome)> {
    let queue: Arc<Mutex<VecDeque<Bytes>>> = Arc::new(Mutex::new(bodies.iter().cloned().collect()));
    let mut clients = JoinSet::new();
    for connection in connections {
        clients.spawn(client(address, connection, Arc::clone(&queue), keyed));
    }
    let (mut open, mut all) = (Vec::new(), Outcome::default());
    while let Some(ended) = clients.join_next().await {
        let (connection, mut outcome) = ended??;
        open.push(connection);
        all.latencies.append(&mut outcome.latencies);
        for (what, number) in outcome.failures {
            *all.failures.entry(what).or_default() += number;
        }
    }
    Ok((open, all))
}

async fn client(
    address: SocketAddr,
    mut connection: Connection,
    queue: Arc<Mutex<VecDeque<Bytes>>>,
    keyed: bool,
) -> Result<(Connection, Outcome)> {
    let mut outcome = Outcome::default();
    loop {
        let (next, left) = {
            let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
            (queue.pop_front(), queue.len())
        };
        let Some(body) = next else { return Ok((connection, outcome)) };
        let mut request = Request::post(CHAT).header("content-type", "application/json");
        if keyed {
            request = request.header("x-smg-routing-key", format!("user-{}", left % KEYS));
        }
        let request = request.body(Full::new(body))?;
        let start = Instant::now();
        let failure = match connection.send(request).await {
            Ok(reply) if reply.status == 200 => {
                outcome.latencies.push(start.elapsed());
                continue;
            }
            Ok(reply) => {
                format!("status {}: {}", reply.status.as_u16(), reply.text().chars().take(120).collect::<String>())
            }
            Err(error) => format!("{error:#}"),
        };
        *outcome.failures.entry(failure).or_default() += 1;
        // A connection after an error may be closed, or about to be.
        connection = Connection::open(address).await?;
    }
}
