//! The gauges of engines in Prometheus text.
//!
//! Requests are sums over the data-parallel ranks, KV usage and throughput their means. Without the gauge that tells an
//! engine by there is no report: one that is told not to keep statistics serves the page all the same.

use std::collections::BTreeMap;

use filter_core::report::Load;

use super::{
    Reading,
    prometheus::{Label, Sample, samples},
    ranks::mean,
};
use crate::engine::RankLoad;

/// A gauge: a name, and a label that tells it from others of that name.
struct Gauge(&'static str, Option<Label<'static>>);

/// The gauges of one kind of engine.
struct Family {
    /// The engine serves this page if it has any of these.
    told_by: &'static [Gauge],
    /// KV usage; the first one that the page has.
    kv_usage: &'static [Gauge],
    waiting: Gauge,
    running: Gauge,
    throughput: Option<Gauge>,
    cache_hit_rate: Option<Gauge>,
    /// The label that tells data-parallel ranks apart.
    rank: &'static str,
}

const fn plain(name: &'static str) -> Gauge {
    Gauge(name, None)
}

const VLLM_KV: &[Gauge] = &[plain("vllm:gpu_cache_usage_perc"), plain("vllm:kv_cache_usage_perc")];
const TRTLLM_KV: &[Gauge] = &[plain("trtllm_kv_cache_utilization")];
const TRITON_KV: &[Gauge] = &[Gauge("nv_trt_llm_kv_cache_block_metrics", Some(("kv_cache_block_type", "fraction")))];

const FAMILIES: [Family; 6] = [
    Family {
        told_by: VLLM_KV,
        kv_usage: VLLM_KV,
        waiting: plain("vllm:num_requests_waiting"),
        running: plain("vllm:num_requests_running"),
        throughput: None,
        cache_hit_rate: Some(plain("vllm:gpu_prefix_cache_hit_rate")),
        rank: "engine",
    },
    Family {
        told_by: &[plain("sglang:token_usage")],
        kv_usage: &[plain("sglang:token_usage")],
        waiting: plain("sglang:num_queue_reqs"),
        running: plain("sglang:num_running_reqs"),
        throughput: Some(plain("sglang:gen_throughput")),
        cache_hit_rate: Some(plain("sglang:cache_hit_rate")),
        rank: "dp_rank",
    },
    Family {
        told_by: &[plain("sglang_token_usage")],
        kv_usage: &[plain("sglang_token_usage")],
        waiting: plain("sglang_num_queue_reqs"),
        running: plain("sglang_num_running_reqs"),
        throughput: Some(plain("sglang_gen_throughput")),
        cache_hit_rate: Some(plain("sglang_cache_hit_rate")),
        rank: "dp_rank",
    },
    Family {
        told_by: TRTLLM_KV,
        kv_usage: TRTLLM_KV,
        waiting: plain("trtllm_num_requests_waiting"),
        running: plain("trtllm_num_requests_running"),
        throughput: None,
        cache_hit_rate: Some(plain("trtllm_kv_cache_hit_rate")),
        rank: "dp_rank",
    },
    Family {
        told_by: TRITON_KV,
        kv_usage: TRITON_KV,
        waiting: Gauge("nv_trt_llm_request_metrics", Some(("request_type", "waiting"))),
        running: Gauge("nv_trt_llm_request_metrics", Some(("request_type", "scheduled"))),
        throughput: None,
        cache_hit_rate: None,
        rank: "dp_rank",
    },
    // Today's builds have no KV gauge. Their counts are those of this moment: zeros do mean idle.
    Family {
        told_by: &[plain("llamacpp:requests_processing")],
        kv_usage: &[plain("llamacpp:kv_cache_usage_ratio")],
        waiting: plain("llamacpp:requests_deferred"),
        running: plain("llamacpp:requests_processing"),
        throughput: Some(plain("llamacpp:predicted_tokens_seconds")),
        cache_hit_rate: None,
        rank: "dp_rank",
    },
];

/// Schedulers of one model replica that all publish the same numbers differ in these labels only.
const REPLICA_LABELS: [&str; 3] = ["tp_rank", "pp_rank", "moe_ep_rank"];

/// The reading of a 200 answer.
pub(super) fn read(text: &str) -> Reading {
    let page = Page::parse(text);
    match FAMILIES.iter().find(|family| family.told_by.iter().any(|gauge| page.has(gauge))) {
        Some(family) => page.load(family),
        None => Reading::Inconclusive("has no KV usage gauge that is known".into()),
    }
}

/// Whether a page has TensorRT-LLM's names.
pub(super) fn is_trtllm(text: &str) -> bool {
    samples(text, |name| name.starts_with("trtllm_")).next().is_some()
}

/// The samples of every name we know, one per distinct series.
#[derive(Default)]
struct Page<'a>(BTreeMap<(&'a str, Vec<Label<'a>>), Sample<'a>>);

impl<'a> Page<'a> {
    fn parse(text: &'a str) -> Self {
        let mut page = Self::default();
        for sample in samples(text, is_known) {
            let of_replica = |(label, _): &Label<'_>| REPLICA_LABELS.contains(label);
            let mut labels: Vec<_> = sample.labels.iter().filter(|label| !of_replica(label)).copied().collect();
            labels.sort_unstable();
            page.0.entry((sample.name, labels)).or_insert(sample);
        }
        page
    }

    fn load(&self, family: &Family) -> Reading {
        let kv_usage = family.kv_usage.iter().find(|gauge| self.has(gauge));
        let sum = |gauge: &Gauge, rank| self.of_rank(gauge, family, rank).sum::<f64>();
        let average = |gauge: &Gauge, rank| mean(self.of_rank(gauge, family, rank));
        let shares =
            |gauge: Option<&Gauge>, rank| gauge.and_then(|gauge| mean(self.of_rank(gauge, family, rank).map(as_share)));
        let load = |rank| Load {
            queued_tokens: 0.0,
            waiting: sum(&family.waiting, rank),
            running: sum(&family.running, rank),
            kv_usage: shares(kv_usage, rank).unwrap_or_default(),
            throughput: family.throughput.as_ref().and_then(|gauge| average(gauge, rank)).unwrap_or_default(),
        };
        let told = family.told_by.iter().flat_map(|gauge| self.of(gauge));
        let mut ranks: Vec<u32> = told.filter_map(|sample| rank_of(sample, family)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let of_rank = |dp_rank| RankLoad {
            dp_rank,
            load: load(Some(dp_rank)).sanitized(),
            cache_hit_rate: shares(family.cache_hit_rate.as_ref(), Some(dp_rank)),
        };
        Reading::Load(load(None).sanitized(), ranks.into_iter().map(of_rank).collect())
    }

    fn has(&self, gauge: &Gauge) -> bool {
        self.of(gauge).next().is_some()
    }

    fn of(&self, gauge: &Gauge) -> impl Iterator<Item = &Sample<'a>> {
        let Gauge(name, label) = gauge;
        let all = self.0.values().filter(move |sample| sample.name == *name);
        all.filter(move |sample| label.is_none_or(|(label, value)| sample.label(label) == Some(value)))
    }

    /// The values of one rank, or of all.
    fn of_rank(&self, gauge: &Gauge, family: &Family, rank: Option<u32>) -> impl Iterator<Item = f64> {
        let of_rank = move |sample: &&Sample<'a>| rank.is_none() || rank_of(sample, family) == rank;
        self.of(gauge).filter(of_rank).map(|sample| sample.value)
    }
}

/// The rank of a sample; 0 where the engine has only one and says nothing of it.
fn rank_of(sample: &Sample<'_>, family: &Family) -> Option<u32> {
    sample.label(family.rank).map_or(Some(0), |rank| rank.parse().ok())
}

/// KV usage as a share. All these gauges are shares in spite of "perc" in their names; a build that really publishes
/// a percentage is recognised by its size.
fn as_share(value: f64) -> f64 {
    (if value > 1.5 { value / 100.0 } else { value }).min(1.0)
}

fn is_known(name: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let optional = family.throughput.iter().chain(&family.cache_hit_rate);
        let all = family.told_by.iter().chain(family.kv_usage).chain([&family.waiting, &family.running]);
        all.chain(optional).any(|Gauge(known, _)| *known == name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, expected: Load) {
        let Reading::Load(load, _) = read(page) else { panic!("{:?}", read(page)) };
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
        ] {
            assert!(matches!(read(page), Reading::Inconclusive(_)), "{page}");
        }
    }

    #[test]
    fn ranks_are_told_apart() {
        let Reading::Load(_, ranks) = read(VLLM) else { panic!() };
        let rank = |dp_rank, waiting, running, kv_usage| RankLoad {
            dp_rank,
            load: Load { waiting, running, kv_usage, ..Load::default() },
            cache_hit_rate: None,
        };
        assert_eq!(ranks, [rank(0, 1.0, 5.0, 0.3), rank(1, 0.0, 2.0, 0.1)]);
    }

    #[test]
    fn llama_cpp_has_no_labels_and_may_have_no_kv_gauge() {
        let page = "llamacpp:requests_processing 4\nllamacpp:requests_deferred 11\n\
                    llamacpp:n_busy_slots_per_decode 3.62\nllamacpp:predicted_tokens_seconds nan\n";
        check(page, Load { waiting: 11.0, running: 4.0, ..Load::default() });
        let older = page.replace("nan", "63.5") + "llamacpp:kv_cache_usage_ratio 0.25\n";
        check(&older, Load { waiting: 11.0, running: 4.0, kv_usage: 0.25, throughput: 63.5, ..Load::default() });
        check(&page.replace(" 4", " 0").replace(" 11", " 0"), Load::default());
    }

    #[test]
    fn tensorrt_llm_by_itself_and_in_triton() {
        let labels = r#"{model_name="m",engine_type="undefined"}"#;
        let page = format!(
            "trtllm_num_requests_running{labels} 9.0\ntrtllm_num_requests_waiting{labels} 2.0\n\
             trtllm_kv_cache_utilization{labels} 0.27\ntrtllm_kv_cache_hit_rate{labels} 0.41\n"
        );
        check(&page, Load { waiting: 2.0, running: 9.0, kv_usage: 0.27, ..Load::default() });
        let Reading::Load(_, ranks) = read(&page) else { panic!() };
        assert_eq!(ranks[0].cache_hit_rate, Some(0.41));
        assert!(is_trtllm(&page) && !is_trtllm(VLLM));

        let page = r#"nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 7
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 512
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m",version="1"} 0.5
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m",version="1"} 64
"#;
        check(page, Load { waiting: 3.0, running: 7.0, kv_usage: 0.5, ..Load::default() });
        assert!(matches!(read(&page.replace("fraction", "used")), Reading::Inconclusive(_)));
    }
}
