//! A running Envoy: start, readiness, updates, end.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::admin::{Admin, Metrics};
use super::client::Connection;
use super::config::Layout;
use super::options::{EnvoyOptions, Filter};
use super::process::{Output, Process, built_wasm, envoy_binary, envoy_yaml, lift_open_files, tail};

/// A start compiles the module: seconds on a busy machine, and no test shall fail because it is slow.
const START: Duration = Duration::from_secs(60);

/// A running Envoy; ended on drop.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: Admin,
    address: SocketAddr,
    ingest: Option<SocketAddr>,
    layout: Layout,
    concurrency: usize,
    // After the process, so that its files outlive it.
    directory: TempDir,
}

/// Envoy has refused a configuration and keeps the one it had.
#[derive(Debug)]
pub struct Rejected {
    /// What Envoy has logged since, the filter's message among it.
    pub log: String,
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Envoy has refused the configuration:\n{}", self.log)
    }
}

impl std::error::Error for Rejected {}

impl Envoy {
    /// Starts an Envoy and waits until its listeners take connections. A refused configuration is a [`Rejected`].
    pub async fn start(options: EnvoyOptions) -> Result<Self> {
        Self::start_with_output(options, None).await
    }

    /// Like [`Envoy::start`], with Envoy's log elsewhere than in a temporary file.
    pub async fn start_with_output(options: EnvoyOptions, output: Option<Output>) -> Result<Self> {
        lift_open_files();
        let wasm = module(&options.filter)?;
        let yaml = fs::read_to_string(envoy_yaml()).context("envoy/envoy.yaml")?;
        let layout = Layout::new(&yaml, &options, wasm.as_deref())?;
        let directory = tempfile::Builder::new().prefix("envoy-").tempdir()?;
        write_resources(directory.path(), &layout)?;
        let bootstrap = directory.path().join("bootstrap.json");
        fs::write(&bootstrap, bootstrap_text(&layout, directory.path()))?;

        let admin_address = directory.path().join("admin");
        let mut command = Command::new(envoy_binary()?);
        command.arg("--config-path").arg(&bootstrap);
        command.arg("--admin-address-path").arg(&admin_address);
        command.args(["--concurrency", &options.concurrency.to_string()]);
        command.args(["--log-level", &options.log_level]);
        command.args(options.component_log_level.iter().flat_map(|levels| ["--component-log-level", levels]));
        // No shared memory, hence no base id that two Envoys could fight for.
        command.arg("--disable-hot-restart");
        // Access logs are read while Envoy runs.
        command.args(["--file-flush-interval-msec", "500"]);
        // After an update a kept connection learns with its next answer that it shall close, instead of at random.
        command.args(["--drain-strategy", "immediate", "--drain-time-s", &options.drain_seconds.to_string()]);
        let output = output.unwrap_or_else(|| Output::File(directory.path().join("envoy.log")));
        let mut process = Process::start("envoy", command, &output)?;

        let deadline = Instant::now() + START;
        let admin = loop {
            check_alive(&mut process)?;
            if let Some(address) = fs::read_to_string(&admin_address).ok().and_then(|text| text.trim().parse().ok()) {
                break Admin::new(address);
            }
            pause(deadline, &process).await?;
        };
        while !admin.get("/ready").await.is_ok_and(|state| state.trim() == "LIVE") {
            check_alive(&mut process)?;
            pause(deadline, &process).await?;
        }
        loop {
            check_alive(&mut process)?;
            if rejections(&admin).await? > 0 {
                bail!(Rejected { log: tail(&process.log(), 40) });
            }
            let listeners = admin.get_json("/listeners?format=json").await?;
            let address = |name| listener_address(&listeners, name);
            let ingest = layout.ingest().map(address);
            if let (Some(routing), None | Some(Some(_))) = (address(layout.routing()), ingest)
                && TcpStream::connect(loopback(routing)).await.is_ok()
                && connects(ingest.flatten()).await
            {
                let (address, ingest) = (loopback(routing), ingest.flatten());
                return Ok(Self {
                    process,
                    admin,
                    address,
                    ingest,
                    layout,
                    concurrency: options.concurrency,
                    directory,
                });
            }
            pause(deadline, &process).await?;
        }
    }

    /// Where the routing listener takes connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://ip:port` of the routing listener.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where the sidecar pushes to.
    pub fn reports_url(&self) -> String {
        self.ingest.map(|address| format!("http://{address}/v1/reports")).unwrap_or_default()
    }

    /// The admin endpoint.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Worker threads.
    pub fn concurrency(&self) -> usize {
        self.concurrency
    }

    /// What Envoy has logged so far (nothing if its output is inherited).
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A counter or gauge; 0 if there is none of the name.
    ///
    /// # Panics
    /// When Envoy does not answer.
    pub async fn stat(&self, name: &str) -> u64 {
        self.admin.stat(name).await.unwrap()
    }

    /// All metrics with their labels.
    ///
    /// # Panics
    /// When Envoy does not answer.
    pub async fn metrics(&self) -> Metrics {
        self.admin.prometheus().await.unwrap()
    }

    /// The requests that Envoy has under way to a cluster.
    ///
    /// # Panics
    /// When Envoy does not answer.
    pub async fn upstream_rq_active(&self, cluster: &str) -> u64 {
        self.stat(&format!("cluster.{cluster}.upstream_rq_active")).await
    }

    /// One connection to the routing listener.
    ///
    /// # Panics
    /// When the listener takes none.
    pub async fn connect(&self) -> Connection {
        Connection::open(self.address).await.unwrap()
    }

    /// One connection on each worker thread; needs `exact_balance` and no other open connection.
    ///
    /// # Panics
    /// When the connections do not spread like that.
    pub async fn connection_per_thread(&self) -> Vec<Connection> {
        self.spread(async || self.connect().await).await
    }

    /// What `open` makes of one connection on each worker thread; needs `exact_balance` and no other open connection.
    ///
    /// # Panics
    /// When the connections do not spread like that.
    pub async fn spread<T>(&self, open: impl AsyncFn() -> T) -> Vec<T> {
        let deadline = Instant::now() + START;
        loop {
            let active = async || self.stat("listener.routing.downstream_cx_active").await;
            super::eventually(START, "no other connection is open", async || active().await == 0).await;
            let mut connections = Vec::new();
            for wanted in 1..=self.concurrency as u64 {
                connections.push(open().await);
                // The next one is weighed against this one, so this one must have been counted.
                super::eventually(START, "the connection is counted", async || active().await == wanted).await;
            }
            let stats = self.admin.get("/stats?filter=listener.routing.worker_").await.unwrap();
            let on_each = |thread| stats.contains(&format!("worker_{thread}.downstream_cx_active: 1\n"));
            if (0..self.concurrency).all(on_each) {
                return connections;
            }
            // An old connection whose end Envoy had not noticed was weighed too.
            assert!(Instant::now() < deadline, "is exact_balance on?\n{stats}");
        }
    }

    /// The plugin configuration of the routing listener as it was last given to Envoy.
    pub fn plugin(&self) -> &Value {
        self.layout.plugin()
    }

    /// Lays `overlay` over the plugin configuration and waits until every thread serves new connections by it.
    /// Connections that are open stay with the old one and are closed with their next answer.
    pub async fn update_plugin(&mut self, overlay: Value) -> Result<(), Rejected> {
        let mut layout = self.layout.clone();
        layout.lay_over_plugin(&overlay).map_err(|error| Rejected { log: error.to_string() })?;
        self.apply(layout).await
    }

    /// Runs another module in the place of the present one, and waits as [`Envoy::update_plugin`] does.
    pub async fn update_module(&mut self, filter: &Filter) -> Result<(), Rejected> {
        let mut layout = self.layout.clone();
        let path = module(filter).map_err(|error| Rejected { log: error.to_string() })?;
        layout.set_module(path.as_deref()).map_err(|error| Rejected { log: error.to_string() })?;
        self.apply(layout).await
    }

    /// Takes the routing listener away (its streams go on for `drain_seconds`) or brings it back on another port.
    ///
    /// # Panics
    /// When Envoy does not do so.
    pub async fn offer_routing(&mut self, offered: bool) {
        self.layout.offer_routing(offered);
        write_resources(self.directory.path(), &self.layout).unwrap();
        let mut address = None;
        super::eventually(START, "Envoy takes the listeners", async || {
            let listeners = self.admin.get_json("/listeners?format=json").await.unwrap();
            address = listener_address(&listeners, "routing").map(loopback);
            address.is_some() == offered && self.stat("listener_manager.total_listeners_warming").await == 0
        })
        .await;
        self.address = address.unwrap_or(self.address);
    }

    /// Stops Envoy from running for `time`.
    pub async fn suspend(&self, time: Duration) {
        self.process.suspend();
        tokio::time::sleep(time).await;
        self.process.resume();
    }

    /// Gives the cluster `engines` other endpoints and waits until Envoy has them. What the filter is told of its
    /// workers is not touched.
    ///
    /// # Panics
    /// When Envoy does not take the clusters.
    pub async fn update_engines(&mut self, addresses: &[SocketAddr]) {
        self.layout.set_engines(addresses.iter().copied()).unwrap();
        let before = self.stat("cluster_manager.cds.update_success").await;
        write_resources(self.directory.path(), &self.layout).unwrap();
        super::eventually(START, "Envoy takes the clusters", async || {
            self.stat("cluster_manager.cds.update_success").await > before
        })
        .await;
    }

    /// Takes other listeners and clusters altogether, see [`EnvoyOptions::shape`], and waits until every thread serves
    /// new connections by them.
    ///
    /// # Panics
    /// When a listener that is new does not open.
    pub async fn update_shape(&mut self, shape: &Value) -> Result<(), Rejected> {
        let mut layout = self.layout.clone();
        layout.take_shape(shape);
        self.apply(layout).await?;
        if let Some(name) = self.layout.ingest() {
            super::eventually(START, "the ingest listener opens", async || {
                let listeners = self.admin.get_json("/listeners?format=json").await.unwrap();
                self.ingest = listener_address(&listeners, name);
                connects(self.ingest).await && self.ingest.is_some()
            })
            .await;
        }
        Ok(())
    }

    async fn apply(&mut self, layout: Layout) -> Result<(), Rejected> {
        if layout.listener_resources() == self.layout.listener_resources() {
            return Ok(());
        }
        // A worker thread counts each listener for itself.
        let changed = layout.changed_listeners(&self.layout) as u64;
        let logged = self.log().len();
        let updates = self.stat("listener_manager.lds.update_success").await;
        let rejected = rejections(&self.admin).await.unwrap();
        let created = self.stat(CREATED).await;
        write_resources(self.directory.path(), &layout).unwrap();
        let mut refused = false;
        super::eventually(START, "Envoy takes or refuses the listeners", async || {
            refused = rejections(&self.admin).await.unwrap() > rejected;
            refused
                || self.stat("listener_manager.lds.update_success").await > updates
                    && self.stat(CREATED).await >= created + changed * self.concurrency as u64
                    && self.stat("listener_manager.total_listeners_warming").await == 0
        })
        .await;
        if refused {
            let log = self.log().get(logged..).unwrap_or_default().to_owned();
            // The old text back, so that the file says what Envoy does.
            write_resources(self.directory.path(), &self.layout).unwrap();
            return Err(Rejected { log });
        }
        self.layout = layout;
        Ok(())
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.exited().is_none()
    }

    /// Asks Envoy to end, as an operator would, and waits for it.
    pub fn stop(mut self) {
        self.process.stop(Duration::from_secs(10));
    }
}

const CREATED: &str = "listener_manager.listener_create_success";

fn module(filter: &Filter) -> Result<Option<PathBuf>> {
    match filter {
        Filter::Built => built_wasm("filter").map(Some),
        Filter::Crashable => built_wasm("filter_crash_for_tests").map(Some),
        Filter::File(path) => Ok(Some(path.clone())),
        Filter::Absent => Ok(None),
    }
}

async fn rejections(admin: &Admin) -> Result<u64> {
    admin.stat("listener_manager.lds.update_rejected").await
}

fn check_alive(process: &mut Process) -> Result<()> {
    match process.exited() {
        Some(status) => bail!("Envoy has ended at its start, {status}:\n{}", tail(&process.log(), 40)),
        None => Ok(()),
    }
}

async fn pause(deadline: Instant, process: &Process) -> Result<()> {
    if Instant::now() > deadline {
        bail!("Envoy was not ready within {START:?}:\n{}", tail(&process.log(), 40));
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    Ok(())
}

/// Whether somebody listens there, or there is nobody to listen.
async fn connects(address: Option<SocketAddr>) -> bool {
    match address {
        Some(address) => TcpStream::connect(address).await.is_ok(),
        None => true,
    }
}

fn listener_address(listeners: &Value, name: &str) -> Option<SocketAddr> {
    let all = listeners["listener_statuses"].as_array()?;
    let address = &all.iter().find(|listener| listener["name"] == name)?["local_address"]["socket_address"];
    let ip = address["address"].as_str()?.parse().ok()?;
    Some(SocketAddr::new(ip, address["port_value"].as_u64()?.try_into().ok()?))
}

/// Where a listener on all addresses is reached from here.
fn loopback(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    address
}

fn bootstrap_text(layout: &Layout, directory: &Path) -> String {
    let source =
        |name: &str| json!({ "path_config_source": { "path": directory.join(name) }, "resource_api_version": "V3" });
    let mut bootstrap = layout.bootstrap.clone();
    bootstrap["node"] = json!({ "id": "testbed", "cluster": "testbed" });
    bootstrap["dynamic_resources"] = json!({ "lds_config": source("lds.json"), "cds_config": source("cds.json") });
    bootstrap.to_string()
}

fn write_resources(directory: &Path, layout: &Layout) -> Result<()> {
    replace(&directory.join("cds.json"), &layout.cluster_resources())?;
    replace(&directory.join("lds.json"), &layout.listener_resources())
}

/// Envoy watches for renames, and never sees half a file.
fn replace(path: &Path, content: &Value) -> Result<()> {
    let text = content.to_string();
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)?;
    Ok(fs::rename(fresh, path)?)
}
