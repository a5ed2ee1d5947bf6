//! Envoy, the sidecar and the engines of a run, and who makes the trouble.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Arena;
use super::client::{Client, DETAILS_HEADER};
use super::engines::Engines;
use super::fate::{ATTEMPTS, BODY_LIMIT, MODELS, Plan};
use super::report::{ChaosReport, Ending};
use super::sample::{Counts, Held, Sample, settle};
use super::trouble::{Change, Trouble, schedule};
use crate::envoy::stack::{Stack, StackOptions};
use crate::envoy::{EnvoyOptions, Filter, built_wasm};

/// Request header that names the point at which the module for tests traps.
const POINT_HEADER: &str = "x-crash-for-tests";

/// What the filter holds of a body, and what the listener reads at once.
const PIECE: usize = 64 << 10;

/// Requests that the clients may be ahead of a trouble.
const AHEAD: usize = 100;

/// For requests to end, once no new ones are let go: longer than any of them lasts.
const QUIET: Duration = Duration::from_secs(60);

/// A VM that was told to die on a tick is dead after it.
const DEATH: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct Bed {
    arena: Arc<Arena>,
    stack: Stack,
    engines: Engines,
    rng: SmallRng,
    began: Instant,
    /// Troubles made, by name.
    made: BTreeMap<String, usize>,
    samples: Vec<Sample>,
    /// A worker is out of the configuration.
    worker_gone: bool,
    /// The copy of the module is in use.
    copy_in_use: bool,
    refusals: u32,
    // After the stack, which reads from it.
    directory: TempDir,
}

impl Bed {
    pub(super) async fn start(arena: Arc<Arena>) -> Result<Self> {
        let settings = &arena.settings;
        let engines = Engines::start(settings.engines.into())?;
        let directory = tempfile::Builder::new().prefix("chaos-").tempdir()?;
        let envoy = EnvoyOptions {
            filter: Filter::Crashable,
            concurrency: settings.concurrency,
            plugin: json!({
                "workers": workers(&engines.addresses()),
                "max_attempts": ATTEMPTS,
                "max_buffered_request_bytes": PIECE,
                // Soon enough that engines which return are met again within the run.
                "cb_timeout_duration_secs": 1,
            }),
            drain_seconds: 20,
            edit: Some(edit),
            ..EnvoyOptions::default()
        };
        let stack = StackOptions { envoy, load_monitor_interval: 1.0, ..StackOptions::default() };
        let mut stack = Stack::start(stack).await?;
        stack.served(|_| {}).await?;
        let info = stack.envoy().admin().get_json("/server_info").await?;
        arena.history().envoy_is(info["version"].as_str().unwrap_or_default());
        let rng = SmallRng::seed_from_u64(!settings.seed);
        Ok(Self {
            stack,
            engines,
            rng,
            began: Instant::now(),
            made: BTreeMap::new(),
            samples: Vec::new(),
            worker_gone: false,
            copy_in_use: false,
            refusals: 0,
            directory,
            arena,
        })
    }

    /// Where the clients connect.
    pub(super) fn address(&self) -> SocketAddr {
        self.stack.envoy().address()
    }

    /// Makes all troubles, each when as many requests have been sent, and then lets the clients go on to their end.
    pub(super) async fn make_trouble(&mut self) -> Result<()> {
        for (when, trouble) in schedule(&self.arena.settings) {
            self.arena.allowed.send_replace(when + AHEAD);
            while self.arena.next.load(Ordering::Relaxed) < when {
                self.stack.check()?;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            self.make(trouble).await.with_context(|| format!("{trouble:?} after {when} requests"))?;
        }
        self.arena.allowed.send_replace(self.arena.settings.requests);
        Ok(())
    }

    async fn make(&mut self, trouble: Trouble) -> Result<()> {
        match trouble {
            Trouble::EngineDies => {
                if let Some(name) = self.engines.victim(self.rng.random_range(0..1000)) {
                    self.arena.history().engine_dies(name.clone());
                    self.engines.kill(&name);
                    self.count("engine dies");
                }
            }
            Trouble::EngineReturns => {
                if self.engines.revive()? {
                    self.count("engine returns");
                }
            }
            Trouble::VmDies(point) => self.crash(point).await,
            Trouble::Changes(change) => self.change(change).await?,
            Trouble::Sample(crash) => self.sample(crash).await?,
        }
        Ok(())
    }

    fn count(&mut self, name: &str) {
        *self.made.entry(name.to_owned()).or_default() += 1;
    }

    /// Sends a request that makes the VM of some thread trap; its own end is not judged.
    async fn crash(&mut self, point: &'static str) {
        self.count(&format!("VM dies at {point}"));
        let mut plan = Plan::lasting(&mut self.rng, 0);
        plan.headers.push((POINT_HEADER, point.to_owned()));
        plan.leaves_after_pieces = Some(2);
        let mut client = match self.rng.random() {
            true => Client::http1(self.address()),
            false => Client::http2(self.address(), super::Shared::default()),
        };
        self.arena.history().vm_dies();
        client.exchange(&plan, |_| {}).await;
    }

    /// Sends requests until one is answered. Where all VMs are dead nothing runs that could take their counts back, and
    /// Envoy makes a new VM only for a request.
    async fn wake(&mut self) -> Result<()> {
        for _ in 0..50 {
            let mut plan = Plan::lasting(&mut self.rng, 0);
            plan.leaves_after_pieces = Some(1);
            if Client::http1(self.address()).exchange(&plan, |_| {}).await.status == Some(200) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::bail!("no request is answered after the death of all VMs")
    }

    async fn change(&mut self, change: Change) -> Result<()> {
        let overlay = match change {
            Change::Policy(policy) => json!({ "policy": policy }),
            Change::Threshold(threshold) => json!({ "cache_threshold": threshold }),
            Change::WorkerGoes | Change::WorkersReturn => {
                self.worker_gone = change == Change::WorkerGoes;
                let mut addresses = self.engines.addresses();
                if self.worker_gone {
                    addresses.remove(self.rng.random_range(0..addresses.len()));
                }
                json!({ "workers": workers(&addresses) })
            }
            Change::Refused => {
                // Never the same one: Envoy does not ask again of one that was refused.
                self.refusals += 1;
                let refused = self.stack.envoy_mut().update_plugin(json!({ "cache_threshold": self.refusals + 1 }));
                if refused.await.is_ok() {
                    bail!("the filter has taken a threshold above 1");
                }
                self.count("configuration is refused");
                return Ok(());
            }
            Change::Module => {
                let module = match self.copy_in_use {
                    true => Filter::Crashable,
                    false => self.same_code()?,
                };
                self.copy_in_use = !self.copy_in_use;
                self.stack.envoy_mut().update_module(&module).await?;
                self.count("module is replaced");
                return Ok(());
            }
        };
        self.stack.envoy_mut().update_plugin(overlay).await?;
        self.count(match change {
            Change::WorkerGoes => "worker leaves the configuration",
            Change::WorkersReturn => "worker returns to the configuration",
            _ => "configuration changes",
        });
        Ok(())
    }

    /// The module with a section more: other code to Envoy, so it makes new VMs for it, and the same to itself.
    fn same_code(&self) -> Result<Filter> {
        let path = self.directory.path().join("filter.wasm");
        let mut code = std::fs::read(built_wasm("filter_crash_for_tests")?)?;
        // A custom section: its id, its size, the length of its name, the name.
        code.extend_from_slice(b"\x00\x06\x05chaos");
        std::fs::write(&path, code)?;
        Ok(Filter::File(path))
    }

    async fn sample(&mut self, crash: Option<&'static str>) -> Result<()> {
        if self.worker_gone {
            // The gauge of a worker that is not configured is 0, whatever it still has.
            self.change(Change::WorkersReturn).await?;
        }
        let held = Held::open(self.stack.envoy(), &mut self.rng).await;
        let arena = Arc::clone(&self.arena);
        let quiet = tokio::time::timeout(QUIET, arena.gate.write()).await;
        let _quiet = quiet.with_context(|| format!("a request has not ended within {QUIET:?}"))?;
        let begin = Instant::now();
        if let Some(point) = crash {
            self.crash(point).await;
            // Before it is dead nothing is to be seen.
            tokio::time::sleep(DEATH).await;
            if point == "everyone" {
                self.wake().await?;
            }
        }
        let envoy = self.stack.envoy();
        let sample = settle(envoy, begin, || held.streams(), crash, arena.settings.sample_within).await?;
        self.samples.push(sample);
        Ok(())
    }

    /// Waits for both counts to become 0, stops everything and says what was seen.
    pub(super) async fn end(mut self) -> Result<ChaosReport> {
        let traffic = self.began.elapsed();
        self.stack.check()?;
        let settings = &self.arena.settings;
        let envoy = self.stack.envoy();
        let ended = Instant::now();
        let (last, took) = loop {
            let counts = Counts::read(envoy).await?;
            let took = ended.elapsed();
            if counts == Counts::default() || took > settings.end_within {
                break (counts, took);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        // What has become 0 must stay so; and the dead must have been found, which takes as long as it takes.
        let stays = settle(envoy, Instant::now(), || 0, None, settings.sample_within).await?.agrees;
        let metrics = envoy.metrics().await;
        let sum = |name: &str| metrics.sum(name, &[]) as u64;
        let ending = Ending {
            last,
            took,
            stays,
            keys: sum("smg_worker_routing_keys_active"),
            reaped: sum("smg_vm_reaped_total"),
            returned: sum("smg_vm_returned_total"),
            corrections: sum("smg_in_flight_corrections_total"),
            retries: envoy.stat("cluster.engines.upstream_rq_retry").await,
            panicked: envoy.log().matches("panicked at").count(),
        };
        let report = ChaosReport {
            settings: settings.clone(),
            tally: std::mem::take(&mut *self.arena.tally()),
            made: self.made,
            samples: self.samples,
            ending,
            traffic,
            log: self.stack.envoy().log(),
        };
        self.stack.stop();
        Ok(report)
    }
}

/// The workers as the filter is told of them. Every third serves a model more: where all serve the same, nobody needs to
/// know a request's model, and none is refused for it or held until it is known.
fn workers(addresses: &[SocketAddr]) -> Value {
    let models =
        |number: usize| MODELS.into_iter().chain(number.is_multiple_of(3).then_some("chaos-rare")).collect::<Vec<_>>();
    let worker = |(number, address)| json!({ "url": format!("http://{address}"), "models": models(number) });
    addresses.iter().enumerate().map(worker).collect()
}

/// Envoy counts attempts for the engines, says why it answers itself, and has small buffers.
fn edit(both: &mut Value) {
    let Some(listener) = both["listeners"].as_array_mut().into_iter().flatten().find(|all| all["name"] == "routing")
    else {
        return;
    };
    listener["per_connection_buffer_limit_bytes"] = json!(PIECE);
    let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
    let error = json!({ "op": "GE", "value": { "default_value": 400, "runtime_key": "none" } });
    manager["local_reply_config"] = json!({ "mappers": [{
        "filter": { "status_code_filter": { "comparison": error } },
        "headers_to_add": [{ "header": { "key": DETAILS_HEADER, "value": "%RESPONSE_CODE_DETAILS%" } }],
    }] });
    // Over HTTP/2 a body may be as long as the window, if that is more than the route's limit.
    manager["http2_protocol_options"] = json!({ "initial_stream_window_size": PIECE });
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    host["include_request_attempt_count"] = json!(true);
    host["routes"][0]["request_body_buffer_limit"] = json!(BODY_LIMIT);
}
