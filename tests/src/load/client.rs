//! Sends one streamed request and reads its events as they come.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio::time::Instant;

use super::{LoadOptions, Sample};
use crate::fake_engine::ENGINE_HEADER;

/// Response header in which the gateway names the worker that answered.
const ROUTED_HEADER: &str = "x-smg-routed-worker-id";

/// Request header with the routing key.
const KEY_HEADER: &str = "x-smg-routing-key";

/// An HTTP/1.1 client that keeps its connections.
#[derive(Debug)]
pub(super) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    headers: HeaderMap,
    timeout: std::time::Duration,
}

impl Client {
    pub(super) fn new(options: &LoadOptions) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &options.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.append(name, value);
            }
        }
        Self { pool, headers, timeout: options.request_timeout }
    }

    /// Sends a chat completion; whatever goes wrong is in the sample.
    /// `key` is the request's routing key, if it has one.
    pub(super) async fn send(&self, base_url: &str, key: Option<&str>, body: Vec<u8>) -> Sample {
        let mut sample = Sample::new(Instant::now());
        match tokio::time::timeout(self.timeout, self.exchange(base_url, key, body, &mut sample)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => sample.error = Some(error),
            Err(_) => sample.error = Some(format!("no end after {:?}", self.timeout)),
        }
        sample.total = sample.started.elapsed();
        sample
    }

    async fn exchange(
        &self,
        base_url: &str,
        key: Option<&str>,
        body: Vec<u8>,
        sample: &mut Sample,
    ) -> Result<(), String> {
        let mut request = http::Request::builder()
            .method(Method::POST)
            .uri(format!("{base_url}/v1/chat/completions"))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        if let Some(key) = key {
            let key = HeaderValue::try_from(key).map_err(|error| error.to_string())?;
            request.headers_mut().insert(KEY_HEADER, key);
        }
        request.headers_mut().extend(self.headers.clone());
        let response = self.pool.request(request).await.map_err(|error| with_causes(&error))?;
        let text =
            |name: &str| response.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        sample.engine = text(ENGINE_HEADER);
        sample.routed_worker = text(ROUTED_HEADER);
        sample.status = response.status().as_u16();
        if !response.status().is_success() {
            let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let start: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            return Err(format!("status {}: {start}", sample.status));
        }
        read_events(response.into_body(), sample).await
    }
}

async fn read_events(mut body: Incoming, sample: &mut Sample) -> Result<(), String> {
    let mut unread: Vec<u8> = Vec::new();
    let mut done = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| with_causes(&error))?;
        let Some(bytes) = frame.data_ref() else { continue };
        unread.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(length) = unread[start..].iter().position(|&byte| byte == b'\n') {
            let line = &unread[start..start + length];
            start += length + 1;
            if let Some(event) = line.strip_prefix(b"data: ") {
                sample.ttft.get_or_insert_with(|| sample.started.elapsed());
                done |= event.starts_with(b"[DONE]");
                read_usage(event, sample);
            }
        }
        unread.drain(..start);
    }
    if done { Ok(()) } else { Err("the stream ended without [DONE]".to_owned()) }
}

fn read_usage(event: &[u8], sample: &mut Sample) {
    const MEMBER: &[u8] = b"\"usage\":{";
    if !event.windows(MEMBER.len()).any(|window| window == MEMBER) {
        return;
    }
    let Ok(event) = serde_json::from_slice::<Value>(event) else { return };
    let number = |pointer: &str| event.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    sample.prompt_tokens = number("/usage/prompt_tokens");
    sample.cached_tokens = number("/usage/prompt_tokens_details/cached_tokens");
    sample.completion_tokens = number("/usage/completion_tokens");
}

/// An error with what caused it: the outermost message alone says little.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
