//! The filter at work in several VMs, and what an operator can see of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::wasm::{Counters, Exchange, Process, Request, Response, RootId, Vm, filter_wasm};

/// One process with the filter configured in every VM.
pub(crate) struct Fleet {
    pub(crate) process: Process,
    vms: Vec<(Vm, RootId)>,
}

/// Ticks after which every VM has done what it does only now and then.
const SETTLE_TICKS: u32 = 40;
const TICK: Duration = Duration::from_millis(250);

impl Fleet {
    /// `vms` VMs with the members of `config` and `workers` workers without models.
    pub(crate) fn new(vms: usize, workers: usize, config: Value) -> Self {
        Self::of(&filter_wasm(), vms, workers, config)
    }

    /// The same with another module.
    pub(crate) fn of(module: &Path, vms: usize, workers: usize, config: Value) -> Self {
        let urls: Vec<_> = (0..workers).map(worker_url).collect();
        let mut members = json!({"workers": urls});
        members.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let process = Process::new(module).unwrap();
        let vms = (0..vms)
            .map(|_| {
                let vm = process.vm();
                let root = vm.configure(members.to_string()).unwrap();
                (vm, root)
            })
            .collect();
        let fleet = Self { process, vms };
        fleet.settle();
        fleet
    }

    pub(crate) fn vm(&self, index: usize) -> &Vm {
        &self.vms[index].0
    }

    /// Lets the timer of one VM fire.
    #[track_caller]
    pub(crate) fn tick(&self, index: usize) {
        let (vm, root) = &self.vms[index];
        vm.tick(*root).unwrap();
    }

    /// Sends a request through one VM.
    #[track_caller]
    pub(crate) fn send(&self, vm: usize, request: Request) -> Exchange {
        let (vm, root) = &self.vms[vm];
        vm.send(*root, request).unwrap()
    }

    /// A request that the first named endpoint answers with 200; returns that endpoint and the cost.
    #[track_caller]
    pub(crate) fn complete(&self, vm: usize, request: Request) -> (String, Counters) {
        let mut exchange = self.send(vm, request);
        let engine = first(&exchange);
        exchange.respond(Response::from_engine(200, &engine)).unwrap();
        exchange.response_body("{}", true).unwrap();
        (engine, exchange.finish().unwrap())
    }

    /// Lets time pass with ticks in every VM, until gauges tell the truth.
    pub(crate) fn settle(&self) {
        for _ in 0..SETTLE_TICKS {
            self.process.advance(TICK);
            for (vm, root) in &self.vms {
                vm.tick(*root).unwrap();
            }
        }
    }

    /// Requests in flight by worker, as the gauge says.
    pub(crate) fn in_flight(&self) -> BTreeMap<String, u64> {
        self.settle();
        let metrics = self.process.metrics();
        let workers = metrics.keys().filter_map(|name| name.strip_prefix("smg_worker_requests_active;worker="));
        workers
            .map(|worker| {
                let count = self.process.metric(&format!("smg_worker_requests_active;worker={worker}"));
                (worker.trim_end_matches(';').to_owned(), count)
            })
            .collect()
    }

    /// All requests in flight.
    pub(crate) fn in_flight_total(&self) -> u64 {
        let counts = self.in_flight();
        assert!(!counts.is_empty(), "the leader has published no gauge");
        counts.values().sum()
    }

    /// How often `cache_aware` took a branch.
    pub(crate) fn branch(&self, name: &str) -> u64 {
        self.settle();
        self.process.metric(&format!("smg_cache_aware_policy_branch_total;branch={name}"))
    }
}

/// The URL of worker `index`, counted from 0.
pub(crate) fn worker_url(index: usize) -> String {
    format!("http://{}", worker_address(index))
}

/// Its `ip:port`.
pub(crate) fn worker_address(index: usize) -> String {
    format!("10.0.{}.{}:8000", index / 250, index % 250 + 1)
}

/// The endpoint that the proxy tries first.
#[track_caller]
pub(crate) fn first(exchange: &Exchange) -> String {
    let destination = exchange.destination().expect("the filter has named no endpoint");
    destination.split(',').next().unwrap().to_owned()
}

/// A chat completion whose prompt is `text`.
pub(crate) fn chat(text: &str) -> Request {
    Request::post("/v1/chat/completions", chat_body(text))
}

pub(crate) fn chat_body(text: &str) -> String {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string()
}

/// Text of `size` bytes that no other `seed` shares a prefix with.
pub(crate) fn prompt(seed: usize, size: usize) -> String {
    let mut text = format!("{seed:08} ");
    let mut state = seed as u64;
    while text.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += &format!("word{} ", state >> 40);
    }
    text.truncate(size);
    text
}
