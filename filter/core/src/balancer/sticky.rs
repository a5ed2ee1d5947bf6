//! Keys that stay with their worker: looking a key up, noting where it went, forgetting the idle.
//!
//! Where a key belongs is decided by one compare-and-swap of its page, before anybody is credited: of two threads that
//! place a new key at once, one loses and follows the other.

use super::place::Prompt;
use super::{Balancer, Context, Level};
use crate::config::{AssignmentMode, PolicyName};
use crate::fleet::{Fleet, PolicyRef, UNKNOWN_MODEL};
use crate::policy::sticky::{Known, Pins, Rules};
use crate::policy::{Branch, Candidate};
use crate::state::keys::KeyPage;
use crate::state::page::Entered;
use crate::state::pins::{Number, PinTable, Pinned};
use crate::store::{Store, StoreError, Write};

/// Where a request's key has come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource {
    /// The body's `rid`.
    Rid,
    /// A header.
    Header,
}

impl KeySource {
    /// The label `source`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rid => "rid",
            Self::Header => "header",
        }
    }
}

/// A key that stays with its worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StickyKey<'a> {
    /// Its text.
    pub key: &'a [u8],
    /// Where it has come from.
    pub source: KeySource,
}

/// The key of one request while it is placed.
#[derive(Debug)]
pub(super) struct Sticky<'a> {
    pub(super) rules: Rules,
    pub(super) key: StickyKey<'a>,
    /// Who chooses where the key is not known to be; none leaves it to the policy.
    pub(super) mode: Option<AssignmentMode>,
    pinned: Pinned,
    /// How the look at it went that decided: what is redone after a lost race for the load table is no other decision.
    decided: Option<Known>,
    refreshed: bool,
}

/// Use is noted so often, in shares of the time after which an idle key is forgotten, and at most once a minute.
const REFRESHES_PER_IDLE_TIME: u32 = 16;

/// Pages looked at per tick.
const PAGES_PER_TICK: u32 = 1024;

/// Ticks after the last page of a sweep: what any VM has not counted yet of what the sweep has seen, it has then.
const TICKS_OF_REST: u32 = 4;

/// A sweep for idle keys in progress.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    next: u32,
    kept: u64,
    evicted: u64,
    rested: u32,
    /// How many there were when it began. If nothing has come or gone since, those that were seen are all: so it is mended
    /// what a crash has left uncounted.
    before: Number,
    /// When the last one began, in Unix seconds.
    began_secs: u32,
}

impl Sticky<'_> {
    /// Whether somebody is remembered, available or not.
    pub(super) fn is_known(&self) -> bool {
        self.pinned.pins().is_some()
    }

    /// Where the key belongs, given who may be chosen now.
    pub(super) fn look_up(
        &mut self,
        fleet: &Fleet,
        candidates: &[Candidate<'_>],
        keys: Option<&KeyPage>,
    ) -> (Known, Option<usize>) {
        let index = |hash: u64| {
            let worker = fleet.by_hash(hash)?;
            candidates.binary_search_by_key(&worker, |candidate| candidate.worker).ok()
        };
        let in_flight = |hash: u64| {
            let id = index(hash).and_then(|index| candidates.get(index)).map(|candidate| candidate.id);
            id.zip(keys).map_or(0, |(id, keys)| keys.in_flight(id))
        };
        let known = self.rules.look_up(self.pinned.pins(), |hash| index(hash).is_some(), in_flight);
        let at = if let Known::Here(hash) = known { index(hash) } else { None };
        self.decided.get_or_insert(known);
        (known, at)
    }

    /// How the decision is counted.
    pub(super) fn branch(&self) -> Option<Branch> {
        self.decided.map(Known::branch)
    }
}

impl Balancer {
    /// The key of `prompt` if it stays with a worker under `policy`, as the shared table knows it.
    pub(super) fn sticky<'a>(
        &self,
        store: &mut dyn Store,
        prompt: Prompt<'a>,
        policy: PolicyRef,
    ) -> Result<Option<Sticky<'a>>, StoreError> {
        let config = &self.config.sticky;
        let (key, rules, scope) = match policy.name {
            PolicyName::Manual => (prompt.manual_key, Rules::Manual, "\0manual"),
            PolicyName::ConsistentHashing => return Ok(None),
            _ if !config.routing_key_override => return Ok(None),
            _ => {
                let delegates =
                    matches!(config.assignment_mode.unwrap_or(AssignmentMode::Delegate), AssignmentMode::Delegate);
                let rules = if delegates { Rules::Delegated } else { Rules::Assigned };
                (prompt.sticky_key, rules, if prompt.model.is_empty() { UNKNOWN_MODEL } else { prompt.model })
            }
        };
        let Some(key) = key else { return Ok(None) };
        let mode = config.assignment_mode.filter(|_| rules == Rules::Assigned);
        let pinned = self.pins.read(store, PinTable::tag(self.seed, scope, key.key))?;
        Ok(Some(Sticky { rules, key, mode, pinned, decided: None, refreshed: false }))
    }

    /// Notes that the key is placed at `worker` (the hash of its URL), where it has so many requests. False if another
    /// thread was faster: then `sticky` is as that one has left it.
    pub(super) fn pin(
        &mut self,
        context: &mut Context<'_>,
        sticky: &mut Sticky<'_>,
        known: Known,
        worker: u64,
        in_flight: u32,
    ) -> Result<bool, StoreError> {
        let now_secs = context.now_secs();
        let pins = sticky.pinned.pins();
        let Some(after) = sticky.rules.placed(known, pins, worker, in_flight) else {
            self.refresh(context, sticky, pins.unwrap_or_default(), now_secs);
            return Ok(true);
        };
        sticky.refreshed = true;
        let entered = sticky.pinned.set(after, now_secs);
        if self.pins.write(context.store, &sticky.pinned)? == Write::Done {
            self.new_keys += u64::from(entered == Entered::Added);
            return Ok(true);
        }
        sticky.pinned = self.pins.read(context.store, sticky.pinned.tag())?;
        sticky.decided = None;
        Ok(false)
    }

    /// Notes that the key is used, if that was not done lately, or if newer ones of its page might soon displace it; best
    /// effort.
    fn refresh(&self, context: &mut Context<'_>, sticky: &mut Sticky<'_>, pins: Pins, now_secs: u32) {
        let used = sticky.pinned.used_secs().unwrap_or(now_secs);
        if !std::mem::replace(&mut sticky.refreshed, true)
            && (now_secs.saturating_sub(used) >= self.refresh_secs() || sticky.pinned.is_fading())
        {
            sticky.pinned.set(pins, now_secs);
            let _ = self.pins.write(context.store, &sticky.pinned);
        }
    }

    fn refresh_secs(&self) -> u32 {
        (self.config.sticky.max_idle_secs / REFRESHES_PER_IDLE_TIME).clamp(1, 60)
    }

    /// Adds the keys that this VM has given a worker since its last tick to the number that all see.
    pub(super) fn count_keys(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        let new = self.new_keys;
        if new > 0 && self.pins.count(store, |number| number.keys.saturating_add(new))? {
            self.new_keys = 0;
        }
        Ok(())
    }

    /// Whether any request's key may stay with a worker.
    fn keeps_keys(&self) -> bool {
        self.config.sticky.routing_key_override
            || self.config.policy == PolicyName::Manual
            // A route may name any policy.
            || self.config.route_metadata
            || self.fleet.policies().any(|policy| policy.name == PolicyName::Manual)
    }

    /// Shows how many keys there are and goes on forgetting the idle; the leader does it.
    pub(super) fn sweep_keys(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let config = self.config.sticky;
        let now_secs = context.now_secs();
        if !self.keeps_keys() {
            return Ok(());
        }
        let number = self.pins.number(context.store)?;
        context.metrics.set("smg_manual_policy_cache_entries", &[], number.keys);
        if config.eviction_interval_secs == 0 {
            return Ok(());
        }
        if self.key_sweep.next == 0 {
            if now_secs.abs_diff(self.key_sweep.began_secs) < config.eviction_interval_secs {
                return Ok(());
            }
            self.key_sweep = Sweep { began_secs: now_secs, before: number, ..Sweep::default() };
        }
        // The time of the last use is known to within a refresh: nobody is forgotten too early.
        let max_idle = config.max_idle_secs;
        let max_idle = if max_idle == 0 { 0 } else { max_idle.saturating_add(self.refresh_secs() - 1) };
        if self.key_sweep.next < self.pins.pages() {
            for _ in 0..PAGES_PER_TICK.min(self.pins.pages() - self.key_sweep.next) {
                let swept = self.pins.sweep(context.store, self.key_sweep.next, now_secs, max_idle)?;
                self.key_sweep.next += 1;
                self.key_sweep.kept += swept.kept;
                self.key_sweep.evicted += swept.evicted;
            }
            return Ok(());
        }
        self.key_sweep.rested += 1;
        if self.key_sweep.rested < TICKS_OF_REST {
            return Ok(());
        }
        self.conclude_sweep(context, number)
    }

    /// All pages have been looked at, and `number` is what there are by now.
    fn conclude_sweep(&mut self, context: &mut Context<'_>, number: Number) -> Result<(), StoreError> {
        let Sweep { kept, evicted, before, .. } = self.key_sweep;
        self.key_sweep.next = 0;
        let after = |now: Number| if now == before { kept } else { now.keys.saturating_sub(evicted) };
        if after(number) != number.keys {
            // A lost race leaves it to the next sweep.
            self.pins.count(context.store, after)?;
            context.metrics.set("smg_manual_policy_cache_entries", &[], after(number));
        }
        if evicted > 0 {
            let max_idle = self.config.sticky.max_idle_secs;
            let line = format!("ManualPolicy TTL eviction evicted={evicted} remaining={kept} max_idle={max_idle}");
            context.log.line(Level::Info, &line);
        }
        Ok(())
    }
}
