//! What a demo run shows: numbers of each policy, the criteria that they must meet, a table and a JSON document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::DemoSettings;
use super::direct::DIRECT_POLICIES;
use crate::fake_engine::EngineOptions;
use crate::load::Summary;
use crate::workload::{Bound, SessionOptions, Workload};

/// Round robin must stay below this share of the bound, or the workload proves nothing. Asked of the whole workload only:
/// of 100 sessions its share is between 43 and 50 %, from run to run.
const BASELINE_OF_BOUND: f64 = 0.50;

/// The candidate's least share of the bound with caches of a quarter of the workload.
const CANDIDATE_OF_BOUND: f64 = 0.95;

/// The same with caches of a sixteenth.
const CANDIDATE_OF_BOUND_SMALL: f64 = 0.90;

/// The busiest engine's requests over the mean at most.
const BUSIEST_OVER_MEAN: f64 = 1.5;

/// The candidate's median time to first token over the baseline's at most.
const TTFT_P50_RATIO: f64 = 0.7;

/// The candidate's 90th percentile over the baseline's at most.
const TTFT_P90_RATIO: f64 = 1.0;

/// A demo run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Hit rate of one engine with unlimited memory, 0 to 1.
    pub bound_hit_rate: f64,
    /// Each policy's numbers.
    pub policies: BTreeMap<String, PolicyOutcome>,
    /// What was asked of them, and whether they met it. Traces and small samples are not judged; errors always are.
    pub criteria: Vec<Criterion>,
    order: Vec<String>,
    workload: Value,
    engine_names: Vec<String>,
    cache_divisor: usize,
    judged: bool,
    /// Whether all sessions of the usual workload are there.
    is_whole: bool,
}

/// So many sessions make a sample that proves something.
const LEAST_JUDGED: usize = 100;

/// One policy's numbers.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyOutcome {
    /// Cached over all prompt tokens, 0 to 1.
    pub hit_rate: f64,
    /// The hit rate over the bound's.
    pub of_bound: f64,
    /// Requests of the busiest engine over the mean.
    pub busiest_over_mean: f64,
    /// Median time to first token.
    pub ttft_p50_ms: f64,
    /// 90th percentile of the time to first token.
    pub ttft_p90_ms: f64,
    /// 99th percentile of the time to first token.
    pub ttft_p99_ms: f64,
    /// Prompt tokens from engines' caches.
    pub cached_tokens: u64,
    /// Requests that each engine answered.
    pub requests_per_engine: Vec<u64>,
    /// Prompt tokens that each engine computed.
    pub uncached_tokens_per_engine: Vec<u64>,
    /// Requests of the workload.
    pub requests: usize,
    /// Of these, requests without a complete good answer.
    pub errors: usize,
    /// 99th percentile of how late the load generator sent a request.
    pub late_p99_ms: f64,
    /// Real seconds of the replay.
    pub seconds: f64,
}

/// One number that a policy has to meet.
#[derive(Clone, Debug, Serialize)]
pub struct Criterion {
    /// What is measured.
    pub name: String,
    /// The number measured.
    pub value: f64,
    /// `at most` or `at least`.
    pub relation: &'static str,
    /// The number asked for.
    pub limit: f64,
    /// Whether it was met.
    pub met: bool,
}

impl Outcome {
    pub(crate) fn new(settings: &DemoSettings, workload: &Workload, bound: &Bound, engine: &EngineOptions) -> Self {
        let workload = json!({
            "seed": settings.seed,
            "trace": settings.trace,
            "requests": workload.requests.len(),
            "seconds": workload.duration().as_secs_f64(),
            "prompt_tokens": bound.prompt_tokens,
            "distinct_tokens": bound.distinct_tokens,
            "engines": settings.engines,
            "cache_tokens_per_engine": engine.cache_tokens,
            "prefill_tokens_per_second_per_engine": engine.prefill_tokens_per_second.round(),
        });
        Self {
            bound_hit_rate: bound.hit_rate(),
            policies: BTreeMap::new(),
            criteria: Vec::new(),
            order: Vec::new(),
            workload,
            engine_names: (1..=settings.engines).map(|number| format!("engine-{number}")).collect(),
            cache_divisor: settings.cache_divisor,
            judged: settings.trace.is_none() && settings.session_count >= LEAST_JUDGED,
            is_whole: settings.session_count >= SessionOptions::default().sessions,
        }
    }

    pub(crate) fn add(&mut self, policy: &str, summary: &Summary) {
        let of = |counts: &BTreeMap<String, u64>| -> Vec<u64> {
            self.engine_names.iter().map(|name| counts.get(name).copied().unwrap_or(0)).collect()
        };
        let requests_per_engine = of(&summary.requests_per_engine);
        let busiest = requests_per_engine.iter().copied().max().unwrap_or(0) as f64;
        let mean = requests_per_engine.iter().sum::<u64>() as f64 / requests_per_engine.len().max(1) as f64;
        let numbers = PolicyOutcome {
            hit_rate: summary.hit_rate,
            of_bound: ratio(summary.hit_rate, self.bound_hit_rate),
            busiest_over_mean: ratio(busiest, mean),
            ttft_p50_ms: summary.ttft_ms.p50,
            ttft_p90_ms: summary.ttft_ms.p90,
            ttft_p99_ms: summary.ttft_ms.p99,
            cached_tokens: summary.cached_tokens,
            uncached_tokens_per_engine: of(&summary.uncached_tokens_per_engine),
            requests_per_engine,
            requests: summary.requests,
            errors: summary.errors,
            late_p99_ms: summary.late_ms.p99,
            seconds: summary.seconds,
        };
        self.order.push(policy.to_owned());
        self.policies.insert(policy.to_owned(), numbers);
        self.judge();
    }

    /// The criteria that were not met.
    pub fn missed(&self) -> impl Iterator<Item = &Criterion> {
        self.criteria.iter().filter(|criterion| !criterion.met)
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let number = |name: &str| self.workload[name].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            text,
            "{:.0} requests, {:.1} million prompt tokens, {} engines with 1/{} of the workload in memory each; \
             one engine with unlimited memory would reuse {:.1} %\n",
            number("requests"),
            number("prompt_tokens") / 1e6,
            self.engine_names.len(),
            self.cache_divisor,
            self.bound_hit_rate * 100.0,
        );
        let width = self.order.iter().map(String::len).max().unwrap_or(0).max("policy".len());
        let _ = writeln!(
            text,
            "{:width$}  {:>8}  {:>10}  {:>12}  {:>9}  {:>9}  {:>9}  {:>6}",
            "policy", "hit rate", "% of bound", "busiest/mean", "TTFT p50", "p90", "p99", "errors"
        );
        for policy in &self.order {
            let Some(numbers) = self.policies.get(policy) else { continue };
            let _ = writeln!(
                text,
                "{policy:width$}  {:>6.1} %  {:>8.1} %  {:>12.2}  {:>6.1} ms  {:>6.1} ms  {:>6.1} ms  {:>6}",
                numbers.hit_rate * 100.0,
                numbers.of_bound * 100.0,
                numbers.busiest_over_mean,
                numbers.ttft_p50_ms,
                numbers.ttft_p90_ms,
                numbers.ttft_p99_ms,
                numbers.errors,
            );
        }
        text
    }

    /// The JSON document.
    pub fn json(&self) -> Value {
        json!({
            "bound": {"hit_rate": self.bound_hit_rate},
            "policies": self.policies,
            "workload": self.workload,
            "criteria": self.criteria,
        })
    }

    fn judge(&mut self) {
        let mut criteria = Vec::new();
        for policy in &self.order {
            // One engine cannot take what is meant for all: what becomes of it is in the table.
            if policy != "passthrough" {
                criteria.push(at_most(format!("errors under {policy}"), self.policies[policy].errors as f64, 0.0));
            }
        }
        if self.judged {
            let role = |gateway: &str, direct: &str| {
                let name = [gateway, direct].into_iter().find(|name| self.policies.contains_key(*name))?;
                Some((name.to_owned(), &self.policies[name]))
            };
            let baseline = role("round_robin", DIRECT_POLICIES[0]);
            let candidate = role("cache_aware", DIRECT_POLICIES[1]);
            if let Some((name, numbers)) = &baseline
                && self.is_whole
            {
                criteria.push(at_most(format!("share of the bound under {name}"), numbers.of_bound, BASELINE_OF_BOUND));
            }
            if let Some((name, numbers)) = &candidate {
                let least = if self.cache_divisor <= 4 { CANDIDATE_OF_BOUND } else { CANDIDATE_OF_BOUND_SMALL };
                criteria.push(at_least(format!("share of the bound under {name}"), numbers.of_bound, least));
                let busiest = format!("busiest engine over the mean under {name}");
                criteria.push(at_most(busiest, numbers.busiest_over_mean, BUSIEST_OVER_MEAN));
            }
            if let (Some((first, base)), Some((second, numbers))) = (&baseline, &candidate) {
                let name = |percentile: &str| format!("TTFT {percentile} of {second} over that of {first}");
                criteria.push(at_most(name("p50"), ratio(numbers.ttft_p50_ms, base.ttft_p50_ms), TTFT_P50_RATIO));
                criteria.push(at_most(name("p90"), ratio(numbers.ttft_p90_ms, base.ttft_p90_ms), TTFT_P90_RATIO));
            }
        }
        self.criteria = criteria;
    }
}

impl std::fmt::Display for Criterion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} is {:.3}, must be {} {}", self.name, self.value, self.relation, self.limit)
    }
}

fn at_most(name: String, value: f64, limit: f64) -> Criterion {
    Criterion { name, value, relation: "at most", limit, met: value <= limit }
}

fn at_least(name: String, value: f64, limit: f64) -> Criterion {
    Criterion { name, value, relation: "at least", limit, met: value >= limit }
}

/// 0 when there is nothing to divide by: a run without answers has missed other criteria already.
fn ratio(value: f64, over: f64) -> f64 {
    if over > 0.0 { value / over } else { 0.0 }
}
