//! Mutated HTTP/2 requests that the protocol allows: odd heads, bodies in any pieces, trailers, resets at any time.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dice::Dice;
use super::pool;
use crate::gate::HOLD;

/// See the other protocol's.
const PATIENCE: Duration = Duration::from_millis(100);

/// A connection is given up after so many requests.
const STREAMS: usize = 25;

/// A client that keeps its connection for some requests.
#[derive(Default)]
pub struct Client {
    connection: Option<(SendRequest<Bytes>, usize)>,
}

impl Client {
    /// Sends one mutated request; the status of its answer, if there is one.
    pub async fn play(&mut self, dice: &mut Dice, proxy: SocketAddr, evil: &str) -> Option<u16> {
        let (mut sender, streams) = match self.connection.take() {
            Some(kept) => kept,
            None => (connect(proxy).await?, 0),
        };
        let status = send(&mut sender, dice, evil).await.ok().flatten();
        if streams < STREAMS && poll_fn(|context| sender.poll_ready(context)).await.is_ok() {
            self.connection = Some((sender, streams + 1));
        }
        status
    }
}

async fn connect(proxy: SocketAddr) -> Option<SendRequest<Bytes>> {
    let stream = TcpStream::connect(proxy).await.ok()?;
    let (sender, connection) = h2::client::handshake(stream).await.ok()?;
    // Its error reaches whoever waits for an answer.
    tokio::spawn(connection);
    Some(sender)
}

/// An error is the proxy's refusal of the stream or of the connection.
async fn send(sender: &mut SendRequest<Bytes>, dice: &mut Dice, evil: &str) -> Result<Option<u16>, h2::Error> {
    let body = pool::body(dice);
    let Some(request) = head(dice, evil) else { return Ok(None) };
    let mut whole = !request.headers().contains_key(HOLD);
    let ends = dice.once_in(12);
    let (answer, mut stream) = sender.send_request(request, ends)?;
    if !ends {
        let mut rest = Bytes::from(body);
        while !rest.is_empty() {
            let piece = rest.split_to(1 + dice.below(rest.len()));
            stream.send_data(piece, false)?;
            if dice.once_in(4) {
                stream.send_data(Bytes::new(), false)?;
                tokio::task::yield_now().await;
            }
        }
        match dice.below(12) {
            0 => whole = false,
            1 => {
                stream.send_reset(*dice.pick(&[Reason::CANCEL, Reason::NO_ERROR, Reason::INTERNAL_ERROR]));
                return Ok(None);
            }
            2..=4 => {
                let mut trailers = HeaderMap::new();
                for _ in 0..=dice.below(3) {
                    if let Some((name, value)) = header(dice, evil) {
                        trailers.append(name, value);
                    }
                }
                stream.send_trailers(trailers)?;
            }
            _ => stream.send_data(Bytes::new(), true)?,
        }
    }
    let read = async {
        let (head, mut body) = answer.await?.into_parts();
        if !dice.once_in(6) {
            while let Some(piece) = body.data().await {
                body.flow_control().release_capacity(piece?.len())?;
            }
        }
        Ok(Some(head.status.as_u16()))
    };
    match whole {
        true => read.await,
        false => timeout(PATIENCE, read).await.unwrap_or(Ok(None)),
    }
}

fn head(dice: &mut Dice, evil: &str) -> Option<Request<()>> {
    let method = pool::method(dice);
    let path = pool::path(dice);
    let target = if path.starts_with('/') { format!("http://test{path}") } else { path };
    let mut request = Request::builder().method(method).uri(target);
    for _ in 0..dice.below(6) {
        if let Some((name, value)) = header(dice, evil) {
            request = request.header(name, value);
        }
    }
    request.body(()).ok()
}

fn header(dice: &mut Dice, evil: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pool::header(dice, evil);
    Some((name.parse().ok()?, HeaderValue::from_bytes(&value).ok()?))
}
