//! The demo: the same workload under several policies, on engines that are new for each, and one table.

mod direct;
mod outcome;
mod settings;

use std::any::Any;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

pub use direct::{DIRECT_POLICIES, IdealAffinity, RoundRobin};
pub use outcome::{Criterion, Outcome, PolicyOutcome};
pub use settings::DemoSettings;

use crate::fake_engine::{EngineOptions, FakeEngine};
use crate::load::{self, LoadOptions, Target};
use crate::workload::{Bound, Workload, bound, read_trace};

/// Share of the engines' prefill capacity that the workload offers, counted as if nothing were cached.
const OFFERED_SHARE: f64 = 0.75;

/// Real time between two tokens of an answer. With four tokens a request stays some 300 ms after its prefill, so that
/// engines have requests in flight for the policies to see.
const DECODE_STEP: Duration = Duration::from_millis(100);

/// Real time after the last arrival in which answers must end.
const GRACE: Duration = Duration::from_secs(30);

/// Real time between two load reports.
///
/// A session speaks every 1.3 s here, so this is to the demo what the usual 10 s are to people who write once a minute.
/// With a report a second the balance is a matter of luck: an engine counts as the faster, the more it generated before
/// the report, and attracts so much until the next one that busiest over mean exceeds 1.5 in one run of ten.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Policies that go by a key of the client's: its requests name their session.
const BY_KEY: [&str; 2] = ["consistent_hashing", "manual"];

/// Starts what stands between clients and engines.
pub trait Gateways {
    /// Starts a gateway with this policy in front of these engines (`http://ip:port`); it serves when this returns.
    fn start(&self, policy: &str, engines: &[String]) -> impl Future<Output = anyhow::Result<Running>>;
}

/// A gateway that runs.
pub struct Running {
    /// Where clients send their requests.
    pub target: Arc<dyn Target>,
    /// Dropped to stop the gateway.
    pub until_stopped: Box<dyn Any>,
}

/// Replays the workload under each policy and judges the outcome.
///
/// # Errors
/// When the workload cannot be read or a gateway or an engine does not start.
pub async fn run(settings: &DemoSettings, gateways: &impl Gateways) -> anyhow::Result<Outcome> {
    let workload = Arc::new(read_workload(settings)?);
    let rules = EngineOptions::default();
    let bound = bound(&workload, &rules);
    let engine = engine_options(settings, &workload, &bound);
    let mut outcome = Outcome::new(settings, &workload, &bound, &engine);
    for policy in &settings.compared() {
        eprintln!("{policy}: {} requests in {:.0} s", workload.requests.len(), workload.duration().as_secs_f64());
        let engines: Vec<FakeEngine> = (1..=settings.engines)
            .map(|number| FakeEngine::try_start(engine.clone().named(format!("engine-{number}"))))
            .collect::<Result<_, _>>()
            .context("cannot start the engines")?;
        let urls: Vec<String> = engines.iter().map(FakeEngine::url).collect();
        let running = match direct::start(policy, &urls) {
            Some(running) => running,
            None => gateways.start(policy, &urls).await.with_context(|| format!("cannot start {policy}"))?,
        };
        let options = LoadOptions {
            time_limit: workload.duration() + GRACE,
            session_keys: BY_KEY.contains(&policy.as_str()),
            ..LoadOptions::default()
        };
        let report = load::run(Arc::clone(&workload), running.target, options).await;
        drop(running.until_stopped);
        for (error, count) in report.errors() {
            eprintln!("{policy}: {count} × {error}");
        }
        outcome.add(policy, &report.summary());
    }
    Ok(outcome)
}

pub(crate) fn read_workload(settings: &DemoSettings) -> anyhow::Result<Workload> {
    let Some(path) = &settings.trace else { return Ok(settings.sessions().generate()) };
    let open = || File::open(path).with_context(|| format!("cannot open the trace {}", path.display()));
    // Read twice, because the default speed depends on how long the trace is.
    let speed = match settings.speed {
        Some(speed) => speed,
        None => settings.speed_for(read_trace(BufReader::new(open()?), &settings.trace_options(1.0))?.duration()),
    };
    let workload = read_trace(BufReader::new(open()?), &settings.trace_options(speed))?;
    anyhow::ensure!(!workload.requests.is_empty(), "the trace {} has no requests", path.display());
    Ok(workload)
}

/// Engines whose prefill the workload fills to three quarters and whose memory holds the asked share of it.
pub(crate) fn engine_options(settings: &DemoSettings, workload: &Workload, bound: &Bound) -> EngineOptions {
    let offered = bound.prompt_tokens as f64 / workload.duration().as_secs_f64().max(0.001);
    EngineOptions {
        cache_tokens: (bound.distinct_tokens as usize / settings.cache_divisor.max(1)).max(1),
        prefill_tokens_per_second: offered / OFFERED_SHARE / settings.engines as f64,
        decode_step: DECODE_STEP,
        ..EngineOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoGateways;

    impl Gateways for NoGateways {
        async fn start(&self, policy: &str, _: &[String]) -> anyhow::Result<Running> {
            anyhow::bail!("{policy} needs a gateway")
        }
    }

    #[tokio::test]
    async fn placement_decides_and_is_judged() {
        let settings = DemoSettings {
            policies: DIRECT_POLICIES.map(str::to_owned).to_vec(),
            session_count: 120,
            speed: Some(4.0),
            ..DemoSettings::default()
        };
        let outcome = run(&settings, &NoGateways).await.unwrap();
        let [blind, seeing] = DIRECT_POLICIES.map(|policy| &outcome.policies[policy]);
        assert_eq!((blind.errors, seeing.errors), (0, 0));
        assert!(blind.of_bound < 0.6 && seeing.of_bound > 0.9, "{}", outcome.table());
        assert!(outcome.criteria.iter().any(|criterion| criterion.name.contains("bound")));
        assert_eq!(seeing.requests_per_engine.len(), 4);
        let json = outcome.json();
        assert_eq!(json["bound"]["hit_rate"], outcome.bound_hit_rate);
        assert!(json["policies"]["ideal-affinity"]["ttft_p50_ms"].as_f64().unwrap() > 0.0);

        let needs = DemoSettings { policies: vec!["cache_aware".to_owned()], ..settings };
        assert!(run(&needs, &NoGateways).await.is_err());
    }
}
