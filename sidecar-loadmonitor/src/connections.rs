//! Connections to the sidecar's face, within bounds of number and of time, so that strangers cannot use up the descriptors
//! that polls and pushes need, nor keep others out.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request, response::Response};
use http::Request as HttpRequest;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tower_service::Service;

/// Descriptors may be gone for a moment; whoever tried at once again would be busy with nothing else.
const AFTER_A_FAULT: Duration = Duration::from_millis(100);

/// How many there may be, and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// At the same time; the next one waits in the kernel's queue until one has been closed.
    pub(crate) connections: usize,
    /// From a connection's beginning, or from an answer, until the headers of the next request are there.
    pub(crate) headers: Duration,
    /// After this time a connection takes no further request.
    pub(crate) life: Duration,
    /// What is being answered then has so much longer, however slowly its reader reads.
    pub(crate) grace: Duration,
}

/// Serves until it is dropped, and its connections with it.
pub(crate) async fn serve(listener: TcpListener, router: Router, bounds: Bounds) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let mut served = JoinSet::new();
    loop {
        while served.try_join_next().is_some() {}
        // The semaphore is never closed, so there is a place in the end.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                served.spawn(async move {
                    answer(stream, router, bounds).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                sleep(AFTER_A_FAULT).await;
            }
        }
    }
}

async fn answer(stream: TcpStream, router: Router, bounds: Bounds) {
    let service = service_fn(|request: HttpRequest<Incoming>| call(router.clone(), request.map(Body::new)));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.headers)
            .serve_connection(TokioIo::new(stream), service)
    );
    // How a connection ends is its peer's business.
    if timeout(bounds.life, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = timeout(bounds.grace, connection).await;
    }
}

async fn call(mut router: Router, request: Request) -> Result<Response, Infallible> {
    router.call(request).await
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SOON: Duration = Duration::from_millis(200);
    const NEVER: Duration = Duration::from_secs(600);
    const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

    const BOUNDS: Bounds = Bounds { connections: 2, headers: NEVER, life: NEVER, grace: NEVER };

    async fn start(bounds: Bounds) -> (std::net::SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", get(async || "here"))
            .route("/slow", get(async || sleep(NEVER).await))
            .route("/long", get(async || "x".repeat(64 << 20)));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, router, bounds));
        (address, tasks)
    }

    async fn ask(stream: &mut TcpStream) -> bool {
        let mut answer = [0; 1024];
        stream.write_all(ASK).await.is_ok() && matches!(timeout(SOON, stream.read(&mut answer)).await, Ok(Ok(1..)))
    }

    /// Waits for the end of the stream, whatever comes before it.
    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut rest = Vec::new();
        timeout(NEVER, stream.read_to_end(&mut rest)).await.is_ok()
    }

    #[tokio::test]
    async fn the_next_connection_waits_until_one_is_closed() {
        let (address, _tasks) = start(BOUNDS).await;
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(&mut clients[0]).await && ask(&mut clients[1]).await);
        assert!(!ask(&mut clients[2]).await, "there is no place");
        clients.remove(0);
        let mut answer = [0; 1024];
        assert!(clients[1].read(&mut answer).await.is_ok_and(|bytes| bytes > 0), "there is one");
    }

    #[tokio::test]
    async fn who_says_nothing_makes_room() {
        let (address, _tasks) = start(Bounds { headers: SOON, ..BOUNDS }).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut asked = TcpStream::connect(address).await.unwrap();
        assert!(ask(&mut asked).await);
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(ASK).await.unwrap();
        assert!(is_closed(&mut silent).await && is_closed(&mut asked).await);
        let mut answer = [0; 1024];
        assert!(third.read(&mut answer).await.is_ok_and(|bytes| bytes > 0));
    }

    #[tokio::test]
    async fn who_says_it_byte_by_byte_makes_room_too() {
        let (address, _tasks) = start(Bounds { headers: SOON, ..BOUNDS }).await;
        let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
        let drip = tokio::spawn(async move {
            while writer.write_all(b"x").await.is_ok() {
                sleep(SOON / 10).await;
            }
        });
        let mut rest = Vec::new();
        timeout(NEVER, reader.read_to_end(&mut rest)).await.unwrap().ok();
        drip.await.unwrap();
    }

    #[tokio::test]
    async fn nothing_lasts_for_ever() {
        let (address, _tasks) = start(Bounds { life: SOON, grace: SOON, ..BOUNDS }).await;
        let mut waiting = TcpStream::connect(address).await.unwrap();
        waiting.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut unread = TcpStream::connect(address).await.unwrap();
        unread.write_all(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut third = TcpStream::connect(address).await.unwrap();
        third.write_all(ASK).await.unwrap();
        let mut answer = [0; 1024];
        assert!(third.read(&mut answer).await.is_ok_and(|bytes| bytes > 0), "both have been ended");
        assert!(is_closed(&mut waiting).await);
    }
}
