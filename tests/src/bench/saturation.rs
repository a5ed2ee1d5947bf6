//! How often Envoy's threads get in each other's way: all of them pick at once, and lost races are counted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cells::{Cell, Group, Mix};
use super::clients::measure;
use super::engines::Engines;
use super::prompts::Prompts;
use super::settings::BenchSettings;
use super::setups::Setup;
use crate::envoy::eventually;

/// Connections per thread of Envoy: always one more request waits.
const CLIENTS: usize = 8;
/// Requests, in measurements of the same size.
const MEASUREMENTS: usize = 5;

/// What saturation came to with one mix.
#[derive(Clone, Debug)]
pub(super) struct Saturation {
    pub(super) policy: String,
    pub(super) mix: Mix,
    pub(super) concurrency: usize,
    pub(super) picks: u64,
    /// Writes to shared data that lost a race and were tried again.
    pub(super) conflicts: u64,
    pub(super) requests_per_second: f64,
}

impl Saturation {
    pub(super) fn conflicts_per_pick(&self) -> f64 {
        self.conflicts as f64 / self.picks.max(1) as f64
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "setup": self.policy,
            "mix": self.mix.to_string(),
            "concurrency": self.concurrency,
            "picks": self.picks,
            "conflicts": self.conflicts,
            "conflicts_per_pick": self.conflicts_per_pick(),
            "requests_per_second": self.requests_per_second,
        })
    }
}

/// Counts lost races of the first policy: with one prompt for all, where everybody writes the same pages, and with
/// conversations.
pub(super) async fn saturate(settings: &BenchSettings, prompts: &mut Prompts) -> Result<Vec<Saturation>> {
    const WORKERS: usize = 2;
    let concurrency = settings.saturation_concurrency;
    let policies = settings.measured();
    let Some(policy) = policies.first().filter(|_| concurrency > 0) else { return Ok(Vec::new()) };
    let group = Group {
        workers: WORKERS,
        concurrency,
        setups: vec![policy.clone()],
        cells: Vec::new(),
        sparse: Default::default(),
    };
    let engines = Engines::start(WORKERS)?;
    let mut found = Vec::new();
    for mix in [Mix::Repeat, Mix::Turn] {
        // One for each: a mix shall not profit from what another has left.
        let setup = Setup::start(policy, &group, engines.addresses(), settings).await?;
        let envoy = setup.as_envoy().context("the filter runs in Envoy")?;
        let cell = Cell { prompt_kb: 4, mix, stream_chunks: 0 };
        let bodies = prompts.bodies(&cell, settings.requests * MEASUREMENTS, CLIENTS * concurrency);
        let all = (bodies.before.len() + bodies.measured.len()) as u64;
        let measured = measure(setup.address, &setup.leaders, CLIENTS * concurrency, &bodies, false).await?;
        // The filter hands its counts over on ticks.
        let picks = async || envoy.metrics().await.sum("smg_worker_selection_total", &[]) as u64;
        let failures: usize = measured.failures.values().sum();
        ensure!(failures == 0, "{policy} under saturation: {:?}", measured.failures);
        eventually(Duration::from_secs(60), "all picks are counted", async || picks().await >= all).await;
        found.push(Saturation {
            policy: policy.clone(),
            mix,
            concurrency,
            picks: picks().await,
            conflicts: envoy.metrics().await.sum("smg_store_conflicts_total", &[]) as u64,
            requests_per_second: bodies.measured.len() as f64 / measured.elapsed.as_secs_f64(),
        });
    }
    Ok(found)
}
