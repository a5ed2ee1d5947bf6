//! The whole stack in the foreground: engines, Envoy with the filter, the sidecar. Run by `make up`.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use clap::builder::FalseyValueParser;
use filter_core::config::Config;
use serde_json::{Value, json};
use testbed::envoy::stack::{Stack, StackOptions};
use testbed::envoy::{EnvoyOptions, Filter};
use testbed::program::arguments;
use testbed::wasm::responses_wasm;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Keeps the stack running until ctrl-c or SIGTERM; prints "ready" on a line of its own once a request is served.
#[derive(Debug, Parser)]
#[command(name = "up")]
struct Args {
    /// URLs of engines that run already, separated by spaces or commas; without it four fake engines are started.
    #[arg(long, value_name = "URLS", env = "WORKERS", default_value = "", hide_default_value = true)]
    workers: String,

    /// How a worker is chosen, such as cache_aware, least_load, round_robin, random.
    #[arg(long, value_name = "NAME", env = "POLICY")]
    policy: Option<String>,

    /// Port for clients; 0 takes a free one.
    #[arg(long, env = "PORT", default_value_t = 8080)]
    port: u16,

    /// Address for clients.
    #[arg(long, default_value_t = Ipv4Addr::UNSPECIFIED.into())]
    ip: IpAddr,

    /// Port of Envoy's admin endpoint, on loopback; 0 takes a free one.
    #[arg(long, value_name = "PORT", env = "ADMIN_PORT", default_value_t = 9901)]
    admin_port: u16,

    /// Worker threads of Envoy.
    #[arg(long, value_name = "THREADS", env = "CONCURRENCY", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,

    /// A JSON file whose keys are laid over the plugin configuration in envoy/envoy.yaml.
    #[arg(long, value_name = "FILE", env = "CONFIG")]
    config: Option<PathBuf>,

    /// Runs filter_responses.wasm, which sends what refers to a response to the engine that holds it.
    #[arg(long, env = "RESPONSES", value_parser = FalseyValueParser::new())]
    responses: bool,

    /// Seconds between two load reports.
    #[arg(long, value_name = "SECONDS", env = "LOAD_MONITOR_INTERVAL", default_value_t = 10.0, value_parser = seconds)]
    load_monitor_interval: f64,

    /// Level of the lines of Envoy, filter and sidecar on standard error.
    #[arg(long, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "warn", ignore_case = true,
          value_parser = ["trace", "debug", "info", "warn", "error"])]
    log_level: String,
}

fn main() -> ExitCode {
    let args: Args = arguments();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(args: &Args) -> Result<()> {
    let mut stop = Stop { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? };
    let mut stack = tokio::select! {
        stack = Stack::start(options(args)?) => stack?,
        () = stop.wait() => return Ok(()),
    };
    let ended = tokio::select! {
        ended = serve(&mut stack) => ended,
        () = stop.wait() => Ok(()),
    };
    stack.stop();
    ended
}

struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Says what runs and watches it; ends only by an error.
async fn serve(stack: &mut Stack) -> Result<()> {
    say(&format!("gateway  {}", stack.base_url()));
    say(&format!("admin    {}", stack.admin_url()));
    say(&format!("metrics  {}/stats/prometheus", stack.admin_url()));
    say(&format!("policy   {}", stack.envoy().plugin()["policy"].as_str().unwrap_or_default()));
    for worker in stack.workers() {
        say(&format!("worker   {worker}"));
    }
    let waiting = |last: &str| eprintln!("not ready: GET /health is answered {last}; do the workers run?");
    stack.served(waiting).await?;
    say("ready");
    loop {
        stack.check()?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// A line for whoever watches; that nobody does is no reason to end.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn options(args: &Args) -> Result<StackOptions> {
    let mut plugin = match &args.config {
        Some(path) => overlay(path).with_context(|| format!("CONFIG={}", path.display()))?,
        None => json!({}),
    };
    if let Some(policy) = &args.policy {
        let given = json!({ "policy": policy });
        Config::parse(given.to_string().as_bytes()).with_context(|| format!("POLICY={policy}"))?;
        plugin["policy"] = given["policy"].clone();
    }
    // What the filter logs passes Envoy's own level too.
    let filter = match plugin["log_level"].as_str() {
        Some(level) => level.to_owned(),
        None => args.log_level.clone(),
    };
    plugin["log_level"] = json!(filter);
    // At its start and end Envoy warns of matters that are no news here.
    let quiet = if args.log_level == "warn" { ",main:error" } else { "" };
    free("PORT", SocketAddr::new(args.ip, args.port))?;
    free("ADMIN_PORT", SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.admin_port))?;
    let separators = |character: char| character.is_whitespace() || character == ',';
    Ok(StackOptions {
        workers: args.workers.split(separators).filter(|url| !url.is_empty()).map(str::to_owned).collect(),
        envoy: EnvoyOptions {
            plugin,
            filter: if args.responses { Filter::File(responses_wasm()) } else { Filter::Built },
            ip: args.ip,
            port: args.port,
            admin_port: args.admin_port,
            concurrency: args.concurrency.into(),
            log_level: args.log_level.clone(),
            component_log_level: Some(format!("wasm:{filter}{quiet}")),
            ..EnvoyOptions::default()
        },
        load_monitor_interval: args.load_monitor_interval,
        log_level: args.log_level.clone(),
        inherit_output: true,
        ..StackOptions::default()
    })
}

/// The keys in a file, refused here if the filter would refuse them: here the file can be named.
fn overlay(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).context("give a readable file, relative to the repository")?;
    let keys: Value = serde_json::from_str(&text).context("not JSON")?;
    let Value::Object(members) = &keys else {
        bail!("must be one JSON object with keys of the plugin configuration, such as {{\"policy\": \"random\"}}");
    };
    // null takes a key of the default away.
    let given: Value = members.clone().into_iter().filter(|(_, value)| !value.is_null()).collect();
    Config::parse(given.to_string().as_bytes())?;
    Ok(keys)
}

/// Two Envoys may listen on one port and share its connections, so that Envoy itself would not complain.
fn free(variable: &str, address: SocketAddr) -> Result<()> {
    match TcpListener::bind(address) {
        Ok(_) => Ok(()),
        Err(error) => bail!(
            "{variable}={}: cannot listen on {address}, {error}; stop what listens there or choose another {variable}",
            address.port()
        ),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds)).ok_or_else(|| "0.001 to 86400".to_owned())
}
