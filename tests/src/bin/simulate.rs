//! `make simulate`: the demo in virtual time, over and over with other chances, and how its numbers are distributed.

use std::time::Duration;

use clap::Parser;
use testbed::demo::{DemoSettings, PolicyOutcome, REPORT_INTERVAL};
use testbed::simulate::Simulation;

#[derive(Parser)]
#[command(about = "Replays the demo's workload in virtual time and prints how its numbers are distributed")]
struct Arguments {
    /// Policies of the filter.
    #[arg(long, env = "POLICIES", value_delimiter = ',', default_values_t = DemoSettings::default().policies)]
    policies: Vec<String>,

    /// Replays of each workload; they differ in what the balancer draws and in when the first load report comes.
    #[arg(long, env = "RUNS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,

    /// Workloads, of the seeds from 1.
    #[arg(long, env = "WORKLOADS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    workloads: u64,

    /// Number of engines.
    #[arg(long, env = "ENGINES", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    engines: u16,

    /// Each engine's memory is the workload's distinct tokens divided by this.
    #[arg(long, env = "CACHE_DIVISOR", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    cache_divisor: u16,

    /// Milliseconds between two load reports.
    #[arg(long, env = "REPORT_INTERVAL_MS", default_value_t = REPORT_INTERVAL.as_millis() as u64,
          value_parser = clap::value_parser!(u64).range(1..))]
    report_interval_ms: u64,

    /// Plugin configuration keys as a JSON object, for all policies.
    #[arg(long, env = "PLUGIN", default_value = "{}", value_parser = parse_object)]
    plugin: serde_json::Value,
}

/// A number of each replay, by its name in the table.
type Column = (&'static str, fn(&PolicyOutcome) -> f64);

const COLUMNS: [Column; 6] = [
    ("% of bound", |numbers| numbers.of_bound * 100.0),
    ("busiest/mean", |numbers| numbers.busiest_over_mean),
    ("TTFT p50 in ms", |numbers| numbers.ttft_p50_ms),
    ("TTFT p90 in ms", |numbers| numbers.ttft_p90_ms),
    ("TTFT p99 in ms", |numbers| numbers.ttft_p99_ms),
    ("million cached tokens", |numbers| numbers.cached_tokens as f64 / 1e6),
];

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut outcomes = Vec::new();
    for seed in 1..=arguments.workloads {
        let mut simulation = Simulation::new(&DemoSettings {
            policies: arguments.policies.clone(),
            engines: arguments.engines.into(),
            cache_divisor: arguments.cache_divisor.into(),
            seed,
            ..DemoSettings::default()
        })?;
        simulation.report_interval = Duration::from_millis(arguments.report_interval_ms);
        simulation.plugin = arguments.plugin.clone();
        for run in 1..=arguments.runs {
            outcomes.push(simulation.outcome(run)?);
        }
    }
    println!("{} runs", outcomes.len());
    println!("{:12}  {:21}  {:>8}  {:>8}  {:>8}  {:>8}", "policy", "", "least", "median", "p90", "most");
    for policy in &arguments.policies {
        for (name, number) in COLUMNS {
            let mut values: Vec<f64> = outcomes.iter().map(|outcome| number(&outcome.policies[policy])).collect();
            values.sort_by(f64::total_cmp);
            let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
            let [least, median, p90, most] = [0.0, 0.5, 0.9, 1.0].map(at);
            println!("{policy:12}  {name:21}  {least:>8.2}  {median:>8.2}  {p90:>8.2}  {most:>8.2}");
        }
    }
    Ok(())
}

fn parse_object(text: &str) -> Result<serde_json::Value, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if value.is_object() { Ok(value) } else { Err(format!("`{text}` is no JSON object")) }
}
