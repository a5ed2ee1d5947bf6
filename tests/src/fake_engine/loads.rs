//! What an engine says about its load in SGLang's JSON.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::options::{EngineOptions, Runtime};
use super::rank::{Rank, RankLoad};

/// Sections that `include` may name, in the order the engine lists them.
const SECTIONS: [&str; 7] = ["core", "memory", "spec", "lora", "disagg", "queues", "all"];

/// Query of `/v1/loads`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
pub struct LoadsQuery {
    dp_rank: Option<usize>,
    include: Option<String>,
    format: Option<String>,
}

/// The answer of `/v1/loads`: a JSON document or a Prometheus text.
#[derive(Debug)]
pub enum LoadsAnswer {
    /// `format=json`
    Json(Value),
    /// `format=prometheus`
    Text(String),
    /// An `include` that names an unknown section: 400 with this document.
    Refused(Value),
}

/// Answers `/v1/loads` in SGLang's current shape.
pub fn loads(query: &LoadsQuery, ranks: &[Arc<Rank>], options: &EngineOptions) -> LoadsAnswer {
    let include: Vec<&str> = query.include.as_deref().unwrap_or("all").split(',').map(str::trim).collect();
    let unknown: Vec<&&str> = include.iter().filter(|section| !SECTIONS.contains(section)).collect();
    if !unknown.is_empty() {
        let detail = format!("Invalid include sections: {unknown:?}. Valid options: {SECTIONS:?}");
        return LoadsAnswer::Refused(json!({ "detail": detail }));
    }
    let wants = |section: &str| include.contains(&"all") || include.contains(&section);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let entries: Vec<Map<String, Value>> = ranks
        .iter()
        .enumerate()
        .filter(|(index, _)| query.dp_rank.is_none_or(|rank| rank == *index))
        .map(|(index, rank)| entry(index, &rank.load(), now, options, &wants))
        .collect();
    if query.format.as_deref() == Some("prometheus") {
        return LoadsAnswer::Text(prometheus(&entries));
    }
    if options.runtime == Runtime::SglangOld {
        return LoadsAnswer::Json(older(entries, now));
    }
    LoadsAnswer::Json(json!({
        "timestamp": iso_utc(now),
        "version": "0.5.16",
        "accelerator": null,
        "num_accelerators": 1,
        "loads": entries,
    }))
}

/// The shape of older releases: fewer numbers, and some that have gone since.
fn older(mut entries: Vec<Map<String, Value>>, now: Duration) -> Value {
    const NEWER: [&str; 8] = [
        "timestamp",
        "num_waiting_uncached_tokens",
        "num_total_tokens",
        "num_active_tokens",
        "num_prealloc_ready_tokens",
        "total_prefill_uncached_tokens",
        "total_prefill_busy_us",
        "decode_moments",
    ];
    let sum = |entries: &[Map<String, Value>], name: &str| -> f64 {
        entries.iter().filter_map(|entry| entry.get(name)?.as_f64()).sum()
    };
    let (running, waiting) = (sum(&entries, "num_running_reqs"), sum(&entries, "num_waiting_reqs"));
    for entry in &mut entries {
        entry.retain(|name, _| !NEWER.contains(&name.as_str()));
        let total =
            sum(std::slice::from_ref(entry), "num_running_reqs") + sum(std::slice::from_ref(entry), "num_waiting_reqs");
        entry.insert("num_total_reqs".to_owned(), json!(total));
    }
    let mean = |name| rounded(sum(&entries, name) / entries.len().max(1) as f64, 4);
    let aggregate = json!({
        "total_running_reqs": running, "total_waiting_reqs": waiting, "total_reqs": running + waiting,
        "avg_token_usage": mean("token_usage"), "avg_throughput": mean("gen_throughput"), "avg_utilization": 0.0,
    });
    json!({
        "timestamp": iso_utc(now), "version": "0.5.8", "dp_rank_count": entries.len(),
        "loads": entries, "aggregate": aggregate,
    })
}

fn entry(
    rank: usize,
    load: &RankLoad,
    now: Duration,
    options: &EngineOptions,
    wants: &dyn Fn(&str) -> bool,
) -> Map<String, Value> {
    let capacity = options.reported_capacity();
    let total = load.used_tokens + load.waiting_tokens;
    let steps = load.decode_steps as f64;
    let mut entry = Map::new();
    let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
    put("timestamp", json!(now.as_secs_f64()));
    put("dp_rank", json!(rank));
    put("num_running_reqs", json!(load.running));
    put("num_waiting_reqs", json!(load.waiting));
    put("num_waiting_uncached_tokens", json!(load.waiting_uncached_tokens));
    put("num_used_tokens", json!(load.used_tokens));
    put("num_total_tokens", json!(total));
    put("num_active_tokens", json!(total));
    put("num_prealloc_ready_tokens", json!(0));
    put("max_total_num_tokens", json!(capacity));
    put("max_running_requests", json!(if options.max_running == 0 { 1_000_000 } else { options.max_running }));
    put("token_usage", json!(rounded(usage(load, capacity), 4)));
    put("gen_throughput", json!(rounded(load.gen_throughput, 2)));
    put("cache_hit_rate", json!(rounded(load.cache_hit_rate, 4)));
    put("utilization", json!(0.0));
    put("total_prefill_uncached_tokens", json!(load.prompt_tokens - load.cached_tokens));
    put("total_prefill_busy_us", json!(load.prefill_busy_us));
    let moments = [
        steps,
        steps,
        options.real(options.decode_step).as_micros() as f64 * steps,
        0.0,
        0.0,
        load.generated_tokens as f64,
    ];
    put("decode_moments", if load.decode_steps == 0 { Value::Null } else { json!(moments) });
    if wants("memory") {
        put("memory", json!({"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": capacity}));
    }
    if wants("disagg") {
        let none = json!({
            "mode": "null", "prefill_bootstrap_queue_reqs": 0, "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0, "decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0, "kv_transfer_latency_ms": 0.0,
        });
        put("disaggregation", none);
    }
    if wants("queues") {
        let queues = json!({"waiting": load.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0});
        put("queues", queues);
    }
    entry
}

/// KV memory that running requests hold, 0 to 1.
pub(crate) fn usage(load: &RankLoad, capacity: usize) -> f64 {
    (load.used_tokens as f64 / capacity.max(1) as f64).min(1.0)
}

pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

fn prometheus(entries: &[Map<String, Value>]) -> String {
    let mut rows: Vec<(String, u64, f64)> = Vec::new();
    for entry in entries {
        let rank = entry.get("dp_rank").and_then(Value::as_u64).unwrap_or(0);
        let mut add = |name: String, value: &Value| {
            if let Some(number) = value.as_f64() {
                rows.push((name, rank, number));
            }
        };
        for (name, value) in entry {
            match value {
                Value::Object(section) => {
                    let prefix = if name == "disaggregation" { "disagg" } else { name.as_str() };
                    section.iter().for_each(|(field, value)| add(format!("sglang_{prefix}_{field}"), value));
                }
                _ => add(format!("sglang_{name}"), value),
            }
        }
    }
    rows.sort_by(|left, right| (&left.0, left.1).cmp(&(&right.0, right.1)));
    let mut text = String::new();
    let mut last = "";
    for (name, rank, value) in &rows {
        if name != last {
            let _ = writeln!(text, "# TYPE {name} gauge");
            last = name;
        }
        let _ = writeln!(text, "{name}{{dp_rank=\"{rank}\"}} {value:?}");
    }
    text
}

/// ISO-8601 in UTC with microseconds, as Python writes it.
fn iso_utc(now: Duration) -> String {
    let seconds = now.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days to a civil date: years counted from March, so that the leap day is a year's last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let micros = now.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_as_iso_8601() {
        assert_eq!(iso_utc(Duration::from_micros(1_790_586_843_512_345)), "2026-09-28T09:14:03.512345+00:00");
        assert_eq!(iso_utc(Duration::from_secs(951_782_400)), "2000-02-29T00:00:00.000000+00:00");
    }
}
