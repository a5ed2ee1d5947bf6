//! What people and their monitoring see of the registry.

use filter_core::report::{Health, Info, Load};
use serde::Serialize;
use tokio::time::Instant;

use super::{
    Registry,
    entry::{Counts, Entry},
};
use crate::engine::RankLoad;

/// One worker, as `GET /workers` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerView {
    pub(crate) url: String,
    pub(crate) address: Option<String>,
    pub(crate) health: Health,
    /// It has been given up and removed, and is not among the workers of any snapshot.
    pub(crate) removed: bool,
    pub(crate) info: Info,
    pub(crate) load: Option<LoadView>,
    /// Which way of asking for its load has answered.
    pub(crate) source: Option<&'static str>,
    /// Seconds since its load was told.
    pub(crate) report_age_seconds: Option<f64>,
    pub(crate) last_poll_error: Option<String>,
    pub(crate) last_probe_error: Option<String>,
    #[serde(skip)]
    pub(crate) counts: Counts,
    #[serde(skip)]
    pub(crate) ranks: Vec<RankLoad>,
}

/// A load with the names of its numbers.
#[derive(Debug, Serialize)]
pub(crate) struct LoadView {
    queued_tokens: f64,
    waiting: f64,
    running: f64,
    kv_usage: f64,
    throughput: f64,
}

impl From<Load> for LoadView {
    fn from(load: Load) -> Self {
        let Load { queued_tokens, waiting, running, kv_usage, throughput } = load;
        Self { queued_tokens, waiting, running, kv_usage, throughput }
    }
}

impl Registry {
    /// All workers, by their URLs.
    pub(crate) fn view(&self) -> Vec<WorkerView> {
        let now = Instant::now();
        let mut workers: Vec<_> = self.book().entries.values().map(|entry| view(entry, now)).collect();
        workers.sort_unstable_by(|one, other| one.url.cmp(&other.url));
        workers
    }
}

fn view(entry: &Entry, now: Instant) -> WorkerView {
    let mut ranks = entry.ranks.clone();
    if let (true, Some(load)) = (ranks.is_empty(), entry.load) {
        ranks.push(RankLoad { load, ..RankLoad::default() });
    }
    WorkerView {
        url: entry.spec.url.clone(),
        address: entry.address.clone(),
        health: entry.health(),
        removed: entry.away,
        info: entry.info(),
        load: entry.load.map(LoadView::from),
        source: entry.told.map(|(_, source)| source),
        report_age_seconds: entry.told.map(|(when, _)| (now - when).as_secs_f64()),
        last_poll_error: entry.poll_error.clone(),
        last_probe_error: entry.probe_error.clone(),
        counts: entry.counts.clone(),
        ranks,
    }
}
