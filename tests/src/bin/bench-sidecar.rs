//! `make bench-sidecar`: what the sidecar costs with a thousand engines.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use testbed::bench_sidecar::{Settings, run};
use testbed::program::{arguments, unless_stopped, write_outcome};

#[derive(Parser)]
#[command(about = "Measures CPU time and memory of the sidecar beside engines that answer at once")]
struct Arguments {
    /// How many engines.
    #[arg(long, env = "ENGINES", default_value_t = 1000)]
    engines: usize,

    /// Seconds from one poll of an engine to the next.
    #[arg(long, env = "INTERVAL", default_value_t = 1.0)]
    interval: f64,

    /// Seconds to measure.
    #[arg(long, env = "MEASURE_SECONDS", default_value_t = 30)]
    seconds: u64,

    /// The sidecar's program.
    #[arg(long, env = "SIDECAR_BIN", default_value = "target/release/sidecar-loadmonitor")]
    sidecar: PathBuf,

    /// Where the outcome goes as JSON.
    #[arg(long, env = "OUTPUT", default_value = "target/bench-sidecar.json")]
    output: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { engines, interval, seconds, sidecar, output } = arguments();
    let settings = Settings { engines, interval, time: Duration::from_secs(seconds), sidecar };
    unless_stopped(async {
        let outcome = run(settings).await?;
        print!("{outcome}");
        write_outcome(Path::new(&output), &outcome.to_json())
    })
    .await
}
