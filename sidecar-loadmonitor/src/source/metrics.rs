//! `GET /metrics`: the gauges of vLLM and SGLang in Prometheus text.
//!
//! Requests are sums over the series of a name, KV usage and throughput their means. Without a KV gauge there is no
//! report: an engine told not to keep statistics serves the page all the same.

use std::collections::{BTreeMap, HashMap};

use filter_core::report::Load;

use super::Reading;

/// The names one kind of engine uses.
struct Family {
    /// KV usage; the first one that the page has. It is what tells the families apart.
    kv_usage: &'static [&'static str],
    waiting: &'static str,
    running: &'static str,
    throughput: Option<&'static str>,
}

const FAMILIES: [Family; 3] = [
    Family {
        kv_usage: &["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"],
        waiting: "vllm:num_requests_waiting",
        running: "vllm:num_requests_running",
        throughput: None,
    },
    Family {
        kv_usage: &["sglang:token_usage"],
        waiting: "sglang:num_queue_reqs",
        running: "sglang:num_running_reqs",
        throughput: Some("sglang:gen_throughput"),
    },
    Family {
        kv_usage: &["sglang_token_usage"],
        waiting: "sglang_num_queue_reqs",
        running: "sglang_num_running_reqs",
        throughput: Some("sglang_gen_throughput"),
    },
];

/// Schedulers of one model replica that all publish the same numbers differ in these labels only.
const REPLICA_LABELS: [&str; 3] = ["tp_rank", "pp_rank", "moe_ep_rank"];

/// The reading of a 200 answer.
pub(super) fn read(body: &[u8]) -> Reading {
    let text = String::from_utf8_lossy(body);
    let page = Page::parse(&text);
    match FAMILIES.iter().find_map(|family| page.load(family)) {
        Some(load) => Reading::Load(load.sanitized()),
        None => Reading::Inconclusive("has no KV usage gauge of vLLM or SGLang".into()),
    }
}

/// The values of every name we know, one per distinct series.
#[derive(Default)]
struct Page<'a> {
    series: HashMap<&'a str, BTreeMap<Vec<Label<'a>>, f64>>,
}

type Label<'a> = (&'a str, &'a str);

impl<'a> Page<'a> {
    fn parse(text: &'a str) -> Self {
        let mut page = Self::default();
        for line in text.lines().map(str::trim_start) {
            let name = line.split(['{', ' ', '\t']).next().unwrap_or_default();
            if !is_known(name) {
                continue;
            }
            let Some((labels, value)) = line.get(name.len()..).and_then(sample) else { continue };
            // NaN, infinite and negative values say nothing.
            if value.is_finite() && value >= 0.0 {
                page.series.entry(name).or_default().entry(labels).or_insert(value);
            }
        }
        page
    }

    fn load(&self, family: &Family) -> Option<Load> {
        let kv_usage = family.kv_usage.iter().find_map(|name| self.mean(name, as_share))?;
        Some(Load {
            queued_tokens: 0.0,
            waiting: self.values(family.waiting).sum(),
            running: self.values(family.running).sum(),
            kv_usage,
            throughput: family.throughput.and_then(|name| self.mean(name, |value| value)).unwrap_or_default(),
        })
    }

    fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.series.get(name).into_iter().flat_map(|series| series.values().copied())
    }

    fn mean(&self, name: &str, each: fn(f64) -> f64) -> Option<f64> {
        let (sum, count) = self.values(name).fold((0.0, 0.0), |(sum, count), value| (sum + each(value), count + 1.0));
        (count > 0.0).then(|| sum / count)
    }
}

/// KV usage as a share. All these gauges are shares in spite of "perc" in their names; a build that really publishes
/// a percentage is recognised by its size.
fn as_share(value: f64) -> f64 {
    (if value > 1.5 { value / 100.0 } else { value }).min(1.0)
}

fn is_known(name: &str) -> bool {
    FAMILIES.iter().any(|family| {
        family.kv_usage.contains(&name)
            || family.waiting == name
            || family.running == name
            || family.throughput == Some(name)
    })
}

/// Labels, sorted and without [`REPLICA_LABELS`], and value of what follows the name on a line. A timestamp or an
/// exemplar after the value is ignored.
fn sample(after_name: &str) -> Option<(Vec<Label<'_>>, f64)> {
    let mut labels = Vec::new();
    let mut rest = after_name.trim_start();
    if let Some(list) = rest.strip_prefix('{') {
        rest = list.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once('=')?;
            let quoted = after.trim_start().strip_prefix('"')?;
            let (value, after) = quoted.split_at_checked(closing_quote(quoted)?)?;
            if !REPLICA_LABELS.contains(&label.trim()) {
                labels.push((label.trim(), value));
            }
            rest = after.strip_prefix('"')?.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
    }
    labels.sort_unstable();
    Some((labels, rest.split_ascii_whitespace().next()?.parse().ok()?))
}

/// Where the first quote stands that no backslash protects.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, expected: Load) {
        let Reading::Load(load) = read(page.as_bytes()) else { panic!("{:?}", read(page.as_bytes())) };
        assert!((load.kv_usage - expected.kv_usage).abs() < 1e-9, "{load:?} is not {expected:?}");
        assert_eq!(Load { kv_usage: expected.kv_usage, ..load }, expected);
    }

    const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="qwen3-8b"} 5.0
vllm:num_requests_running{engine="1",model_name="qwen3-8b"} 2.0
vllm:num_requests_waiting{engine="0",model_name="qwen3-8b"} 1.0
vllm:num_requests_waiting{engine="1",model_name="qwen3-8b"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="qwen3-8b",reason="capacity"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="qwen3-8b"} 0.30
vllm:kv_cache_usage_perc{engine="1",model_name="qwen3-8b"} 0.10
vllm:cache_config_info{block_size="16",num_gpu_blocks="28000",engine="0"} 1.0
"#;

    #[test]
    fn vllm_counts_are_summed_over_engines_and_kv_usage_averaged() {
        check(VLLM, Load { waiting: 1.0, running: 7.0, kv_usage: 0.2, ..Load::default() });
    }

    #[test]
    fn the_older_kv_gauge_of_vllm_wins_if_the_page_has_it() {
        let page = format!("{VLLM}vllm:gpu_cache_usage_perc{{model_name=\"qwen3-8b\"}} 0.7\n");
        check(&page, Load { waiting: 1.0, running: 7.0, kv_usage: 0.7, ..Load::default() });
    }

    #[test]
    fn sglang_throughput_is_averaged_under_either_prefix() {
        for prefix in ["sglang:", "sglang_"] {
            let page = ["0", "1"].map(|rank| {
                let labels = format!(r#"{{engine_type="unified",model_name="m",tp_rank="{rank}",dp_rank="{rank}"}}"#);
                format!(
                    "{prefix}num_running_reqs{labels} 12\n{prefix}num_queue_reqs{labels} 3\n\
                     {prefix}token_usage{labels} 0.{rank}4\n{prefix}gen_throughput{labels} 90{rank}.0\n"
                )
            });
            let expected = Load { waiting: 6.0, running: 24.0, kv_usage: 0.09, throughput: 900.5, queued_tokens: 0.0 };
            check(&page.concat(), expected);
        }
    }

    #[test]
    fn one_replica_counts_once_however_often_it_is_published() {
        let series = |tp: u8, dp: u8| format!(r#"{{model_name="m",tp_rank="{tp}",dp_rank="{dp}"}}"#);
        let page: String = [(0, 0), (1, 0), (2, 1), (3, 1), (3, 1)]
            .map(|(tp, dp)| {
                let labels = series(tp, dp);
                format!("sglang:num_queue_reqs{labels} 5\nsglang:token_usage{labels} 0.5\n")
            })
            .concat();
        check(&page, Load { waiting: 10.0, kv_usage: 0.5, ..Load::default() });
    }

    #[test]
    fn escapes_braces_timestamps_exemplars_and_spaces_are_understood() {
        let page = concat!(
            "vllm:num_requests_waiting{model_name=\"a\\\"}b, c=\\\\\"} 3 1790586843000\r\n",
            "  vllm:num_requests_running { engine = \"0\" , } 4 # {trace_id=\"x\"} 9 1.0\n",
            "vllm:kv_cache_usage_perc 2.5e-1"
        );
        check(page, Load { waiting: 3.0, running: 4.0, kv_usage: 0.25, ..Load::default() });
    }

    #[test]
    fn values_that_cannot_be_true_are_left_out() {
        let page = "vllm:num_requests_waiting{a=\"1\"} NaN\nvllm:num_requests_waiting{a=\"2\"} -4\n\
                    vllm:num_requests_waiting{a=\"3\"} 2\nvllm:num_requests_running +Inf\n\
                    vllm:kv_cache_usage_perc{a=\"1\"} nan\nvllm:kv_cache_usage_perc{a=\"2\"} 43";
        check(page, Load { waiting: 2.0, kv_usage: 0.43, ..Load::default() });
    }

    #[test]
    fn no_kv_gauge_is_no_report() {
        for page in [
            "",
            "vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n",
            "vllm:kv_cache_usage_perc NaN\n",
            "vllm:kv_cache_usage_perc{broken=\"0.5\n",
            "# vllm:kv_cache_usage_perc 0.5\n",
            "[{\"iter\":812,\"numActiveRequests\":9}]",
        ] {
            assert!(matches!(read(page.as_bytes()), Reading::Inconclusive(_)), "{page}");
        }
        assert!(matches!(read(b"\xff\xfe\x00"), Reading::Inconclusive(_)));
    }
}
