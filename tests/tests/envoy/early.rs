//! A refusal of ours on the headers, while an HTTP/2 client is still sending its body: the whole answer arrives.
//!
//! Envoy then ends the stream with RST_STREAM(NO_ERROR) behind the complete answer, as RFC 9113, section 8.1, lets a server
//! do that needs no more of the request.

use std::convert::Infallible;
use std::future::poll_fn;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::stream;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions};
use tokio::net::TcpStream;

use crate::gate::Gate;
use crate::support::{CHAT, chat, counts_become, no_vm_was_lost};
use crate::wire::Http2;

/// Out of range, so that the request is refused before its body.
const REFUSED: (&str, &str) = ("x-smg-target-worker", "9");

async fn start() -> (Vec<Gate>, Envoy) {
    let gates = join_all((0..2).map(|_| Gate::start())).await;
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let plugin = json!({ "policy": "consistent_hashing" });
    (gates, Envoy::start(EnvoyOptions { plugin, ..options }).await.unwrap())
}

/// The refusal, whole.
#[track_caller]
fn assert_refused(status: StatusCode, length: Option<&str>, body: &[u8]) {
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(length.map(str::to_owned), Some(body.len().to_string()));
    let error: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(error["error"]["code"], "no_available_workers", "{error}");
}

#[tokio::test]
async fn the_answer_is_whole_and_the_connection_goes_on() {
    let (_gates, envoy) = start().await;
    let mut http2 = Http2::open(envoy.address()).await;
    for pieces in [0, 1, 3] {
        let mut stream = http2.start(&[REFUSED]).await;
        for _ in 0..pieces {
            stream.send(vec![b'x'; 10_000]);
        }
        let (answer, mut body) = stream.split();
        let answer = answer.await.unwrap();
        let (head, mut answer) = answer.into_parts();
        let mut text = Vec::new();
        while let Some(piece) = answer.data().await {
            text.extend_from_slice(&piece.expect("the body is not cut"));
        }
        assert_refused(head.status, head.headers.get("content-length").and_then(|length| length.to_str().ok()), &text);
        let reset = poll_fn(|context| body.poll_reset(context)).await.unwrap();
        assert_eq!(reset, h2::Reason::NO_ERROR, "the client need not send the rest");
    }
    let answer = http2.send(&[], chat("m", "And another?")).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn a_client_that_sends_on_gets_the_whole_answer() {
    let (_gates, envoy) = start().await;
    let stream = TcpStream::connect(envoy.address()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    for megabytes in [0, 1, 8] {
        let text = Bytes::from(vec![b'x'; 1 << 20]);
        let pieces = stream::iter((0..megabytes).map(move |_| Ok::<_, Infallible>(Frame::data(text.clone()))));
        let body = StreamBody::new(pieces).boxed();
        let request = Request::post(format!("http://test{CHAT}")).header(REFUSED.0, REFUSED.1);
        let reply = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let (head, body) = reply.into_parts();
        let body = body.collect().await.expect("the body is not cut").to_bytes();
        assert_refused(head.status, head.headers.get("content-length").and_then(|length| length.to_str().ok()), &body);
    }
    let request = Request::post(format!("http://test{CHAT}")).body(Full::new(chat("m", "And another?")).boxed());
    assert_eq!(sender.send_request(request.unwrap()).await.unwrap().status(), StatusCode::OK);
    driver.abort();
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}
