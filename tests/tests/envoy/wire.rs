//! Clients that can break off or lie at any point: raw HTTP/1.1 and single HTTP/2 streams.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::support::CHAT;

/// A connection on which any bytes are sent.
pub struct Raw(TcpStream);

impl Raw {
    pub async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    /// Connects and sends `bytes`.
    pub async fn sending(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::open(address).await;
        raw.send(bytes).await;
        raw
    }

    /// Sends more; a peer that has closed already is not complained of.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.0.write_all(bytes.as_ref()).await;
    }

    /// Says that nothing more comes, and still reads.
    pub async fn finish(&mut self) {
        let _ = self.0.shutdown().await;
    }

    /// Ends the connection with a TCP reset instead of an orderly close.
    pub fn reset(self) {
        self.0.set_zero_linger().unwrap();
    }

    /// The status of the next answer; none if the connection is closed without one.
    pub async fn status(&mut self) -> Option<u16> {
        let mut text = Vec::new();
        while !text.windows(4).any(|window| window == b"\r\n\r\n") {
            if self.0.read_buf(&mut text).await.unwrap_or(0) == 0 {
                break;
            }
        }
        status(&text)
    }

    /// Reads until the connection is closed; the status of the answer, if there was one, and its body.
    pub async fn answer(&mut self) -> Option<(u16, String)> {
        let text = self.rest().await;
        let body = text.windows(4).position(|window| window == b"\r\n\r\n").map_or(text.len(), |at| at + 4);
        Some((status(&text)?, String::from_utf8_lossy(&text[body..]).into_owned()))
    }

    /// Reads until the connection is closed.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.0.read_to_end(&mut rest).await;
        rest
    }
}

fn status(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.get(9..12)?).ok()?.parse().ok()
}

/// The head of a chat request as it stands on the wire; `headers` are whole lines.
pub fn chat_head(headers: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n{headers}\r\n")
}

/// An HTTP/2 connection.
pub struct Http2 {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Http2 {
    pub async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(async move {
            // An error reaches whoever waits for an answer.
            let _ = connection.await;
        });
        Self { sender, driver }
    }

    /// Sends a chat request and waits for the head of the answer.
    ///
    /// # Errors
    /// When the stream or the connection is cut before.
    pub async fn send(&mut self, headers: &[(&str, &str)], body: Bytes) -> Result<Answer, h2::Error> {
        self.start(headers).await.finish(body).await
    }

    /// Sends the head of a chat request.
    pub async fn start(&mut self, headers: &[(&str, &str)]) -> Stream {
        self.start_at(CHAT, headers).await
    }

    /// Sends the head of a POST to `path`.
    pub async fn start_at(&mut self, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut request = Request::post(format!("http://test{path}")).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        poll_fn(|context| self.sender.poll_ready(context)).await.unwrap();
        let (answer, body) = self.sender.send_request(request.body(()).unwrap(), false).unwrap();
        Stream { answer, body }
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// One HTTP/2 stream.
pub struct Stream {
    answer: ResponseFuture,
    body: SendStream<Bytes>,
}

impl Stream {
    /// Sends a part of the body.
    pub fn send(&mut self, bytes: impl Into<Bytes>) {
        self.body.send_data(bytes.into(), false).unwrap();
    }

    /// The answer to come, and the body that is still to be sent.
    pub fn split(self) -> (ResponseFuture, SendStream<Bytes>) {
        (self.answer, self.body)
    }

    /// Sends the last part of the body and waits for the head of the answer.
    ///
    /// # Errors
    /// When the stream or the connection is cut before.
    pub async fn finish(mut self, bytes: impl Into<Bytes>) -> Result<Answer, h2::Error> {
        self.body.send_data(bytes.into(), true)?;
        self.answer().await
    }

    /// Waits for the head of the answer.
    ///
    /// # Errors
    /// When the stream or the connection is cut before.
    pub async fn answer(self) -> Result<Answer, h2::Error> {
        let answer = self.answer.await?;
        Ok(Answer { status: answer.status(), headers: answer.headers().clone(), body: answer.into_body() })
    }

    /// Ends the request with trailers.
    pub fn end_with_trailers(&mut self) {
        self.end_with(HeaderMap::from_iter([("x-checksum".parse().unwrap(), "abc".parse().unwrap())]));
    }

    /// Ends the request with these trailers.
    pub fn end_with(&mut self, trailers: HeaderMap) {
        self.body.send_trailers(trailers).unwrap();
    }

    /// Waits for the head of the answer and the first piece of its body.
    pub async fn first_piece(&mut self) -> (StatusCode, Bytes) {
        let answer = (&mut self.answer).await.unwrap();
        let status = answer.status();
        let piece = answer.into_body().data().await.unwrap().unwrap();
        (status, piece)
    }

    /// Resets the stream; the connection stays.
    pub fn reset(mut self) {
        self.body.send_reset(Reason::CANCEL);
    }
}

/// The answer on an HTTP/2 stream, which is reset when this is dropped.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: RecvStream,
}

impl Answer {
    /// The next piece of the body; none if the stream is cut or at its end.
    pub async fn piece(&mut self) -> Option<Bytes> {
        let piece = self.body.data().await?.ok()?;
        self.body.flow_control().release_capacity(piece.len()).ok()?;
        Some(piece)
    }

    /// The rest of the body, or none if it is cut.
    pub async fn rest(mut self) -> Option<Vec<u8>> {
        let mut rest = Vec::new();
        while let Some(piece) = self.body.data().await {
            rest.extend_from_slice(&piece.ok()?);
        }
        Some(rest)
    }
}
