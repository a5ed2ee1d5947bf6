//! The smallest server that can stand behind Envoy: it says who it is.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::any;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Answers every request with its own name; ended on drop.
pub struct Upstream {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Upstream {
    pub async fn named(name: &'static str) -> Self {
        Self::serving(Router::new().fallback(any(move || async move { name }))).await
    }

    pub async fn serving(router: Router) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), router)
    }

    pub fn on(listener: TcpListener, router: Router) -> Self {
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, task }
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}
