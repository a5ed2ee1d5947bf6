//! One data-parallel rank: a prefill queue in order of arrival, a batch limit, decode steps, and KV memory.
//!
//! A request is a future that holds what it uses; dropping it, as happens when its client leaves, gives everything back.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::block_cache::BlockCache;
use super::options::EngineOptions;

/// Window over which the decode rate is measured.
const THROUGHPUT_WINDOW: Duration = Duration::from_millis(500);

/// A prompt as the engine sees it.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    /// Length in tokens.
    pub tokens: usize,
    /// Chained hashes of its full blocks; empty when the engine has no cache.
    pub blocks: Vec<u64>,
}

/// What a rank says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankLoad {
    /// Requests in prefill or decode.
    pub running: usize,
    /// Requests waiting for prefill or a batch slot.
    pub waiting: usize,
    /// Prompt tokens of the waiting requests that were not cached when they came.
    pub waiting_uncached_tokens: usize,
    /// Prompt tokens of the waiting requests.
    pub waiting_tokens: usize,
    /// Tokens of the running requests: prompt and generated.
    pub used_tokens: usize,
    /// Tokens a second of the last decode window; keeps its value while idle.
    pub gen_throughput: f64,
    /// Share of the last prefill that was cached.
    pub cache_hit_rate: f64,
    /// Prompt tokens ever admitted.
    pub prompt_tokens: u64,
    /// Of these, the cached ones.
    pub cached_tokens: u64,
    /// Tokens ever generated.
    pub generated_tokens: u64,
    /// Microseconds spent in prefill.
    pub prefill_busy_us: u64,
    /// Decode steps ever made by requests.
    pub decode_steps: u64,
}

/// The scheduler of one rank.
#[derive(Debug)]
pub struct Rank {
    options: Arc<EngineOptions>,
    state: Mutex<State>,
    /// Held by the request in prefill; the lock is fair, so requests are served in order of arrival.
    prefill: tokio::sync::Mutex<PrefillClock>,
    slots: Arc<Semaphore>,
}

#[derive(Debug)]
struct State {
    load: RankLoad,
    cache: BlockCache,
    window_start: Option<Instant>,
    window_tokens: u64,
}

/// When the last prefill ended in theory; timers fire late, and the next prefill must not pay for that.
#[derive(Debug)]
struct PrefillClock {
    free_at: Instant,
}

impl Rank {
    /// An idle rank with an empty cache.
    pub fn new(options: Arc<EngineOptions>) -> Arc<Self> {
        let slots = if options.max_running == 0 { Semaphore::MAX_PERMITS } else { options.max_running };
        let cache = BlockCache::new(options.cache_tokens / options.block_tokens);
        Arc::new(Self {
            state: Mutex::new(State { load: RankLoad::default(), cache, window_start: None, window_tokens: 0 }),
            prefill: tokio::sync::Mutex::new(PrefillClock { free_at: Instant::now() }),
            slots: Arc::new(Semaphore::new(slots)),
            options,
        })
    }

    /// The numbers of this moment.
    pub fn load(&self) -> RankLoad {
        let state = self.state();
        let mut load = state.load;
        if let Some(start) = state.window_start {
            // A window just begun says little; the last full one stays until a fifth of the new one has passed.
            let elapsed = start.elapsed();
            if load.gen_throughput == 0.0 || elapsed >= THROUGHPUT_WINDOW / 5 {
                load.gen_throughput = state.window_tokens as f64 / elapsed.as_secs_f64().max(0.001);
            }
        }
        load
    }

    /// Blocks held in the prefix cache, pinned or idle.
    pub fn cached_blocks(&self) -> usize {
        self.state().cache.len()
    }

    /// Waits for prefill and a batch slot and computes what is not cached.
    pub async fn admit(self: &Arc<Self>, prompt: Prompt) -> Running {
        let arrival = Instant::now();
        if self.options.prefill_tokens_per_second <= 0.0 && self.options.max_running == 0 {
            let mut running = self.start(prompt, None);
            running.complete_prefill(Duration::ZERO);
            return running;
        }
        let waiting = self.wait_in_line(&prompt);
        let clock = self.prefill.lock().await;
        let (slot, slot_at) = match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(slot) => (Some(slot), arrival),
            Err(_) => (Arc::clone(&self.slots).acquire_owned().await.ok(), Instant::now()),
        };
        drop(waiting);
        let mut turn = PrefillTurn { begin: arrival.max(slot_at).max(clock.free_at), clock, completed: false };
        let mut running = self.start(prompt, slot);
        let cost = self.options.prefill_time(running.prompt.tokens - running.cached_tokens);
        let end = turn.begin + cost;
        if !cost.is_zero() {
            tokio::time::sleep_until(end).await;
        }
        turn.complete(end);
        running.complete_prefill(cost);
        running
    }

    fn wait_in_line(self: &Arc<Self>, prompt: &Prompt) -> Waiting {
        let mut state = self.state();
        let matched = self.reusable(prompt).min(state.cache.matched(&prompt.blocks));
        let uncached = prompt.tokens - matched * self.options.block_tokens;
        state.load.waiting += 1;
        state.load.waiting_tokens += prompt.tokens;
        state.load.waiting_uncached_tokens += uncached;
        Waiting { rank: Arc::clone(self), tokens: prompt.tokens, uncached }
    }

    fn start(self: &Arc<Self>, prompt: Prompt, slot: Option<OwnedSemaphorePermit>) -> Running {
        let mut state = self.state();
        let pinned = state.cache.pin_matched(&prompt.blocks);
        let cached_tokens = pinned.min(self.reusable(&prompt)) * self.options.block_tokens;
        state.load.running += 1;
        state.load.used_tokens += prompt.tokens;
        state.load.prompt_tokens += prompt.tokens as u64;
        state.load.cached_tokens += cached_tokens as u64;
        state.load.cache_hit_rate = cached_tokens as f64 / prompt.tokens.max(1) as f64;
        Running {
            rank: Arc::clone(self),
            used_tokens: prompt.tokens,
            prompt,
            cached_tokens,
            pinned,
            next_step: Instant::now(),
            _slot: slot,
        }
    }

    /// Blocks of a prompt that a hit may cover: an engine always computes the last token.
    fn reusable(&self, prompt: &Prompt) -> usize {
        reusable_blocks(prompt.tokens, self.options.block_tokens)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocks of a prompt that a cache hit may cover: an engine always computes at least the last token.
pub fn reusable_blocks(prompt_tokens: usize, block_tokens: usize) -> usize {
    prompt_tokens.saturating_sub(1) / block_tokens.max(1)
}

/// A request in the batch, after its prefill; dropping it frees its slot and unpins its blocks.
#[derive(Debug)]
pub struct Running {
    rank: Arc<Rank>,
    prompt: Prompt,
    cached_tokens: usize,
    pinned: usize,
    used_tokens: usize,
    next_step: Instant,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Running {
    /// Length of the prompt in tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt.tokens
    }

    /// Prompt tokens that came from the cache.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// Waits for `steps` decode steps, each of which makes `sequences` tokens.
    ///
    /// The first step comes with the end of the prefill, as in a real engine.
    pub async fn decode(&mut self, steps: usize, sequences: usize) {
        if steps == 0 {
            return;
        }
        let step = self.rank.options.real(self.rank.options.decode_step);
        let due = self.next_step + step * (steps as u32 - 1);
        self.next_step = due + step;
        if !step.is_zero() {
            tokio::time::sleep_until(due).await;
        }
        self.decoded_at_once(steps, sequences);
    }

    /// Counts `steps` decode steps of `sequences` tokens that took no time.
    pub fn decoded_at_once(&mut self, steps: usize, sequences: usize) {
        let made = steps * sequences;
        self.used_tokens += made;
        let mut state = self.rank.state();
        state.load.used_tokens += made;
        state.load.generated_tokens += made as u64;
        state.load.decode_steps += steps as u64;
        state.window_tokens += made as u64;
        let now = Instant::now();
        let start = *state.window_start.get_or_insert(now);
        let elapsed = now - start;
        if elapsed >= THROUGHPUT_WINDOW {
            state.load.gen_throughput = state.window_tokens as f64 / elapsed.as_secs_f64();
            state.window_start = Some(now);
            state.window_tokens = 0;
        }
    }

    fn complete_prefill(&mut self, cost: Duration) {
        let mut state = self.rank.state();
        self.pinned = state.cache.insert_pinned(&self.prompt.blocks, self.pinned);
        state.load.prefill_busy_us += cost.as_micros() as u64;
        self.next_step = Instant::now();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.rank.state();
        state.cache.unpin(&self.prompt.blocks[..self.pinned]);
        state.load.running -= 1;
        state.load.used_tokens -= self.used_tokens;
        if state.load.running == 0
            && let Some(start) = state.window_start.take()
        {
            let elapsed = start.elapsed();
            if state.load.gen_throughput == 0.0 || elapsed >= THROUGHPUT_WINDOW / 5 {
                state.load.gen_throughput = state.window_tokens as f64 / elapsed.as_secs_f64().max(0.001);
            }
            state.window_tokens = 0;
        }
    }
}

struct Waiting {
    rank: Arc<Rank>,
    tokens: usize,
    uncached: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.rank.state();
        state.load.waiting -= 1;
        state.load.waiting_tokens -= self.tokens;
        state.load.waiting_uncached_tokens -= self.uncached;
    }
}

/// The prefill stage while one request has it; an aborted prefill frees it at once.
struct PrefillTurn<'a> {
    clock: tokio::sync::MutexGuard<'a, PrefillClock>,
    begin: Instant,
    completed: bool,
}

impl PrefillTurn<'_> {
    fn complete(&mut self, end: Instant) {
        self.clock.free_at = end;
        self.completed = true;
    }
}

impl Drop for PrefillTurn<'_> {
    fn drop(&mut self) {
        if !self.completed {
            self.clock.free_at = Instant::now();
        }
    }
}
