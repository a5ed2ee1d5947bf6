//! One Envoy process: what its threads share, the clock, and the hook with which tests interfere.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use anyhow::Result;
use filter_core::store::{MemoryStore, Store, StoreError, Versioned, Write};
use wasmtime::{InstancePre, Linker, Module};

use super::abi::Status;
use super::shared::{LogLine, Metric, Queues, Records};
use super::state::HostState;
use super::vm::{Vm, VmInner};
use super::{imports, module};

/// A process with one module; clones are handles of the same process.
#[derive(Clone)]
pub struct Process {
    inner: Rc<Inner>,
}

struct Inner {
    module: InstancePre<HostState>,
    store: MemoryStore,
    vms: RefCell<Vec<Weak<VmInner>>>,
    queues: RefCell<Queues>,
    records: RefCell<Records>,
    hook: RefCell<Option<Hook>>,
    now: Cell<Duration>,
    seed: Cell<u64>,
    depth: Cell<u32>,
    notices_held: Cell<bool>,
}

/// What a module is about to do to shared data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access<'a> {
    /// `proxy_get_shared_data`.
    Get {
        /// The key.
        key: &'a str,
    },
    /// `proxy_set_shared_data`.
    Set {
        /// The key.
        key: &'a str,
        /// The new value.
        value: &'a [u8],
        /// The version that the module has seen; `None` writes whatever is there.
        version: Option<u32>,
    },
}

type Hook = Box<dyn FnMut(&Access<'_>, &mut MemoryStore) -> Option<Status>>;

/// More notices than this after one step can only be a module that wakes itself for ever.
const MAX_NOTICES: usize = 10_000;

impl Process {
    /// A process that runs the module at `path`; each file is compiled once per test binary.
    ///
    /// # Errors
    /// When the file cannot be read or is no valid module.
    pub fn new(path: &Path) -> Result<Self> {
        Self::sharing(path, MemoryStore::default())
    }

    /// The same over shared data that another process has too: a process lives on one thread, so VMs that shall run on
    /// several have one each. Clock, queues and metrics are not shared.
    ///
    /// # Errors
    /// When the file cannot be read or is no valid module.
    pub fn sharing(path: &Path, store: MemoryStore) -> Result<Self> {
        Self::with_module(&module::load(path)?, store)
    }

    /// A process that runs a module given as bytes, in binary or text form.
    ///
    /// # Errors
    /// When it is no valid module.
    pub fn from_code(code: impl AsRef<[u8]>) -> Result<Self> {
        Self::with_module(&module::compile(code.as_ref())?, MemoryStore::default())
    }

    fn with_module(module: &Module, store: MemoryStore) -> Result<Self> {
        let link = || -> wasmtime::Result<InstancePre<HostState>> {
            let mut linker = Linker::new(module.engine());
            imports::define(&mut linker)?;
            linker.define_unknown_imports_as_traps(module)?;
            linker.instantiate_pre(module)
        };
        let module = link().map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let inner = Inner {
            module,
            store,
            vms: RefCell::default(),
            queues: RefCell::default(),
            records: RefCell::default(),
            hook: RefCell::default(),
            now: Cell::new(Duration::from_secs(1_700_000_000)),
            seed: Cell::new(1),
            depth: Cell::new(0),
            notices_held: Cell::new(false),
        };
        Ok(Self { inner: Rc::new(inner) })
    }

    /// A new worker thread with a VM of its own. If the module cannot even start, the first use of the VM says why.
    pub fn vm(&self) -> Vm {
        let index = self.inner.vms.borrow().len();
        let vm = Vm::new(self.clone(), index);
        self.inner.vms.borrow_mut().push(vm.downgrade());
        vm
    }

    /// The shared data itself.
    pub fn store(&self) -> MemoryStore {
        self.inner.store.clone()
    }

    /// Calls `hook` before every access to shared data.
    /// It may change the store (which makes an honest conflict), use *another* VM (which makes a true race),
    /// or return a status, which the module then gets without the store being touched.
    /// Accesses made inside the hook do not call it again.
    pub fn intercept(&self, hook: impl FnMut(&Access<'_>, &mut MemoryStore) -> Option<Status> + 'static) {
        *self.inner.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Ends [`intercept`](Self::intercept).
    pub fn stop_intercepting(&self) {
        *self.inner.hook.borrow_mut() = None;
    }

    /// The time since the epoch that every clock of every VM shows. It stands still unless a test moves it.
    pub fn now(&self) -> Duration {
        self.inner.now.get()
    }

    /// Sets the clock, also backwards.
    pub fn set_now(&self, now: Duration) {
        self.inner.now.set(now);
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.inner.now.set(self.inner.now.get() + by);
    }

    /// The seed of `random_get` for VMs that start from now on (each VM draws its own sequence).
    pub fn set_seed(&self, seed: u64) {
        self.inner.seed.set(seed);
    }

    /// The value of a counter or gauge, the number of samples of a histogram, 0 for a name that nobody defined.
    pub fn metric(&self, name: &str) -> u64 {
        match self.inner.records.borrow().metrics.get(name) {
            Some(Metric::Counter(value) | Metric::Gauge(value)) => *value,
            Some(Metric::Histogram(samples)) => samples.len() as u64,
            None => 0,
        }
    }

    /// All metrics by name.
    pub fn metrics(&self) -> BTreeMap<String, Metric> {
        self.inner.records.borrow().metrics.clone()
    }

    /// Every line logged so far, by all VMs. Lines also go to the test's output, which a failed test shows.
    pub fn logs(&self) -> Vec<LogLine> {
        self.inner.records.borrow().lines.clone()
    }

    /// How many messages wait in a queue.
    pub fn queued(&self, name: &str) -> usize {
        self.inner.queues.borrow().waiting(name.as_bytes())
    }

    /// Keeps back (or lets go) the calls of `proxy_on_queue_ready`, which otherwise follow each step of a test.
    pub fn hold_queue_notices(&self, hold: bool) {
        self.inner.notices_held.set(hold);
        self.step(|| ());
    }

    /// Runs one step of a test; calls that the step posted to VMs follow when the outermost step has ended.
    pub(super) fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        let depth = &self.inner.depth;
        depth.set(depth.get() + 1);
        let result = work();
        if depth.get() == 1 {
            self.deliver_notices();
        }
        depth.set(depth.get() - 1);
        result
    }

    fn deliver_notices(&self) {
        for _ in 0..MAX_NOTICES {
            if self.inner.notices_held.get() {
                return;
            }
            let Some(notice) = self.queues(Queues::next_notice) else { return };
            let vm = self.inner.vms.borrow().get(notice.vm).and_then(Weak::upgrade);
            if let Some(vm) = vm {
                Vm::from_inner(vm).queue_ready(notice);
            }
        }
        panic!("more than {MAX_NOTICES} queue notices after one step: the module wakes itself");
    }

    pub(super) fn module(&self) -> &InstancePre<HostState> {
        &self.inner.module
    }

    pub(super) fn seed(&self) -> u64 {
        self.inner.seed.get()
    }

    pub(super) fn queues<T>(&self, work: impl FnOnce(&mut Queues) -> T) -> T {
        work(&mut self.inner.queues.borrow_mut())
    }

    pub(super) fn records<T>(&self, work: impl FnOnce(&mut Records) -> T) -> T {
        work(&mut self.inner.records.borrow_mut())
    }

    pub(super) fn log(&self, vm: usize, level: u32, message: &[u8]) {
        let message = String::from_utf8_lossy(message).into_owned();
        eprintln!("[vm {vm}, level {level}] {message}");
        self.records(|records| records.lines.push(LogLine { vm, level, message }));
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.interfere(&Access::Get { key })?;
        self.inner.store.clone().get(key)
    }

    pub(super) fn set(&self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        self.interfere(&Access::Set { key, value, version })?;
        self.inner.store.clone().set(key, value, version)
    }

    fn interfere(&self, access: &Access<'_>) -> Result<(), StoreError> {
        // Taken out while it runs: it may use another VM, whose accesses must not come back here.
        let Some(mut hook) = self.inner.hook.borrow_mut().take() else { return Ok(()) };
        let status = hook(access, &mut self.inner.store.clone());
        self.inner.hook.borrow_mut().get_or_insert(hook);
        status.map_or(Ok(()), |status| Err(StoreError(status as u32)))
    }
}
