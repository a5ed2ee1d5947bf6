//! Who runs: of several threads one at a time, in an order that a seed decides.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

/// The turn of whoever plans the rounds.
const PLANNER: usize = usize::MAX;
/// Nobody's turn will ever come again.
const OVER: usize = usize::MAX - 1;

/// How the next one is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Style {
    /// Anybody, at every step.
    Uniform,
    /// The same one as before for a while.
    Bursts,
    /// One step each.
    Lockstep,
    /// The one of the highest rank; now and then it loses its rank. Finds what needs few but particular switches.
    Ranks,
}

/// Hands the turn round.
pub(super) struct Turns {
    turn: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    planner: Thread,
    threads: Vec<Option<Thread>>,
    running: Vec<usize>,
    /// All, the highest rank first.
    ranks: Vec<usize>,
    style: Style,
    rng: SmallRng,
    failed: bool,
}

impl Turns {
    /// Turns for `count` threads; who calls this plans.
    pub(super) fn new(count: usize) -> Self {
        let state = State {
            planner: thread::current(),
            threads: vec![None; count],
            running: Vec::new(),
            ranks: (0..count).collect(),
            style: Style::Uniform,
            rng: SmallRng::seed_from_u64(0),
            failed: false,
        };
        Self { turn: AtomicUsize::new(PLANNER), state: Mutex::new(state) }
    }

    /// Lets `who` run until each has called [`Turns::rest`]; false when one has panicked.
    pub(super) fn round(&self, seed: u64, who: Vec<usize>) -> bool {
        {
            let mut state = self.state();
            assert!(state.threads.iter().all(Option::is_some), "a thread has not come");
            state.rng = SmallRng::seed_from_u64(seed);
            let State { rng, ranks, style, .. } = &mut *state;
            ranks.shuffle(rng);
            *style = *[Style::Uniform, Style::Bursts, Style::Lockstep, Style::Ranks].choose(rng).unwrap();
            state.running = who;
            let first = state.running[0];
            self.hand_to(&mut state, first);
        }
        self.await_turn(PLANNER);
        !self.state().failed
    }

    /// Registers the calling thread as number `me`.
    pub(super) fn join(&self, me: usize) {
        self.state().threads[me] = Some(thread::current());
    }

    /// How many have joined.
    pub(super) fn joined(&self) -> usize {
        self.state().threads.iter().flatten().count()
    }

    /// Waits until it is `me`'s turn in a new round; false when there is none any more.
    pub(super) fn begin(&self, me: usize) -> bool {
        self.await_turn(me)
    }

    /// Lets others run; comes back when it is `me`'s turn again.
    pub(super) fn step(&self, me: usize) {
        let next = {
            let mut state = self.state();
            let next = state.next(me);
            if next != me {
                self.hand_to(&mut state, next);
            }
            next
        };
        assert!(next == me || self.await_turn(me), "another VM's thread has panicked");
    }

    /// Is done with this round.
    pub(super) fn rest(&self, me: usize) {
        let mut state = self.state();
        state.failed |= thread::panicking();
        state.running.retain(|running| *running != me);
        let next = if state.running.is_empty() || state.failed { PLANNER } else { state.next(me) };
        self.hand_to(&mut state, next);
    }

    /// Ends all threads, also those that are in the middle of a round.
    pub(super) fn end(&self) {
        let state = self.state();
        self.turn.store(OVER, Ordering::Release);
        state.threads.iter().flatten().for_each(Thread::unpark);
    }

    fn hand_to(&self, state: &mut State, next: usize) {
        if self.turn.load(Ordering::Acquire) == OVER {
            return;
        }
        self.turn.store(next, Ordering::Release);
        let thread = if next == PLANNER { Some(&state.planner) } else { state.threads[next].as_ref() };
        thread.into_iter().for_each(Thread::unpark);
    }

    fn await_turn(&self, me: usize) -> bool {
        loop {
            match self.turn.load(Ordering::Acquire) {
                OVER => return false,
                turn if turn == me => return true,
                _ => thread::park(),
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self, me: usize) -> usize {
        let Self { running, ranks, rng, .. } = self;
        match self.style {
            Style::Bursts if running.contains(&me) && rng.random_range(0..8) != 0 => me,
            Style::Uniform | Style::Bursts => *running.choose(rng).unwrap(),
            Style::Lockstep => {
                let after = running.iter().position(|running| *running > me);
                running[after.unwrap_or(0)]
            }
            Style::Ranks => {
                if rng.random_range(0..12) == 0 {
                    ranks.retain(|ranked| *ranked != me);
                    ranks.push(me);
                }
                *ranks.iter().find(|ranked| running.contains(ranked)).unwrap()
            }
        }
    }
}
