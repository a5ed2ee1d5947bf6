//! One connection to Envoy, and so one thread of Envoy.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An HTTP/1.1 connection that is kept: all its requests are served by the same thread of Envoy.
#[derive(Debug)]
pub struct Connection {
    authority: String,
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Reply {
    /// A header's text, if it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Connection {
    /// Connects.
    pub async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // An error reaches whoever waits for an answer.
            let _ = connection.await;
        });
        Ok(Self { authority: address.to_string(), sender, driver })
    }

    /// Sends a request and waits for the head of the answer. Dropping the connection ends the exchange.
    pub async fn start(&mut self, mut request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        if !request.headers().contains_key("host") {
            request.headers_mut().insert("host", self.authority.parse()?);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request).await?)
    }

    /// Sends a request and waits for the whole answer.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Reply> {
        let (head, body) = self.start(request).await?.into_parts();
        Ok(Reply { status: head.status, headers: head.headers, body: body.collect().await?.to_bytes() })
    }

    /// A GET.
    pub async fn get(&mut self, path: &str) -> Result<Reply> {
        self.send(Request::get(path).body(Full::default())?).await
    }

    /// A POST of JSON.
    pub async fn post(&mut self, path: &str, body: impl Into<Bytes>) -> Result<Reply> {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(Full::new(body.into()))?).await
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
