//! A sample: are as many requests in flight by the filter's count as by Envoy's?
//!
//! Under traffic the two cannot be compared: the filter's gauges are as old as its last tick, and a request is counted by
//! one a little before the other. So no new request is let go until those under way have ended, except for streams that
//! were opened for the sample and last, and for requests whose body is sent in half and which nobody may count yet.
//! What is between head and pick is thus known, and the tolerance is nought:
//!
//! **the filter's sum, Envoy's `upstream_rq_active` and the number of streams that the clients have open are equal, in
//! three readings in a row that are further apart than two of the filter's ticks**, within a time that a VM's death,
//! which half of the samples have in them, needs to be noticed. A single request that is left counted is seen, whoever
//! counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::task::JoinSet;

use super::client::{Client, Shared};
use super::fate::Plan;
use crate::envoy::Envoy;

/// Between two readings. Gauges are set every 250 ms.
const BETWEEN: Duration = Duration::from_millis(280);

/// Readings in a row that must agree.
const READINGS: usize = 3;

/// What was read at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The filter's gauges `smg_worker_requests_active`, summed.
    pub(super) filter: u64,
    /// Envoy's gauge `upstream_rq_active` of the cluster.
    pub(super) envoy: u64,
}

impl Counts {
    /// Reads both from one answer of Envoy's.
    pub(super) async fn read(envoy: &Envoy) -> Result<Self> {
        let path = "/stats?filter=(cluster.engines.upstream_rq_active|smg_worker_requests_active)".replace('|', "%7C");
        let text = envoy.admin().get(&path).await?;
        let mut counts = Self::default();
        let mut gauges = 0;
        for (name, value) in text.lines().filter_map(|line| line.rsplit_once(": ")) {
            let value: u64 = value.parse().with_context(|| format!("{name} is {value}"))?;
            if name == "cluster.engines.upstream_rq_active" {
                counts.envoy = value;
            } else {
                counts.filter += value;
                gauges += 1;
            }
        }
        anyhow::ensure!(gauges > 0, "the filter shows no gauges: {text}");
        Ok(counts)
    }
}

/// Streams that are open while a sample is taken; left when dropped.
#[derive(Debug)]
pub(super) struct Held {
    stages: Vec<Arc<AtomicU8>>,
    // Aborted with it.
    _tasks: JoinSet<()>,
}

const STARTING: u8 = 0;
const OPEN: u8 = 1;
const ENDED: u8 = 2;

impl Held {
    /// Opens some streams over both protocols, beside a few requests that stop in the middle of their body.
    pub(super) async fn open(envoy: &Envoy, rng: &mut SmallRng) -> Self {
        let mut tasks = JoinSet::new();
        let mut stages = Vec::new();
        let connections: Vec<_> = (0..3).map(|_| Shared::default()).collect();
        for number in 0..rng.random_range(8..40) {
            let plan = Plan::lasting(rng, number);
            let mut client = match number % 2 {
                0 => Client::http1(envoy.address()),
                _ => Client::http2(envoy.address(), Arc::clone(&connections[number / 2 % connections.len()])),
            };
            let stage = Arc::new(AtomicU8::new(STARTING));
            stages.push(Arc::clone(&stage));
            tasks.spawn(async move {
                client.exchange(&plan, |_| stage.store(OPEN, Ordering::Relaxed)).await;
                stage.store(ENDED, Ordering::Relaxed);
            });
        }
        for number in 0..4 {
            let mut plan = Plan::lasting(rng, number);
            plan.body_sent = plan.body.as_ref().map(|body| body.len() / 2);
            let mut client = Client::http1(envoy.address());
            tasks.spawn(async move {
                client.exchange(&plan, |_| {}).await;
            });
        }
        while stages.iter().any(|stage| stage.load(Ordering::Relaxed) == STARTING) {
            // A stream that nobody answers ends by itself, as hung.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { stages, _tasks: tasks }
    }

    /// Streams that are open now.
    pub(super) fn streams(&self) -> u64 {
        self.stages.iter().filter(|stage| stage.load(Ordering::Relaxed) == OPEN).count() as u64
    }
}

/// What a sample has shown.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Streams that the clients have open in the end.
    pub(super) streams: u64,
    /// What was read last.
    pub(super) counts: Counts,
    /// Whether all three agreed for long enough.
    pub(super) agrees: bool,
    /// Until the first of the readings that agreed.
    pub(super) took: Duration,
    /// Where a VM was told to trap.
    pub(super) crash: Option<&'static str>,
}

/// Reads until the counts agree or the time, from `begin` on, is up.
pub(super) async fn settle(
    envoy: &Envoy,
    begin: Instant,
    streams: impl Fn() -> u64,
    crash: Option<&'static str>,
    within: Duration,
) -> Result<Sample> {
    let mut agreed: Vec<Duration> = Vec::new();
    loop {
        let before = streams();
        let took = begin.elapsed();
        let counts = Counts::read(envoy).await?;
        let streams = streams();
        match before == streams && counts == (Counts { filter: streams, envoy: streams }) {
            true => agreed.push(took),
            false => agreed.clear(),
        }
        let agrees = agreed.len() >= READINGS;
        if agrees || agreed.is_empty() && begin.elapsed() > within {
            return Ok(Sample { streams, counts, agrees, took: agreed.first().copied().unwrap_or(took), crash });
        }
        tokio::time::sleep(if agreed.is_empty() { BETWEEN / 8 } else { BETWEEN }).await;
    }
}
