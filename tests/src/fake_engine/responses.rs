//! OpenAI's responses: an engine keeps its own, and knows nobody else's.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::answer::error;
use super::generate;
use super::state::Engine;

/// So many are kept; the oldest goes first.
const KEPT: usize = 10_000;
/// Bytes of text in an answer that is not streamed: far more than a filter looks at.
const TEXT_BYTES: usize = 100_000;
/// Events with text in a stream, and the time between them.
const EVENTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// The ids of the responses that an engine keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<(VecDeque<String>, HashSet<String>)>);

impl Kept {
    fn has(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.contains(id)
    }

    fn forget(&self, id: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.remove(id);
    }

    /// Keeps a new response, of an id that no other engine gives.
    fn make(&self) -> String {
        let id = format!("resp_{:032x}", rand::random::<u128>());
        let (order, ids) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        order.push_back(id.clone());
        ids.insert(id.clone());
        if order.len() > KEPT
            && let Some(oldest) = order.pop_front()
        {
            ids.remove(&oldest);
        }
        id
    }
}

/// `POST /v1/responses`
pub(crate) async fn make(State(engine): State<Arc<Engine>>, body: Bytes) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    let asked: Value = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(problem) => {
            let message = format!("cannot read the request body: {problem}");
            return generate::json(StatusCode::BAD_REQUEST, &error(400, "invalid_request_error", &message));
        }
    };
    if let Some(previous) = asked["previous_response_id"].as_str()
        && !engine.responses.has(previous)
    {
        return not_found(previous);
    }
    let id = engine.responses.make();
    if asked["stream"] == true {
        return streamed(&id);
    }
    let text = "x".repeat(TEXT_BYTES);
    generate::json(StatusCode::OK, &json!({"id": id, "object": "response", "output": text, "status": "completed"}))
}

fn streamed(id: &str) -> Response {
    let created = json!({
        "type": "response.created", "response": {"id": id, "object": "response", "status": "in_progress"},
        "sequence_number": 0,
    });
    let created = format!("event: response.created\ndata: {created}\n\n");
    // The id itself comes in two pieces.
    let (head, tail) = created.split_at(created.find(id).map_or(0, |at| at + id.len() / 2));
    let pieces = [head.to_owned(), tail.to_owned()].into_iter();
    let deltas = (0..EVENTS).map(|number| {
        format!("data: {}\n\n", json!({"type": "response.output_text.delta", "delta": number.to_string()}))
    });
    let body = stream::iter(pieces.chain(deltas).collect::<Vec<_>>()).then(async |piece| {
        tokio::time::sleep(PAUSE).await;
        Ok::<_, Infallible>(Bytes::from(piece))
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}

/// `GET /v1/responses/{id}`
pub(crate) async fn one(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    if !engine.responses.has(&id) {
        return not_found(&id);
    }
    generate::json(StatusCode::OK, &json!({"id": id, "object": "response", "status": "completed"}))
}

/// `DELETE /v1/responses/{id}`
pub(crate) async fn delete(State(engine): State<Arc<Engine>>, Path(id): Path<String>) -> Response {
    engine.count(|stats| stats.other_requests += 1);
    if !engine.responses.has(&id) {
        return not_found(&id);
    }
    engine.responses.forget(&id);
    generate::json(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true}))
}

fn not_found(id: &str) -> Response {
    let message = format!("no response {id} here");
    generate::json(StatusCode::NOT_FOUND, &error(404, "invalid_request_error", &message))
}
