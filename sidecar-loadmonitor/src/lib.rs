//! The sidecar: asks inference engines how loaded they are and hands the answers to the filter inside Envoy.
//!
//! # Layout
//! * [`Args`] is the command line, [`Config`] what is left of it once checked.
//! * `rounds` polls every worker on a fixed schedule and makes snapshots of the answers.
//! * `spec` is what is said of a worker, `engine` what can be asked of it, `health` what its probes make of it.
//! * `poll` polls one worker: `resolve` finds its address, `fetch` does the HTTP, `source` reads the answers
//!   (pure: bytes in, load out).
//! * `outbox` holds what one Envoy has not yet received, `push` delivers it, `backoff` paces the tries.
//!
//! The format of a snapshot is `filter_core::report`.

mod args;
mod backoff;
mod config;
#[allow(dead_code)]
mod engine;
mod fetch;
#[allow(dead_code)]
mod health;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod outbox;
mod poll;
mod push;
mod resolve;
mod rounds;
mod source;
#[allow(dead_code)]
mod spec;

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

pub use args::{Args, LogLevel};
pub use config::{ApiKey, Config, ConfigError, Worker};

/// Why [`run`] could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No HTTP client: the TLS library found no usable set-up.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(#[from] reqwest::Error),
}

/// Polls and pushes until `shutdown` completes; then drops what is under way and returns at once.
///
/// The first round starts immediately. Nothing that an engine or an Envoy does ends the run.
///
/// # Errors
/// [`RunError`] when it cannot start.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let names = resolve::Names::default();
    let client = fetch::client(&names)?;
    tracing::info!(
        workers = config.workers.len(),
        interval = ?config.interval,
        timeout = ?config.timeout,
        push = ?config.push_urls.iter().map(url::Url::as_str).collect::<Vec<_>>(),
        "polling"
    );

    // Dropped at return, which ends the deliveries.
    let mut deliveries = JoinSet::new();
    let mut outboxes = Vec::new();
    for url in &config.push_urls {
        let outbox = Arc::new(outbox::Outbox::default());
        outboxes.push(Arc::clone(&outbox));
        let longest_pause = config.interval.clamp(backoff::FIRST_PAUSE, Duration::from_secs(5));
        deliveries.spawn(push::deliver(client.clone(), url.clone(), outbox, config.timeout, longest_pause));
    }
    let asker = fetch::Asker::new(client, config.api_key.clone());
    tokio::select! {
        () = rounds::poll_for_ever(&config, &asker, &names, &outboxes) => {}
        () = shutdown => tracing::info!("stopping"),
    }
    Ok(())
}
