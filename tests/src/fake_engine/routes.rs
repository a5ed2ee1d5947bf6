//! The routes of an engine, and those that make it a stand-in for any other cluster.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::json;

use super::answer::error;
use super::fault::Control;
use super::generate;
use super::grpc;
use super::loads::{LoadsAnswer, LoadsQuery, loads};
use super::metrics::{iteration, metrics};
use super::options::Runtime;
use super::responses;
use super::state::Engine;

/// Events that `GET /events` sends.
const EVENTS: usize = 3;

pub(crate) fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat).options(preflight))
        .route("/v1/completions", post(generate::completions).options(preflight))
        .route("/generate", post(generate::native).put(generate::native).options(preflight))
        .route("/v1/responses", post(responses::make))
        .route("/v1/responses/{id}", get(responses::one).delete(responses::delete))
        .route("/v1/models", get(models))
        .route("/health", get(health))
        .route("/loads", get(load_report))
        .route("/v1/loads", get(load_report))
        .route("/metrics", get(metric_text).head(no_head))
        .route("/prometheus/metrics", get(metric_text))
        .route("/server_info", get(server_info))
        .route("/get_server_info", get(server_info))
        .route("/{service}/{method}", any(grpc::call))
        .route("/control", post(control))
        .route("/stats", get(stats))
        .route("/ws", any(echo))
        .route("/events", get(events))
        .route("/upload", post(upload).put(upload))
        .fallback(unknown)
        .layer(DefaultBodyLimit::disable())
        .with_state(engine)
}

async fn models(State(engine): State<Arc<Engine>>) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    if !engine.options.runtime.serves("/v1/models") {
        return not_found("/v1/models");
    }
    let list: Vec<_> = engine
        .options
        .models
        .iter()
        .map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": engine.options.runtime.owner(), "root": id}))
        .collect();
    generate::json(StatusCode::OK, &json!({"object": "list", "data": list}))
}

async fn health(State(engine): State<Arc<Engine>>) -> StatusCode {
    engine.count(|stats| stats.health_polls += 1);
    engine.faults().health
}

async fn load_report(State(engine): State<Arc<Engine>>, uri: Uri, Query(query): Query<LoadsQuery>) -> Response {
    let there = engine.options.runtime.serves(uri.path());
    if !there && uri.path() == "/loads" {
        return not_found(uri.path());
    }
    engine.count(|stats| stats.loads_polls += 1);
    let told = engine.faults().loads.clone();
    if let Some(response) = told.answer().await {
        return response;
    }
    if !there {
        return not_found(uri.path());
    }
    match loads(&query, &engine.ranks, &engine.options) {
        LoadsAnswer::Json(document) => generate::json(StatusCode::OK, &document),
        LoadsAnswer::Refused(document) => generate::json(StatusCode::BAD_REQUEST, &document),
        LoadsAnswer::Text(text) => prometheus_text(text),
    }
}

async fn metric_text(State(engine): State<Arc<Engine>>, uri: Uri) -> Response {
    let runtime = engine.options.runtime;
    if !runtime.serves(uri.path()) && uri.path() != "/metrics" {
        return not_found(uri.path());
    }
    engine.count(|stats| stats.metrics_polls += 1);
    let told = engine.faults().metrics.clone();
    if let Some(response) = told.answer().await {
        return response;
    }
    if !runtime.serves(uri.path()) {
        return not_found(uri.path());
    }
    if runtime == Runtime::Trtllm && uri.path() == "/metrics" {
        // Whoever reads this takes it from all others.
        engine.count(|stats| stats.drained += 1);
        return generate::json(StatusCode::OK, &iteration(&engine.ranks));
    }
    prometheus_text(metrics(&engine.ranks, &engine.options))
}

/// FastAPI has no HEAD where it has GET; Prometheus' own server has.
async fn no_head(State(engine): State<Arc<Engine>>) -> Response {
    match engine.options.runtime {
        Runtime::Trtllm => StatusCode::METHOD_NOT_ALLOWED.into_response(),
        runtime if runtime.serves("/metrics") => prometheus_text(String::new()),
        _ => not_found("/metrics"),
    }
}

async fn server_info(State(engine): State<Arc<Engine>>, uri: Uri) -> Response {
    let options = &engine.options;
    if !options.runtime.serves(uri.path()) {
        return not_found(uri.path());
    }
    engine.count(|stats| stats.other_requests += 1);
    let name = options.models.first().map_or("", String::as_str);
    let document = match options.runtime {
        Runtime::Trtllm => json!({"backend": "pytorch", "world_size": 1}),
        _ => json!({
            "model_path": format!("/models/{name}"), "served_model_name": name, "dp_size": options.dp_ranks,
            "tp_size": 1, "internal_states": [{}], "version": "0.5.16",
        }),
    };
    generate::json(StatusCode::OK, &document)
}

async fn control(State(engine): State<Arc<Engine>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Control>(&body) {
        Ok(control) => {
            engine.faults().apply(control);
            generate::json(StatusCode::OK, &json!({"ok": true}))
        }
        Err(problem) => {
            let message = format!("cannot read the order: {problem}");
            generate::json(StatusCode::BAD_REQUEST, &error(400, "invalid_request_error", &message))
        }
    }
}

async fn stats(State(engine): State<Arc<Engine>>) -> Response {
    let document = serde_json::to_value(engine.stats()).unwrap_or_default();
    generate::json(StatusCode::OK, &document)
}

async fn echo(State(engine): State<Arc<Engine>>, upgrade: WebSocketUpgrade) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(message)) = socket.recv().await {
            let answered = match message {
                Message::Text(_) | Message::Binary(_) => socket.send(message).await,
                Message::Close(_) => return,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
            };
            if answered.is_err() {
                return;
            }
        }
    })
}

async fn events(State(engine): State<Arc<Engine>>) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    let events = stream::iter(0..EVENTS).then(|number| async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, std::convert::Infallible>(Bytes::from(format!("event: tick\ndata: {number}\n\n")))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response()
}

async fn upload(State(engine): State<Arc<Engine>>, body: Body) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    let mut chunks = body.into_data_stream();
    let mut total = 0u64;
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return StatusCode::BAD_REQUEST.into_response() };
        total += chunk.len() as u64;
        engine.count(|stats| stats.uploaded_bytes += chunk.len() as u64);
    }
    generate::json(StatusCode::OK, &json!({"bytes": total}))
}

async fn preflight(State(engine): State<Arc<Engine>>) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
    response
}

pub(crate) async fn unknown(State(engine): State<Arc<Engine>>, method: Method, uri: Uri) -> Response {
    if method == Method::OPTIONS {
        return preflight(State(engine)).await;
    }
    engine.count(|stats| stats.other_requests += 1);
    not_found(uri.path())
}

fn not_found(path: &str) -> Response {
    generate::json(StatusCode::NOT_FOUND, &error(404, "NotFoundError", &format!("no route {path}")))
}

fn prometheus_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
