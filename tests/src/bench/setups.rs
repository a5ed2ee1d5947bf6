//! The proxies that are compared: Envoy alone, Envoy with the filter, and what else there is.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cells::Group;
use super::settings::BenchSettings;
use crate::envoy::{Connection, Envoy, EnvoyOptions, Filter, Output, Process, workspace_binary};

/// For a start on a busy machine.
const START: Duration = Duration::from_secs(120);

/// A running proxy, ended on drop.
#[derive(Debug)]
pub(super) struct Setup {
    pub(super) name: String,
    /// Where it takes requests.
    pub(super) address: SocketAddr,
    /// Leaders of the process groups that its cost is the sum of.
    pub(super) leaders: Vec<u32>,
    running: Running,
}

#[derive(Debug)]
enum Running {
    Envoy { envoy: Box<Envoy>, _picker: Option<Process> },
    Other { _process: Process, _directory: TempDir },
}

impl Setup {
    /// Starts the setup of that name: `envoy`, a policy or a peer.
    pub(super) async fn start(
        name: &str,
        group: &Group,
        engines: &[SocketAddr],
        settings: &BenchSettings,
    ) -> Result<Self> {
        let started = match name {
            "smg" => Self::smg(settings, engines).await,
            "extproc" => Self::extproc(settings, group, engines).await,
            "envoy" => {
                Self::envoy(name, EnvoyOptions { filter: Filter::Absent, ..envoy_options(group, engines) }).await
            }
            policy => {
                let plugin = json!({ "policy": policy });
                Self::envoy(name, EnvoyOptions { plugin, ..envoy_options(group, engines) }).await
            }
        };
        started.with_context(|| format!("the setup {name} does not start"))
    }

    async fn envoy(name: &str, options: EnvoyOptions) -> Result<Self> {
        let envoy = Envoy::start(options).await?;
        Ok(Self {
            name: name.to_owned(),
            address: envoy.address(),
            leaders: vec![envoy.pid()],
            running: Running::Envoy { envoy: Box::new(envoy), _picker: None },
        })
    }

    async fn extproc(settings: &BenchSettings, group: &Group, engines: &[SocketAddr]) -> Result<Self> {
        let program = match &settings.picker {
            Some(program) => program.clone(),
            None => workspace_binary("ext-proc-picker")?,
        };
        let address = free_address()?;
        let mut command = Command::new(program);
        command.arg("--listen").arg(address.to_string());
        command.args(engines.iter().flat_map(|engine| ["--engine".to_owned(), engine.to_string()]));
        let picker = Process::start("ext-proc-picker", command, &Output::Inherit)?;
        let options = EnvoyOptions {
            filter: Filter::Absent,
            clusters: vec![processor_cluster(address)],
            edit: Some(insert_processor),
            ..envoy_options(group, engines)
        };
        let mut setup = Self::envoy("extproc", options).await?;
        setup.leaders.push(picker.pid());
        if let Running::Envoy { _picker, .. } = &mut setup.running {
            *_picker = Some(picker);
        }
        setup.answers().await?;
        Ok(setup)
    }

    async fn smg(settings: &BenchSettings, engines: &[SocketAddr]) -> Result<Self> {
        let program = settings.smg.as_deref().unwrap_or(Path::new("smg"));
        let (address, metrics) = (free_address()?, free_address()?);
        let directory = tempfile::Builder::new().prefix("smg-").tempdir()?;
        let mut command = Command::new(program);
        command.arg("launch").args(["--policy", "cache_aware", "--log-level", "warn"]);
        command.args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()]);
        command.args(["--prometheus-host", &metrics.ip().to_string()]);
        command.args(["--prometheus-port", &metrics.port().to_string()]);
        command.arg("--worker-urls").args(engines.iter().map(|engine| format!("http://{engine}")));
        command.current_dir(directory.path());
        let process = Process::start("smg", command, &Output::File(directory.path().join("log")))
            .context("set SMG_BIN to the program of SMG")?;
        let leaders = vec![process.pid()];
        let running = Running::Other { _process: process, _directory: directory };
        let mut setup = Self { name: "smg".to_owned(), address, leaders, running };
        setup.answers().await?;
        Ok(setup)
    }

    /// The Envoy, if it is one.
    pub(super) fn as_envoy(&self) -> Option<&Envoy> {
        match &self.running {
            Running::Envoy { envoy, .. } => Some(envoy),
            Running::Other { .. } => None,
        }
    }

    /// Waits until a chat request is answered by an engine.
    async fn answers(&mut self) -> Result<()> {
        let start = Instant::now();
        let body = r#"{"model":"bench","messages":[{"role":"user","content":"Are you there?"}]}"#;
        loop {
            let last = match Connection::open(self.address).await {
                Ok(mut connection) => match connection.post("/v1/chat/completions", body).await {
                    Ok(reply) if reply.status == 200 => return Ok(()),
                    Ok(reply) => format!("{} {}", reply.status, reply.text()),
                    Err(error) => format!("{error:#}"),
                },
                Err(error) => format!("{error:#}"),
            };
            if let Running::Other { _process, .. } = &mut self.running
                && let Some(status) = _process.exited()
            {
                bail!("{} has ended, {status}\n{}", self.name, _process.log());
            }
            if start.elapsed() > START {
                bail!("{} does not answer: {last}", self.name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// As shipped, with connections spread evenly: else a thread without one would idle in one setup and not in another.
fn envoy_options(group: &Group, engines: &[SocketAddr]) -> EnvoyOptions {
    EnvoyOptions {
        concurrency: group.concurrency,
        exact_balance: true,
        log_level: "warning".to_owned(),
        ..EnvoyOptions::with_workers(engines.iter().copied())
    }
}

const PROCESSOR: &str = "processor";

fn processor_cluster(address: SocketAddr) -> Value {
    let mut cluster = crate::envoy::plain_cluster(PROCESSOR, &[address]);
    cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"] = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": {} },
    });
    cluster
}

/// Puts the external processor where the filter would be: whole bodies go to it, nothing of the answers does.
fn insert_processor(both: &mut Value) {
    let processor = json!({
        "name": "picker",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": { "envoy_grpc": { "cluster_name": PROCESSOR }, "timeout": "10s" },
            "message_timeout": "10s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": "BUFFERED",
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SKIP",
                "response_body_mode": "NONE",
                "response_trailer_mode": "SKIP",
            },
        },
    });
    let routing = both["listeners"].as_array_mut().into_iter().flatten().find(|listener| listener["name"] == "routing");
    let filters =
        routing.and_then(|routing| routing.pointer_mut("/filter_chains/0/filters/0/typed_config/http_filters"));
    if let Some(filters) = filters.and_then(Value::as_array_mut) {
        filters.insert(0, processor);
    }
}

/// An address that was free a moment ago, for programs that cannot choose one themselves.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
