//! Stores that behave as badly as a store may.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::store::{MemoryStore, Store, StoreError, Versioned, Write};

/// A store whose calls fail or lose their races on demand. Clones share the demand.
#[derive(Clone, Default)]
pub(super) struct Faulty {
    pub(super) inner: MemoryStore,
    plan: Rc<RefCell<Plan>>,
}

#[derive(Default)]
struct Plan {
    calls: u64,
    failing: std::ops::Range<u64>,
    /// The call that traps.
    trap: Option<u64>,
    lost: BTreeMap<char, usize>,
}

impl Faulty {
    /// Of the calls from now on, those in `calls` (the first is 0) fail.
    pub(super) fn fail(&self, calls: std::ops::Range<u64>) {
        let mut plan = self.plan.borrow_mut();
        plan.failing = plan.calls + calls.start..plan.calls.saturating_add(calls.end);
    }

    /// The call after `calls` more unwinds, as a VM that traps never comes back from it.
    pub(super) fn trap(&self, calls: u64) {
        let mut plan = self.plan.borrow_mut();
        plan.trap = Some(plan.calls + calls);
    }

    /// The next `times` writes to tables of `kind` (the first letter of their keys) lose their races.
    pub(super) fn lose(&self, kind: char, times: usize) {
        self.plan.borrow_mut().lost.insert(kind, times);
    }

    /// Nothing fails any more.
    pub(super) fn heal(&self) {
        let mut plan = self.plan.borrow_mut();
        plan.failing = 0..0;
        plan.trap = None;
        plan.lost.clear();
    }

    /// Calls so far.
    pub(super) fn calls(&self) -> u64 {
        self.plan.borrow().calls
    }

    fn step(&self) -> Result<(), StoreError> {
        let mut plan = self.plan.borrow_mut();
        let call = plan.calls;
        plan.calls += 1;
        if plan.trap == Some(call) {
            drop(plan);
            std::panic::resume_unwind(Box::new("the VM traps"));
        }
        if plan.failing.contains(&call) { Err(StoreError(10)) } else { Ok(()) }
    }
}

impl Store for Faulty {
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.step()?;
        self.inner.get(key)
    }

    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        self.step()?;
        let kind = key.chars().next().unwrap();
        if let Some(left) = self.plan.borrow_mut().lost.get_mut(&kind).filter(|left| **left > 0) {
            *left -= 1;
            return Ok(Write::Conflict);
        }
        self.inner.set(key, value, version)
    }
}

/// Who runs when several VMs run by turns.
#[derive(Clone)]
pub(super) struct Turned {
    inner: MemoryStore,
    baton: Arc<Baton>,
    me: usize,
}

struct Baton {
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    turn: usize,
    running: Vec<bool>,
    /// None goes round.
    rng: Option<SmallRng>,
}

impl State {
    fn next(&mut self) {
        let running: Vec<usize> = (0..self.running.len()).filter(|&vm| self.running[vm]).collect();
        if running.is_empty() {
            return;
        }
        self.turn = match &mut self.rng {
            Some(rng) => running[rng.random_range(0..running.len())],
            None => *running.iter().find(|&&vm| vm > self.turn).unwrap_or(&running[0]),
        };
    }
}

impl Turned {
    fn wait(&self) {
        let state = self.baton.state.lock().unwrap();
        drop(self.baton.moved.wait_while(state, |state| state.turn != self.me).unwrap());
    }

    /// Lets so many store calls of others pass: the work between two picks. A VM that does nothing but pick can win
    /// every race in lockstep, until the others give up.
    pub(super) fn work(&self, calls: usize) {
        (0..calls).for_each(|_| self.step());
    }

    /// Hands the turn on and waits for the next one.
    fn step(&self) {
        self.baton.state.lock().unwrap().next();
        self.baton.moved.notify_all();
        self.wait();
    }
}

impl Store for Turned {
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        self.step();
        self.inner.get(key)
    }

    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        self.step();
        self.inner.set(key, value, version)
    }
}

/// Runs `work` for each of `vms` VMs over one store, handing the turn from VM to VM at every call into the store: one
/// after the other without a `seed`, else drawn from it. Every run of the same seed is the same.
pub(super) fn interleaved<T: Send>(
    vms: usize,
    seed: Option<u64>,
    store: &MemoryStore,
    work: impl Fn(usize, Turned) -> T + Sync,
) -> Vec<T> {
    /// Leaves the round, also by a panic: nobody may wait for a VM that is gone.
    struct Leave(Turned);
    impl Drop for Leave {
        fn drop(&mut self) {
            if let Ok(mut state) = self.0.baton.state.lock() {
                state.running[self.0.me] = false;
                state.next();
            }
            self.0.baton.moved.notify_all();
        }
    }
    let state = State { turn: 0, running: vec![true; vms], rng: seed.map(SmallRng::seed_from_u64) };
    let baton = Arc::new(Baton { state: Mutex::new(state), moved: Condvar::new() });
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..vms)
            .map(|me| {
                let turned = Turned { inner: store.clone(), baton: Arc::clone(&baton), me };
                scope.spawn(move || {
                    turned.wait();
                    let _leave = Leave(turned.clone());
                    work(me, turned)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
