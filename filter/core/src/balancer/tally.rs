//! What a balancer counts per request, as plain numbers: metric names are only made on ticks.

use super::sticky::KeySource;
use crate::fleet::ConnectionMode;
use crate::metrics::Metrics;
use crate::policy::Branch;

/// Upper bounds of `smg_cache_aware_match_ratio` and their labels.
const RATIO_BOUNDS: [(f64, &str); 11] = [
    (0.0, "0"),
    (0.1, "0.1"),
    (0.2, "0.2"),
    (0.3, "0.3"),
    (0.4, "0.4"),
    (0.5, "0.5"),
    (0.6, "0.6"),
    (0.7, "0.7"),
    (0.8, "0.8"),
    (0.9, "0.9"),
    (1.0, "1.0"),
];

/// SMG keeps the names of so many models; later ones are counted together.
const MAX_MODELS: usize = 1024;

/// What is counted of prompts that had to make room: in the prefix tree, and with `cache_index: hash`.
const EVICTIONS: [&str; 2] = ["smg_cache_tree_evictions_total", "smg_cache_placement_evictions_total"];

/// Selections of one kind.
#[derive(Debug)]
struct Selections {
    model: String,
    policy: &'static str,
    mode: ConnectionMode,
    count: u64,
}

/// Counts since the last tick.
#[derive(Debug, Default)]
pub(super) struct Tally {
    selections: Vec<Selections>,
    branches: Vec<(&'static str, &'static str, u64)>,
    sources: [u64; 2],
    ratios: [u64; RATIO_BOUNDS.len()],
    evicted: [u64; 2],
}

impl Tally {
    /// A worker of this connection mode was chosen for a request of `model` (a name the fleet knows).
    pub(super) fn selected(&mut self, model: &str, policy: &'static str, mode: ConnectionMode) {
        let at = |name: &str, known: &[Selections]| {
            known.iter().position(|of| of.model == name && of.policy == policy && of.mode == mode)
        };
        let known = at(model, &self.selections);
        let model = if known.is_none() && self.selections.len() >= MAX_MODELS { "other" } else { model };
        match known.or_else(|| at(model, &self.selections)).and_then(|at| self.selections.get_mut(at)) {
            Some(of) => of.count += 1,
            None => self.selections.push(Selections { model: model.to_owned(), policy, mode, count: 1 }),
        }
    }

    /// Decisions of these kinds were made.
    pub(super) fn branches(&mut self, branches: impl Iterator<Item = Branch>) {
        for branch in branches {
            let Some(counter) = branch.counter() else { continue };
            let name = branch.as_str();
            match self.branches.iter_mut().find(|(of, known, _)| *of == counter && *known == name) {
                Some((_, _, count)) => *count += 1,
                None => self.branches.push((counter, name, 1)),
            }
        }
    }

    /// A key that the routing-key override goes by has come from `source`.
    pub(super) fn sourced(&mut self, source: KeySource) {
        let [rid, header] = &mut self.sources;
        *(if source == KeySource::Rid { rid } else { header }) += 1;
    }

    /// `cache_aware` decided with `matched` of `total` units known.
    pub(super) fn matched(&mut self, matched: u64, total: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a ratio for a histogram")]
        let ratio = if total == 0 { 0.0 } else { matched as f64 / total as f64 };
        let bucket = RATIO_BOUNDS.iter().position(|(bound, _)| ratio <= *bound);
        if let Some(count) = bucket.and_then(|bucket| self.ratios.get_mut(bucket)) {
            *count += 1;
        }
    }

    /// So many nodes of the prefix tree had to make room.
    pub(super) fn evicted_nodes(&mut self, nodes: u64) {
        let [of_tree, _] = &mut self.evicted;
        *of_tree += nodes;
    }

    /// So many beginnings of prompts had to make room, of those that `cache_index: hash` remembers.
    pub(super) fn evicted_placements(&mut self, placements: u64) {
        let [_, of_hash] = &mut self.evicted;
        *of_hash += placements;
    }

    /// Moves the counts into `metrics`.
    pub(super) fn publish(&mut self, metrics: &mut Metrics) {
        for Selections { model, policy, mode, count } in self.selections.iter_mut().filter(|of| of.count > 0) {
            let labels =
                [("worker_type", "regular"), ("connection_mode", mode.as_str()), ("model", model), ("policy", policy)];
            metrics.add("smg_worker_selection_total", &labels, std::mem::take(count));
        }
        for (counter, branch, count) in self.branches.iter_mut().filter(|(_, _, count)| *count > 0) {
            metrics.add(counter, &[("branch", branch)], std::mem::take(count));
        }
        for (count, source) in self.sources.iter_mut().zip([KeySource::Rid, KeySource::Header]) {
            if *count > 0 {
                metrics.add("smg_routing_key_source_total", &[("source", source.as_str())], std::mem::take(count));
            }
        }
        for (count, name) in self.evicted.iter_mut().zip(EVICTIONS) {
            if *count > 0 {
                metrics.add(name, &[], std::mem::take(count));
            }
        }
        // Prometheus' buckets are cumulative: each counts everything up to its bound.
        let mut below = 0;
        for ((_, bound), count) in RATIO_BOUNDS.iter().zip(&mut self.ratios) {
            below += std::mem::take(count);
            if below > 0 {
                metrics.add("smg_cache_aware_match_ratio_bucket", &[("le", bound)], below);
            }
        }
        if below > 0 {
            metrics.add("smg_cache_aware_match_ratio_bucket", &[("le", "+Inf")], below);
            metrics.add("smg_cache_aware_match_ratio_count", &[], below);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(tally: &mut Tally) -> Vec<(String, u64)> {
        let (mut metrics, mut seen) = (Metrics::default(), Vec::new());
        tally.publish(&mut metrics);
        metrics.flush(|metric, value| {
            seen.push((metric.name.clone(), value));
            true
        });
        seen
    }

    #[test]
    fn counts_come_out_once_with_their_labels() {
        let mut tally = Tally::default();
        tally.selected("m", "cache_aware", ConnectionMode::Http);
        tally.selected("m", "cache_aware", ConnectionMode::Http);
        tally.branches([Branch::Spill, Branch::KvPressure, Branch::TreeMatch].into_iter());
        tally.matched(3, 10);
        tally.matched(9, 10);
        let seen = published(&mut tally);
        let value = |name: &str| seen.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
        let selection =
            "smg_worker_selection_total;worker_type=regular;connection_mode=http;model=m;policy=cache_aware";
        assert_eq!(value(selection), Some(2));
        assert_eq!(value("smg_cache_aware_policy_branch_total;branch=spill"), Some(1));
        assert_eq!(value("smg_cache_aware_match_ratio_bucket;le=0.2"), None);
        assert_eq!(value("smg_cache_aware_match_ratio_bucket;le=0.3"), Some(1), "a tenth falls into its own bucket");
        assert_eq!(value("smg_cache_aware_match_ratio_bucket;le=+Inf"), Some(2));
        assert!(published(&mut tally).is_empty());
    }
}
