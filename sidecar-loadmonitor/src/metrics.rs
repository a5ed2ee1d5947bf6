//! What monitoring sees of the sidecar, in Prometheus' text format. Made from what is known when it is asked for, so that
//! polls pay nothing for it and a worker that has left leaves no series behind.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use filter_core::report::Health;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, prometheus_text},
    metrics::{MetricType, exemplar::Exemplar},
    registry::Registry,
};

use crate::{registry::WorkerView, serve::Face};

/// The page.
pub(crate) fn page(face: &Arc<Face>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Page(Arc::clone(face))));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Page(Arc<Face>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

/// Labels of one sample, and its value.
type Sample<V> = (Vec<(&'static str, String)>, V);

impl Collector for Page {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let workers = self.0.registry.view();
        let workers: Vec<_> = workers.iter().filter(|worker| !worker.removed).collect();
        let mut page = Families(encoder);
        engines(&mut page, &workers)?;
        polls(&mut page, &workers)?;
        self.readers(&mut page)
    }
}

/// SMG's names for what the engines say.
fn engines(page: &mut Families<'_>, workers: &[&WorkerView]) -> fmt::Result {
    type Number = fn(&crate::engine::RankLoad) -> f64;
    let gauges: [(&str, &str, Number); 5] = [
        ("smg_engine_running_requests", "Requests that run, -1 if unknown", |rank| rank.load.running),
        ("smg_engine_waiting_requests", "Requests that wait, -1 if unknown", |rank| rank.load.waiting),
        ("smg_engine_token_usage", "Share of the KV memory in use, -1 if unknown", |rank| rank.load.kv_usage),
        ("smg_engine_gen_throughput", "Generated tokens per second, -1 if unknown", |rank| rank.load.throughput),
        ("smg_engine_cache_hit_rate", "Share of prompt tokens found in the prefix cache, -1 if unknown", |rank| {
            rank.cache_hit_rate.unwrap_or(-1.0)
        }),
    ];
    for (name, help, number) in gauges {
        let samples = workers.iter().flat_map(|worker| {
            let model = worker.info.models.first().map_or("unknown", String::as_str);
            let labels = move |rank: u32| {
                vec![("worker", worker.url.clone()), ("model", model.to_owned()), ("dp_rank", rank.to_string())]
            };
            let unknown = worker.ranks.is_empty().then(|| (labels(0), -1.0));
            worker.ranks.iter().map(move |rank| (labels(rank.dp_rank), number(rank))).chain(unknown)
        });
        page.gauges(name, help, samples)?;
    }
    Ok(())
}

fn polls(page: &mut Families<'_>, workers: &[&WorkerView]) -> fmt::Result {
    let of = |worker: &WorkerView| vec![("worker", worker.url.clone())];
    let outcomes = |worker: &WorkerView, all: u64, failed: u64| {
        let labels = |outcome: &str| vec![("worker", worker.url.clone()), ("outcome", outcome.to_owned())];
        [(labels("ok"), all - failed), (labels("error"), failed)]
    };
    page.gauges(
        "smg_loadmonitor_worker_health",
        "1 if ready, 0.5 if draining, 0 if pending or not ready, -1 if given up",
        workers.iter().map(|worker| {
            let value = match worker.health {
                Health::Ready => 1.0,
                Health::Draining => 0.5,
                Health::Pending | Health::NotReady => 0.0,
                Health::Failed => -1.0,
            };
            (of(worker), value)
        }),
    )?;
    page.gauges(
        "smg_loadmonitor_report_age_seconds",
        "Since the worker's load was told; absent while it is unknown",
        workers.iter().filter_map(|worker| Some((of(worker), worker.report_age_seconds?))),
    )?;
    page.counters(
        "smg_loadmonitor_polls",
        "Polls of the worker for its load",
        workers.iter().flat_map(|worker| outcomes(worker, worker.counts.polls, worker.counts.failed_polls)),
    )?;
    page.counters(
        "smg_loadmonitor_poll_seconds",
        "Time that all polls of the worker took together",
        workers.iter().map(|worker| (of(worker), worker.counts.poll_seconds)),
    )?;
    page.counters(
        "smg_loadmonitor_probes",
        "Probes of the worker's health",
        workers.iter().flat_map(|worker| outcomes(worker, worker.counts.probes, worker.counts.failed_probes)),
    )
}

impl Page {
    fn readers(&self, page: &mut Families<'_>) -> fmt::Result {
        let pushes = self.0.envoys.iter().flat_map(|envoy| {
            let labels = |outcome: &str| vec![("url", envoy.url.to_string()), ("outcome", outcome.to_owned())];
            [
                (labels("ok"), envoy.arrived.load(Ordering::Relaxed)),
                (labels("error"), envoy.failed.load(Ordering::Relaxed)),
            ]
        });
        page.counters("smg_loadmonitor_pushes", "Snapshots pushed to an Envoy", pushes)?;
        let pulls = self.0.pulls.all().map(|(outcome, count)| (vec![("outcome", outcome.to_owned())], count));
        page.counters("smg_loadmonitor_pulls", "Requests for what is known", pulls.into_iter())?;
        let sequence = [(Vec::new(), self.0.registry.sequence() as f64)];
        page.gauges("smg_loadmonitor_sequence", "Number of the last snapshot", sequence.into_iter())
    }
}

struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn gauges<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = Sample<V>>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters<V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl Iterator<Item = Sample<V>>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            let none: Option<&Exemplar<Vec<(&str, String)>, f64>> = None;
            family.encode_family(&labels)?.encode_counter(&value, none)?;
        }
        Ok(())
    }
}
