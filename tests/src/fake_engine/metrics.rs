//! What an engine says about its load in Prometheus text, and what TensorRT-LLM has at the same place.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};

use super::loads::{rounded, usage};
use super::options::{EngineOptions, Runtime};
use super::rank::{Rank, RankLoad};

/// Answers `/metrics` with the names of its kind, or `/prometheus/metrics` of TensorRT-LLM.
pub fn metrics(ranks: &[Arc<Rank>], options: &EngineOptions) -> String {
    match options.runtime {
        Runtime::SglangMetrics => sglang(ranks, options),
        Runtime::LlamaCpp => llama_cpp(ranks),
        Runtime::Trtllm => trtllm(ranks, options),
        _ => vllm(ranks, options),
    }
}

/// The iteration statistics of TensorRT-LLM.
pub fn iteration(ranks: &[Arc<Rank>]) -> Value {
    let rows: Vec<RankLoad> = ranks.iter().map(|rank| rank.load()).collect();
    let sum = |field: fn(&RankLoad) -> usize| rows.iter().map(field).sum::<usize>();
    json!([{"iter": 812, "numActiveRequests": sum(|load| load.running), "numQueuedRequests": sum(|load| load.waiting)}])
}

fn vllm(ranks: &[Arc<Rank>], options: &EngineOptions) -> String {
    let capacity = options.reported_capacity();
    let rows: Vec<RankLoad> = ranks.iter().map(|rank| rank.load()).collect();
    let model = options.models.first().map_or("", String::as_str);
    let mut text = String::new();
    let mut series = |name: &str, kind: &str, value: &dyn Fn(&RankLoad) -> f64| {
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (index, load) in rows.iter().enumerate() {
            let _ = writeln!(text, "{name}{{engine=\"{index}\",model_name=\"{model}\"}} {:?}", value(load));
        }
    };
    series("vllm:num_requests_running", "gauge", &|load| load.running as f64);
    series("vllm:num_requests_waiting", "gauge", &|load| load.waiting as f64);
    series("vllm:kv_cache_usage_perc", "gauge", &|load| usage(load, capacity));
    series("vllm:prefix_cache_queries_total", "counter", &|load| load.prompt_tokens as f64);
    series("vllm:prefix_cache_hits_total", "counter", &|load| load.cached_tokens as f64);
    series("vllm:num_preemptions_total", "counter", &|_| 0.0);
    series("vllm:prompt_tokens_total", "counter", &|load| load.prompt_tokens as f64);
    series("vllm:generation_tokens_total", "counter", &|load| load.generated_tokens as f64);
    let (block, blocks) = (options.block_tokens, capacity / options.block_tokens);
    let _ = writeln!(text, "# TYPE vllm:cache_config_info gauge");
    for index in 0..rows.len() {
        let _ = writeln!(
            text,
            "vllm:cache_config_info{{block_size=\"{block}\",engine=\"{index}\",num_gpu_blocks=\"{blocks}\"}} 1.0"
        );
    }
    text
}

/// Every scheduler publishes, as with `--enable-metrics-for-all-schedulers`: two for each data-parallel rank.
fn sglang(ranks: &[Arc<Rank>], options: &EngineOptions) -> String {
    let capacity = options.reported_capacity();
    let mut text = String::new();
    for (index, rank) in ranks.iter().enumerate() {
        let load = rank.load();
        for tp in 0..2 {
            let tp = index * 2 + tp;
            let labels = format!(
                r#"{{engine_type="unified",model_name="say \"m\", {{x}}",tp_rank="{tp}",pp_rank="0",dp_rank="{index}"}}"#
            );
            let _ = writeln!(text, "sglang:num_running_reqs{labels} {:?}", load.running as f64);
            let _ = writeln!(text, "sglang:num_queue_reqs{labels} {:?} 1790586843000", load.waiting as f64);
            let _ = writeln!(text, "sglang:token_usage{labels} {:?}", rounded(usage(&load, capacity), 2));
            let _ = writeln!(text, "sglang:gen_throughput{labels} {:?}", rounded(load.gen_throughput, 2));
            let _ = writeln!(text, "sglang:cache_hit_rate{labels} {:?}", rounded(load.cache_hit_rate, 2));
        }
    }
    text
}

fn llama_cpp(ranks: &[Arc<Rank>]) -> String {
    let rows: Vec<RankLoad> = ranks.iter().map(|rank| rank.load()).collect();
    let sum = |field: fn(&RankLoad) -> usize| rows.iter().map(field).sum::<usize>();
    format!(
        "# HELP llamacpp:requests_processing Number of requests processing.\n\
         # TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing {}\n\
         llamacpp:requests_deferred {}\nllamacpp:n_busy_slots_per_decode 1.5\n\
         llamacpp:predicted_tokens_seconds nan\n",
        sum(|load| load.running),
        sum(|load| load.waiting)
    )
}

fn trtllm(ranks: &[Arc<Rank>], options: &EngineOptions) -> String {
    // With attention parallelism only the first rank is told.
    let load = ranks.first().map(|rank| rank.load()).unwrap_or_default();
    let labels = r#"{model_name="m",engine_type="undefined"}"#;
    format!(
        "trtllm_num_requests_running{labels} {:?}\ntrtllm_num_requests_waiting{labels} {:?}\n\
         trtllm_kv_cache_utilization{labels} {:?}\n",
        load.running as f64,
        load.waiting as f64,
        usage(&load, options.reported_capacity())
    )
}
