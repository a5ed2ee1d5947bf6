//! `make chaos`: everything that can go wrong at once, and three promises that hold all the same.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use testbed::chaos::{ChaosSettings, run};

/// Where Envoy's log of the last run is left.
const LOG: &str = "target/chaos-envoy.log";

#[derive(Parser)]
#[command(about = "Sends requests of all fates through Envoy while engines, VMs and configurations come and go")]
struct Arguments {
    #[command(flatten)]
    settings: ChaosSettings,
}

// One thread for the clients: the engines have their own, and Envoy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // `make chaos SEED=` means the default, as in any Makefile.
    let command = Arguments::command().mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None),
        _ => arg,
    });
    let arguments = Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let seed = arguments.settings.seed;
    println!("make chaos SEED={seed} N={}", arguments.settings.requests);
    // Dropped half-way, a run ends its processes and removes its files.
    let outcome = tokio::select! {
        outcome = run(arguments.settings) => outcome,
        stopped = tokio::signal::ctrl_c() => Err(stopped.err().map_or(anyhow::anyhow!("stopped"), Into::into)),
    };
    match outcome {
        Ok(report) => {
            print!("{report}");
            if let Err(error) = std::fs::write(LOG, report.log()) {
                eprintln!("cannot write {LOG}: {error}");
            }
            let broken = report.broken();
            for promise in &broken {
                eprintln!("broken with seed {seed}: {promise}");
            }
            if !broken.is_empty() {
                eprintln!("Envoy's log is in {LOG}");
            }
            if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error with seed {seed}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
