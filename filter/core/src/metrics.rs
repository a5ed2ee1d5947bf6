//! Counters and gauges, summed in memory and handed to the host on ticks.
//!
//! A metric's name is the only carrier of labels in Envoy: `name;label=value;label=value`. The `stats_tags` of
//! `envoy.yaml` cut the labels out again. Values come from the configuration, never from clients, since a metric never
//! expires.

use std::collections::HashMap;
use std::fmt::Write as _;

/// More distinct metrics are not defined: a misconfigured fleet must not eat Envoy's memory.
const MAX_METRICS: usize = 16_384;

/// What a metric does with its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Adds them up.
    Counter,
    /// Keeps the last.
    Gauge,
}

/// One metric of this VM.
#[derive(Debug)]
pub struct Metric {
    /// The name with its labels.
    pub name: String,
    /// Counter or gauge.
    pub kind: Kind,
    /// The host's number for it, once defined.
    pub id: Option<u32>,
    pending: Option<u64>,
    /// A gauge's value as the host has it from this VM.
    delivered: Option<u64>,
}

/// All metrics of this VM.
#[derive(Debug, Default)]
pub struct Metrics {
    metrics: Vec<Metric>,
    by_name: HashMap<String, usize>,
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(&mut self, name: &str, labels: &[(&str, &str)], count: u64) {
        if let Some(metric) = self.metric(Kind::Counter, name, labels) {
            metric.pending = Some(metric.pending.unwrap_or(0).saturating_add(count));
        }
    }

    /// Sets a gauge.
    pub fn set(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        if let Some(gauge) = self.gauge(name, labels) {
            self.set_at(gauge, value);
        }
    }

    /// The number of a gauge, for setting it often: names are made once.
    pub fn gauge(&mut self, name: &str, labels: &[(&str, &str)]) -> Option<usize> {
        self.position(Kind::Gauge, name, labels)
    }

    /// Sets the gauge of a number from [`Metrics::gauge`]. The host hears of changes only.
    pub fn set_at(&mut self, gauge: usize, value: u64) {
        if let Some(metric) = self.metrics.get_mut(gauge) {
            metric.pending = (metric.delivered != Some(value)).then_some(value);
        }
    }

    /// Lets every gauge be handed to the host when it is set next, changed or not: other VMs, or other modules that share
    /// the names, may have told the host something else meanwhile.
    pub fn forget_delivered(&mut self) {
        self.metrics.iter_mut().for_each(|metric| metric.delivered = None);
    }

    /// Hands every changed metric to `deliver` with its new value (gauge) or what was added (counter).
    /// What `deliver` refuses is kept for the next time.
    pub fn flush(&mut self, mut deliver: impl FnMut(&mut Metric, u64) -> bool) {
        for metric in &mut self.metrics {
            if let Some(value) = metric.pending
                && deliver(metric, value)
            {
                metric.pending = None;
                metric.delivered = Some(value);
            }
        }
    }

    fn metric(&mut self, kind: Kind, name: &str, labels: &[(&str, &str)]) -> Option<&mut Metric> {
        let at = self.position(kind, name, labels)?;
        self.metrics.get_mut(at)
    }

    fn position(&mut self, kind: Kind, name: &str, labels: &[(&str, &str)]) -> Option<usize> {
        let mut full = String::with_capacity(128);
        full.push_str(name);
        for (label, value) in labels {
            let _ = write!(full, ";{label}=");
            // The separators of the encoding cannot be part of a value.
            full.extend(value.chars().map(|c| if c == ';' || c == '=' || c.is_control() { '_' } else { c }));
        }
        if let Some(&at) = self.by_name.get(&full) {
            return Some(at);
        }
        if self.metrics.len() >= MAX_METRICS {
            return None;
        }
        self.by_name.insert(full.clone(), self.metrics.len());
        self.metrics.push(Metric { name: full, kind, id: None, pending: None, delivered: None });
        self.metrics.len().checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flushed(metrics: &mut Metrics) -> Vec<(String, u64)> {
        let mut seen = Vec::new();
        metrics.flush(|metric, value| {
            seen.push((metric.name.clone(), value));
            true
        });
        seen
    }

    #[test]
    fn counters_add_up_and_gauges_keep_the_last_value() {
        let mut metrics = Metrics::default();
        metrics.add("c", &[("model", "a/b.c"), ("policy", "x")], 1);
        metrics.add("c", &[("model", "a/b.c"), ("policy", "x")], 2);
        metrics.set("g", &[], 5);
        metrics.set("g", &[], 4);
        assert_eq!(flushed(&mut metrics), [("c;model=a/b.c;policy=x".to_owned(), 3), ("g".to_owned(), 4)]);
        assert!(flushed(&mut metrics).is_empty());
    }

    #[test]
    fn a_gauge_is_told_again_once_its_delivery_is_forgotten() {
        let mut metrics = Metrics::default();
        metrics.set("g", &[], 5);
        metrics.add("c", &[], 1);
        assert_eq!(flushed(&mut metrics).len(), 2);
        metrics.set("g", &[], 5);
        assert!(flushed(&mut metrics).is_empty());
        metrics.forget_delivered();
        assert!(flushed(&mut metrics).is_empty(), "what is not set says nothing");
        metrics.set("g", &[], 5);
        assert_eq!(flushed(&mut metrics), [("g".to_owned(), 5)]);
    }

    #[test]
    fn what_the_host_refuses_is_kept() {
        let mut metrics = Metrics::default();
        metrics.add("c", &[], 1);
        metrics.flush(|_, _| false);
        metrics.add("c", &[], 1);
        assert_eq!(flushed(&mut metrics), [("c".to_owned(), 2)]);
    }

    #[test]
    fn a_value_cannot_forge_a_label_and_their_number_is_bounded() {
        let mut metrics = Metrics::default();
        metrics.add("c", &[("model", "x;policy=y")], 1);
        assert_eq!(flushed(&mut metrics)[0].0, "c;model=x_policy_y");
        for number in 0..MAX_METRICS + 10 {
            metrics.add("n", &[("model", &number.to_string())], 1);
        }
        assert_eq!(flushed(&mut metrics).len(), MAX_METRICS - 1);
    }
}
