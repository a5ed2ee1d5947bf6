//! The gRPC services of engines, as far as a balancer asks them. The messages are written down here once more, so that
//! whoever talks to this engine is held against the field numbers and not against itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body_util::StreamBody;
use hyper::body::Frame;
use prost::Message;
use prost::bytes::BufMut;

use super::fault::Probe;
use super::loads::{rounded, usage};
use super::options::Runtime;
use super::routes;
use super::state::Engine;

const UNIMPLEMENTED: u16 = 12;
const INTERNAL: u16 = 13;

#[derive(Clone, PartialEq, Message)]
struct Health {
    #[prost(bool, tag = "1")]
    healthy: bool,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrtllmHealth {
    #[prost(string, tag = "1")]
    status: String,
}

#[derive(Clone, PartialEq, Message)]
struct LoadsRequest {
    #[prost(int32, optional, tag = "1")]
    dp_rank: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    include: Vec<String>,
}

/// SGLang's numbers; vLLM has the same ones up to 11.
#[derive(Clone, PartialEq, Message)]
struct SglangLoad {
    #[prost(int32, tag = "1")]
    dp_rank: i32,
    #[prost(int32, tag = "2")]
    running: i32,
    #[prost(int32, tag = "3")]
    waiting: i32,
    #[prost(int32, tag = "4")]
    total: i32,
    #[prost(int32, tag = "5")]
    used_tokens: i32,
    #[prost(int32, tag = "6")]
    capacity: i32,
    #[prost(double, tag = "7")]
    usage: f64,
    #[prost(double, tag = "8")]
    throughput: f64,
    #[prost(double, tag = "9")]
    cache_hit_rate: f64,
    #[prost(int32, tag = "11")]
    max_running: i32,
    #[prost(int32, tag = "17")]
    waiting_uncached_tokens: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TokenSpeedLoad {
    #[prost(int32, tag = "1")]
    dp_rank: i32,
    #[prost(int32, tag = "2")]
    running: i32,
    #[prost(int32, tag = "3")]
    waiting: i32,
    #[prost(int32, tag = "5")]
    used_tokens: i32,
    #[prost(int32, tag = "6")]
    capacity: i32,
    #[prost(int32, tag = "7")]
    max_running: i32,
    #[prost(double, tag = "8")]
    usage: f64,
}

/// Strings by field number.
struct Strings<'a>(&'a [(u32, &'a str)]);

impl Strings<'_> {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (tag, text) in self.0 {
            prost::encoding::string::encode(*tag, &(*text).to_owned(), &mut out);
        }
        out
    }
}

/// Answers `POST /service/method`, if it is gRPC.
pub(crate) async fn call(
    State(engine): State<Arc<Engine>>,
    Path((service, method)): Path<(String, String)>,
    request: Request,
) -> Response {
    let kind = request.headers().get(header::CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
        return routes::unknown(State(engine), request.method().clone(), request.uri().clone()).await;
    }
    let Ok(body) = axum::body::to_bytes(request.into_body(), 1 << 20).await else {
        return refuse(INTERNAL, "no message");
    };
    if engine.options.runtime.service() != Some(service.as_str()) {
        return refuse(UNIMPLEMENTED, "Method not found!");
    }
    match method.as_str() {
        "HealthCheck" => {
            engine.count(|stats| stats.health_polls += 1);
            answer(health(&engine))
        }
        "GetLoads" => {
            engine.count(|stats| stats.loads_polls += 1);
            let told = engine.faults().loads.clone();
            match told {
                Probe::Status { status: 501 } => return refuse(UNIMPLEMENTED, "Method not implemented!"),
                Probe::Status { .. } => return refuse(INTERNAL, "told to fail"),
                Probe::Huge { bytes } => return answer(vec![0; bytes]),
                Probe::Garbage | Probe::Body { .. } => return answer(vec![0xff; 64]),
                Probe::True | Probe::Slow { .. } | Probe::Stall => {
                    told.answer().await;
                }
            }
            match loads(&engine, &body) {
                Some(message) => answer(message),
                None => refuse(UNIMPLEMENTED, "Method not implemented!"),
            }
        }
        "GetModelInfo" => {
            engine.count(|stats| stats.other_requests += 1);
            answer(model(&engine))
        }
        "GetServerInfo" => {
            engine.count(|stats| stats.other_requests += 1);
            answer(server(&engine))
        }
        _ => refuse(UNIMPLEMENTED, "Method not implemented!"),
    }
}

fn health(engine: &Engine) -> Vec<u8> {
    let healthy = engine.faults().health.is_success();
    if engine.options.runtime == Runtime::TrtllmGrpc {
        return TrtllmHealth { status: if healthy { " OK\n" } else { "down" }.to_owned() }.encode_to_vec();
    }
    Health { healthy, message: if healthy { "fine" } else { "scheduler is gone" }.to_owned() }.encode_to_vec()
}

fn model(engine: &Engine) -> Vec<u8> {
    let name = engine.options.models.first().map_or("", String::as_str);
    let path = format!("/models/{name}");
    match engine.options.runtime {
        Runtime::TrtllmGrpc => Strings(&[(1, name)]).encode(),
        Runtime::TokenspeedGrpc => Strings(&[(1, &path), (3, name)]).encode(),
        _ => Strings(&[(1, &path), (6, name)]).encode(),
    }
}

fn server(engine: &Engine) -> Vec<u8> {
    let size = engine.options.dp_ranks;
    if engine.options.runtime == Runtime::VllmGrpc {
        let mut message = Strings(&[(6, "NixlConnector"), (7, "kv_both")]).encode();
        prost::encoding::int32::encode(9, &integer(size), &mut message);
        return message;
    }
    let number = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(size as f64)) };
    let arguments = prost_types::Struct { fields: BTreeMap::from([("dp_size".to_owned(), number)]) };
    let mut message = Vec::new();
    prost::encoding::message::encode(1, &arguments, &mut message);
    message
}

fn loads(engine: &Engine, body: &[u8]) -> Option<Vec<u8>> {
    // A message follows five bytes that say how long it is.
    let asked = LoadsRequest::decode(body.get(5..)?).ok()?;
    assert!(asked.include.iter().any(|section| section == "core"), "{asked:?}");
    let capacity = engine.options.reported_capacity();
    let mut message = Vec::new();
    for (index, rank) in engine.ranks.iter().enumerate() {
        let load = rank.load();
        let usage = rounded(usage(&load, capacity), 4);
        let sglang = SglangLoad {
            dp_rank: integer(index),
            running: integer(load.running),
            waiting: integer(load.waiting),
            usage,
            ..SglangLoad::default()
        };
        match engine.options.runtime {
            Runtime::SglangGrpc => {
                let all = SglangLoad {
                    total: integer(load.running + load.waiting),
                    used_tokens: integer(load.used_tokens),
                    capacity: integer(capacity),
                    throughput: rounded(load.gen_throughput, 2),
                    cache_hit_rate: rounded(load.cache_hit_rate, 4),
                    max_running: integer(engine.options.max_running),
                    waiting_uncached_tokens: integer(load.waiting_uncached_tokens),
                    ..sglang
                };
                prost::encoding::message::encode(4, &all, &mut message);
            }
            // One entry for all there is, and no capacity.
            Runtime::VllmGrpc if index > 0 => {}
            Runtime::VllmGrpc => prost::encoding::message::encode(4, &sglang, &mut message),
            Runtime::TokenspeedGrpc => {
                let all = TokenSpeedLoad {
                    dp_rank: integer(index),
                    running: integer(load.running),
                    waiting: integer(load.waiting),
                    used_tokens: integer(load.used_tokens),
                    capacity: integer(capacity),
                    max_running: integer(engine.options.max_running),
                    usage,
                };
                prost::encoding::message::encode(4, &all, &mut message);
            }
            _ => return None,
        }
    }
    Some(message)
}

fn integer(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn answer(message: Vec<u8>) -> Response {
    let mut framed = Vec::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(&message);
    let end = HeaderMap::from_iter([(header::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    let frames = [Frame::data(Bytes::from(framed)), Frame::trailers(end)];
    let body = StreamBody::new(futures_util::stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
    with_type(Response::new(Body::new(body)))
}

fn refuse(status: u16, message: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert("grpc-status", status.into());
    response.headers_mut().insert("grpc-message", HeaderValue::from_static(message));
    with_type(response)
}

fn with_type(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
