//! One VM on a thread of its own, which does something each round and lets others run at each call into shared data.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use filter_core::store::{MemoryStore, Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use testbed::wasm::{Access, Exchange, Process, Response, RootId, Status, Vm, filter_wasm};

use super::oracle::{Due, Oracle};
use super::turns::Turns;
use crate::fleet::{chat, first, worker_address};

const TICK: Duration = Duration::from_millis(250);

/// Requests that a VM has in flight at most.
const MOST_HELD: usize = 2;

/// What the planner and all players have in common.
pub(super) struct Table {
    pub(super) turns: Turns,
    pub(super) store: MemoryStore,
    pub(super) config: String,
    pub(super) workers: usize,
    /// The store knows no compare-and-swap: every write is done.
    pub(super) careless: bool,
    oracle: Mutex<Oracle>,
    plan: Mutex<Plan>,
}

/// What a round is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum What {
    /// The VM gets its configuration.
    Configure,
    /// Requests come and end.
    Requests,
    /// The same with a tick among them.
    Tick,
    /// Everything in flight ends.
    Finish,
    /// A tick and nothing else.
    Settle,
}

impl Table {
    pub(super) fn new(config: String, vms: usize, workers: usize, careless: bool, oracle: Oracle) -> Self {
        Self {
            turns: Turns::new(vms),
            store: MemoryStore::default(),
            config,
            workers,
            careless,
            oracle: Mutex::new(oracle),
            plan: Mutex::new(Plan { seed: 0, what: What::Configure }),
        }
    }

    pub(super) fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Held {
    exchange: Exchange,
    /// Where it is counted.
    worker: usize,
    answered: bool,
}

struct Player {
    table: Arc<Table>,
    me: usize,
    process: Process,
    vm: Vm,
    root: Option<RootId>,
    held: Vec<Held>,
    rng: SmallRng,
}

/// Plays as number `me` until the table is closed.
pub(super) fn play(table: Arc<Table>, me: usize, seed: u64) {
    /// Gives the turn back, also by a panic.
    struct Rest<'a>(&'a Turns, usize);
    impl Drop for Rest<'_> {
        fn drop(&mut self) {
            self.0.rest(self.1);
        }
    }
    let process = Process::sharing(&filter_wasm(), table.store.clone()).unwrap();
    process.set_seed(seed.wrapping_add(me as u64));
    let vm = process.vm();
    let at = Arc::clone(&table);
    process.intercept(move |access, store| {
        at.turns.step(me);
        let access = match *access {
            Access::Set { key, value, .. } if at.careless => Access::Set { key, value, version: None },
            access => access,
        };
        at.oracle().look(me, &access, store);
        let Access::Set { key, value, .. } = access else { return None };
        at.careless.then(|| {
            store.set(key, value, None).unwrap();
            Status::Ok
        })
    });
    let (rng, held) = (SmallRng::seed_from_u64(0), Vec::new());
    let mut player = Player { table: Arc::clone(&table), me, process, vm, root: None, held, rng };
    table.turns.join(me);
    while table.turns.begin(me) {
        let _rest = Rest(&table.turns, me);
        let plan = *table.plan();
        player.round(plan);
    }
}

impl Player {
    fn round(&mut self, plan: Plan) {
        self.rng = SmallRng::seed_from_u64(plan.seed ^ (self.me as u64) << 32);
        match plan.what {
            What::Configure => self.root = Some(self.vm.configure(self.table.config.as_str()).unwrap()),
            What::Requests => self.requests(),
            What::Tick => {
                if self.rng.random() {
                    self.requests();
                }
                self.tick();
                self.requests();
            }
            What::Settle => self.tick(),
            What::Finish => (0..self.held.len()).for_each(|_| self.finish()),
        }
    }

    fn tick(&mut self) {
        self.process.advance(TICK);
        self.table.oracle().begin(self.me, &[]);
        self.vm.tick(self.root.unwrap()).unwrap();
    }

    fn requests(&mut self) {
        for _ in 0..self.rng.random_range(1..4) {
            if self.held.is_empty() || self.held.len() < MOST_HELD && self.rng.random() {
                self.send();
            } else if self.rng.random() {
                self.finish();
            } else {
                self.answer();
            }
        }
    }

    fn send(&mut self) {
        let text = match self.rng.random_range(0..3) {
            0 => "A prompt that several have in common, long enough for the tree to know who has it. ".repeat(2),
            _ => format!(
                "{:016x} is the beginning of nobody else's prompt, however long it is. ",
                self.rng.random::<u64>()
            ),
        };
        self.table.oracle().begin(self.me, &[Due::Pick]);
        let exchange = self.vm.send(self.root.unwrap(), chat(&text)).unwrap();
        let named = first(&exchange);
        let picked = (0..self.table.workers).find(|worker| worker_address(*worker) == named).unwrap();
        self.table.oracle().end(self.me, Some(picked));
        self.held.push(Held { exchange, worker: picked, answered: false });
    }

    /// The head of an answer comes for one that has none yet: from the worker that was picked or, after a retry, from
    /// any other.
    fn answer(&mut self) {
        let other = self.rng.random_range(0..self.table.workers);
        let retried = self.rng.random_range(0..3) == 0;
        let Some(held) = self.held.iter_mut().find(|held| !held.answered) else { return };
        let worker = if retried { other } else { held.worker };
        let moved = [Due::Change(worker, 1), Due::Change(held.worker, -1)];
        let due = if worker == held.worker { &[][..] } else { &moved };
        self.table.oracle().begin(self.me, due);
        let attempts = if worker == held.worker { 1 } else { 2 };
        held.exchange.respond(Response::from_engine(200, &worker_address(worker)).attempts(attempts)).unwrap();
        self.table.oracle().end(self.me, None);
        (held.worker, held.answered) = (worker, true);
    }

    fn finish(&mut self) {
        let held = self.held.remove(self.rng.random_range(0..self.held.len()));
        self.table.oracle().begin(self.me, &[Due::Change(held.worker, -1)]);
        if self.rng.random() { held.exchange.finish() } else { held.exchange.abort() }.unwrap();
        self.table.oracle().end(self.me, None);
    }
}
