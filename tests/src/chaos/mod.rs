//! `make chaos`: requests of all fates while engines, VMs and configurations come and go, and three promises.
//!
//! Clients send their requests, most of them ordinary, some of them broken in every way a client or an engine can break
//! one, over HTTP/1.1 and HTTP/2. Between them, at moments drawn from the seed, engines stop listening and return, VMs
//! trap, and configurations change. What is promised:
//!
//! 1. **Nothing is left counted.** At each sample the filter's sum of requests in flight equals Envoy's, and both equal
//!    the streams that the clients have open. See `sample.rs` for the exact rule.
//! 2. **No error that a retry could have avoided**, and no cut without a reason. See `judge.rs`.
//! 3. **Both counts are 0 soon after the last request.**

mod bed;
mod client;
mod engines;
mod fate;
mod judge;
mod report;
mod sample;
mod trouble;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;

pub use fate::Fate;
pub use report::ChaosReport;

use bed::Bed;
use client::{Client, Shared};
use fate::Plan;
use judge::History;
use report::Tally;

/// Clients that share an HTTP/2 connection.
const SHARE: usize = 8;

/// What a run is made of; the flags and environment of the `chaos` binary.
#[derive(Clone, Debug, clap::Args)]
pub struct ChaosSettings {
    /// Seed of all fates and troubles.
    #[arg(long, env = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Requests to send, beside those that crash a VM and those that are held for a sample.
    #[arg(long = "n", env = "N", default_value_t = 10_000)]
    pub requests: usize,

    /// Comparisons of the two counts.
    #[arg(long, env = "SAMPLES", default_value_t = 20)]
    pub samples: usize,

    /// Engines; at most two are dead at a time.
    #[arg(long, env = "ENGINES", default_value_t = 6, value_parser = clap::value_parser!(u16).range(4..))]
    pub engines: u16,

    /// Envoy's worker threads.
    #[arg(long, env = "CONCURRENCY", default_value_t = 4)]
    pub concurrency: usize,

    /// Clients that send one request after the other, half of them over HTTP/2.
    #[arg(long, env = "CLIENTS", default_value_t = 48)]
    pub clients: usize,

    /// How long the counts may take to agree at a sample.
    #[arg(skip = Duration::from_secs(15))]
    pub sample_within: Duration,

    /// How long both counts may take to become 0 after the last request.
    #[arg(skip = Duration::from_secs(2))]
    pub end_within: Duration,
}

impl Default for ChaosSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            requests: 10_000,
            samples: 20,
            engines: 6,
            concurrency: 4,
            clients: 48,
            sample_within: Duration::from_secs(15),
            end_within: Duration::from_secs(2),
        }
    }
}

/// What the clients share with each other and with whoever makes the trouble.
#[derive(Debug)]
struct Arena {
    settings: ChaosSettings,
    /// Held by each request for reading; who takes it for writing has waited for all of them.
    gate: RwLock<()>,
    /// Number of the next request.
    next: AtomicUsize,
    /// Requests below this number may be sent, so that troubles come when they are due.
    allowed: watch::Sender<usize>,
    history: Mutex<History>,
    tally: Mutex<Tally>,
}

impl Arena {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn client(self: Arc<Self>, mut client: Client) {
        let mut allowed = self.allowed.subscribe();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.settings.requests || allowed.wait_for(|&allowed| number < allowed).await.is_err() {
                return;
            }
            let _running = self.gate.read().await;
            let plan = Plan::of(self.settings.seed, number);
            let answer = client.exchange(&plan, |_| {}).await;
            let verdict = self.history().judge(&plan, &answer);
            self.tally().add(number, &plan, &answer, verdict);
        }
    }
}

/// Makes a run and says what was seen; the report tells which promises were broken.
///
/// # Errors
/// When a process cannot be started, ends by itself, or does not answer.
pub async fn run(settings: ChaosSettings) -> Result<ChaosReport> {
    let arena = Arc::new(Arena {
        gate: RwLock::default(),
        next: AtomicUsize::new(0),
        allowed: watch::Sender::new(0),
        history: Mutex::default(),
        tally: Mutex::default(),
        settings,
    });
    let mut bed = Bed::start(Arc::clone(&arena)).await?;
    let mut clients = JoinSet::new();
    let mut shared = Shared::default();
    for number in 0..arena.settings.clients {
        if number % (2 * SHARE) == 0 {
            shared = Shared::default();
        }
        let client = match number % 2 {
            0 => Client::http1(bed.address()),
            _ => Client::http2(bed.address(), Arc::clone(&shared)),
        };
        clients.spawn(Arc::clone(&arena).client(client));
    }
    bed.make_trouble().await?;
    clients.join_all().await;
    bed.end().await
}
