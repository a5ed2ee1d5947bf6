//! A host that Envoy knows and that nobody may be sent to: a connection to it is the work of a client that has chosen its
//! destination.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use testbed::envoy::{EnvoyOptions, Worker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";

/// See the module. Whoever comes is counted and answered; ended on drop.
pub struct Evil {
    pub address: SocketAddr,
    visits: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Evil {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let visits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&visits);
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                        // Who has hung up does not read it.
                        let _ = stream.write_all(ANSWER).await;
                    }
                });
            }
        });
        Self { address, visits, task }
    }

    /// Connections so far.
    pub fn visits(&self) -> usize {
        self.visits.load(Ordering::Relaxed)
    }

    /// An Envoy whose filter has these workers, and whose cluster `engines` has their addresses and this host's. Envoy
    /// itself chooses this host only when the others are down, since it is of the lower priority.
    pub fn beside(&self, workers: Vec<Worker>) -> EnvoyOptions {
        let of_plugin: Value = workers.iter().map(|worker| json!({ "url": worker.url })).collect();
        let mut all = workers;
        all.push(Worker::at(self.address));
        EnvoyOptions {
            workers: all,
            plugin: json!({ "workers": of_plugin }),
            edit: Some(last_has_low_priority),
            ..EnvoyOptions::default()
        }
    }
}

impl Drop for Evil {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Gives the last endpoint of the cluster `engines` a priority below the others'.
pub fn last_has_low_priority(resources: &mut Value) {
    let endpoints = &mut resources["clusters"][0]["load_assignment"]["endpoints"];
    let last = endpoints[0]["lb_endpoints"].as_array_mut().unwrap().pop().unwrap();
    endpoints.as_array_mut().unwrap().push(json!({ "lb_endpoints": [last], "priority": 1 }));
}
