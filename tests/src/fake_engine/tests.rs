//! The engine over real HTTP.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::*;

/// Fast enough for tests, slow enough that queues form.
fn options() -> EngineOptions {
    EngineOptions { decode_step: Duration::from_millis(2), prefill_tokens_per_second: 1e6, ..EngineOptions::default() }
        .named("a")
}

fn chat(text: &str) -> Value {
    json!({"model": "fake-model", "messages": [{"role": "user", "content": text}]})
}

fn streamed(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}], "stream": true, "max_tokens": 3,
        "stream_options": {"include_usage": true}})
}

fn post(
    engine: &FakeEngine,
    path: &str,
    body: &Value,
) -> impl Future<Output = reqwest::Result<reqwest::Response>> + use<> {
    reqwest::Client::new().post(format!("{}{path}", engine.url())).body(body.to_string()).send()
}

async fn get(engine: &FakeEngine, path: &str) -> reqwest::Response {
    reqwest::get(format!("{}{path}", engine.url())).await.unwrap()
}

async fn events(response: reqwest::Response) -> Vec<String> {
    let text = response.text().await.unwrap();
    text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// Polls until `done`; a machine may be slow, but not for ever.
async fn eventually(mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it never came");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_chat_is_answered_and_its_prefix_reused() {
    let engine = FakeEngine::start(options());
    let text = "x".repeat(4000);
    let first = post(&engine, "/v1/chat/completions", &chat(&text)).await.unwrap();
    assert_eq!(first.headers()[ENGINE_HEADER], "a");
    let first: Value = first.json().await.unwrap();
    let tokens = ("<|user|>".len() + 4000 + 1).div_ceil(4);
    assert_eq!(first["usage"]["prompt_tokens"], tokens);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["usage"]["completion_tokens"], 4);
    assert_eq!(first["choices"][0]["message"]["role"], "assistant");

    let longer = chat(&format!("{text} and more of it"));
    let second: Value = post(&engine, "/v1/chat/completions", &longer).await.unwrap().json().await.unwrap();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached, 4008 / 64 * 16, "all full blocks of the common text");
    let stats = engine.stats();
    assert_eq!((stats.requests, stats.completed, stats.in_flight), (2, 2, 0));
    assert_eq!(stats.cached_tokens, cached);
}

#[tokio::test]
async fn a_stream_ends_with_usage_and_done() {
    let engine = FakeEngine::start(options());
    for late_or_not in [&engine, &FakeEngine::start(EngineOptions { late_headers: true, ..options() })] {
        let response = post(late_or_not, "/v1/chat/completions", &streamed("hello")).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        let events = events(response).await;
        assert_eq!(events.len(), 3 + 1 + 1 + 1, "{events:?}");
        let first: Value = serde_json::from_str(&events[0]).unwrap();
        assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
        let usage: Value = serde_json::from_str(&events[4]).unwrap();
        assert_eq!(usage["usage"]["completion_tokens"], 3);
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(events[5], "[DONE]");
    }
    assert_eq!(events(post(&engine, "/v1/completions", &streamed("x")).await.unwrap()).await.len(), 6);
}

#[tokio::test]
async fn generate_takes_text_ids_and_batches() {
    let engine = FakeEngine::start(options());
    let one = json!({"text": "12345678", "sampling_params": {"max_new_tokens": 2}});
    let one: Value = post(&engine, "/generate", &one).await.unwrap().json().await.unwrap();
    assert_eq!(one["meta_info"]["prompt_tokens"], 2);
    assert_eq!(one["meta_info"]["completion_tokens"], 2);
    let batch = json!({"input_ids": [[1, 2, 3], [4, 5]]});
    let batch: Value = post(&engine, "/generate", &batch).await.unwrap().json().await.unwrap();
    assert_eq!(batch[1]["meta_info"]["prompt_tokens"], 2);
    let stream = json!({"text": "12345678", "stream": true, "sampling_params": {"max_new_tokens": 2}});
    let stream = events(post(&engine, "/generate", &stream).await.unwrap()).await;
    let last: Value = serde_json::from_str(&stream[1]).unwrap();
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
    assert_eq!(stream[2], "[DONE]");
}

#[tokio::test]
async fn instant_engines_answer_streams_in_one_piece() {
    let engine = FakeEngine::start(EngineOptions::instant());
    let response = post(&engine, "/v1/chat/completions", &streamed("hello")).await.unwrap();
    assert_eq!(response.headers()[ENGINE_HEADER], engine.address());
    assert_eq!(events(response).await.len(), 6);
    assert_eq!(engine.stats().generated_tokens, 3);
    assert_eq!(engine.loads()[0].used_tokens, 0);
}

#[tokio::test]
async fn broken_json_and_foreign_models_are_refused_in_openai_shape() {
    let engine = FakeEngine::start(options());
    let client = reqwest::Client::new();
    let url = format!("{}/v1/chat/completions", engine.url());
    let broken = client.post(&url).body("{\"messages\": [").send().await.unwrap();
    assert_eq!(broken.status(), 400);
    assert_eq!(broken.headers()[ENGINE_HEADER], "a");
    assert_eq!(broken.json::<Value>().await.unwrap()["error"]["type"], "invalid_request_error");
    assert_eq!(client.post(&url).body("{}").send().await.unwrap().status(), 200);
    let foreign = json!({"model": "other"});
    assert_eq!(post(&engine, "/v1/completions", &foreign).await.unwrap().status(), 200);
    let strict = FakeEngine::start(EngineOptions { strict_models: true, ..options() });
    assert_eq!(post(&strict, "/v1/completions", &foreign).await.unwrap().status(), 404);
    assert_eq!(post(&strict, "/v1/completions", &json!({"model": "fake-model"})).await.unwrap().status(), 200);
    let models: Value = get(&strict, "/v1/models").await.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "fake-model");
}

#[tokio::test]
async fn leaving_frees_the_batch_slot() {
    let slow = EngineOptions { decode_step: Duration::from_secs(3600), max_running: 1, ..options() };
    let engine = FakeEngine::start(slow);
    for streams in [true, false] {
        let body = json!({"prompt": "x", "stream": streams, "max_tokens": 5});
        let request = post(&engine, "/v1/completions", &body);
        let holds = tokio::spawn(async move { request.await.unwrap().bytes().await });
        eventually(|| engine.loads()[0].running == 1).await;
        let waits = tokio::spawn(post(&engine, "/v1/completions", &json!({"prompt": "y", "max_tokens": 1})));
        eventually(|| engine.loads()[0].waiting == 1).await;
        holds.abort();
        assert_eq!(waits.await.unwrap().unwrap().status(), 200, "the slot is free again");
    }
    eventually(|| engine.stats().in_flight == 0).await;
    assert_eq!((engine.stats().aborted, engine.stats().completed), (2, 2));
    assert_eq!(engine.loads()[0].used_tokens, 0);
}

#[tokio::test]
async fn loads_tell_the_truth_for_each_rank() {
    let engine = FakeEngine::start(EngineOptions {
        dp_ranks: 2,
        cache_tokens: 1000,
        decode_step: Duration::from_secs(60),
        max_running: 1,
        ..options()
    });
    let idle: Value = get(&engine, "/v1/loads").await.json().await.unwrap();
    assert_eq!(idle["loads"].as_array().unwrap().len(), 2);
    assert_eq!(idle["loads"][0]["token_usage"], 0.0);
    assert!(idle["loads"][0]["decode_moments"].is_null());
    let body = json!({"prompt": "x".repeat(400), "max_tokens": 2, "routed_dp_rank": 1});
    let address = engine.url();
    let requests: Vec<_> = (0..2usize)
        .map(|_| {
            let request = reqwest::Client::new().post(format!("{address}/v1/completions")).body(body.to_string());
            tokio::spawn(request.send())
        })
        .collect();
    eventually(|| engine.loads()[1].waiting == 1).await;
    let busy: Value = get(&engine, "/v1/loads?include=core,queues&dp_rank=1").await.json().await.unwrap();
    let rank = &busy["loads"][0];
    assert_eq!(busy["loads"].as_array().unwrap().len(), 1);
    assert_eq!((&rank["num_running_reqs"], &rank["num_waiting_reqs"]), (&json!(1), &json!(1)));
    assert_eq!(rank["num_total_tokens"].as_u64().unwrap(), rank["num_used_tokens"].as_u64().unwrap() + 100);
    assert_eq!(rank["queues"]["waiting"], 1);
    assert!(rank.get("memory").is_none());
    assert_eq!(rank["token_usage"], 0.1);
    assert_eq!(get(&engine, "/v1/loads?include=nonsense").await.status(), 400);
    assert_eq!(get(&engine, "/v1/loads?dp_rank=9").await.json::<Value>().await.unwrap()["loads"], json!([]));
    let text = get(&engine, "/v1/loads?format=prometheus").await.text().await.unwrap();
    assert!(text.contains("sglang_num_waiting_reqs{dp_rank=\"1\"} 1.0"), "{text}");
    let text = get(&engine, "/metrics").await.text().await.unwrap();
    assert!(text.contains("vllm:num_requests_running{engine=\"1\",model_name=\"fake-model\"} 1.0"), "{text}");
    assert!(text.contains("vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"fake-model\"} 0.1"), "{text}");
    requests.iter().for_each(|request| request.abort());
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let engine = FakeEngine::start(options());
    let path = "/v1/chat/completions";
    let order = json!({"fault": {"kind": "status", "status": 503}, "count": 1});
    assert_eq!(post(&engine, "/control", &order).await.unwrap().status(), 200);
    assert_eq!(post(&engine, "/control", &json!({"fault": "typo"})).await.unwrap().status(), 400);
    assert_eq!(post(&engine, path, &chat("x")).await.unwrap().status(), 503);
    assert_eq!(post(&engine, path, &chat("x")).await.unwrap().status(), 200);

    for fault in [Fault::Reset, Fault::Close] {
        engine.fault_next(1, fault);
        assert!(post(&engine, path, &chat("x")).await.is_err());
    }
    for fault in [Fault::ResetStream { after_chunks: 2 }, Fault::CloseStream { after_chunks: 2 }] {
        engine.fault_next(1, fault);
        let mut body = post(&engine, path, &streamed("x")).await.unwrap().bytes_stream();
        let mut chunks = 0;
        let broken = loop {
            match body.next().await {
                Some(Ok(bytes)) => chunks += String::from_utf8_lossy(&bytes).matches("data: ").count(),
                other => break other,
            }
        };
        assert!(matches!(broken, Some(Err(_))), "the stream must break, not end");
        assert_eq!(chunks, 2);
    }
    engine.fault_next(1, Fault::DelayHeaders { millis: 50 });
    let begin = Instant::now();
    assert_eq!(post(&engine, path, &chat("x")).await.unwrap().status(), 200);
    assert!(begin.elapsed() >= Duration::from_millis(50));

    engine.fault_next(1, Fault::Stall);
    let stalled = tokio::time::timeout(Duration::from_millis(200), post(&engine, path, &chat("x")));
    assert!(stalled.await.is_err());
    engine.fault_next(1, Fault::StallStream { after_chunks: 0 });
    let mut body = post(&engine, path, &streamed("x")).await.unwrap().bytes_stream();
    assert!(tokio::time::timeout(Duration::from_millis(200), body.next()).await.is_err());
    drop(body);
    eventually(|| engine.stats().in_flight == 0).await;
    let stats = engine.stats();
    assert_eq!((stats.completed, stats.failed, stats.aborted), (2, 1, 6));
}

#[tokio::test]
async fn load_routes_lie_when_told() {
    let engine = FakeEngine::start(options());
    let told = |loads: Probe| engine.control(Control { loads: Some(loads), ..Control::default() });
    told(Probe::Status { status: 404 });
    assert_eq!(get(&engine, "/v1/loads").await.status(), 404);
    told(Probe::Body { body: "[]".to_owned(), status: None });
    assert_eq!(get(&engine, "/v1/loads").await.text().await.unwrap(), "[]");
    told(Probe::Huge { bytes: 100_000 });
    assert_eq!(get(&engine, "/v1/loads").await.bytes().await.unwrap().len(), 100_002);
    told(Probe::Garbage);
    assert!(std::str::from_utf8(&get(&engine, "/v1/loads").await.bytes().await.unwrap()).is_err());
    engine.control(Control { health: Some(500), ..Control::default() });
    assert_eq!(get(&engine, "/health").await.status(), 500);
    engine.clear_faults();
    assert_eq!(get(&engine, "/health").await.status(), 200);
    assert!(get(&engine, "/v1/loads").await.json::<Value>().await.is_ok());
    assert_eq!((engine.stats().loads_polls, engine.stats().health_polls), (5, 2));
    let vllm = FakeEngine::start(EngineOptions { runtime: Runtime::Vllm, ..options() });
    assert_eq!(get(&vllm, "/v1/loads").await.status(), 404);
    assert_eq!(get(&vllm, "/metrics").await.status(), 200);
}

#[tokio::test]
async fn it_stands_in_for_any_other_cluster() {
    let engine = FakeEngine::start(options());
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", engine.address())).await.unwrap();
    socket.send(Message::text("ping")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("ping"));
    let events = get(&engine, "/events").await.text().await.unwrap();
    assert_eq!(events.matches("event: tick").count(), 3);
    let client = reqwest::Client::new();
    let upload = client.post(format!("{}/upload", engine.url())).body(vec![7u8; 3_000_000]).send().await.unwrap();
    assert_eq!(upload.json::<Value>().await.unwrap()["bytes"], 3_000_000);
    assert_eq!(engine.stats().uploaded_bytes, 3_000_000);
    let preflight = client.request(reqwest::Method::OPTIONS, format!("{}/v1/chat/completions", engine.url()));
    assert_eq!(preflight.send().await.unwrap().status(), 204);
}

#[tokio::test]
async fn a_stopped_engine_refuses_and_its_port_can_be_taken_again() {
    let engine = FakeEngine::start(options());
    let (port, url) = (engine.port(), engine.url());
    drop(engine);
    assert!(reqwest::get(format!("{url}/health")).await.is_err());
    let again = FakeEngine::start(EngineOptions { port, ..options() });
    assert_eq!(get(&again, "/health").await.status(), 200);
    assert!(FakeEngine::try_start(EngineOptions { port, ..options() }).is_err());
}
