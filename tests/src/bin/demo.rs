//! `make demo`: one workload under `round_robin` and under `cache_aware`, and one table.

use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use serde_json::json;
use testbed::demo::{DemoSettings, Gateways, Running, run};
use testbed::envoy::{Envoy, EnvoyOptions};
use testbed::load::Gateway;

#[derive(Parser)]
#[command(about = "Replays one workload under several policies through Envoy and prints one table")]
struct Arguments {
    #[command(flatten)]
    settings: DemoSettings,
}

/// An Envoy with the filter for each policy.
struct Envoys;

impl Gateways for Envoys {
    async fn start(&self, policy: &str, engines: &[String]) -> anyhow::Result<Running> {
        let addresses = engines.iter().map(|url| url.trim_start_matches("http://").parse());
        let addresses: Vec<std::net::SocketAddr> = addresses.collect::<Result<_, _>>()?;
        let options = EnvoyOptions { plugin: json!({ "policy": policy }), ..EnvoyOptions::with_workers(addresses) };
        let envoy = Envoy::start(options).await?;
        Ok(Running { target: Arc::new(Gateway::new(envoy.url())), until_stopped: Box::new(envoy) })
    }
}

// One thread for the load generator: the engines have their own, and Envoy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let Arguments { settings } = Arguments::parse();
    let outcome = run(&settings, &Envoys).await?;
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
