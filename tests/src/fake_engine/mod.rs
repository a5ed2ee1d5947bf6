//! A fake inference engine: OpenAI's and SGLang's routes over a simulated scheduler with a real prefix cache.
//!
//! It has a block-level prefix cache with LRU, a prefill queue, a batch limit and decode steps in scaled time, reports
//! the tokens it reused, and can be told to fail, stall, reset or lie. Every response carries `x-engine`.
//!
//! ```no_run
//! use testbed::fake_engine::{EngineOptions, FakeEngine, Fault};
//!
//! let engine = FakeEngine::start(EngineOptions::default().named("a"));
//! engine.fault_next(2, Fault::Status { status: 503 });
//! println!("{} has seen {}", engine.url(), engine.stats().requests);
//! ```

mod answer;
pub mod block_cache;
pub mod body;
mod connection;
mod fault;
mod generate;
mod grpc;
pub(crate) mod loads;
mod metrics;
mod options;
pub mod rank;
mod responses;
mod routes;
mod seat;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::http::HeaderMap;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

pub use connection::ENGINE_HEADER;
pub use fault::{Control, FAULT_HEADER, Fault, Probe};
pub use options::{EngineOptions, Runtime};
pub use rank::RankLoad;
pub use seat::Seat;
pub use state::EngineStats;

use state::Engine;

/// Connections that may wait to be accepted; a burst of streams must not meet a refused connection.
const BACKLOG: u32 = 4096;

/// A running engine on a thread of its own; dropping it closes its port and all its connections.
#[derive(Debug)]
pub struct FakeEngine {
    address: SocketAddr,
    engine: Arc<Engine>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl FakeEngine {
    /// Starts an engine; its port accepts connections when this returns.
    ///
    /// # Panics
    /// When the port cannot be bound; see [`FakeEngine::try_start`].
    pub fn start(options: EngineOptions) -> Self {
        let port = options.port;
        Self::try_start(options).unwrap_or_else(|error| panic!("cannot start an engine on port {port}: {error}"))
    }

    /// Starts an engine; its port accepts connections when this returns.
    ///
    /// # Errors
    /// When the port cannot be bound or the thread cannot be started.
    pub fn try_start(options: EngineOptions) -> io::Result<Self> {
        let mut options = options.normalised();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            listen(options.port)
        };
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                // A runtime must not be dropped where the caller is asynchronous; this way of ending it may.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let address = listener.local_addr()?;
        options.name.get_or_insert_with(|| address.to_string());
        let engine = Engine::new(options);
        let stop = CancellationToken::new();
        let serving = connection::serve(listener, routes::router(engine.clone()), engine.clone(), stop.clone());
        let thread = std::thread::Builder::new().name(format!("engine-{}", address.port())).spawn(move || {
            runtime.block_on(serving);
            runtime.shutdown_background();
        })?;
        Ok(Self { address, engine, stop, thread: Some(thread) })
    }

    /// `http://ip:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `ip:port`
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The value of its `x-engine` header.
    pub fn name(&self) -> String {
        self.engine.options.name.clone().unwrap_or_default()
    }

    /// What it has seen and done up to now.
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// Starts counting anew; caches and requests in flight stay.
    pub fn reset_stats(&self) {
        self.engine.reset_stats();
    }

    /// The load of each data-parallel rank now.
    pub fn loads(&self) -> Vec<RankLoad> {
        self.engine.ranks.iter().map(|rank| rank.load()).collect()
    }

    /// Headers of the last generation request.
    pub fn last_headers(&self) -> HeaderMap {
        self.engine.last_headers()
    }

    /// Body of the last generation request.
    pub fn last_body(&self) -> Bytes {
        self.engine.last_body()
    }

    /// Tells the engine what to do wrong, as `POST /control` does.
    pub fn control(&self, control: Control) {
        self.engine.faults().apply(control);
    }

    /// All generation requests from now on meet this fault.
    pub fn fault(&self, fault: Fault) {
        self.control(Control { fault: Some(fault), ..Control::default() });
    }

    /// The next `count` generation requests meet this fault.
    pub fn fault_next(&self, count: u64, fault: Fault) {
        self.control(Control { fault: Some(fault), count: Some(count), ..Control::default() });
    }

    /// Takes back everything that the engine was told to do wrong.
    pub fn clear_faults(&self) {
        self.control(Control { clear: true, ..Control::default() });
    }
}

fn listen(port: u16) -> io::Result<tokio::net::TcpListener> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    socket.listen(BACKLOG)
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
