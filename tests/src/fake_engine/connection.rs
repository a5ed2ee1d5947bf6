//! Accepts connections (HTTP/1.1 and cleartext HTTP/2) in such a way that a handler can cut its own.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::http::HeaderValue;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::state::Engine;

/// Response header that names the engine.
pub const ENGINE_HEADER: &str = "x-engine";

/// A handler's grip on the connection that its request came over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    cut: CancellationToken,
    with_reset: Arc<AtomicBool>,
}

impl Connection {
    /// Ends the connection with a TCP reset.
    pub(crate) fn reset(&self) {
        self.with_reset.store(true, Ordering::Relaxed);
        self.cut.cancel();
    }

    /// Ends the connection with a TCP close.
    pub(crate) fn close(&self) {
        self.cut.cancel();
    }
}

/// Serves `router` until `stop` is cancelled; then every connection is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router, engine: Arc<Engine>, stop: CancellationToken) {
    let name = engine.options.name.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
    let name = name.unwrap_or_else(|| HeaderValue::from_static("unnamed"));
    let service = TowerToHyperService::new(router);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            // Out of file descriptors: the next accept would fail at once as well.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        engine.count(|stats| stats.connections += 1);
        let connection = Connection { cut: stop.child_token(), ..Connection::default() };
        tokio::spawn(serve_one(stream, connection, service.clone(), name.clone()));
    }
}

async fn serve_one(stream: TcpStream, connection: Connection, router: TowerToHyperService<Router>, name: HeaderValue) {
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Socket { stream, with_reset: Arc::clone(&connection.with_reset) });
    let cut = connection.cut.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        let answer = router.call(request);
        let name = name.clone();
        async move {
            let mut response: hyper::Response<Body> = answer.await?;
            response.headers_mut().insert(ENGINE_HEADER, name);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None);
    builder.http2().timer(TokioTimer::new()).enable_connect_protocol().max_concurrent_streams(100_000);
    tokio::select! {
        _ = builder.serve_connection_with_upgrades(io, service) => {}
        () = cut.cancelled() => {}
    }
}

/// A socket that is reset instead of closed if its connection was told so.
struct Socket {
    stream: TcpStream,
    with_reset: Arc<AtomicBool>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.with_reset.load(Ordering::Relaxed) {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, out)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
