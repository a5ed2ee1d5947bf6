//! `make bench`, as short as it can be: what it says of costs depends on the machine, the rest does not.

use std::process::Command;

use serde_json::Value;
use testbed::envoy::{Output, Process, eventually, workspace_binary};

use crate::support::SOON;

#[tokio::test]
async fn every_row_is_measured_and_every_request_answered() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("bench.json");
    let mut command = Command::new(workspace_binary("bench").unwrap());
    for variable in ["SMG_BIN", "PICKER_BIN"] {
        command.env_remove(variable);
    }
    command.env("BENCH_OUTPUT", &output).envs([
        ("ROUNDS", "1"),
        ("REQUESTS", "80"),
        ("POLICIES", "cache_aware,random"),
        ("PROMPT_KB", "4,48"),
        ("MIX", "turn"),
        ("WORKERS", "2,6"),
        ("CONCURRENCY", "2"),
        ("STREAM_CHUNKS", "8"),
        ("PEER", "extproc"),
        ("SATURATION_CONCURRENCY", "8"),
    ]);
    let mut bench = Process::start("bench", command, &Output::File(directory.path().join("log"))).unwrap();
    eventually(SOON * 3, "the bench ends", async || bench.exited().is_some()).await;
    let log = bench.log();
    assert!(bench.exited().unwrap().success(), "{log}");

    let found: Value = serde_json::from_str(&std::fs::read_to_string(&output).unwrap()).unwrap();
    let mut expected = Vec::new();
    for (kb, chunks) in [(4, 0), (48, 0), (4, 8)] {
        expected.extend(["envoy", "cache_aware", "random", "extproc"].map(|setup| (setup, kb, chunks, 2)));
    }
    expected.extend(["envoy", "cache_aware"].map(|setup| (setup, 4, 0, 6)));
    let rows = found["rows"].as_array().unwrap();
    let shape = |row: &Value| {
        let number = |key: &str| row[key].as_u64().unwrap();
        (row["setup"].as_str().unwrap().to_owned(), number("prompt_kb"), number("stream_chunks"), number("workers"))
    };
    let expected: Vec<_> =
        expected.into_iter().map(|(setup, kb, chunks, all)| (setup.to_owned(), kb, chunks, all)).collect();
    assert_eq!(rows.iter().map(shape).collect::<Vec<_>>(), expected);
    for row in rows {
        assert_eq!((&row["failures"], &row["rounds"], &row["mix"]), (&0.into(), &1.into(), &"turn".into()), "{row}");
        assert_eq!(row["concurrency"], 2);
        for key in ["cpu_us", "cpu_us_min", "cpu_us_max", "p50_ms", "p99_ms", "ratio"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
    }

    let saturation = found["saturation"].as_array().unwrap();
    assert_eq!(saturation.len(), 2);
    for one in saturation {
        assert!(one["picks"].as_u64().unwrap() >= 400, "{one}");
        assert!(one["conflicts_per_pick"].as_f64().unwrap() <= 0.2, "{one}");
    }
    // Two columns of the table that people read.
    assert!(log.contains("ratio") && log.contains("cache_aware under saturation"), "{log}");
}
