//! Fake engines, a fake ingest listener, and a sidecar that ends with its test.

use std::{
    net::SocketAddr,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router, body::Bytes, extract::State, http::StatusCode, response::IntoResponse, routing::get, routing::post,
};
use clap::Parser;
use filter_core::report::{Load, Snapshot, WorkerReport};
use sidecar_loadmonitor::{Args, Config, run};
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    task::AbortHandle,
};

/// Far more than anything here takes; reached only when something is broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A task that ends when this is dropped.
pub(crate) struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Running {
    Running(tokio::spawn(task).abort_handle())
}

/// A server for `router` on a free port.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// A server that hands every connection to `talk`.
pub(crate) async fn serve_raw<F>(talk: impl Fn(TcpStream, usize) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(talk(stream, number));
        }
    });
    address
}

/// A port that nothing listens on. No connection that is made meanwhile takes it: they begin at 127.0.0.1.
pub(crate) async fn dead_port() -> SocketAddr {
    TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap()
}

/// What one route answers; can be changed at any time.
#[derive(Clone, Default)]
pub(crate) struct Route(Arc<RouteState>);

#[derive(Default)]
struct RouteState {
    answer: Mutex<(u16, String)>,
    asked: AtomicUsize,
}

impl Route {
    pub(crate) fn new(status: u16, body: impl Into<String>) -> Self {
        let route = Self::default();
        route.answers(status, body);
        route
    }

    pub(crate) fn answers(&self, status: u16, body: impl Into<String>) {
        *self.0.answer.lock().unwrap() = (status, body.into());
    }

    /// How often it was asked.
    pub(crate) fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn answer(&self) -> impl IntoResponse + use<> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let (status, body) = self.0.answer.lock().unwrap().clone();
        (StatusCode::from_u16(status).unwrap(), body)
    }
}

/// An engine with the two routes that the sidecar may ask for its load, and one that says whose it is.
pub(crate) async fn engine(loads: &Route, metrics: &Route) -> SocketAddr {
    engine_with(&Route::new(200, ""), loads, metrics).await
}

/// An engine that says how it is.
pub(crate) async fn engine_with(health: &Route, loads: &Route, metrics: &Route) -> SocketAddr {
    let (health, loads, metrics) = (health.clone(), loads.clone(), metrics.clone());
    let router = Router::new()
        .route("/health", get(move || async move { health.answer() }))
        .route("/v1/loads", get(move || async move { loads.answer() }))
        .route("/metrics", get(move || async move { metrics.answer() }))
        .route("/v1/models", get(|| async { r#"{"data":[{"id":"m","owned_by":"vllm"}]}"# }));
    serve(router).await
}

/// An engine of which `/v1/loads` says that so many requests wait.
pub(crate) async fn healthy(waiting: u32) -> SocketAddr {
    engine(&Route::new(200, loads(waiting)), &Route::new(404, "")).await
}

/// SGLang's answer with one rank.
pub(crate) fn loads(waiting: u32) -> String {
    format!(
        r#"{{"loads":[{{"dp_rank":0,"num_waiting_reqs":{waiting},"token_usage":0.5,"max_total_num_tokens":9000}}]}}"#
    )
}

/// What [`loads`] means.
pub(crate) fn load(waiting: u32) -> Load {
    Load { waiting: waiting.into(), kv_usage: 0.5, ..Load::default() }
}

/// vLLM's page.
pub(crate) fn vllm(waiting: u32) -> String {
    format!("vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n")
}

/// An ingest listener that keeps what it gets.
#[derive(Clone, Default)]
pub(crate) struct Ingest {
    received: Arc<Mutex<Vec<Snapshot>>>,
    /// What it answers; 0 stands for 204.
    pub(crate) status: Arc<std::sync::atomic::AtomicU16>,
}

impl Ingest {
    /// One on a free port, and its URL.
    pub(crate) async fn start() -> (Self, String) {
        let ingest = Self::default();
        let address = serve(ingest.router()).await;
        (ingest, push_url(address))
    }

    pub(crate) fn router(&self) -> Router {
        async fn take(State(ingest): State<Ingest>, body: Bytes) -> (StatusCode, &'static str) {
            let status = match ingest.status.load(Ordering::SeqCst) {
                0 => StatusCode::NO_CONTENT,
                status => StatusCode::from_u16(status).unwrap(),
            };
            if status.is_success() {
                ingest.received.lock().unwrap().push(Snapshot::parse(&body).unwrap());
                return (status, "");
            }
            (status, "not\ntoday")
        }
        Router::new().route("/v1/reports", post(take)).with_state(self.clone())
    }

    /// All snapshots so far.
    pub(crate) fn received(&self) -> Vec<Snapshot> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until at least `count` snapshots have come.
    pub(crate) async fn wait(&self, count: usize) -> Vec<Snapshot> {
        eventually("snapshots", || (self.received().len() >= count).then(|| self.received())).await
    }

    /// Waits for a report of `url` that pleases.
    pub(crate) async fn wait_report(&self, url: &str, pleases: impl Fn(&WorkerReport) -> bool) -> WorkerReport {
        let of_worker = || {
            let all = self.received().into_iter().flat_map(|snapshot| snapshot.workers);
            all.filter(|worker| worker.url == url).find(|worker| pleases(worker))
        };
        eventually(url, of_worker).await
    }

    /// Waits for any report of `url`.
    pub(crate) async fn first_report(&self, url: &str) -> WorkerReport {
        self.wait_report(url, |_| true).await
    }

    /// Waits for a snapshot that pleases.
    pub(crate) async fn wait_snapshot(&self, what: &str, pleases: impl Fn(&Snapshot) -> bool) -> Snapshot {
        eventually(what, || self.received().into_iter().find(|snapshot| pleases(snapshot))).await
    }

    /// Forgets what has come so far.
    pub(crate) fn clear(&self) {
        self.received.lock().unwrap().clear();
    }
}

pub(crate) fn push_url(address: SocketAddr) -> String {
    format!("http://{address}/v1/reports")
}

/// A running sidecar with a command line like the binary's, that probes nobody.
pub(crate) fn sidecar(arguments: &[&str]) -> Running {
    let config = config(&[arguments, &["--disable-health-check"]].concat());
    spawn(async move { run(config, std::future::pending()).await.unwrap() })
}

/// One that waits for answers as long as the tests do, for short intervals on slow machines.
pub(crate) fn patient_sidecar(arguments: &[&str]) -> Running {
    let config = Config { timeout: PATIENCE, ..config(&[arguments, &["--disable-health-check"]].concat()) };
    spawn(async move { run(config, std::future::pending()).await.unwrap() })
}

/// One that probes ten times a second, and takes an engine out of rotation after one failure.
pub(crate) fn probing_sidecar(arguments: &[&str]) -> Running {
    let probes = ["--health-check-interval-secs", "0.1", "--health-failure-threshold", "1"];
    let config = Config { timeout: PATIENCE, ..config(&[&probes[..], arguments].concat()) };
    spawn(async move { run(config, std::future::pending()).await.unwrap() })
}

/// One with these arguments and no others.
pub(crate) fn sidecar_as_given(arguments: &[&str]) -> Running {
    let config = config(arguments);
    spawn(async move { run(config, std::future::pending()).await.unwrap() })
}

fn config(arguments: &[&str]) -> Config {
    let args = Args::try_parse_from(["sidecar-loadmonitor"].iter().chain(arguments)).unwrap();
    args.into_config().unwrap()
}

/// The first `Some` of `probe`, asked again and again.
pub(crate) async fn eventually<T>(what: &str, probe: impl Fn() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(found) = probe() {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
}

/// The binary with these arguments and no environment.
pub(crate) fn binary(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecar-loadmonitor"));
    command.env_clear().args(arguments).stderr(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    command
}
