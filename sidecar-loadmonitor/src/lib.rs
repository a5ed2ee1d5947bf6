//! The sidecar: asks inference engines how loaded they are and hands the answers to the filter inside Envoy.
//!
//! # Layout
//! * [`Args`] is the command line, completed by the environment and a file (`layers`), [`Config`] what is left of it once checked.
//! * `discovery` finds workers, `registry` keeps them: each has a task of its own that probes and polls it.
//! * `rounds` starts polls on a fixed schedule and has snapshots made of what is known.
//! * `spec` is what is said of a worker, `engine` what can be asked of it, `health` what its probes make of it.
//! * `poll` polls one worker: `resolve` finds its address, `http` or `grpc` asks it (`fetch` does the HTTP), `source`
//!   reads the answers (pure: bytes in, load out). `runtime` tells engines apart, `trust` their certificates.
//! * `check` asks an engine all that can be asked, once, and says what came of it.
//! * `outbox` holds what one Envoy has not yet received, `push` delivers it, `backoff` paces the tries; `serve` is for
//!   those who fetch what they want to know, `metrics` for monitoring.
//!
//! The format of a snapshot is `filter_core::report`.

mod args;
mod backoff;
mod check;
mod config;
mod connections;
mod discovery;
#[allow(dead_code)]
mod engine;
mod fetch;
mod grpc;
mod health;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod http;
mod layers;
mod metrics;
mod outbox;
mod poll;
mod push;
mod registry;
mod resolve;
mod rounds;
mod runtime;
mod serve;
mod source;
mod spec;
mod trust;

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use tokio::task::JoinSet;

pub use args::{Args, LogFormat, LogLevel, Scheme};
pub use check::{Check, Learned};
pub use config::{ApiKey, Config, ConfigError, Discovery, Face, Probes, Worker};
use discovery::{Dns, EnvoyClusters, List, Source, WorkersFile};
pub use discovery::{DnsName, EnvoyAdmin, EnvoyCluster};
use registry::{Paces, Registry, Rules, Stamp};
pub use trust::Trust;

/// Why [`run`] could not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No HTTP client: the TLS library found no usable set-up.
    #[error("the HTTP client cannot be set up")]
    Client(#[from] reqwest::Error),
    /// The address to listen on is not to be had.
    #[error("--listen {address}: {why}; is another sidecar running? choose a free address")]
    Listen {
        /// The address asked for.
        address: std::net::SocketAddr,
        /// What binding it said.
        why: std::io::Error,
    },
}

/// Probes, polls, pushes and serves until `shutdown` completes; then drops what is under way and returns at once.
///
/// The first round starts immediately. Nothing that an engine or an Envoy does ends the run.
///
/// # Errors
/// [`RunError`] when it cannot start.
pub async fn run(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), RunError> {
    let names = resolve::Names::default();
    let client = fetch::client(&names, &config.trust)?;
    let listener = match &config.face {
        Some(Face { listen: address }) => {
            let failed = |why| RunError::Listen { address: *address, why };
            Some(tokio::net::TcpListener::bind(address).await.map_err(failed)?)
        }
        None => None,
    };
    tracing::info!(
        workers = config.discovery.workers.len(),
        interval = ?config.interval,
        timeout = ?config.timeout,
        push = ?config.push_urls.iter().map(url::Url::as_str).collect::<Vec<_>>(),
        listen = listener.as_ref().and_then(|listener| listener.local_addr().ok()).map(tracing::field::display),
        reporter = config.reporter,
        "polling"
    );

    // Dropped at return, which ends them.
    let mut tasks = JoinSet::new();
    let envoys: Vec<_> = config.push_urls.iter().map(|url| Arc::new(push::Envoy::new(url.clone()))).collect();
    let manner = push::Manner {
        client: client.clone(),
        token: config.token.clone(),
        timeout: config.timeout,
        longest_pause: config.interval.clamp(backoff::FIRST_PAUSE, Duration::from_secs(5)),
    };
    for envoy in &envoys {
        tasks.spawn(push::deliver(manner.clone(), Arc::clone(envoy)));
    }

    let sources = sources(&config.discovery, &client);
    let asker = fetch::Asker::new(client, config.api_key.clone(), config.trust.clone());
    let stamp = Stamp::new(config.reporter.clone(), config.interval);
    let registry = Registry::new(rules(&config), paces(&config), stamp, sources.len(), asker, names);
    let _stop = Stop(Arc::clone(&registry));
    for (number, source) in sources.into_iter().enumerate() {
        let registry = Arc::clone(&registry);
        tracing::debug!(source = source.name(), "finds workers");
        tasks.spawn(async move {
            let mut sets = source.sets();
            while let Some(found) = sets.next().await {
                registry.named(number, found);
            }
        });
    }
    if let Some(listener) = listener {
        let face = serve::Face::new(Arc::clone(&registry), config.token.clone(), envoys.clone());
        tasks.spawn(serve::serve(listener, face));
    }
    let outboxes: Vec<_> = envoys.iter().map(|envoy| Arc::clone(&envoy.outbox)).collect();
    tokio::select! {
        () = rounds::run_for_ever(&registry, config.interval, &outboxes) => {}
        () = shutdown => tracing::info!("stopping"),
    }
    Ok(())
}

/// Ends the workers' tasks when the run ends, however it does.
struct Stop(Arc<Registry>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn sources(discovery: &Discovery, client: &reqwest::Client) -> Vec<Box<dyn Source>> {
    let (every, scheme) = (discovery.interval, discovery.scheme);
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    if !discovery.workers.is_empty() {
        sources.push(Box::new(List(discovery.workers.clone())));
    }
    if let Some(path) = &discovery.workers_file {
        sources.push(Box::new(WorkersFile::new(path.clone(), every)));
    }
    for name in &discovery.dns {
        sources.push(Box::new(Dns::new(name.clone(), scheme, discovery.dns_interval)));
    }
    if let Some(admin) = &discovery.envoy {
        sources.push(Box::new(EnvoyClusters::new(admin.clone(), client.clone(), scheme, every)));
    }
    sources
}

const fn rules(config: &Config) -> Rules {
    Rules {
        probing: config.probes.enabled,
        thresholds: config.probes.thresholds,
        drain_settle: config.probes.drain_settle,
        remove_failed: config.probes.remove_failed,
        polling: config.monitoring,
    }
}

fn paces(config: &Config) -> Paces {
    Paces {
        interval: config.interval,
        timeout: config.timeout,
        probe_interval: config.probes.interval,
        probe_timeout: config.probes.timeout,
        probe_path: config.probes.path.clone(),
    }
}
