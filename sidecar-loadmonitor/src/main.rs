//! The `sidecar-loadmonitor` binary: arguments, logs and signals around [`sidecar_loadmonitor::run`].

use std::{
    io::{IsTerminal, Write, stderr, stdout},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use clap::{CommandFactory, Parser, error::ErrorKind};
use sidecar_loadmonitor::{Args, Check, LogFormat, LogLevel, run};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    match work() {
        Ok(code) => code,
        Err(error) => {
            // Nobody is left to tell if standard error is closed.
            let _ = writeln!(stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work() -> anyhow::Result<ExitCode> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    match arguments.get(1).and_then(|first| first.to_str()) {
        Some("check") => {
            arguments.remove(1);
            return check(Check::parse_from(arguments));
        }
        Some("run") => {
            arguments.remove(1);
        }
        _ => {}
    }
    let args = Args::gather(arguments).unwrap_or_else(|error| error.exit());
    log_at(args.log_level, args.log_format);
    let config = match args.into_config() {
        Ok(config) => config,
        Err(error) => Args::command().error(ErrorKind::ValueValidation, error).exit(),
    };
    // A connection or two per engine: a thousand engines need more than the usual 1,024 files.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    // One thread is enough for a thousand engines, and leaves the others to Envoy.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    let outcome = runtime.block_on(async {
        let stop = signals().context("signals cannot be watched")?;
        run(config, stop).await.map_err(anyhow::Error::from)
    });
    // A look-up in a name server that is away blocks its thread for longer than anybody waits for a stop.
    runtime.shutdown_timeout(Duration::from_millis(100));
    outcome.map(|()| ExitCode::SUCCESS)
}

/// Asks engines once.
fn check(check: Check) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    let learned = match runtime.block_on(check.run()) {
        Ok(learned) => learned,
        Err(error) => Check::command().error(ErrorKind::ValueValidation, error).exit(),
    };
    runtime.shutdown_timeout(Duration::from_millis(100));
    stdout().write_all(learned.text.as_bytes()).context("standard output is closed")?;
    Ok(if learned.all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Completes at SIGTERM or SIGINT.
fn signals() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt): (Signal, Signal) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

fn log_at(level: LogLevel, format: LogFormat) {
    let filter = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "warn,sidecar_loadmonitor=info",
        LogLevel::Debug => "warn,sidecar_loadmonitor=debug",
        LogLevel::Trace => "info,sidecar_loadmonitor=trace",
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}
