//! Several VMs over one store, of which the first is about to die.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::{Value, json};
use testbed::wasm::{Exchange, Process, Request, RootId, Vm, VmError, filter_wasm};

use crate::fleet::{chat_body, first, worker_address, worker_url};
use crate::tables::Tables;

pub(super) const WORKERS: usize = 3;

/// Names the header of routing keys in configurations where they are not to be read.
pub(super) const NO_KEYS: &str = "x-nobody-sends-this";

const TICK: Duration = Duration::from_millis(250);

/// A request in flight: where it is counted, and under which routing key.
pub(super) struct Held {
    exchange: Exchange,
    worker: usize,
    key: Option<&'static str>,
}

/// One thread: its VM and what it has in flight.
pub(super) struct Thread {
    pub(super) vm: Vm,
    pub(super) root: RootId,
    pub(super) held: Vec<Held>,
}

impl Thread {
    /// Sends a chat request and keeps it in flight.
    pub(super) fn hold(&mut self, key: Option<&'static str>) -> Result<(), VmError> {
        let exchange = self.vm.send(self.root, keyed(key))?;
        let named = first(&exchange);
        let worker = (0..WORKERS).find(|worker| worker_address(*worker) == named).unwrap();
        self.held.push(Held { exchange, worker, key });
        Ok(())
    }

    /// Ends everything that it has in flight.
    pub(super) fn finish(&mut self) -> Result<(), VmError> {
        self.held.drain(..).try_for_each(|held| held.exchange.finish().map(drop))
    }
}

/// The threads of one process. Thread 0 is the one whose VM dies.
pub(super) struct Bed {
    pub(super) process: Process,
    pub(super) config: String,
    pub(super) threads: Vec<Thread>,
    pub(super) tables: Tables,
    /// The root context of thread 0, if it has the ingest listener's configuration too.
    pub(super) ingest: Option<RootId>,
    /// The host call that traps, counted from where the fate begins, and whether reads count.
    trap: (u64, bool),
}

/// What thread 0 has done before its VM dies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Past {
    /// It has ticked and has requests in flight; else its VM is new.
    pub(super) seasoned: bool,
    /// It leads.
    pub(super) leads: bool,
    /// Once dead, it has a new VM that takes requests.
    pub(super) reloads: bool,
}

impl Bed {
    /// A process whose threads 1 and 2 have requests in flight.
    pub(super) fn new(more: &Value, past: Past) -> Self {
        let workers: Vec<_> = (0..WORKERS).map(|worker| json!({"url": worker_url(worker), "models": ["m"]})).collect();
        let mut config = json!({"max_workers": 64, "workers": workers});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = config.to_string();
        let process = Process::new(&filter_wasm()).unwrap();
        let threads = (0..3).map(|_| thread(process.vm(), &config)).collect();
        let tables = Tables::new(&config, process.store());
        let mut bed = Self { process, config, threads, tables, ingest: None, trap: (u64::MAX, true) };
        // Who ticks first leads.
        bed.tick(if past.leads { &[0, 1, 2] } else { &[1, 2] });
        if past.seasoned {
            [Some("a"), Some("c"), None].into_iter().for_each(|key| bed.threads[0].hold(key).unwrap());
            bed.tick(&[0]);
        }
        [Some("a"), None].into_iter().for_each(|key| bed.threads[1].hold(key).unwrap());
        [Some("a"), Some("b")].into_iter().for_each(|key| bed.threads[2].hold(key).unwrap());
        bed
    }

    /// Lets a tick's time pass with a tick in each of these threads.
    pub(super) fn tick(&self, threads: &[usize]) {
        self.try_tick(threads).unwrap();
    }

    pub(super) fn try_tick(&self, threads: &[usize]) -> Result<(), VmError> {
        self.process.advance(TICK);
        threads.iter().try_for_each(|thread| self.threads[*thread].vm.tick(self.threads[*thread].root))
    }

    /// Makes host call `call` of thread 0 trap.
    pub(super) fn arm(&mut self, call: u64, reads: bool) {
        self.trap = (call, reads);
        self.arm_again();
    }

    /// The same for a new VM of thread 0.
    pub(super) fn arm_again(&self) {
        let vm = &self.threads[0].vm;
        let (call, reads) = self.trap;
        if reads { vm.trap_at_host_call(call) } else { vm.trap_at_other_than_read(call) }
    }

    /// A further thread that dies at once, with requests in flight.
    pub(super) fn bury_another(&mut self) {
        let mut dead = thread(self.process.vm(), &self.config);
        [Some("a"), Some("d"), None].into_iter().for_each(|key| dead.hold(key).unwrap());
        dead.vm.kill();
    }

    /// Gives thread 0 a new VM.
    pub(super) fn reload(&mut self) {
        let dead = &mut self.threads[0];
        dead.vm.reload();
        *dead = thread(dead.vm.clone(), &self.config);
    }

    /// What is in flight in `threads`, by worker: requests and distinct keys.
    pub(super) fn truth(&self, threads: &[usize]) -> (Vec<u32>, Vec<i32>) {
        let (mut requests, mut keys) = (vec![0; WORKERS], vec![HashSet::new(); WORKERS]);
        for held in threads.iter().flat_map(|thread| &self.threads[*thread].held) {
            requests[held.worker] += 1;
            keys[held.worker].extend(held.key.filter(|_| !self.config.contains(NO_KEYS)));
        }
        (requests, keys.iter().map(|keys| i32::try_from(keys.len()).unwrap()).collect())
    }

    /// What the shared tables say of the same.
    pub(super) fn counted(&self) -> (Vec<u32>, Vec<i32>) {
        let slots = &self.tables.slots()[..WORKERS];
        (slots.iter().map(|slot| slot.in_flight).collect(), slots.iter().map(|slot| slot.keys).collect())
    }

    /// What operators see of requests in flight.
    pub(super) fn gauges(&self) -> Vec<u32> {
        let gauge = |worker| format!("smg_worker_requests_active;worker={}", worker_url(worker));
        (0..WORKERS).map(|worker| u32::try_from(self.process.metric(&gauge(worker))).unwrap()).collect()
    }
}

fn thread(vm: Vm, config: &str) -> Thread {
    let root = vm.configure(config).unwrap();
    Thread { vm, root, held: Vec::new() }
}

/// A chat request with a routing key or none.
pub(super) fn keyed(key: Option<&str>) -> Request {
    let request = Request::post("/v1/chat/completions", chat_body("Once upon a time, in the middle of a long prompt"));
    match key {
        Some(key) => request.header("x-smg-routing-key", key),
        None => request,
    }
}
