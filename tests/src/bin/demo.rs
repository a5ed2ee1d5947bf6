//! `make demo`: one workload under `round_robin` and under `cache_aware` or another `POLICY`, and one table.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use serde_json::json;
use testbed::demo::{DemoSettings, Gateways, REPORT_INTERVAL, Running, run};
use testbed::envoy::EnvoyOptions;
use testbed::envoy::stack::{Stack, StackOptions};
use testbed::load::Gateway;
use testbed::program::{arguments, unless_stopped, write_outcome};

#[derive(Parser)]
#[command(about = "Replays one workload under several policies through Envoy and prints one table")]
struct Arguments {
    #[command(flatten)]
    settings: DemoSettings,
}

/// The whole stack for each policy: Envoy with the filter, and the sidecar.
struct Stacks;

impl Gateways for Stacks {
    async fn start(&self, policy: &str, engines: &[String]) -> anyhow::Result<Running> {
        let envoy = EnvoyOptions { plugin: json!({ "policy": policy }), ..EnvoyOptions::default() };
        let mut stack = Stack::start(StackOptions {
            workers: engines.to_vec(),
            envoy,
            load_monitor_interval: REPORT_INTERVAL.as_secs_f64(),
            ..StackOptions::default()
        })
        .await?;
        stack.served(|_| {}).await?;
        Ok(Running { target: Arc::new(Gateway::new(stack.base_url())), until_stopped: Box::new(stack) })
    }
}

// One thread for the load generator: the engines have their own, and Envoy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Arguments = arguments();
    unless_stopped(compare(&arguments.settings)).await
}

/// Runs the comparison, prints and writes what came out, and fails if a criterion was missed.
async fn compare(settings: &DemoSettings) -> anyhow::Result<()> {
    let outcome = run(settings, &Stacks).await?;
    println!("{}", outcome.table());
    write_outcome(&settings.output, &outcome.json())?;
    let missed: Vec<String> = outcome.missed().map(|criterion| format!("missed: {criterion}")).collect();
    anyhow::ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}
