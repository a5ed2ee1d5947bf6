//! A client over HTTP/1.1 or HTTP/2 that can leave at any point.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::fate::{Fate, Plan};
use crate::fake_engine::ENGINE_HEADER;
use crate::load::client::with_causes;

/// Time after which a request that nobody has ended counts as hung: longer than anything here lasts.
const PATIENCE: Duration = Duration::from_secs(30);

/// Response header in which Envoy says why it has answered itself; see `super::bed`.
pub(super) const DETAILS_HEADER: &str = "x-details";

type Body = BoxBody<Bytes, io::Error>;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What a client has seen of one request.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) protocol: &'static str,
    /// The status, once the head has come.
    pub(super) status: Option<u16>,
    /// Why Envoy has answered itself, if it has.
    pub(super) details: Option<String>,
    /// The engine that has answered, if one has.
    pub(super) engine: Option<String>,
    pub(super) end: End,
}

/// How a request has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The whole answer has come.
    Whole,
    /// The stream or connection was cut, with this error.
    Cut(String),
    /// The client has left.
    Left,
    /// Nobody has ended it.
    Hung,
}

/// A client of one protocol.
#[derive(Debug)]
pub(super) struct Client {
    address: SocketAddr,
    line: Line,
}

#[derive(Debug)]
enum Line {
    One(Option<Connection>),
    /// Several clients share the connection.
    Two(Shared),
}

/// An HTTP/2 connection that several clients use.
pub(super) type Shared = Arc<Mutex<Option<http2::SendRequest<Body>>>>;

/// An HTTP/1.1 connection, closed on drop.
#[derive(Debug)]
struct Connection {
    sender: http1::SendRequest<Body>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    /// A client with a connection of its own.
    pub(super) fn http1(address: SocketAddr) -> Self {
        Self { address, line: Line::One(None) }
    }

    /// A client that uses a connection together with others.
    pub(super) fn http2(address: SocketAddr, shared: Shared) -> Self {
        Self { address, line: Line::Two(shared) }
    }

    /// Sends a request as planned; whatever goes wrong is in the answer. `on_piece` is called with the number of each
    /// piece of the answer's body.
    pub(super) async fn exchange(&mut self, plan: &Plan, on_piece: impl FnMut(usize)) -> Answer {
        let now = Instant::now();
        let mut answer = Answer {
            started: now,
            ended: now,
            protocol: if matches!(self.line, Line::One(_)) { "HTTP/1.1" } else { "HTTP/2" },
            status: None,
            details: None,
            engine: None,
            end: End::Hung,
        };
        let patience = plan.leaves_after.unwrap_or(PATIENCE);
        let ended = match plan.fate {
            Fate::LeavesHead if matches!(self.line, Line::One(_)) => half_a_head(self.address, patience).await,
            _ => tokio::time::timeout(patience, self.converse(plan, &mut answer, on_piece)).await.ok(),
        };
        answer.end = match ended {
            Some(Ok(end)) => end,
            Some(Err(error)) => End::Cut(error),
            None if plan.leaves_after.is_some() => End::Left,
            None => End::Hung,
        };
        if answer.end != End::Whole
            && let Line::One(connection) = &mut self.line
        {
            *connection = None;
        }
        answer.ended = Instant::now();
        answer
    }

    async fn converse(
        &mut self,
        plan: &Plan,
        answer: &mut Answer,
        mut on_piece: impl FnMut(usize),
    ) -> Result<End, String> {
        // Dropped, it tells a body that is sent in part that the client leaves.
        let (body, _staying) = body(plan);
        let request = self.request(plan, body).map_err(|error| error.to_string())?;
        let (head, mut rest) = self.send(request).await.map_err(|error| with_causes(&*error))?.into_parts();
        let text = |name: &str| head.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into());
        answer.engine = text(ENGINE_HEADER);
        answer.details = text(DETAILS_HEADER);
        answer.status = Some(head.status.as_u16());
        let mut pieces = 0;
        while let Some(frame) = rest.frame().await {
            let frame = frame.map_err(|error| with_causes(&error))?;
            if frame.data_ref().is_some_and(|data| !data.is_empty()) {
                pieces += 1;
                on_piece(pieces);
            }
            if plan.leaves_after_pieces.is_some_and(|after| pieces >= after) {
                return Ok(End::Left);
            }
        }
        Ok(End::Whole)
    }

    fn request(&self, plan: &Plan, body: Body) -> Result<Request<Body>, http::Error> {
        let method = if plan.body.is_some() { "POST" } else { "GET" };
        let mut request = Request::builder().method(method);
        request = match self.line {
            Line::One(_) => request.uri(plan.path).header("host", self.address.to_string()),
            Line::Two(_) => request.uri(format!("http://{}{}", self.address, plan.path)),
        };
        if let Some(whole) = plan.body.as_ref().filter(|_| plan.body_sent.is_some()) {
            request = request.header("content-length", whole.len());
        }
        let mut request = request.body(body)?;
        let headers = plan.headers.iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
        request.headers_mut().extend(headers.collect::<HeaderMap>());
        Ok(request)
    }

    /// Sends a request, on a new connection if the one at hand has ended before it could take it.
    async fn send(&mut self, request: Request<Body>) -> Result<Response<Incoming>, Error> {
        let mut request = Some(request);
        loop {
            let Some(next) = request.take() else { return Err("the connection takes no request".into()) };
            let mut failed = match &mut self.line {
                Line::One(kept) => {
                    let mut connection = kept.take();
                    if let Some(found) = &mut connection
                        && found.sender.ready().await.is_err()
                    {
                        connection = None;
                    }
                    let mut connection = match connection {
                        Some(connection) => connection,
                        None => open1(self.address).await?,
                    };
                    let sent = connection.sender.try_send_request(next).await;
                    *kept = Some(connection);
                    match sent {
                        Ok(answer) => return Ok(answer),
                        Err(failed) => failed,
                    }
                }
                Line::Two(shared) => {
                    let mut kept = shared.lock().await;
                    let mut sender = kept.take();
                    if let Some(found) = &mut sender
                        && found.ready().await.is_err()
                    {
                        sender = None;
                    }
                    let mut sender = match sender {
                        Some(sender) => sender,
                        None => open2(self.address).await?,
                    };
                    *kept = Some(sender.clone());
                    drop(kept);
                    match sender.try_send_request(next).await {
                        Ok(answer) => return Ok(answer),
                        Err(failed) => failed,
                    }
                }
            };
            request = failed.take_message();
            if request.is_none() {
                return Err(failed.into_error().into());
            }
        }
    }
}

async fn open1(address: SocketAddr) -> Result<Connection, Error> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        // An error reaches whoever waits for an answer.
        let _ = connection.await;
    });
    Ok(Connection { sender, driver })
}

async fn open2(address: SocketAddr) -> Result<http2::SendRequest<Body>, Error> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // Ends with the last sender and the last stream.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

/// The body as it is sent. Of a client that leaves in the middle it breaks off when the guard is dropped.
fn body(plan: &Plan) -> (Body, Option<DropGuard>) {
    let whole = plan.body.clone().unwrap_or_default();
    let Some(sent) = plan.body_sent else { return (Full::new(whole).map_err(|never| match never {}).boxed(), None) };
    let leaves = CancellationToken::new();
    let guard = leaves.clone().drop_guard();
    // No empty piece: Envoy takes several of them for an attack and closes the connection with all its streams.
    let begin = stream::iter((sent > 0).then(|| Ok(Frame::data(whole.slice(..sent)))));
    let end = stream::once(async move {
        leaves.cancelled().await;
        Err(io::Error::other("the client has left"))
    });
    (BodyExt::boxed(StreamBody::new(begin.chain(end))), Some(guard))
}

/// Sends the beginning of a request's head and leaves.
async fn half_a_head(address: SocketAddr, stays: Duration) -> Option<Result<End, String>> {
    let send = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: engines\r\ncontent-le").await?;
        tokio::time::sleep(stays).await;
        io::Result::Ok(())
    };
    Some(send.await.map(|()| End::Left).map_err(|error| with_causes(&error)))
}
