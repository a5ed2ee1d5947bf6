//! A fake inference engine in a process of its own; `--help` lists what it can be made of.

use clap::Parser;
use testbed::fake_engine::{EngineOptions, FakeEngine};

#[derive(Parser)]
#[command(about = "A fake inference engine with a real prefix cache; POST /control tells it what to do wrong")]
struct Arguments {
    #[command(flatten)]
    engine: EngineOptions,
}

fn main() -> anyhow::Result<()> {
    let engine = FakeEngine::try_start(Arguments::parse().engine)?;
    println!("{} listens on {}", engine.name(), engine.url());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            result = tokio::signal::ctrl_c() => result,
            _ = terminate.recv() => Ok(()),
        }
    })?;
    Ok(())
}
