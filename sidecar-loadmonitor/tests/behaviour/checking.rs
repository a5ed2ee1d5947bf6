//! `sidecar-loadmonitor check`.

use testbed::fake_engine::{EngineOptions, FakeEngine, Runtime};

use crate::fakes::{self, Route, binary, dead_port, vllm};

async fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let output = binary(&[&["check"], arguments].concat()).output().await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text)
}

fn engine(runtime: Runtime) -> FakeEngine {
    let models = vec!["base".to_owned(), "lora-a".to_owned()];
    FakeEngine::start(EngineOptions { runtime, dp_ranks: 2, models, ..EngineOptions::default() })
}

#[track_caller]
fn says(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|said| said.trim() == *line), "{line:?} is not in\n{text}");
    }
}

#[tokio::test]
async fn all_that_an_engine_tells_is_printed_with_its_score() {
    let engine = engine(Runtime::Sglang);
    let (code, text) = check(&[&engine.url()]).await;
    assert_eq!(code, Some(0), "{text}");
    says(
        &text,
        &[
            &engine.url(),
            &format!("address   {}", engine.address()),
            "health    ready",
            "engine    sglang",
            "models    base, lora-a",
            "dp size   2",
            "/loads    answered 404",
            "/v1/loads tells the load",
            "/metrics  answered 404",
            "load      0 running, 0 waiting, 0 queued tokens, 0 of the KV memory",
            "rank 1  0 running, 0 waiting, 0 queued tokens, 0 of the KV memory",
            "score     0.0000 s, the expected wait by the defaults of least_load and cache_aware",
            "at 2000 tokens/s, as it tells no rate",
        ],
    );
}

#[tokio::test]
async fn what_is_not_known_is_said_to_be_unknown() {
    let engine = engine(Runtime::TrtllmGrpc);
    let away = format!("http://{}", dead_port().await);
    let (code, text) = check(&[&format!("grpc://{}", engine.address()), &away]).await;
    assert_eq!(code, Some(1), "{text}");
    says(
        &text,
        &[
            "engine    trtllm",
            "models    base",
            "dp size   unknown",
            "GetLoads  is not implemented by trtllm.TrtllmService",
            "load      unknown: the filter goes by its own count of requests in flight",
            "health    not ready: cannot be reached: Connection refused (os error 111)",
        ],
    );
}

#[tokio::test]
async fn a_vllm_that_has_done_nothing_yet_may_as_well_keep_no_statistics() {
    let engine = engine(Runtime::VllmGrpc);
    let (code, text) = check(&[&format!("grpc://{}", engine.address())]).await;
    assert_eq!(code, Some(1), "{text}");
    says(&text, &["GetLoads  has only zeros: the engine has had nothing to do yet, or keeps no statistics"]);
}

#[tokio::test]
async fn what_stands_in_for_numbers_that_are_not_told_is_said() {
    let vllm = fakes::engine(&Route::new(404, ""), &Route::new(200, vllm(3))).await;
    let (code, text) = check(&[&format!("http://{vllm}")]).await;
    assert_eq!(code, Some(0), "{text}");
    says(
        &text,
        &[
            "load      0 running, 3 waiting, 0.5 of the KV memory",
            "at 1024 tokens for each that waits, as it tells none",
            "at 2000 tokens/s, as it tells no rate",
        ],
    );
}

#[tokio::test]
async fn tensorrt_llm_loses_nothing_by_a_check() {
    let engine = engine(Runtime::Trtllm);
    let (code, text) = check(&[&engine.url()]).await;
    assert_eq!((code, engine.stats().drained), (Some(0), 0), "{text}");
    says(&text, &["engine    trtllm", "/prometheus/metrics tells the load"]);
}

#[tokio::test]
async fn wrong_arguments_end_it_with_status_2() {
    for arguments in [&[][..], &["10.0.0.1:8000"], &["http://a", "--ca-file", "/does/not/exist"]] {
        let (code, text) = check(arguments).await;
        assert_eq!(code, Some(2), "{text}");
    }
}
