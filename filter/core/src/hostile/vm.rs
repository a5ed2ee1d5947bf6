//! One VM over a store of its own, with which something is wrong.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use crate::balancer::{Balancer, Context, Ledger, Level, Log, Prompt, Ticket};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::store::{MemoryStore, Store};

/// When it begins, in Unix milliseconds.
const BEGIN_MS: u64 = 1_790_000_000_000;

/// A balancer with what surrounds it.
pub(super) struct Vm {
    balancer: Balancer,
    world: World,
}

struct World {
    store: Box<dyn Store>,
    rng: SmallRng,
    now_ms: u64,
    metrics: Metrics,
    ledger: Ledger,
}

/// A log that wants every line and keeps none.
struct Heard;

impl Log for Heard {
    fn wants(&self, _: Level) -> bool {
        true
    }

    fn line(&mut self, _: Level, text: &str) {
        assert!(!text.is_empty(), "an empty line of log");
    }
}

impl World {
    fn run<T>(&mut self, work: impl FnOnce(&mut Context<'_>, &mut Ledger) -> T) -> T {
        let mut context = Context {
            store: self.store.as_mut(),
            rng: &mut self.rng,
            now_ms: self.now_ms,
            metrics: &mut self.metrics,
            log: &mut Heard,
        };
        work(&mut context, &mut self.ledger)
    }
}

impl Vm {
    /// `config` at work, if it can be.
    pub(super) fn new(config: Config) -> Option<Self> {
        Self::over(config, Box::<MemoryStore>::default())
    }

    pub(super) fn over(config: Config, store: Box<dyn Store>) -> Option<Self> {
        let mut world = World {
            store,
            rng: SmallRng::seed_from_u64(1),
            now_ms: BEGIN_MS,
            metrics: Metrics::default(),
            ledger: Ledger::new(&config, 7),
        };
        let balancer = world.run(|context, _| Balancer::new(config, 7, context)).ok()?;
        Some(Self { balancer, world })
    }

    /// The same with three workers, of which the last is not told where it is, and small tables.
    pub(super) fn of_three(policy: &str) -> Option<Self> {
        Self::new(of_three(policy)?)
    }

    pub(super) fn run<T>(&mut self, work: impl FnOnce(&mut Context<'_>, &mut Balancer, &mut Ledger) -> T) -> T {
        let Self { balancer, world } = self;
        world.run(|context, ledger| work(context, balancer, ledger))
    }

    pub(super) fn place(&mut self, prompt: Prompt<'_>) -> Option<Ticket> {
        self.run(|context, balancer, ledger| balancer.place(context, prompt, ledger)).ok()
    }

    pub(super) fn end(&mut self, mut ticket: Ticket) {
        self.run(|context, balancer, ledger| balancer.ended(context, &mut ticket, ledger));
    }

    /// A tick, a quarter of a second after the last; an error is the store's.
    pub(super) fn tick(&mut self) {
        self.world.now_ms += 250;
        self.run(|context, balancer, ledger| {
            let _ = balancer.tick(context, ledger);
            let _ = ledger.tick(context);
        });
    }
}

/// Three workers and small tables.
pub(super) fn of_three(policy: &str) -> Option<Config> {
    of_three_with(policy, "")
}

/// The same with these members in front.
pub(super) fn of_three_with(policy: &str, more: &str) -> Option<Config> {
    let text = format!(
        r#"{{{more}"policy":"{policy}","max_workers":64,"max_tree_size":65536,"clusters":["engines"],"route_metadata":true,
            "model_header":"x-model","workers":[{{"url":"http://10.0.0.1:1","models":["m"]}},
            {{"url":"http://10.0.0.2:1","models":["m","n"]}},{{"url":"http://engine:1","models":["z"]}}]}}"#
    );
    Config::parse(text.as_bytes()).ok()
}
