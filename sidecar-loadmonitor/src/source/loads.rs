//! `GET /v1/loads`: SGLang's JSON in its current and its older shape (the latter has `aggregate` and
//! `dp_rank_count`, which nothing here needs). Unknown members are ignored.

use filter_core::report::Load;
use serde_json::Value;

use super::Reading;

/// The reading of a 200 answer.
pub(super) fn read(body: &[u8]) -> Reading {
    let Some(ranks) = parse(body).as_ref().and_then(ranks) else {
        return Reading::Absent("answered something else than load reports".into());
    };
    if ranks.is_empty() {
        return Reading::Inconclusive("reported no rank".into());
    }
    if ranks.iter().all(Rank::is_blank) { Reading::Starting } else { Reading::Load(aggregate(&ranks)) }
}

/// One data-parallel rank.
#[derive(Debug, Clone, Copy, Default)]
struct Rank {
    load: Load,
    /// KV capacity in tokens.
    capacity: f64,
}

impl Rank {
    fn of(entry: &Value) -> Self {
        // A number that is missing, null, negative or no number at all counts as 0; the rest of the rank stands.
        let number = |name| {
            entry.get(name).and_then(Value::as_f64).filter(|number| number.is_finite()).unwrap_or_default().max(0.0)
        };
        Self {
            load: Load {
                queued_tokens: number("num_waiting_uncached_tokens"),
                waiting: number("num_waiting_reqs"),
                running: number("num_running_reqs"),
                kv_usage: number("token_usage").min(1.0),
                throughput: number("gen_throughput"),
            },
            capacity: number("max_total_num_tokens"),
        }
    }

    /// Whether this is what SGLang publishes before its first forward pass: zeros, the capacity included.
    fn is_blank(&self) -> bool {
        self.capacity == 0.0 && self.load == Load::default()
    }
}

/// Queue, requests and throughput are sums over the ranks, KV usage is their mean.
fn aggregate(ranks: &[Rank]) -> Load {
    let sum = |field: fn(&Load) -> f64| ranks.iter().map(|rank| field(&rank.load)).sum::<f64>();
    #[expect(clippy::cast_precision_loss, reason = "a body of 1 MiB holds few ranks")]
    let count = ranks.len().max(1) as f64;
    Load {
        queued_tokens: sum(|load| load.queued_tokens),
        waiting: sum(|load| load.waiting),
        running: sum(|load| load.running),
        kv_usage: sum(|load| load.kv_usage) / count,
        throughput: sum(|load| load.throughput),
    }
    .sanitized()
}

/// The ranks of a document that fits the schema: an object whose `loads` is an array of objects.
fn ranks(document: &Value) -> Option<Vec<Rank>> {
    let entries = document.get("loads")?.as_array()?;
    entries.iter().map(|entry| entry.is_object().then(|| Rank::of(entry))).collect()
}

fn parse(body: &[u8]) -> Option<Value> {
    serde_json::from_slice(body).ok().or_else(|| serde_json::from_slice(&without_nan(body)).ok())
}

/// The body with `NaN`, `Infinity` and `-Infinity`, which Python writes and JSON does not have, replaced by `null`.
fn without_nan(body: &[u8]) -> Vec<u8> {
    const WORDS: [&[u8]; 3] = [b"NaN", b"-Infinity", b"Infinity"];
    let mut clean = Vec::with_capacity(body.len());
    let mut rest = body;
    let (mut in_string, mut escaped) = (false, false);
    while let Some((&byte, after)) = rest.split_first() {
        if !in_string && let Some(after) = WORDS.iter().find_map(|word| rest.strip_prefix(*word)) {
            clean.extend_from_slice(b"null");
            rest = after;
            continue;
        }
        if byte == b'"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && byte == b'\\' && !escaped;
        clean.push(byte);
        rest = after;
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Load) {
        let Reading::Load(load) = read(body.as_bytes()) else { panic!("{:?}", read(body.as_bytes())) };
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(
            close(load.queued_tokens, expected.queued_tokens)
                && close(load.waiting, expected.waiting)
                && close(load.running, expected.running)
                && close(load.kv_usage, expected.kv_usage)
                && close(load.throughput, expected.throughput),
            "{load:?} is not {expected:?}"
        );
    }

    /// Vector 13 of the expected-wait score.
    #[test]
    fn two_ranks_are_added_up_and_their_kv_usage_averaged() {
        check(
            r#"{"loads":[{"dp_rank":0,"num_waiting_uncached_tokens":100,"token_usage":0.2,"gen_throughput":500},
                         {"dp_rank":1,"num_waiting_uncached_tokens":300,"token_usage":0.6,"gen_throughput":700}]}"#,
            Load { queued_tokens: 400.0, kv_usage: 0.4, throughput: 1200.0, ..Load::default() },
        );
    }

    #[test]
    fn reads_the_current_shape_of_sglang() {
        check(
            r#"{"timestamp":"2026-09-28T09:14:03.512345+00:00","version":"0.5.16","accelerator":null,"num_accelerators":4,
             "loads":[{"timestamp":1790586843.37,"dp_rank":0,"num_running_reqs":17,"num_waiting_reqs":4,
               "num_waiting_uncached_tokens":9216,"num_used_tokens":182400,"max_total_num_tokens":420000,
               "token_usage":0.4343,"gen_throughput":812.45,"cache_hit_rate":0.3121,"utilization":-1.0,
               "decode_moments":[51200.0,870400.0],"memory":{"weight_gb":38.2},"queues":{"waiting":4}},
              {"dp_rank":1,"num_running_reqs":0,"num_waiting_reqs":0,"max_total_num_tokens":420000,"token_usage":0.0,
               "gen_throughput":640.02,"decode_moments":null}]}"#,
            Load { queued_tokens: 9216.0, waiting: 4.0, running: 17.0, kv_usage: 0.21715, throughput: 1452.47 },
        );
    }

    #[test]
    fn reads_the_older_shape_of_sglang() {
        check(
            r#"{"timestamp":"2026-02-11T10:00:00+00:00","version":"0.5.8","dp_rank_count":1,
                "loads":[{"dp_rank":0,"num_running_reqs":6,"num_waiting_reqs":1,"num_total_reqs":7,"num_used_tokens":20480,
                "max_total_num_tokens":163840,"token_usage":0.125,"gen_throughput":310.2,"cache_hit_rate":0.4}],
                "aggregate":{"total_running_reqs":6,"total_waiting_reqs":1,"avg_token_usage":0.125}}"#,
            Load { queued_tokens: 0.0, waiting: 1.0, running: 6.0, kv_usage: 0.125, throughput: 310.2 },
        );
    }

    #[test]
    fn an_idle_engine_is_idle_and_a_starting_one_is_unknown() {
        check(r#"{"loads":[{"dp_rank":0,"max_total_num_tokens":420000}]}"#, Load::default());
        for body in [
            r#"{"loads":[{"dp_rank":0,"max_total_num_tokens":0,"num_running_reqs":0,"token_usage":0.0}]}"#,
            r#"{"loads":[{"dp_rank":0},{"dp_rank":1}]}"#,
        ] {
            assert_eq!(read(body.as_bytes()), Reading::Starting, "{body}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_true_costs_its_field_only() {
        check(
            r#"{"loads":[{"num_waiting_reqs":-5,"num_running_reqs":3.0,"num_waiting_uncached_tokens":null,
                "token_usage":"high","gen_throughput":NaN,"max_total_num_tokens":3000000000}]}"#,
            Load { running: 3.0, ..Load::default() },
        );
        check(
            r#"{"a \"NaN":"Infinity\\","loads":[{"gen_throughput":-Infinity,"token_usage":Infinity,"num_waiting_reqs":1}]}"#,
            Load { waiting: 1.0, ..Load::default() },
        );
        check(
            r#"{"loads":[{"token_usage":5.0,"num_waiting_reqs":1e300}]}"#,
            Load { kv_usage: 1.0, waiting: f64::from(u32::MAX), ..Load::default() },
        );
        check(r#"{"loads":[{"num_waiting_reqs":1,"num_waiting_reqs":2}]}"#, Load { waiting: 2.0, ..Load::default() });
    }

    #[test]
    fn an_empty_list_is_inconclusive() {
        assert!(matches!(read(br#"{"loads":[],"version":"0.5"}"#), Reading::Inconclusive(_)));
    }

    #[test]
    fn anything_else_is_not_the_schema() {
        let deep = "[".repeat(100_000);
        for body in ["", "[]", "{}", "null", "hello", r#"{"loads":{}}"#, r#"{"loads":[1]}"#, r#"{"loads":["#, &deep] {
            assert!(matches!(read(body.as_bytes()), Reading::Absent(_)), "{:.40}", body);
        }
        assert!(matches!(read(b"\xff\xfe\x00"), Reading::Absent(_)));
    }
}
