//! For tests and fuzzers only: an engine that answers anything. See `filter_core::hostile`.

use std::time::Duration;

use filter_core::report::{Snapshot, WorkerReport};

use crate::{
    config::Worker,
    runtime::{listed, server_info},
    source::{Freshness, Reading, Source},
};

/// An engine's answer to any question. Whatever is read of it, the filter can read the snapshot that carries it: one
/// engine's nonsense must not cost the others their reports.
pub fn engine(bytes: &[u8]) {
    let freshness = Freshness { now: 1.8e9, most: Duration::from_secs(30) };
    let http = [Source::Loads, Source::V1Loads, Source::Metrics, Source::TrtllmMetrics]
        .map(|source| source.read(200, bytes, freshness));
    for reading in http.into_iter().chain(crate::grpc::readings(bytes)) {
        let Reading::Load(load, ranks) = reading else { continue };
        assert!(ranks.iter().all(|rank| rank.load == rank.load.sanitized()), "{ranks:?}");
        let worker = WorkerReport { url: "http://10.0.0.1:1".to_owned(), load: Some(load), ..WorkerReport::default() };
        let snapshot = Snapshot::of(1, 1, 1000, vec![worker]);
        let read = Snapshot::parse(&snapshot.to_bytes());
        let taken = read.ok().and_then(|snapshot| snapshot.workers.first().and_then(|worker| worker.load));
        assert_eq!(taken, Some(load.as_sent()));
    }
    if let Some((models, _)) = listed(bytes) {
        assert!(models.len() <= 256 && models.iter().map(String::len).sum::<usize>() <= 3 << 10);
    }
    server_info(bytes);
}

/// What a workers' file, Envoy's admin endpoint or a DNS name say of who there is. Whoever is found can be named to the
/// filter.
pub fn discovery(bytes: &[u8]) {
    for found in crate::discovery::readings(bytes) {
        let url = found.worker.url().to_owned();
        assert!(Worker::parse(&url).is_ok(), "{url:?}");
        let worker = WorkerReport { url, info: Some(Box::new(found.spec.info())), ..WorkerReport::default() };
        let snapshot = Snapshot::of(1, 1, 1000, vec![worker]);
        let read = Snapshot::parse(&snapshot.to_bytes());
        assert_eq!(read.as_ref(), Ok(&snapshot));
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    const PIECES: &[&str] = &[
        "{\"loads\":[",
        "[",
        "{",
        "\"dp_rank\":0,",
        "\"num_waiting_reqs\":",
        "\"num_waiting_uncached_tokens\":",
        "\"token_usage\":",
        "\"gen_throughput\":",
        "\"max_total_num_tokens\":1000",
        ",",
        "}",
        "]}",
        "\"timestamp\":\"2026-09-28T09:14:03+00:00\",",
        "\"timestamp\":1790586843.37,",
        "{\"data\":[",
        "\"id\":\"m\",",
        "\"owned_by\":\"vllm\",",
        "\"model_path\":\"m\",",
        "\"dp_size\":",
        "1",
        "-1",
        "0.5",
        "1e308",
        "1e309",
        "null",
        "\n",
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "sglang:num_queue_reqs",
        "sglang:token_usage",
        "sglang:gen_throughput",
        "llamacpp:requests_processing",
        "llamacpp:kv_cache_usage_ratio",
        "trtllm_kv_cache_utilization",
        "nv_trt_llm_request_metrics{request_type=\"waiting\"} ",
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\"} ",
        "{dp_rank=\"1\",tp_rank=\"2\"} ",
        "{engine=\"0\",model_name=\"m\"} ",
        "{engine=\"1\"} ",
        " ",
        "NaN",
        "+Inf",
        "-Inf",
        "{le=\"",
        "\\\"",
        "# TYPE ",
        " gauge",
    ];

    const NAMES: &[&str] = &[
        "- ",
        "\n",
        "\n  ",
        "url: ",
        "http://a:1",
        "grpcs://[::1]:2/",
        "model_ids: [m, n]",
        "leg: ",
        "prefill",
        "bootstrap_port: 1",
        "labels: {a: '1'}",
        "overload: {token_usage: .nan}",
        "resilience: {cb_failure_threshold: 0}",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\"",
        "{\"cluster_statuses\":[{\"name\":\"engines\",\"host_statuses\":[",
        "{\"address\":{\"socket_address\":{\"address\":\"10.0.0.1\",\"port_value\":8000}}",
        ",\"health_status\":{\"eds_health_status\":\"DRAINING\"}",
        "]}]}",
    ];

    proptest! {
        #[test]
        fn who_there_is_may_be_said_in_any_way(pieces in vec(prop::sample::select(NAMES), 0..20)) {
            super::discovery(pieces.concat().as_bytes());
        }

        #[test]
        fn an_engine_may_answer_anything(pieces in vec(prop::sample::select(PIECES), 0..40)) {
            super::engine(pieces.concat().as_bytes());
        }

        #[test]
        fn ranks_with_huge_numbers_are_still_numbers(numbers in vec(-1.7e308..1.7e308_f64, 1..6)) {
            let rank = |number: &f64| format!(
                r#"{{"num_waiting_reqs":{number:e},"num_waiting_uncached_tokens":{number:e},"gen_throughput":{number:e},"max_total_num_tokens":9}}"#
            );
            let ranks: Vec<_> = numbers.iter().map(rank).collect();
            super::engine(format!(r#"{{"loads":[{}]}}"#, ranks.join(",")).as_bytes());
        }

        #[test]
        fn gauges_with_huge_numbers_are_still_numbers(numbers in vec(any::<f64>(), 1..6)) {
            let line = |(engine, number): (usize, &f64)| format!(
                "vllm:num_requests_waiting{{engine=\"{engine}\"}} {number:e}\nvllm:kv_cache_usage_perc{{engine=\"{engine}\"}} {number:e}\n"
            );
            let text: String = numbers.iter().enumerate().map(line).collect();
            super::engine(text.as_bytes());
        }

        #[test]
        fn random_bytes_are_no_reason_to_fail(bytes in vec(any::<u8>(), 0..200)) {
            super::engine(&bytes);
        }
    }
}
