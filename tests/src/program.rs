//! What the programs of this package have in common: their variables, how they stop, where their outcome goes.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

/// The flags and variables of a program; ends it if they are wrong. `make x VARIABLE=` means the default, as in any
/// Makefile.
pub fn arguments<A: Parser>() -> A {
    let command = A::command().mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value == OsString::new() => arg.env(None),
        _ => arg,
    });
    A::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
}

/// Does `work` unless ctrl-c or SIGTERM comes first. Dropped half-way, it ends its processes and removes its files.
pub async fn unless_stopped(work: impl Future<Output = Result<()>>) -> ExitCode {
    let outcome = tokio::select! {
        outcome = work => outcome,
        stopped = stopped() => stopped,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn stopped() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    bail!("stopped before the end")
}

/// Writes an outcome to a file, whose folder is made if it is not there, and says so.
///
/// # Errors
/// When the file cannot be written; names it.
pub fn write_outcome(path: &Path, outcome: &Value) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, format!("{outcome:#}\n")).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}
