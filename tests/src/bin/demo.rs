//! `make demo`: one workload under `round_robin` and under `cache_aware`, and one table.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::json;
use testbed::demo::{DemoSettings, Gateways, REPORT_INTERVAL, Running, run};
use testbed::envoy::EnvoyOptions;
use testbed::envoy::stack::{Stack, StackOptions};
use testbed::load::Gateway;
use tokio::signal::unix::{SignalKind, signal};

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
    // `make demo TRACE=` means the default, as in any Makefile.
    let command = Arguments::command().mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None),
        _ => arg,
    });
    let arguments = Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    // Dropped half-way, a run ends its processes and removes its files.
    let outcome = tokio::select! {
        outcome = compare(&arguments.settings) => outcome,
        stopped = stopped() => stopped.and(Err(anyhow::anyhow!("stopped before the end"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the comparison, prints and writes what came out, and fails if a criterion was missed.
async fn compare(settings: &DemoSettings) -> anyhow::Result<()> {
    let outcome = run(settings, &Stacks).await?;
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

/// Waits for ctrl-c or SIGTERM.
async fn stopped() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    Ok(())
}
