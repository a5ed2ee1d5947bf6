//! What engines are asked besides their load.

use std::sync::Mutex as StdMutex;

use axum::{Router, extract::Request, http::StatusCode, routing::get};
use testbed::fake_engine::{Control, EngineOptions, FakeEngine, Runtime as Kind};

use super::*;
use crate::{fetch::client, trust::Trust};

/// Reached only when something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

fn fake(runtime: Kind) -> FakeEngine {
    let models = vec!["base".to_owned(), "lora-a".to_owned()];
    FakeEngine::start(EngineOptions { runtime, models, dp_ranks: 2, ..EngineOptions::instant() })
}

fn engine(spec: WorkerSpec) -> Engine {
    let names = Names::default();
    let common = ApiKey::parse("common").unwrap();
    let asker = Asker::new(client(&names, &Trust::default()).unwrap(), common, Trust::default());
    let worker = Worker::parse(&spec.url).unwrap();
    Engine::new(Arc::new(spec), worker, asker, &names)
}

fn at(fake: &FakeEngine, scheme: &str) -> WorkerSpec {
    WorkerSpec { url: format!("{scheme}://{}", fake.address()), ..WorkerSpec::default() }
}

async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

#[tokio::test]
async fn engines_say_what_they_are() {
    let both = &["base", "lora-a"][..];
    for (kind, scheme, runtime, models, dp_size) in [
        (Kind::Loads, "http", "sglang", both, 2),
        (Kind::Sglang, "http", "sglang", both, 2),
        (Kind::SglangOld, "http", "sglang", both, 2),
        (Kind::SglangMetrics, "http", "sglang", both, 2),
        (Kind::Vllm, "http", "vllm", both, 0),
        (Kind::LlamaCpp, "http", "llamacpp", both, 0),
        (Kind::Trtllm, "http", "trtllm", both, 0),
        (Kind::Both, "http", "", both, 0),
        (Kind::SglangGrpc, "grpc", "sglang", &["base"], 2),
        (Kind::VllmGrpc, "grpc", "vllm", &["base"], 2),
        (Kind::TokenspeedGrpc, "grpc", "tokenspeed", &["base"], 2),
        (Kind::TrtllmGrpc, "grpc", "trtllm", &["base"], 0),
        (Kind::MlxGrpc, "grpc", "mlx", &[], 0),
    ] {
        let fake = fake(kind);
        let info = engine(at(&fake, scheme)).identify(PATIENCE).await.unwrap();
        let found = (info.runtime.as_str(), info.models.iter().map(String::as_str).collect(), info.dp_size);
        assert_eq!(found, (runtime, models.to_vec(), dp_size), "{kind:?}");
        assert_eq!(info.labels.contains_key("kv_connector"), kind == Kind::VllmGrpc);
        assert_eq!(fake.stats().drained, 0);
    }
}

#[tokio::test]
async fn what_the_operator_says_goes_before() {
    let fake = fake(Kind::Sglang);
    let spec = WorkerSpec {
        models: vec!["mine".into()],
        runtime: "vllm".into(),
        labels: [("dp_size".to_owned(), "7".to_owned())].into(),
        ..at(&fake, "http")
    };
    let info = engine(spec).identify(PATIENCE).await.unwrap();
    assert_eq!((info.models, info.runtime.as_str(), info.dp_size), (vec!["mine".to_owned()], "vllm", 7));
}

#[tokio::test]
async fn an_engine_that_returns_as_another_one_is_found_out() {
    let first = fake(Kind::Trtllm);
    let (port, engine) = (first.port(), engine(at(&first, "http")));
    assert_eq!(engine.identify(PATIENCE).await.unwrap().runtime, "trtllm");
    drop(first);
    assert!(engine.identify(PATIENCE).await.is_err());
    let options =
        EngineOptions { port, runtime: Kind::Sglang, models: vec!["other".into()], ..EngineOptions::instant() };
    let _second = FakeEngine::start(options);
    let info = engine.identify(PATIENCE).await.unwrap();
    assert_eq!((info.runtime.as_str(), info.models, info.dp_size), ("sglang", vec!["other".to_owned()], 1));
}

#[tokio::test]
async fn health_is_a_status_or_what_the_service_says() {
    for (kind, scheme, why) in [
        (Kind::Sglang, "http", "/health answered 503"),
        (Kind::SglangGrpc, "grpc", "not healthy: \"scheduler is gone\""),
        (Kind::VllmGrpc, "grpc", "not healthy"),
        (Kind::TokenspeedGrpc, "grpc", "not healthy"),
        (Kind::TrtllmGrpc, "grpc", "not healthy: \"down\""),
        (Kind::MlxGrpc, "grpc", "not healthy"),
    ] {
        let fake = fake(kind);
        let engine = engine(at(&fake, scheme));
        assert_eq!(engine.probe("/health", PATIENCE).await, Ok(()), "{kind:?}");
        fake.control(Control { health: Some(503), ..Control::default() });
        let error = engine.probe("/health", PATIENCE).await.unwrap_err();
        assert!(error.contains(why), "{kind:?}: {error}");
        fake.clear_faults();
        assert_eq!(engine.probe("/health", PATIENCE).await, Ok(()), "{kind:?}");
        drop(fake);
        assert!(engine.probe("/health", PATIENCE).await.is_err());
    }
}

#[tokio::test]
async fn each_engine_gets_its_own_key_or_the_common_one() {
    let seen = Arc::new(StdMutex::new(Vec::new()));
    let note = Arc::clone(&seen);
    let router = Router::new().fallback(move |request: Request| async move {
        let key = request.headers().get("authorization").map(|key| key.to_str().unwrap().to_owned());
        note.lock().unwrap().push(key);
    });
    let address = serve(router).await;
    for scheme in ["http", "grpc"] {
        for key in [None, Some("own"), Some("")] {
            let spec = WorkerSpec {
                url: format!("{scheme}://{address}"),
                runtime: "sglang".into(),
                api_key: key.map(str::to_owned),
                ..WorkerSpec::default()
            };
            let _ = engine(spec).probe("/health", PATIENCE).await;
        }
    }
    let keys: Vec<_> = seen.lock().unwrap().clone();
    let each = [Some("Bearer common".to_owned()), Some("Bearer own".to_owned()), None];
    assert_eq!(keys, [each.clone(), each].concat());
}

#[tokio::test]
async fn vllm_over_grpc_is_idle_only_once_it_has_counted() {
    let slow = EngineOptions {
        runtime: Kind::VllmGrpc,
        decode_step: Duration::from_secs(3600),
        prefill_tokens_per_second: 0.0,
        ..EngineOptions::default()
    };
    let fake = FakeEngine::start(slow);
    let engine = engine(at(&fake, "grpc"));
    let why = engine.poll(PATIENCE).await.told.unwrap_err();
    assert!(why.contains("only zeros"), "{why}");
    let client = reqwest::Client::new();
    let request = tokio::spawn(client.post(format!("{}/generate", fake.url())).body(r#"{"text":"x"}"#).send());
    let running = async |running: f64| {
        let polls = async {
            loop {
                match engine.poll(PATIENCE).await.told {
                    Ok(told) if told.load.running == running => return told,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, polls).await.expect("it says what runs")
    };
    running(1.0).await;
    request.abort();
    let told = running(0.0).await;
    assert_eq!((told.load, told.source, told.ranks.len()), (Load::default(), "GetLoads", 1));
}

#[tokio::test]
async fn models_behind_a_key_hide_no_metrics() {
    let page = "vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.5\n";
    let router = Router::new()
        .route("/v1/models", get(|| async { StatusCode::UNAUTHORIZED }))
        .route("/metrics", get(move || async move { page }));
    let engine = engine(WorkerSpec { url: format!("http://{}", serve(router).await), ..WorkerSpec::default() });
    let told = engine.poll(PATIENCE).await.told.unwrap();
    assert_eq!((told.load.running, told.source), (3.0, "/metrics"));
}

#[tokio::test]
async fn a_page_is_not_read_that_may_be_tensorrt_llms() {
    let read = Arc::new(StdMutex::new(0));
    let count = Arc::clone(&read);
    let page = move || async move {
        *count.lock().unwrap() += 1;
        r#"[{"iter":812,"numActiveRequests":9}]"#
    };
    let router = Router::new()
        .route("/v1/models", get(|| async { r#"{"data":[{"id":"m","owned_by":"somebody"}]}"# }))
        .route("/metrics", get(page).head(|| async { StatusCode::METHOD_NOT_ALLOWED }));
    let address = serve(router).await;
    let unknown = engine(WorkerSpec { url: format!("http://{address}"), ..WorkerSpec::default() });
    for _ in 0..3 {
        let why = unknown.poll(PATIENCE).await.told.unwrap_err();
        assert!(why.contains("/metrics was not asked"), "{why}");
    }
    assert_eq!(*read.lock().unwrap(), 0);
    // And if the operator says that it is another engine, it is found out at the first look.
    let spec = WorkerSpec { url: format!("http://{address}"), runtime: "vllm".into(), ..WorkerSpec::default() };
    let engine = engine(spec);
    for _ in 0..3 {
        assert!(engine.poll(PATIENCE).await.told.is_err());
    }
    assert_eq!(*read.lock().unwrap(), 1);
}
