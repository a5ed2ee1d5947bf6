//! What a soak has seen, and whether all promises were kept.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{LOOK, Soak};
use crate::envoy::Envoy;

/// Bytes by which Envoy may be larger in the end than after a quarter of the requests.
const GROWTH: i64 = 8 << 20;

/// What a table that fills may take of the memory for each of its bytes: the store's own share, and what the allocator
/// leaves free between pages that grow. And what Envoy's own buffers take at the first requests.
const OVERHEAD: f64 = 1.5;
const OWN: i64 = 16 << 20;

/// For gauges to show the end: those of the tree are set when all of its pages have been counted.
const SETTLED: Duration = Duration::from_secs(60);

/// What a soak has shown; its text is for people.
#[derive(Clone, Debug)]
pub struct SoakReport {
    soak: Soak,
    pub(super) elapsed: Duration,
    /// Resident bytes of Envoy before the bulk of the requests, after a quarter of them, and after all.
    resident: Vec<i64>,
    /// The largest and the last value of each gauge.
    tree_bytes: Gauge,
    /// The largest value of the tree's gauge after a quarter of the requests.
    tree_before: u64,
    keys: Gauge,
    in_flight: Gauge,
    /// Keys that are remembered.
    pins: Gauge,
    evictions: u64,
    /// Of the sample's keys, so many have gone to the same worker in the end.
    same: usize,
}

/// What was seen of a gauge, summed over its labels.
#[derive(Clone, Copy, Debug, Default)]
struct Gauge {
    most: u64,
    last: u64,
}

impl Gauge {
    fn shows(&mut self, value: u64) {
        self.last = value;
        self.most = self.most.max(value);
    }
}

impl SoakReport {
    pub(super) fn new(soak: Soak) -> Self {
        Self {
            soak,
            elapsed: Duration::ZERO,
            resident: Vec::new(),
            tree_bytes: Gauge::default(),
            tree_before: 0,
            keys: Gauge::default(),
            in_flight: Gauge::default(),
            pins: Gauge::default(),
            evictions: 0,
            same: 0,
        }
    }

    /// Envoy's resident bytes before the bulk of the requests.
    pub(super) fn began_with(&mut self, bytes: i64) {
        self.resident = vec![bytes];
    }

    /// Envoy's resident bytes after a part of them.
    pub(super) fn ended_with(&mut self, bytes: i64) {
        if self.resident.len() == 1 {
            self.tree_before = self.tree_bytes.most;
        }
        self.resident.push(bytes);
    }

    /// How many keys of the sample have gone where they went in the beginning.
    pub(super) fn sampled(&mut self, same: usize) {
        self.same = same;
    }

    pub(super) async fn look(&mut self, envoy: &Envoy) -> Result<()> {
        let text = envoy.admin().get("/stats?filter=smg_").await?;
        let sum = |metric: &str| -> u64 {
            let values = text.lines().filter(|line| line.contains(metric)).filter_map(|line| line.rsplit_once(": "));
            values.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
        };
        self.tree_bytes.shows(sum("smg_cache_tree_bytes"));
        self.keys.shows(sum("smg_worker_routing_keys_active"));
        self.in_flight.shows(sum("smg_worker_requests_active"));
        self.pins.shows(sum("smg_manual_policy_cache_entries"));
        self.evictions = sum("smg_cache_tree_evictions_total");
        Ok(())
    }

    /// Looks on until nothing is in flight any more and what is remembered of `requests` has been counted, or the time is
    /// up.
    pub(super) async fn settle(&mut self, envoy: &Envoy, requests: usize) -> Result<()> {
        let begin = Instant::now();
        // Once after a pause in any case: a gauge may be as old as a tick, and a sum of what VMs tell as two.
        tokio::time::sleep(4 * LOOK).await;
        loop {
            self.look(envoy).await?;
            let counted = match self.soak {
                Soak::Tree { .. } => self.tree_bytes.most > 0,
                Soak::Keys { .. } => true,
                Soak::Pins { .. } => self.pins.last >= self.wanted(requests),
            };
            if counted && self.in_flight.last + self.keys.last == 0 || begin.elapsed() > SETTLED {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// So many of `requests` keys are remembered at least: all but one in a thousand of what the table is made for.
    fn wanted(&self, requests: usize) -> u64 {
        let Soak::Pins { most, .. } = self.soak else { return 0 };
        let keys = u64::from(most).min(requests as u64);
        keys - keys / 1000
    }

    /// Bytes by which Envoy has grown between a quarter of the requests and all of them.
    fn growth(&self) -> i64 {
        if let [_, quarter, end] = self.resident[..] { end - quarter } else { 0 }
    }

    /// Bytes by which it has grown altogether.
    fn whole_growth(&self) -> i64 {
        if let [start, _, end] = self.resident[..] { end - start } else { 0 }
    }

    /// The promises that were broken, a sentence for each; none if all is well.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut promise = |kept: bool, why: String| {
            if !kept {
                broken.push(why);
            }
        };
        promise(self.in_flight.last == 0, format!("{} requests are counted after the end", self.in_flight.last));
        promise(self.keys.last == 0, format!("{} routing keys are counted after the end", self.keys.last));
        match self.soak {
            Soak::Tree { bytes, .. } => {
                // What grows while the tree fills is what the tree may have.
                let filling = match self.tree_before < bytes / 10 * 9 {
                    true => "; the tree was not seen full after a quarter of the prompts: raise N or lower TREE",
                    false => "",
                };
                promise(self.growth() <= GROWTH, format!("Envoy has grown by {}{filling}", size(self.growth())));
                let most = self.tree_bytes.most;
                promise(most <= bytes, format!("the tree has had {most} bytes and may have {bytes}"));
                promise(most > 0, "the tree was never counted".to_owned());
                promise(self.evictions > 0, "no prefix was ever evicted: send more requests".to_owned());
            }
            Soak::Keys { .. } => {
                promise(self.growth() <= GROWTH, format!("Envoy has grown by {}", size(self.growth())));
                promise(self.keys.most > 0, "no routing key was ever counted".to_owned());
            }
            Soak::Pins { most, requests } => {
                let Some(table) = self.soak.pins() else { return broken };
                let (pins, wanted, room) = (self.pins.last, self.wanted(requests), table.most_keys());
                promise((wanted..=room).contains(&pins), format!("{pins} keys are remembered, not {wanted} to {room}"));
                let bound = (table.most_bytes() as f64 * OVERHEAD) as i64 + OWN;
                let grown = self.whole_growth();
                promise(grown <= bound, format!("Envoy has grown by {}, more than {}", size(grown), size(bound)));
                let sample = self.soak.sample();
                // A few pages are given more keys than they have room for, and there the oldest go.
                promise(
                    requests > most as usize || self.same + sample / 100 >= sample,
                    format!("only {} of the first {sample} keys still go to their worker", self.same),
                );
            }
        }
        broken
    }
}

impl Display for SoakReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let requests = self.soak.requests();
        let what = match self.soak {
            Soak::Tree { .. } => "prompts",
            Soak::Keys { .. } => "routing keys",
            Soak::Pins { .. } => "routing keys under the policy manual",
        };
        writeln!(f, "{requests} different {what} in {:.0?}", self.elapsed)?;
        if let [start, quarter, end] = self.resident[..] {
            write!(f, "Envoy's resident memory: {} in the beginning, {} ", size(start), size(quarter))?;
            write!(f, "after {} of them, {} after all: ", requests / 4, size(end))?;
            writeln!(f, "{:+} KiB and {:+} KiB", (quarter - start) >> 10, (end - quarter) >> 10)?;
        }
        match self.soak {
            Soak::Tree { bytes, .. } => writeln!(
                f,
                "the tree had {} bytes at most and may have {bytes}; {} evictions",
                self.tree_bytes.most, self.evictions
            ),
            Soak::Keys { .. } => {
                writeln!(f, "{} keys in flight at most when seen, {} in the end", self.keys.most, self.keys.last)
            }
            Soak::Pins { most, .. } => {
                let Some(table) = self.soak.pins() else { return Ok(()) };
                writeln!(
                    f,
                    "{} keys are remembered, of {most} wanted and {} possible, which take at most {}",
                    self.pins.last,
                    table.most_keys(),
                    size(i64::try_from(table.most_bytes()).unwrap_or(i64::MAX))
                )?;
                writeln!(f, "{} of the first {} keys go to the same worker again", self.same, self.soak.sample())
            }
        }
    }
}

fn size(bytes: i64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
