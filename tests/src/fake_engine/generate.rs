//! Serves a generation: faults first, then the simulated work, then the answer, whole or streamed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{StreamExt, stream};

use super::answer::{self, Answer};
use super::body::{Endpoint, Generation};
use super::connection::Connection;
use super::fault::{Fault, status};
use super::rank::Running;
use super::state::{End, Engine, InFlight};

/// Real time between the last bytes of an answer and the cut of its connection, so that they arrive.
const FLUSH_TIME: Duration = Duration::from_millis(30);

/// vLLM's request header that names a data-parallel rank.
const RANK_HEADER: &str = "x-data-parallel-rank";

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// `POST /v1/chat/completions`
pub(crate) async fn chat(
    State(engine): State<Arc<Engine>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    serve(engine, connection, Endpoint::Chat, headers, body).await
}

/// `POST /v1/completions`
pub(crate) async fn completions(
    State(engine): State<Arc<Engine>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    serve(engine, connection, Endpoint::Completions, headers, body).await
}

/// `POST /generate`
pub(crate) async fn native(
    State(engine): State<Arc<Engine>>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    serve(engine, connection, Endpoint::Generate, headers, body).await
}

/// A JSON answer with a status.
pub(crate) fn json(code: StatusCode, document: &serde_json::Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], document.to_string()).into_response()
}

async fn serve(
    engine: Arc<Engine>,
    connection: Connection,
    endpoint: Endpoint,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let rank_header = headers.get(RANK_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    let own = Fault::of_request(&headers);
    let in_flight = engine.arrived(headers, body.clone());
    let fault = own.or_else(|| engine.faults().next());
    let mut cut = None;
    match fault {
        None => {}
        Some(Fault::Status { status: code }) => {
            in_flight.end(End::Failed);
            let code = status(code);
            return json(code, &answer::error(code.as_u16(), "server_error", "the engine was told to fail"));
        }
        Some(Fault::Stall) => std::future::pending().await,
        Some(Fault::Reset) => {
            connection.reset();
            std::future::pending().await
        }
        Some(Fault::Close) => {
            connection.close();
            std::future::pending().await
        }
        Some(Fault::DelayHeaders { millis }) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Some(Fault::StallStream { after_chunks }) => cut = Some((after_chunks, Cut::Stall)),
        Some(Fault::ResetStream { after_chunks }) => cut = Some((after_chunks, Cut::Reset)),
        Some(Fault::CloseStream { after_chunks }) => cut = Some((after_chunks, Cut::Close)),
    }
    let request = match Generation::parse(endpoint, &body, &engine.options) {
        Ok(request) => request,
        Err(error) => {
            in_flight.end(End::Failed);
            let message = format!("cannot read the request body: {error}");
            return json(StatusCode::BAD_REQUEST, &answer::error(400, "invalid_request_error", &message));
        }
    };
    drop(body);
    if engine.options.strict_models && !request.model.as_ref().is_some_and(|name| engine.options.models.contains(name))
    {
        in_flight.end(End::Failed);
        let message = format!("The model `{}` does not exist.", request.model.as_deref().unwrap_or_default());
        return json(StatusCode::NOT_FOUND, &answer::error(404, "NotFoundError", &message));
    }
    let work = Work { engine, connection, request, rank_header, in_flight, cut };
    if work.request.stream { work.streamed().await } else { work.whole().await }
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    Stall,
    Reset,
    Close,
}

struct Work {
    engine: Arc<Engine>,
    connection: Connection,
    request: Generation,
    rank_header: Option<usize>,
    in_flight: InFlight,
    cut: Option<(usize, Cut)>,
}

impl Work {
    async fn whole(self) -> Response {
        let mut decoding = self.prefilled().await;
        decoding.decode(decoding.steps).await;
        if let Some((_, kind)) = decoding.cut {
            decoding.connection.cut(kind).await;
        }
        let body = decoding.answer.whole();
        decoding.works.clear();
        decoding.in_flight.end(End::Completed);
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }

    async fn streamed(self) -> Response {
        let late = self.engine.options.late_headers;
        let at_once = self.engine.options.decode_step.is_zero() && self.cut.is_none();
        let body = match (late, at_once) {
            (true, true) => Body::from(self.prefilled().await.everything()),
            (true, false) => Body::from_stream(stream::unfold(Some(self.prefilled().await), Decoding::next)),
            (false, true) => {
                let everything = async { Ok::<_, Infallible>(self.prefilled().await.everything()) };
                Body::from_stream(stream::once(everything))
            }
            (false, false) => {
                let prefill = async { stream::unfold(Some(self.prefilled().await), Decoding::next) };
                Body::from_stream(stream::once(prefill).flatten())
            }
        };
        let event_stream = HeaderValue::from_static("text/event-stream; charset=utf-8");
        let mut response = Response::new(body);
        response.headers_mut().insert(header::CONTENT_TYPE, event_stream);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }

    async fn prefilled(mut self) -> Decoding {
        let rank = self.engine.rank(self.request.dp_rank.or(self.rank_header));
        let mut works = Vec::with_capacity(self.request.prompts.len());
        for prompt in std::mem::take(&mut self.request.prompts) {
            works.push(rank.admit(prompt).await);
        }
        let number = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let answer = Answer::new(&self.request, &works, number, &self.engine.options.models[0]);
        Decoding {
            works,
            answer,
            step: 0,
            steps: self.request.max_tokens,
            sequences: self.request.sequences,
            cut: self.cut,
            connection: self.connection,
            in_flight: self.in_flight,
        }
    }
}

struct Decoding {
    works: Vec<Running>,
    answer: Answer,
    step: usize,
    steps: usize,
    sequences: usize,
    cut: Option<(usize, Cut)>,
    connection: Connection,
    in_flight: InFlight,
}

impl Decoding {
    async fn decode(&mut self, steps: usize) {
        for work in &mut self.works {
            work.decode(steps, self.sequences).await;
        }
    }

    /// The next piece of the stream; the work is given back before the last one is sent.
    async fn next(state: Option<Self>) -> Option<(io::Result<Bytes>, Option<Self>)> {
        let mut decoding = state?;
        if let Some((after, kind)) = decoding.cut
            && decoding.step >= after.min(decoding.steps)
        {
            decoding.connection.cut(kind).await;
        }
        if decoding.step < decoding.steps {
            decoding.decode(1).await;
            let chunk = decoding.answer.step(decoding.step);
            decoding.step += 1;
            return Some((Ok(Bytes::from(chunk)), Some(decoding)));
        }
        Some((Ok(Bytes::from(decoding.finish(String::new()))), None))
    }

    fn everything(mut self) -> Bytes {
        let mut text = String::new();
        for step in 0..self.steps {
            text.push_str(&self.answer.step(step));
        }
        for work in &mut self.works {
            work.decoded_at_once(self.steps, self.sequences);
        }
        Bytes::from(self.finish(text))
    }

    fn finish(self, mut text: String) -> String {
        text.push_str(&self.answer.tail());
        drop(self.works);
        self.in_flight.end(End::Completed);
        text
    }
}

impl Connection {
    /// Cuts the connection after what was sent has had time to leave; never returns.
    async fn cut(&self, kind: Cut) {
        tokio::time::sleep(FLUSH_TIME).await;
        match kind {
            Cut::Stall => {}
            Cut::Reset => self.reset(),
            Cut::Close => self.close(),
        }
        std::future::pending().await
    }
}
