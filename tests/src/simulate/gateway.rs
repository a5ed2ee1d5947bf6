//! The filter without a proxy: one balancer over a store in memory.

use std::cell::RefCell;
use std::time::Duration;

use filter_core::balancer::{Balancer, Context, Ledger, Level, Log, Prompt, Ticket};
use filter_core::config::Config;
use filter_core::metrics::Metrics;
use filter_core::report::{Snapshot, WorkerReport};
use filter_core::request::Facts;
use filter_core::store::MemoryStore;
use rand::rngs::SmallRng;
use serde_json::Value;

/// When virtual time begins, in Unix milliseconds.
const BEGIN_MS: u64 = 1_790_000_000_000;

/// The URL of an engine.
pub(super) fn url(engine: usize) -> String {
    format!("http://{}", address(engine))
}

fn address(engine: usize) -> String {
    format!("10.0.{}.{}:8000", engine >> 8, engine & 255)
}

/// The balancer with what surrounds it. Its times are virtual, from the start of the replay.
pub(super) struct Gateway(RefCell<Insides>);

struct Insides {
    balancer: Balancer,
    world: World,
    sequence: u64,
}

struct World {
    store: MemoryStore,
    rng: SmallRng,
    metrics: Metrics,
    ledger: Ledger,
}

impl World {
    fn run<T>(&mut self, now: Duration, work: impl FnOnce(&mut Context<'_>, &mut Ledger) -> T) -> T {
        let mut context = Context {
            store: &mut self.store,
            rng: &mut self.rng,
            now_ms: BEGIN_MS + now.as_millis() as u64,
            metrics: &mut self.metrics,
            log: &mut Silence,
        };
        work(&mut context, &mut self.ledger)
    }
}

struct Silence;

impl Log for Silence {
    fn wants(&self, _: Level) -> bool {
        false
    }

    fn line(&mut self, _: Level, _: &str) {}
}

impl Gateway {
    /// A balancer with the configuration `plugin`, to which its workers are added.
    pub(super) fn new(mut plugin: Value, engines: usize, rng: SmallRng) -> anyhow::Result<Self> {
        plugin["workers"] = (0..engines).map(url).collect();
        let config = Config::parse(plugin.to_string().as_bytes())?;
        let mut world =
            World { store: MemoryStore::default(), rng, metrics: Metrics::default(), ledger: Ledger::new(&config, 1) };
        let balancer = world.run(Duration::ZERO, |context, _| Balancer::new(config, 1, context))?;
        Ok(Self(RefCell::new(Insides { balancer, world, sequence: 0 })))
    }

    /// Places a request; the engine's number, and what to give back at its end. None if nobody may be chosen.
    pub(super) fn place(&self, now: Duration, facts: &Facts) -> Option<(usize, Ticket)> {
        let mut insides = self.0.borrow_mut();
        let Insides { balancer, world, .. } = &mut *insides;
        let prompt =
            Prompt { model: &facts.model, text: &facts.text, text_bytes: facts.text_bytes, ..Prompt::default() };
        let ticket = world.run(now, |context, ledger| balancer.place(context, prompt, ledger)).ok()?;
        let engine = balancer.fleet().workers().iter().position(|worker| Some(worker.id) == ticket.counted())?;
        Some((engine, ticket))
    }

    /// The end of a request.
    pub(super) fn ended(&self, now: Duration, mut ticket: Ticket) {
        let mut insides = self.0.borrow_mut();
        let Insides { balancer, world, .. } = &mut *insides;
        world.run(now, |context, ledger| balancer.ended(context, &mut ticket, ledger));
    }

    /// A snapshot of the engines' loads; the next is due after `interval`.
    pub(super) fn report(&self, now: Duration, interval: Duration, workers: Vec<WorkerReport>) {
        let mut insides = self.0.borrow_mut();
        insides.sequence += 1;
        let Insides { balancer, world, sequence } = &mut *insides;
        let interval_ms = interval.as_millis() as u32;
        let snapshot = Snapshot::of(BEGIN_MS, *sequence, interval_ms, workers);
        // A store in memory does not fail.
        let _ = world.run(now, |context, _| balancer.apply(context, &snapshot));
    }
}
