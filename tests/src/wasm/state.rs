//! What the host keeps for one VM: its contexts, and the bookkeeping of the running callback.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use wasmtime::{Memory, TypedFunc};

use super::counters::Counters;
use super::plugin::Plugin;
use super::process::Process;
use super::side_call::SideCalls;
use super::stream::{Direction, LocalReply, Stream};

/// A plugin configuration in the VM.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) plugin: Plugin,
    pub(super) tick_period: Option<Duration>,
    /// `proxy_on_configure` runs: the configuration can be read.
    pub(super) configuring: bool,
    /// `proxy_on_done` asked for time; `proxy_done` ends it.
    pub(super) retiring: bool,
}

/// Something that the ABI calls a context.
#[derive(Debug)]
pub(super) enum Context {
    Root(Root),
    Stream(Rc<RefCell<Stream>>),
}

/// What a host call asked for that happens only after the callback.
#[derive(Debug)]
pub(super) enum Deferred {
    Resume(u32, Direction),
    Reply(u32, LocalReply),
    Retire(u32),
}

/// A host call that is to kill the VM.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trap {
    /// So many calls from now; 1 is the next.
    pub(super) left: u64,
    /// Reads of shared data count.
    pub(super) at_reads: bool,
}

/// The data of one wasmtime store.
pub(super) struct HostState {
    pub(super) process: Process,
    /// Which VM of the process.
    pub(super) vm: usize,
    pub(super) memory: Option<Memory>,
    pub(super) allocate: Option<TypedFunc<u32, u32>>,
    pub(super) contexts: BTreeMap<u32, Context>,
    next_context: u32,
    current: u32,
    /// Set by `proxy_set_effective_context`; 0 for none.
    pub(super) effective: u32,
    pub(super) deferred: Vec<Deferred>,
    /// Of the running callback.
    pub(super) counters: Counters,
    pub(super) trap: Option<Trap>,
    pub(super) side_calls: SideCalls,
    pub(super) random: StdRng,
    /// Metric names by id: ids hold within one VM.
    pub(super) metrics: BTreeMap<u32, String>,
}

impl HostState {
    pub(super) fn new(process: Process, vm: usize, generation: u64) -> Self {
        let seed = process.seed() ^ ((vm as u64 + 1) << 32) ^ (generation << 56);
        Self {
            process,
            vm,
            memory: None,
            allocate: None,
            contexts: BTreeMap::new(),
            next_context: 1,
            current: 0,
            effective: 0,
            deferred: Vec::new(),
            counters: Counters::default(),
            trap: None,
            side_calls: SideCalls::default(),
            random: StdRng::seed_from_u64(seed),
            metrics: BTreeMap::new(),
        }
    }

    pub(super) fn allocate_context(&mut self) -> u32 {
        let id = self.next_context;
        self.next_context += 1;
        id
    }

    /// A callback in `context` begins.
    pub(super) fn begin(&mut self, context: u32) {
        self.current = context;
        self.effective = 0;
        self.counters = Counters::default();
    }

    /// Counts a host call; an error kills the VM, as the test has asked.
    pub(super) fn count(&mut self, name: &'static str) -> wasmtime::Result<()> {
        *self.counters.host_calls.entry(name).or_default() += 1;
        let Some(trap) = self.trap.as_mut().filter(|trap| trap.at_reads || name != "proxy_get_shared_data") else {
            return Ok(());
        };
        trap.left = trap.left.saturating_sub(1);
        if trap.left == 0 {
            self.trap = None;
            wasmtime::bail!("the test made this call of {name} trap");
        }
        Ok(())
    }

    /// The context that host calls act on.
    pub(super) fn acting(&self) -> u32 {
        if self.contexts.contains_key(&self.effective) { self.effective } else { self.current }
    }

    /// The stream that host calls act on, if it is one.
    pub(super) fn stream(&self) -> Option<&Rc<RefCell<Stream>>> {
        match self.contexts.get(&self.acting()) {
            Some(Context::Stream(stream)) => Some(stream),
            _ => None,
        }
    }

    /// The root context that host calls act on, or that of the stream.
    pub(super) fn root_id(&self) -> u32 {
        self.stream().map_or_else(|| self.acting(), |stream| stream.borrow().root)
    }

    pub(super) fn root(&mut self, id: u32) -> Option<&mut Root> {
        match self.contexts.get_mut(&id) {
            Some(Context::Root(root)) => Some(root),
            _ => None,
        }
    }
}
