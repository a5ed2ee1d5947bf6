//! Balancers of several VMs over one store.

mod breakers;
mod cache;
mod changes;
mod counts;
mod crashes;
mod deltas;
mod faults;
mod keys;
mod labels;
mod named;
mod overload;
mod pairs;
mod placements;
mod placing;
mod races;
mod reports;
mod statuses;
mod sticky;
mod stores;
mod turns;

use std::collections::HashMap;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::{Answered, Balancer, Context, Ledger, Level, Log, Prompt, Ticket};
use crate::answer::Refusal;
use crate::breaker::Outcome;
use crate::config::Config;
use crate::metrics::Metrics;
use crate::report::{Load, Snapshot, WorkerReport};
use crate::state::load::Slot;
use crate::store::{MemoryStore, Store};

/// When tests begin, in Unix milliseconds.
pub(crate) const START_MS: u64 = 1_790_000_000_000;

/// The URL of worker `number`.
pub(crate) fn url(number: usize) -> String {
    format!("http://10.0.0.1:{}", 8000 + number)
}

/// The address of worker `number`.
pub(crate) fn address(number: usize) -> String {
    format!("10.0.0.1:{}", 8000 + number)
}

/// A configuration of `policy` with workers 0 to `workers` - 1 that name no model. `more` are further members of the
/// JSON object, each with a comma behind it.
pub(crate) fn config(policy: &str, workers: usize, more: &str) -> Config {
    let urls: Vec<String> = (0..workers).map(|number| format!("\"{}\"", url(number))).collect();
    parse(&format!(r#"{{{more}"policy":"{policy}","max_workers":64,"workers":[{}]}}"#, urls.join(",")))
}

/// The configuration in `text`.
pub(crate) fn parse(text: &str) -> Config {
    Config::parse(text.as_bytes()).unwrap()
}

/// A log that keeps its lines.
#[derive(Debug, Default)]
pub(crate) struct Lines(pub(crate) Vec<(Level, String)>);

impl Log for Lines {
    fn wants(&self, _level: Level) -> bool {
        true
    }

    fn line(&mut self, level: Level, text: &str) {
        self.0.push((level, text.to_owned()));
    }
}

impl Lines {
    /// All warnings so far.
    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.0.iter().filter(|(level, _)| *level == Level::Warn).map(|(_, line)| line.as_str()).collect()
    }
}

/// One VM with one configuration.
pub(crate) struct Vm {
    pub(crate) balancer: Balancer,
    pub(crate) world: World,
}

/// What surrounds a VM's balancer.
pub(crate) struct World {
    pub(crate) store: Box<dyn Store>,
    pub(crate) rng: SmallRng,
    pub(crate) now_ms: u64,
    pub(crate) metrics: Metrics,
    pub(crate) log: Lines,
    pub(crate) ledger: Ledger,
}

impl World {
    /// Runs `work` with a context.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce(&mut Context<'_>, &mut Ledger) -> T) -> T {
        let mut context = Context {
            store: self.store.as_mut(),
            rng: &mut self.rng,
            now_ms: self.now_ms,
            metrics: &mut self.metrics,
            log: &mut self.log,
        };
        work(&mut context, &mut self.ledger)
    }
}

impl Vm {
    /// VM `number` of those that share `store`.
    pub(crate) fn new(config: Config, store: impl Store + 'static, number: u64) -> Self {
        Self::at(config, store, number, START_MS)
    }

    /// The same, started at `now_ms`.
    pub(crate) fn at(config: Config, store: impl Store + 'static, number: u64, now_ms: u64) -> Self {
        let mut world = World {
            store: Box::new(store),
            rng: SmallRng::seed_from_u64(number),
            now_ms,
            metrics: Metrics::default(),
            log: Lines::default(),
            ledger: Ledger::new(&config, number + 1),
        };
        let balancer = world.run(|context, _| Balancer::new(config, number + 1, context)).unwrap();
        Self { balancer, world }
    }

    /// The only VM of `config`.
    pub(crate) fn alone(config: Config) -> Self {
        Self::new(config, MemoryStore::default(), 0)
    }

    pub(crate) fn place(&mut self, prompt: Prompt<'_>) -> Result<Ticket, Refusal> {
        let Self { balancer, world } = self;
        world.run(|context, ledger| balancer.place(context, prompt, ledger))
    }

    /// Places a request of `text` and returns it.
    pub(crate) fn send(&mut self, text: &str) -> Ticket {
        self.place(Prompt { text: text.as_bytes(), text_bytes: text.len() as u64, ..Prompt::default() }).unwrap()
    }

    /// Places a request with routing key `key`.
    pub(crate) fn send_keyed(&mut self, key: &str) -> Ticket {
        let key = Some(self.balancer.key_hash(key.as_bytes()));
        self.place(Prompt { key, ..Prompt::default() }).unwrap()
    }

    /// Places a request for `model` and returns it.
    pub(crate) fn send_to(&mut self, model: &str) -> Ticket {
        self.place(Prompt { model, ..Prompt::default() }).unwrap()
    }

    /// Places a request and names the picked worker by its number.
    pub(crate) fn pick(&mut self) -> usize {
        picked(&self.send(""))
    }

    /// Envoy has an answer of `status` from worker `number` after `attempts`.
    pub(crate) fn answer(&mut self, ticket: &mut Ticket, number: usize, attempts: u64, status: u16) -> Option<u16> {
        let address = address(number);
        self.answered(
            ticket,
            Answered {
                attempts: Some(attempts),
                address: Some(&address),
                status,
                outcome: Some(Outcome::of_status(status)),
            },
        )
    }

    pub(crate) fn answered(&mut self, ticket: &mut Ticket, answered: Answered<'_>) -> Option<u16> {
        let Self { balancer, world } = self;
        world.run(|context, ledger| balancer.answered(context, ticket, answered, ledger))
    }

    pub(crate) fn end(&mut self, ticket: &mut Ticket) {
        let Self { balancer, world } = self;
        world.run(|context, ledger| balancer.ended(context, ticket, ledger));
    }

    /// What a VM does once a tick to show that it lives.
    pub(crate) fn live(&mut self) {
        let _ = self.world.run(|context, ledger| ledger.tick(context));
    }

    /// What a VM does on a tick, as far as the core is concerned.
    pub(crate) fn tick(&mut self) {
        let Self { balancer, world } = self;
        let _ = world.run(|context, ledger| balancer.tick(context, ledger));
        let _ = world.run(|context, ledger| ledger.tick(context));
    }

    /// Ticks until forgotten slots have been looked for, twice.
    pub(crate) fn sweep(&mut self) {
        for _ in 0..40 {
            self.tick();
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, millis: u64) {
        self.world.now_ms += millis;
    }

    /// Takes a snapshot as it comes off the queue.
    pub(crate) fn take(&mut self, snapshot: &Snapshot) {
        let Self { balancer, world } = self;
        world.run(|context, _| crate::ingest::take(context, balancer, &snapshot.to_bytes()));
    }

    /// What the shared table says of worker `number`.
    pub(crate) fn slot(&mut self, number: usize) -> Slot {
        let index = self.balancer.fleet.by_address(&address(number)).unwrap();
        let id = self.balancer.fleet.worker(index).unwrap().id;
        self.balancer.load.read(self.world.store.as_mut(), id.block()).unwrap().block.slot(id.position())
    }

    /// Requests in flight at workers 0 to `count` - 1.
    pub(crate) fn in_flight(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|number| self.slot(number).in_flight).collect()
    }

    /// Distinct routing keys in flight at workers 0 to `count` - 1.
    pub(crate) fn keys(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|number| self.slot(number).keys).collect()
    }

    /// Everything counted so far under `name` with its labels.
    pub(crate) fn metrics(&mut self) -> HashMap<String, u64> {
        self.balancer.publish(&mut self.world.metrics);
        let mut seen = HashMap::new();
        self.world.metrics.flush(|metric, value| {
            seen.insert(metric.name.clone(), value);
            false
        });
        seen
    }

    /// The value of one counter or gauge, 0 if it was never touched.
    pub(crate) fn metric(&mut self, name: &str) -> u64 {
        self.metrics().get(name).copied().unwrap_or(0)
    }

    /// Makes worker `number` fail `times` times, by answers to requests that take no turn.
    pub(crate) fn fail(&mut self, number: usize, times: usize) {
        for _ in 0..times {
            let mut ticket = self.place(Prompt { any_worker: true, ..Prompt::default() }).unwrap();
            self.answer(&mut ticket, number, 1, 503);
            self.end(&mut ticket);
        }
    }
}

/// The number of the worker that `ticket` has picked.
pub(crate) fn picked(ticket: &Ticket) -> usize {
    ticket.worker().unwrap().url.rsplit(':').next().unwrap().parse::<usize>().unwrap() - 8000
}

/// The numbers of the workers that Envoy may try.
pub(crate) fn listed(ticket: &Ticket) -> Vec<usize> {
    let number = |address: &str| address.rsplit(':').next().unwrap().parse::<usize>().unwrap() - 8000;
    ticket.destination().split(',').map(number).collect()
}

/// A report of queued tokens, waiting requests, KV usage and throughput.
pub(crate) fn load(queued_tokens: f64, waiting: f64, kv_usage: f64, throughput: f64) -> Option<Load> {
    Some(Load { queued_tokens, waiting, running: 0.0, kv_usage, throughput })
}

/// A snapshot every 10 s; `sequence` of epoch 1, with what it says of workers by their numbers.
pub(crate) fn snapshot(sequence: u64, workers: &[(usize, Option<Load>)]) -> Snapshot {
    let report = |&(number, load): &(usize, Option<Load>)| WorkerReport {
        url: url(number),
        address: Some(address(number)),
        load,
        ..WorkerReport::default()
    };
    Snapshot::of(1, sequence, 10_000, workers.iter().map(report).collect())
}
