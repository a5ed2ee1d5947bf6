//! One worker thread's VM: starting it, configuring it, calling into it, its death.

use std::cell::{RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::time::Duration;

use wasmtime::{Instance, Store, WasmParams, WasmResults};

use super::counters::Counters;
use super::exchange::Exchange;
use super::flow;
use super::message::{Headers, Request};
use super::module::engine;
use super::plugin::{Plugin, RootId, VmError};
use super::process::Process;
use super::shared::{LogLine, Notice};
use super::side_call::SideCall;
use super::state::{Context, HostState, Root, Trap};

/// More instructions than any honest callback needs: a module that loops for ever traps instead.
const FUEL: u64 = 5_000_000_000;

/// A worker thread and its VM; clones are handles of the same one.
#[derive(Clone)]
pub struct Vm {
    inner: Rc<VmInner>,
}

pub(super) struct VmInner {
    process: Process,
    index: usize,
    slot: RefCell<Slot>,
}

struct Slot {
    generation: u64,
    store: Store<HostState>,
    instance: Option<Instance>,
    death: Option<String>,
    started: bool,
    counters: Counters,
}

impl Vm {
    pub(super) fn new(process: Process, index: usize) -> Self {
        let slot = RefCell::new(Slot::new(&process, index, 0));
        Self { inner: Rc::new(VmInner { process, index, slot }) }
    }

    /// Adds a plugin configuration: a new root context.
    ///
    /// # Errors
    /// [`VmError::Refused`] when the module says no (the VM stays usable, the root context is gone),
    /// [`VmError::Dead`] when it traps.
    pub fn configure(&self, plugin: impl Into<Plugin>) -> Result<RootId, VmError> {
        let plugin = plugin.into();
        let size = plugin.config.len() as u32;
        self.process().step(|| {
            let generation = self.slot().generation;
            let logged = self.process().records(|records| records.lines.len());
            let (id, first) = {
                let mut slot = self.live(generation)?;
                let first = !std::mem::replace(&mut slot.started, true);
                let id = slot.store.data_mut().allocate_context();
                let root = Root { plugin, tick_period: None, configuring: false, retiring: false };
                slot.store.data_mut().contexts.insert(id, Context::Root(root));
                (id, first)
            };
            let _: Option<()> = self.call(generation, id, "proxy_on_context_create", (id, 0_u32))?;
            let mut accepted = 1_u32;
            if first {
                accepted = self.call(generation, id, "proxy_on_vm_start", (id, 0_u32))?.unwrap_or(1);
            }
            if accepted != 0 {
                self.with_state(|state| state.root(id).map(|root| root.configuring = true));
                accepted = self.call(generation, id, "proxy_on_configure", (id, size))?.unwrap_or(1);
                self.with_state(|state| state.root(id).map(|root| root.configuring = false));
            }
            flow::settle(self, generation)?;
            if accepted == 0 {
                self.with_state(|state| state.contexts.remove(&id));
                let logs = self.logs_since(logged);
                return Err(VmError::Refused { logs });
            }
            Ok(RootId { generation, id })
        })
    }

    /// Lets the timer of a root context fire, after the time limits of side calls.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn tick(&self, root: RootId) -> Result<(), VmError> {
        let now = self.process().now();
        for call in self.side_calls() {
            if call.made + Duration::from_millis(call.timeout_ms.into()) <= now {
                self.answer_side_call(&call, None)?;
            }
        }
        self.process().step(|| {
            let _: Option<()> = self.call(root.generation, root.id, "proxy_on_tick", root.id)?;
            flow::settle(self, root.generation)
        })
    }

    /// The requests that the module has made itself and that are not answered yet, the oldest first.
    pub fn side_calls(&self) -> Vec<SideCall> {
        self.with_state(|state| state.side_calls.open.clone())
    }

    /// Answers such a request with a status and a body; without an answer it has failed or taken too long.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn answer_side_call(&self, call: &SideCall, answer: Option<(u16, &[u8])>) -> Result<(), VmError> {
        self.process().step(|| {
            let generation = self.slot().generation;
            let open = self.with_state(|state| {
                let before = state.side_calls.open.len();
                state.side_calls.open.retain(|other| other.number != call.number);
                state.side_calls.open.len() < before && state.contexts.contains_key(&call.context)
            });
            if !open {
                return Ok(());
            }
            let (count, size) = answer.map_or((0, 0), |(_, body)| (1_u32, body.len() as u32));
            self.with_state(|state| {
                state.side_calls.answer = answer.map(|(status, body)| {
                    let mut headers = Headers::default();
                    headers.add(":status", status.to_string());
                    (headers, body.to_vec())
                });
            });
            let params = (call.context, call.number, count, size, 0_u32);
            let _: Option<()> = self.call(generation, call.context, "proxy_on_http_call_response", params)?;
            self.with_state(|state| state.side_calls.answer = None);
            flow::settle(self, generation)
        })
    }

    /// The period that a root context asked for, if it wants ticks at all.
    pub fn tick_period(&self, root: RootId) -> Option<Duration> {
        self.with_state(|state| state.root(root.id).and_then(|root| root.tick_period))
    }

    /// Runs the request phases of a new exchange.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn send(&self, root: RootId, request: Request) -> Result<Exchange, VmError> {
        Exchange::open(self, root.generation, root.id, request)
    }

    /// Takes a plugin configuration away, as Envoy does once the last stream of its listener has ended.
    /// A module that asked for time keeps the root context until it calls `proxy_done`.
    ///
    /// # Errors
    /// When the VM is dead or dies.
    pub fn retire(&self, root: RootId) -> Result<(), VmError> {
        self.process().step(|| {
            let done: Option<u32> = self.call(root.generation, root.id, "proxy_on_done", root.id)?;
            if done == Some(0) {
                self.with_state(|state| state.root(root.id).map(|root| root.retiring = true));
                return flow::settle(self, root.generation);
            }
            flow::settle(self, root.generation)?;
            self.delete_context(root.generation, root.id)
        })
    }

    /// Kills the VM like a trap: no stream in it gets another callback.
    pub fn kill(&self) {
        self.slot().death.get_or_insert_with(|| "killed by the test".to_owned());
    }

    /// Starts a fresh VM on this thread, as `FAIL_RELOAD` does: shared data stay, memory and contexts are new.
    pub fn reload(&self) {
        let generation = self.slot().generation + 1;
        let fresh = Slot::new(&self.inner.process, self.inner.index, generation);
        *self.slot() = fresh;
    }

    /// What killed the VM, if it is dead.
    pub fn death(&self) -> Option<String> {
        self.slot().death.clone()
    }

    /// Makes the `nth` host call from now on trap (1 is the next).
    pub fn trap_at_host_call(&self, nth: u64) {
        self.with_state(|state| state.trap = Some(Trap { left: nth.max(1), at_reads: true }));
    }

    /// The same without counting reads of shared data: they leave no trace, so who dies at one leaves behind what who dies
    /// at the next other call does.
    pub fn trap_at_other_than_read(&self, nth: u64) {
        self.with_state(|state| state.trap = Some(Trap { left: nth.max(1), at_reads: false }));
    }

    /// Takes back both.
    pub fn never_trap(&self) {
        self.with_state(|state| state.trap = None);
    }

    /// Everything this VM has cost since it started.
    pub fn counters(&self) -> Counters {
        self.slot().counters.clone()
    }

    /// Exchanges that have begun and not ended.
    pub fn open_exchanges(&self) -> usize {
        self.with_state(|state| state.contexts.values().filter(|c| matches!(c, Context::Stream(_))).count())
    }

    /// The size of the VM's linear memory in bytes; it never shrinks.
    pub fn memory_size(&self) -> usize {
        let slot = self.slot();
        slot.store.data().memory.map_or(0, |memory| memory.data_size(&slot.store))
    }

    /// The lines that this VM has logged.
    pub fn logs(&self) -> Vec<LogLine> {
        self.logs_since(0)
    }

    fn logs_since(&self, first: usize) -> Vec<LogLine> {
        let index = self.inner.index;
        self.process()
            .records(|records| records.lines.iter().skip(first).filter(|line| line.vm == index).cloned().collect())
    }

    pub(super) fn queue_ready(&self, notice: Notice) {
        let generation = self.slot().generation;
        // A context id that means nothing in this VM is dropped, as Envoy drops it; one that means a stream is not.
        if self.with_state(|state| state.contexts.contains_key(&notice.context)) {
            let call = self.call(generation, notice.context, "proxy_on_queue_ready", (notice.context, notice.queue));
            // An error has killed the VM: the next use tells.
            let _ = call.and_then(|_: Option<()>| flow::settle(self, generation));
        }
    }

    pub(super) fn delete_context(&self, generation: u64, id: u32) -> Result<(), VmError> {
        let _: Option<()> = self.call(generation, id, "proxy_on_delete", id)?;
        self.with_state(|state| state.contexts.remove(&id));
        flow::settle(self, generation)
    }

    /// Calls an export in `context`; `None` if the module does not export it.
    pub(super) fn call<P, R>(
        &self,
        generation: u64,
        context: u32,
        name: &'static str,
        params: P,
    ) -> Result<Option<R>, VmError>
    where
        P: WasmParams,
        R: WasmResults,
    {
        let mut slot = self.live(generation)?;
        let Slot { store, instance, death, counters, .. } = &mut *slot;
        let Some(function) = instance.as_ref().and_then(|instance| instance.get_func(&mut *store, name)) else {
            return Ok(None);
        };
        store.data_mut().begin(context);
        let result = function.typed::<P, R>(&*store).and_then(|function| {
            store.set_fuel(FUEL)?;
            function.call(&mut *store, params)
        });
        let fuel = FUEL - store.get_fuel().unwrap_or(FUEL);
        let state = store.data_mut();
        let mut spent = std::mem::take(&mut state.counters);
        spent.fuel = fuel;
        *spent.callbacks.entry(name).or_default() += 1;
        counters.add(&spent);
        if let Some(Context::Stream(stream)) = state.contexts.get(&context) {
            stream.borrow_mut().counters.add(&spent);
        }
        result.map(Some).map_err(|error| {
            let reason = format!("{name}: {error:?}");
            *death = Some(reason.clone());
            VmError::Dead { reason }
        })
    }

    pub(super) fn check_alive(&self, generation: u64) -> Result<(), VmError> {
        self.live(generation).map(drop)
    }

    pub(super) fn with_state<T>(&self, work: impl FnOnce(&mut HostState) -> T) -> T {
        work(self.slot().store.data_mut())
    }

    pub(super) fn process(&self) -> &Process {
        &self.inner.process
    }

    pub(super) fn index(&self) -> usize {
        self.inner.index
    }

    pub(super) fn downgrade(&self) -> Weak<VmInner> {
        Rc::downgrade(&self.inner)
    }

    pub(super) fn from_inner(inner: Rc<VmInner>) -> Self {
        Self { inner }
    }

    fn slot(&self) -> RefMut<'_, Slot> {
        self.inner.slot.try_borrow_mut().expect("this VM is inside a callback: use another one in the hook")
    }

    fn live(&self, generation: u64) -> Result<RefMut<'_, Slot>, VmError> {
        let slot = self.slot();
        match &slot.death {
            Some(reason) => Err(VmError::Dead { reason: reason.clone() }),
            None if slot.generation != generation => Err(VmError::Dead { reason: "replaced by a reload".to_owned() }),
            None => Ok(slot),
        }
    }
}

impl Slot {
    fn new(process: &Process, index: usize, generation: u64) -> Self {
        let store = Store::new(engine(), HostState::new(process.clone(), index, generation));
        let mut slot =
            Self { generation, store, instance: None, death: None, started: false, counters: Counters::default() };
        if let Err(error) = slot.start(process) {
            slot.death = Some(format!("starting the module: {error:?}"));
        }
        slot
    }

    fn start(&mut self, process: &Process) -> wasmtime::Result<()> {
        let store = &mut self.store;
        store.set_fuel(FUEL)?;
        let instance = process.module().instantiate(&mut *store)?;
        store.data_mut().memory = instance.get_memory(&mut *store, "memory");
        for name in ["proxy_on_memory_allocate", "malloc"] {
            if let Ok(allocate) = instance.get_typed_func(&mut *store, name) {
                store.data_mut().allocate.get_or_insert(allocate);
            }
        }
        self.instance = Some(instance);
        if let Ok(initialize) = instance.get_typed_func::<(), ()>(&mut *store, "_initialize") {
            initialize.call(&mut *store, ())?;
        }
        Ok(())
    }
}
