//! SGLang's JSON in its current and its older shape (the latter has `aggregate` and `dp_rank_count`, which nothing
//! here needs). Unknown members are ignored.

use serde_json::Value;

use super::{Freshness, Rank, Reading, together};

/// The reading of a 200 answer.
pub(super) fn read(body: &[u8], freshness: Freshness) -> Reading {
    let document = parse(body);
    let Some(entries) = document.as_ref().and_then(entries) else {
        return Reading::Inconclusive("answered something else than load reports".into());
    };
    let reading = together(entries.iter().map(rank).collect());
    match (&reading, document.as_ref().and_then(|document| oldest(document, entries, freshness))) {
        // The engine's HTTP server answers from memory even when its scheduler hangs.
        (Reading::Load(..), Some(age)) if age > freshness.most.as_secs_f64() => {
            Reading::Unknown(format!("was last written by the engine's scheduler {age:.0} s ago"))
        }
        _ => reading,
    }
}

fn rank(entry: &Value) -> Rank {
    let number = |name| number(entry, name);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small whole number")]
    let dp_rank = number("dp_rank").filter(|rank| rank.fract() == 0.0 && *rank < 65_536.0).map(|rank| rank as u32);
    Rank {
        dp_rank,
        queued_tokens: number("num_waiting_uncached_tokens"),
        waiting: number("num_waiting_reqs"),
        running: number("num_running_reqs"),
        kv_usage: number("token_usage").map(|usage| usage.min(1.0)),
        throughput: number("gen_throughput"),
        cache_hit_rate: number("cache_hit_rate"),
        capacity: number("max_total_num_tokens"),
    }
}

/// A number that is missing, null, negative or no number at all says nothing; the rest of the rank stands.
fn number(entry: &Value, name: &str) -> Option<f64> {
    entry.get(name).and_then(Value::as_f64).filter(|number| number.is_finite() && *number >= 0.0)
}

/// The entries of a document that fits the schema: an object whose `loads` is an array of objects.
fn entries(document: &Value) -> Option<&Vec<Value>> {
    document.get("loads")?.as_array().filter(|entries| entries.iter().all(Value::is_object))
}

/// Age in seconds of the oldest rank's snapshot, where ranks say when they made them. What counts is the engine's own
/// clock, if the answer tells it: it may differ from ours.
fn oldest(document: &Value, entries: &[Value], freshness: Freshness) -> Option<f64> {
    let answered = document.get("timestamp").and_then(Value::as_str).and_then(unix_seconds);
    let now = answered.unwrap_or(freshness.now);
    // Anything below is no time since 1970 but since the engine's start.
    let made = entries.iter().filter_map(|entry| number(entry, "timestamp")).filter(|made| *made > 1e9);
    made.map(|made| now - made).reduce(f64::max)
}

/// The Unix time of an ISO 8601 time.
fn unix_seconds(text: &str) -> Option<f64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    Some(time.as_duration().as_secs_f64())
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
    use std::time::Duration;

    use filter_core::report::Load;

    use super::*;
    use crate::{engine::RankLoad, source::tests::FRESH};

    fn read(body: &[u8]) -> Reading {
        super::read(body, FRESH)
    }

    #[track_caller]
    fn check(body: &str, expected: Load) {
        let Reading::Load(load, _) = read(body.as_bytes()) else { panic!("{:?}", read(body.as_bytes())) };
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
            assert!(matches!(read(body.as_bytes()), Reading::Unknown(_)), "{body}");
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
            assert!(matches!(read(body.as_bytes()), Reading::Inconclusive(_)), "{:.40}", body);
        }
        assert!(matches!(read(b"\xff\xfe\x00"), Reading::Inconclusive(_)));
    }

    #[test]
    fn each_rank_is_kept_and_counts_once() {
        let body = br#"{"loads":[{"dp_rank":1,"num_waiting_reqs":9,"max_total_num_tokens":9},
            {"dp_rank":3,"num_running_reqs":2.0,"token_usage":0.5,"cache_hit_rate":0.25},
            {"dp_rank":1,"num_waiting_reqs":4,"token_usage":null,"max_total_num_tokens":9},
            {"dp_rank":7,"max_total_num_tokens":0}]}"#;
        let Reading::Load(load, ranks) = read(body) else { panic!("{:?}", read(body)) };
        assert_eq!(load, Load { waiting: 4.0, running: 2.0, kv_usage: 0.5, ..Load::default() });
        let rank = |dp_rank, load, cache_hit_rate| RankLoad { dp_rank, load, cache_hit_rate };
        let expected = [
            rank(1, Load { waiting: 4.0, ..Load::default() }, None),
            rank(3, Load { running: 2.0, kv_usage: 0.5, ..Load::default() }, Some(0.25)),
        ];
        assert_eq!(ranks, expected);
    }

    #[test]
    fn what_a_scheduler_wrote_long_ago_is_unknown() {
        let body = |answered: &str, made: f64| {
            format!(r#"{{{answered}"loads":[{{"timestamp":{made},"num_running_reqs":1}},{{"num_running_reqs":1}}]}}"#)
        };
        let stale = |answered: &str, made: f64, most: u64| {
            let freshness = Freshness { most: Duration::from_secs(most), ..FRESH };
            matches!(super::read(body(answered, made).as_bytes(), freshness), Reading::Unknown(_))
        };
        assert!(stale("", FRESH.now - 31.0, 30));
        assert!(!stale("", FRESH.now - 29.0, 30));
        // The engine's clock is years behind ours, and it does not matter.
        let answered = r#""timestamp":"2020-09-13T12:26:40.500000+00:00","#;
        assert!(!stale(answered, 1_600_000_000.0 - 2.0, 3));
        assert!(stale(answered, 1_600_000_000.0 - 3.0, 3));
        // Seconds since the engine's start, and a clock that runs ahead.
        assert!(!stale("", 88_123.5, 3));
        assert!(!stale("", FRESH.now + 100.0, 3));
    }
}
