//! Envoy's admin endpoint: counters, gauges, Prometheus text.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde_json::Value;

/// A client of one Envoy's admin endpoint.
#[derive(Debug, Clone)]
pub struct Admin {
    address: SocketAddr,
    client: reqwest::Client,
}

impl Admin {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { address, client: reqwest::Client::new() }
    }

    /// `http://ip:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The body of a successful GET.
    pub async fn get(&self, path: &str) -> Result<String> {
        let answer = self.client.get(self.url() + path).send().await?.error_for_status()?;
        Ok(answer.text().await?)
    }

    /// The body of a successful GET, as JSON.
    pub async fn get_json(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.get(path).await?).with_context(|| format!("{path} is not JSON"))
    }

    /// A counter or gauge by its full name; 0 when Envoy has none of the name, since it makes some at first use.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        let text = self.get("/stats").await?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map_or(Ok(0), |value| value.parse().with_context(|| format!("{name} is {value}")))
    }

    /// What `/stats/prometheus` shows.
    pub async fn prometheus(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.get("/stats/prometheus").await?))
    }
}

/// Samples in Prometheus' text format.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Reads the text format; lines that are none of it are skipped.
    pub fn parse(text: &str) -> Self {
        Self { samples: text.lines().filter_map(parse_line).collect() }
    }

    /// The sum of the samples of `name` that have all of `labels`; 0 when there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).map(|sample| sample.value).sum()
    }

    /// The values of one label among the samples of `name`, with the sample's value.
    pub fn by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.matching(name, &[]) {
            *sums.entry(sample.labels.get(label).cloned().unwrap_or_default()).or_default() += sample.value;
        }
        sums
    }

    /// The names of all metrics that begin with `prefix`.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        let mut names: Vec<_> = self.samples.iter().map(|s| &*s.name).filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    fn matching<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Sample> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
            .filter(|sample| labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|v| v == value)))
    }
}

fn parse_line(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        return Some(Sample { name: name.to_owned(), labels: BTreeMap::new(), value: value.trim().parse().ok()? });
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest;
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(value) = rest.strip_prefix('}') {
            return Some(Sample { name: name.to_owned(), labels, value: value.trim().parse().ok()? });
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        rest = loop {
            match characters.next()? {
                (end, '"') => break quoted.get(end + 1..)?,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_labels_with_escapes_and_sums_what_matches() {
        let metrics = Metrics::parse(
            "# TYPE x counter\nx{a=\"1\",b=\"say \\\"hi\\\", {you}\"} 3\nx{a=\"1\",b=\"c\"} 4\nx{a=\"2\"} 5\ny{} 7\nz 1e3\n",
        );
        assert_eq!(metrics.sum("x", &[("a", "1")]), 7.0);
        assert_eq!(metrics.sum("x", &[("b", "say \"hi\", {you}")]), 3.0);
        assert_eq!(metrics.sum("x", &[("c", "1")]), 0.0);
        assert_eq!(metrics.sum("y", &[]) + metrics.sum("z", &[]), 1007.0);
        assert_eq!(metrics.by("x", "a"), BTreeMap::from([("1".to_owned(), 7.0), ("2".to_owned(), 5.0)]));
        assert_eq!(metrics.names("x"), ["x"]);
    }
}
