//! Engines that cost next to nothing: they read the request, look at nothing and answer.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

/// Between two chunks of a stream. Without it the proxy would read several at once, which engines never let it do.
const CHUNK_INTERVAL: Duration = Duration::from_millis(2);

const ANSWER: &str = r#"{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}"#;
const CHUNK: &str = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"bench\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" word\"},\"finish_reason\":null}]}\n\n";
const LAST_CHUNK: &str = "data: [DONE]\n\n";
/// For whoever wants to know what is served before it sends something.
const MODELS: &str = r#"{"object":"list","data":[{"id":"bench","object":"model"}]}"#;

/// Some engines on a thread of their own, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Engines {
    addresses: Vec<SocketAddr>,
    chunks: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl Engines {
    /// Starts `number` engines on free ports.
    pub(super) fn start(number: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let chunks = Arc::<AtomicUsize>::default();
        let mut addresses = Vec::new();
        let (stop, stopped) = oneshot::channel::<()>();
        {
            let _inside = runtime.enter();
            for _ in 0..number {
                let socket = TcpSocket::new_v4()?;
                socket.bind(([127, 0, 0, 1], 0).into())?;
                let listener = socket.listen(1024).context("an engine cannot listen")?;
                addresses.push(listener.local_addr()?);
                runtime.spawn(serve(listener, Arc::clone(&chunks)));
            }
        }
        std::thread::Builder::new().name("engines".to_owned()).spawn(move || {
            // An error is the sender's end, which is what it waits for.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { addresses, chunks, _stop: stop })
    }

    pub(super) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// From now on answers are streams of so many chunks; 0: one piece of JSON.
    pub(super) fn answer_in_chunks(&self, chunks: usize) {
        self.chunks.store(chunks, Ordering::Relaxed);
    }
}

async fn serve(listener: TcpListener, chunks: Arc<AtomicUsize>) {
    while let Ok((connection, _)) = listener.accept().await {
        // It works without, only later.
        let _ = connection.set_nodelay(true);
        let chunks = Arc::clone(&chunks);
        let service = service_fn(move |request| answer(request, chunks.load(Ordering::Relaxed)));
        // A broken connection is its client's business.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(connection), service));
    }
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

async fn answer(request: Request<Incoming>, chunks: usize) -> Result<Answer, hyper::Error> {
    let is_get = request.method() == Method::GET;
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        frame?;
    }
    let (kind, body) = match (is_get, chunks) {
        (true, _) => ("application/json", whole(MODELS)),
        (false, 0) => ("application/json", whole(ANSWER)),
        (false, chunks) => ("text/event-stream", in_chunks(chunks)),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    Ok(response)
}

fn whole(text: &'static str) -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync()
}

/// `chunks` pieces in all, the last one `[DONE]`.
fn in_chunks(chunks: usize) -> UnsyncBoxBody<Bytes, Infallible> {
    let piece = |text: &'static str| Ok(Frame::data(Bytes::from_static(text.as_bytes())));
    let words = stream::repeat(CHUNK).take(chunks.saturating_sub(1)).chain(stream::iter([LAST_CHUNK]));
    let paced = words.then(move |text| async move {
        tokio::time::sleep(CHUNK_INTERVAL).await;
        piece(text)
    });
    BodyExt::boxed_unsync(StreamBody::new(paced))
}
