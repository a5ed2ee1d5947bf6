//! What one VM (one thread of Envoy) keeps in memory, and the events that reach it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::rc::Rc;

use filter_core::balancer::{Balancer, Context, Ledger, Level, Log};
use filter_core::config::{Config, LogLevel};
use filter_core::ingest::Unclaimed;
use filter_core::metrics::{Kind, Metrics};
use filter_core::request::Facts;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use crate::host::{self, SharedData};
use crate::http::Stream;
use crate::pull::Pulls;

/// How often a VM ticks, in milliseconds: the delay of gauges and of what a lost race has left to do.
pub(crate) const TICK_MS: u32 = 250;

/// A root context: one plugin configuration.
#[derive(Debug, Clone)]
pub(crate) enum Root {
    /// Balances requests.
    Route(Rc<RefCell<Balancer>>, Rc<RefCell<Ledger>>),
    /// Takes load snapshots.
    Ingest(Rc<Config>),
    /// Stands in for a configuration that is invalid: requests pass.
    Passthrough,
}

impl Root {
    /// The log as this configuration wants it.
    pub(crate) fn log(&self) -> HostLog {
        match self {
            Self::Route(balancer, _) => {
                balancer.try_borrow().map_or(HostLog::INFO, |balancer| HostLog::of(balancer.config()))
            }
            Self::Ingest(config) => HostLog::of(config),
            Self::Passthrough => HostLog::INFO,
        }
    }
}

/// One VM.
pub(crate) struct Vm {
    /// Random; tells this VM from all others.
    pub(crate) identity: u64,
    pub(crate) rng: SmallRng,
    pub(crate) metrics: Metrics,
    /// What this VM has in flight, by the tables it is counted in.
    ledgers: Vec<(String, Rc<RefCell<Ledger>>)>,
    pub(crate) facts: Facts,
    pub(crate) roots: HashMap<u32, Root>,
    pub(crate) streams: HashMap<u32, Stream, ahash::RandomState>,
    /// Held requests of which it is not known that their bodies will come.
    pub(crate) unproven: Vec<u32>,
    pub(crate) queue: Option<u32>,
    pub(crate) unclaimed: Unclaimed,
    pub(crate) pulls: Pulls,
    /// The wall clock as of the last tick or configuration, in Unix milliseconds. It is what exchanges go by: they
    /// compare seconds (breakers) and report intervals with it, so a quarter of a second does not matter, and reading
    /// the clock in each callback would be four host calls a request.
    pub(crate) now_ms: u64,
    last_tick_ms: u64,
}

/// Envoy's log. Each configuration has its own least level, although all of a thread share one VM.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostLog {
    least: Level,
}

impl HostLog {
    /// The default.
    pub(crate) const INFO: Self = Self { least: Level::Info };

    /// The log as `config` wants it.
    pub(crate) fn of(config: &Config) -> Self {
        let least = match config.log_level {
            LogLevel::Trace | LogLevel::Debug => Level::Debug,
            LogLevel::Info => Level::Info,
            LogLevel::Warn => Level::Warn,
            LogLevel::Error => Level::Error,
        };
        Self { least }
    }
}

impl Log for HostLog {
    fn wants(&self, level: Level) -> bool {
        level >= self.least
    }

    fn line(&mut self, level: Level, text: &str) {
        if self.wants(level) {
            let level = match level {
                Level::Debug => 1,
                Level::Info => 2,
                Level::Warn => 3,
                Level::Error => 4,
            };
            host::log(level, text);
        }
    }
}

impl Vm {
    pub(crate) fn new() -> Self {
        // The standard library seeds its hashers with the host's randomness.
        let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
        Self {
            identity: random(),
            rng: SmallRng::seed_from_u64(random()),
            metrics: Metrics::default(),
            ledgers: Vec::new(),
            facts: Facts::default(),
            roots: HashMap::new(),
            streams: HashMap::with_hasher(ahash::RandomState::with_seeds(random(), random(), random(), random())),
            unproven: Vec::new(),
            queue: None,
            unclaimed: Unclaimed::default(),
            pulls: Pulls::default(),
            now_ms: 0,
            last_tick_ms: 0,
        }
    }

    /// Runs `work` with everything a balancer's step is given, at the present time.
    pub(crate) fn with_context<T>(&mut self, mut log: HostLog, work: impl FnOnce(&mut Context<'_>) -> T) -> T {
        self.now_ms = host::now_nanos() / 1_000_000;
        let mut context = Context {
            store: &mut SharedData,
            rng: &mut self.rng,
            now_ms: self.now_ms,
            metrics: &mut self.metrics,
            log: &mut log,
        };
        work(&mut context)
    }

    /// A root context's tick. What belongs to the VM is done for the first root of a period only.
    pub(crate) fn tick(&mut self, id: u32) {
        if let Some(root) = self.roots.get(&id)
            && let Root::Route(balancer, ledger) = root
        {
            let (balancer, ledger, log) = (Rc::clone(balancer), Rc::clone(ledger), root.log());
            self.with_context(log, |context| {
                if let (Ok(mut balancer), Ok(mut ledger)) = (balancer.try_borrow_mut(), ledger.try_borrow_mut())
                    && let Err(error) = balancer.tick(context, &mut ledger)
                {
                    context.log.line(Level::Error, &format!("tick: {error}"));
                }
            });
        }
        crate::pull::on_tick(self, id);
        self.now_ms = host::now_nanos() / 1_000_000;
        if self.now_ms.abs_diff(self.last_tick_ms) < u64::from(TICK_MS) / 2 {
            // Roots tick at different times: what this one has set must not wait for the first one's next tick.
            self.flush_metrics();
            return;
        }
        self.last_tick_ms = self.now_ms;
        self.tick_ledgers();
        crate::http::on_tick(self, id);
        crate::ingest::drain(self);
        self.flush_metrics();
    }

    /// The ledger for the tables of `config`.
    pub(crate) fn ledger(&mut self, config: &Config) -> Rc<RefCell<Ledger>> {
        let tables = Ledger::tables(config);
        if let Some((_, ledger)) = self.ledgers.iter().find(|(known, _)| *known == tables) {
            return Rc::clone(ledger);
        }
        let ledger = Rc::new(RefCell::new(Ledger::new(config, self.rng.next_u64())));
        self.ledgers.push((tables, Rc::clone(&ledger)));
        ledger
    }

    /// Ticks all ledgers, also those of tables that only streams of replaced configurations are still counted in.
    fn tick_ledgers(&mut self) {
        for (_, ledger) in self.ledgers.clone() {
            self.with_context(HostLog::INFO, |context| {
                if let Ok(mut ledger) = ledger.try_borrow_mut()
                    && let Err(error) = ledger.tick(context)
                {
                    context.log.line(Level::Error, &format!("tick: {error}"));
                }
            });
        }
        // One that nothing but this list holds is of no more use.
        self.ledgers.retain(|(_, ledger)| {
            let used = Rc::strong_count(ledger) > 1 || ledger.try_borrow().is_ok_and(|ledger| !ledger.is_empty());
            if !used {
                resign(ledger);
            }
            used
        });
    }

    /// A configuration has been replaced: keeps what it has counted. Streams that it still serves keep it alive.
    pub(crate) fn retire(&mut self, root: &Root) {
        let Root::Route(balancer, ledger) = root else { return };
        let mut others = Vec::new();
        for root in self.roots.values() {
            if let Root::Route(other, _) = root
                && let Ok(other) = other.try_borrow()
            {
                others.extend(other.fleet().workers().iter().map(|worker| worker.url.clone()));
            }
        }
        if let Ok(mut balancer) = balancer.try_borrow_mut() {
            balancer.retire(&mut self.metrics, &others);
        }
        // The last one of a VM that goes because of new code: there will be no more tick.
        if !self.roots.values().any(|root| matches!(root, Root::Route(_, other) if Rc::ptr_eq(other, ledger))) {
            resign(ledger);
        }
    }

    fn flush_metrics(&mut self) {
        let conflicts = host::take_conflicts();
        if conflicts > 0 {
            self.metrics.add("smg_store_conflicts_total", &[], conflicts);
        }
        self.metrics.flush(|metric, value| {
            let kind = match metric.kind {
                Kind::Counter => 0,
                Kind::Gauge => 1,
            };
            if metric.id.is_none() {
                metric.id = host::define_metric(kind, &metric.name).ok();
            }
            let Some(id) = metric.id else { return false };
            match metric.kind {
                Kind::Counter => host::increment_metric(id, value).is_ok(),
                Kind::Gauge => host::record_metric(id, value).is_ok(),
            }
        });
    }

    /// The balancers of this VM, one for each distinct set of shared tables.
    pub(crate) fn balancers(&self) -> Vec<Rc<RefCell<Balancer>>> {
        let mut seen: Vec<String> = Vec::new();
        let mut balancers = Vec::new();
        for root in self.roots.values() {
            let Root::Route(balancer, _) = root else { continue };
            let Ok(tables) = balancer.try_borrow().map(|balancer| balancer.tables()) else { continue };
            if !seen.contains(&tables) {
                seen.push(tables);
                balancers.push(Rc::clone(balancer));
            }
        }
        balancers
    }
}

fn resign(ledger: &Rc<RefCell<Ledger>>) {
    if let Ok(mut ledger) = ledger.try_borrow_mut() {
        ledger.resign(&mut SharedData);
    }
}
