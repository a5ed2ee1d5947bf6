//! The demo in virtual time: the fake engines' own scheduler and cache, driven by the balancer itself over a store in
//! memory, without a socket or a process.
//!
//! A replay of half a minute takes a fraction of a second, and equal seeds make equal replays: what chance decides in a
//! real run (which of equals is picked, when the first load report comes) is drawn from the seed here.

mod gateway;
mod traffic;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use filter_core::report::{Load, WorkerReport};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::Instant;

use crate::demo::{self, DemoSettings, Outcome, REPORT_INTERVAL};
use crate::fake_engine::rank::Rank;
use crate::fake_engine::{EngineOptions, loads};
use crate::load::{LoadReport, Sample};
use crate::workload::{Bound, Workload, bound};
use gateway::Gateway;
use traffic::{Arrival, Traffic};

/// A demo that can be replayed many times: its workload is made and read once.
pub struct Simulation {
    settings: DemoSettings,
    workload: Workload,
    bound: Bound,
    engine: EngineOptions,
    traffic: Traffic,
    /// Virtual time between two load reports.
    pub report_interval: Duration,
    /// Plugin configuration of the filter; `policy` and `workers` are filled in.
    pub plugin: Value,
}

impl Simulation {
    /// The demo of `settings`.
    ///
    /// # Errors
    /// When the workload cannot be read.
    pub fn new(settings: &DemoSettings) -> anyhow::Result<Self> {
        let workload = demo::read_workload(settings)?;
        let bound = bound(&workload, &EngineOptions::default());
        let engine = demo::engine_options(settings, &workload, &bound);
        Ok(Self {
            traffic: Traffic::new(&workload, &engine),
            settings: settings.clone(),
            workload,
            bound,
            engine,
            report_interval: REPORT_INTERVAL,
            plugin: json!({}),
        })
    }

    /// Replays the workload under each policy of the settings and judges it as the demo does.
    ///
    /// # Errors
    /// When a policy is not the filter's or it refuses the plugin configuration.
    pub fn outcome(&self, seed: u64) -> anyhow::Result<Outcome> {
        let mut outcome = Outcome::new(&self.settings, &self.workload, &self.bound, &self.engine);
        for policy in &self.settings.policies {
            outcome.add(policy, &self.replay(policy, seed)?.summary());
        }
        Ok(outcome)
    }

    /// Replays the workload under one policy: what the clients see.
    ///
    /// # Errors
    /// When the policy is not the filter's or it refuses the plugin configuration.
    pub fn replay(&self, policy: &str, seed: u64) -> anyhow::Result<LoadReport> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let first_report = self.report_interval.mul_f64(rng.random());
        let mut plugin = self.plugin.clone();
        plugin["policy"] = json!(policy);
        let gateway = Gateway::new(plugin, self.settings.engines, rng)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        LocalSet::new().block_on(&runtime, async {
            let run = Rc::new(Run::new(gateway, self.settings.engines, &self.engine));
            spawn_local(Rc::clone(&run).report(first_report, self.report_interval));
            let sessions = self.traffic.sessions().map(|turns| spawn_local(Rc::clone(&run).session(turns)));
            let mut samples = Vec::new();
            for session in sessions.collect::<Vec<_>>() {
                samples.extend(session.await.context("a session has failed")?);
            }
            Ok(LoadReport { samples, unfinished: 0, elapsed: run.begin.elapsed() })
        })
    }
}

/// What the tasks of one replay share.
struct Run {
    gateway: Gateway,
    ranks: Vec<Arc<Rank>>,
    engine: Arc<EngineOptions>,
    begin: Instant,
}

impl Run {
    fn new(gateway: Gateway, engines: usize, engine: &EngineOptions) -> Self {
        let engine = Arc::new(engine.clone());
        let ranks = (0..engines).map(|_| Rank::new(Arc::clone(&engine))).collect();
        Self { gateway, ranks, engine, begin: Instant::now() }
    }

    /// The sidecar: every engine's load at once, again and again.
    async fn report(self: Rc<Self>, first: Duration, interval: Duration) {
        let mut due = self.begin + first;
        loop {
            tokio::time::sleep_until(due).await;
            let reports = self.ranks.iter().enumerate().map(|(engine, rank)| WorkerReport {
                url: gateway::url(engine),
                load: Some(load_of(rank, &self.engine)),
                ..WorkerReport::default()
            });
            self.gateway.report(self.begin.elapsed(), interval, reports.collect());
            due += interval;
        }
    }

    /// One session: a turn begins at its arrival, but never before the turn before it has ended.
    async fn session(self: Rc<Self>, turns: Vec<Rc<Arrival>>) -> Vec<Sample> {
        let mut samples = Vec::with_capacity(turns.len());
        for turn in turns {
            let due = self.begin + turn.at;
            tokio::time::sleep_until(due).await;
            let mut sample = self.serve(&turn).await;
            sample.late = sample.started.saturating_duration_since(due);
            samples.push(sample);
        }
        samples
    }

    async fn serve(&self, turn: &Arrival) -> Sample {
        let mut sample = Sample::new(Instant::now());
        (sample.session, sample.turn) = (turn.session, turn.turn);
        let Some((engine, ticket)) = self.gateway.place(self.begin.elapsed(), &turn.facts) else {
            sample.error = Some("nobody was available".to_owned());
            return sample;
        };
        let mut running = self.ranks[engine].admit(turn.prompt.clone()).await;
        for _ in 0..turn.max_tokens {
            running.decode(1, 1).await;
            sample.ttft.get_or_insert(sample.started.elapsed());
        }
        sample.status = 200;
        sample.engine = Some(format!("engine-{}", engine + 1));
        sample.prompt_tokens = running.prompt_tokens() as u64;
        sample.cached_tokens = running.cached_tokens() as u64;
        sample.completion_tokens = turn.max_tokens as u64;
        sample.total = sample.started.elapsed();
        drop(running);
        self.gateway.ended(self.begin.elapsed(), ticket);
        sample
    }
}

/// What the sidecar makes of an engine's `/v1/loads`.
fn load_of(rank: &Rank, engine: &EngineOptions) -> Load {
    let load = rank.load();
    Load {
        queued_tokens: load.waiting_uncached_tokens as f64,
        waiting: load.waiting as f64,
        running: load.running as f64,
        kv_usage: loads::usage(&load, engine.reported_capacity()),
        throughput: load.gen_throughput,
    }
}
