//! `make bench`: what the filter costs Envoy, as CPU time per request.

use std::process::ExitCode;

use clap::Parser;
use testbed::bench::{BenchSettings, run};
use testbed::program::{arguments, unless_stopped, write_outcome};

#[derive(Parser)]
#[command(about = "Measures the CPU time per request of Envoy alone, with the filter and with other pickers")]
struct Arguments {
    #[command(flatten)]
    settings: BenchSettings,
}

// One thread for the clients: the engines have their own, and the proxy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Arguments = arguments();
    unless_stopped(measure(&arguments.settings)).await
}

/// Measures, prints and writes what came out, and fails if a request has failed.
async fn measure(settings: &BenchSettings) -> anyhow::Result<()> {
    let outcome = run(settings, |line| eprintln!("{line}")).await?;
    println!("{}", outcome.table());
    write_outcome(&settings.output, &outcome.json())?;
    let failures = outcome.failures();
    anyhow::ensure!(failures.is_empty(), "requests have failed\n{}", failures.join("\n"));
    Ok(())
}
