//! `make demo`: one workload under `round_robin` and under `cache_aware`, and one table.

use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use serde_json::json;
use testbed::demo::{DemoSettings, Gateways, Running, run};
use testbed::envoy::EnvoyOptions;
use testbed::envoy::stack::{Stack, StackOptions};
use testbed::load::Gateway;

#[derive(Parser)]
#[command(about = "Replays one workload under several policies through Envoy and prints one table")]
struct Arguments {
    #[command(flatten)]
    settings: DemoSettings,
}

/// The whole stack for each policy: Envoy with the filter, and the sidecar.
struct Stacks;

/// Seconds between two load reports: the demo's minutes stand for hours.
const LOAD_MONITOR_INTERVAL: f64 = 1.0;

impl Gateways for Stacks {
    async fn start(&self, policy: &str, engines: &[String]) -> anyhow::Result<Running> {
        let envoy = EnvoyOptions { plugin: json!({ "policy": policy }), ..EnvoyOptions::default() };
        let mut stack = Stack::start(StackOptions {
            workers: engines.to_vec(),
            envoy,
            load_monitor_interval: LOAD_MONITOR_INTERVAL,
            ..StackOptions::default()
        })
        .await?;
        stack.served(|_| {}).await?;
        Ok(Running { target: Arc::new(Gateway::new(stack.base_url())), until_stopped: Box::new(stack) })
    }
}

// One thread for the load generator: the engines have their own, and Envoy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { settings } = Arguments::parse();
    let outcome = run(&settings, &Stacks).await?;
    println!("{}", outcome.table());
    if let Some(folder) = settings.output.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    std::fs::write(&settings.output, format!("{:#}\n", outcome.json()))
        .with_context(|| format!("cannot write {}", settings.output.display()))?;
    println!("written to {}", settings.output.display());
    let missed: Vec<String> = outcome.missed().map(|criterion| format!("missed: {criterion}")).collect();
    anyhow::ensure!(missed.is_empty(), "{}", missed.join("\n"));
    Ok(())
}
