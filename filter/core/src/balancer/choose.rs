//! The choice itself: who may take the request, whom key or policy picks, and the one write that makes it so.

use xxhash_rust::xxh3::xxh3_64;

use super::place::{Placement, Prompt};
use super::sticky::Sticky;
use super::table::{Delta, TRIES};
use super::{Balancer, Changed, Context, Ledger};
use crate::answer::Refusal;
use crate::breaker;
use crate::config::Breaker;
use crate::fleet::{Fleet, PolicyRef, Pool, Worker};
use crate::policy::sticky::{Known, Rules};
use crate::policy::{Branch, Candidate, Family, Pick, Policy, Said, View, manual};
use crate::prefix::path::Node;
use crate::state::keys::KeyPage;
use crate::state::load::{BreakerState, Slot, SlotId};
use crate::state::placements::Known as Marked;
use crate::state::tree::Found;
use crate::store::{Store, StoreError, Write};

/// What is known of a prompt's holders while it is placed.
struct Search<'n> {
    nodes: &'n [Node],
    total: u64,
    found: Found,
    /// The pages of the prompt's marks, if it is known by them.
    marked: Option<Marked>,
    /// It is looked up by its marks, not in the tree.
    by_marks: bool,
    /// It has been looked up: among all, then among those that may be chosen.
    times: u8,
}

impl Balancer {
    #[expect(clippy::too_many_arguments, reason = "one step of `place`, with all it works on")]
    pub(super) fn choose(
        &mut self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        pool: &Pool,
        prompt: Prompt<'_>,
        policy: PolicyRef,
        nodes: &[Node],
        ledger: &mut Ledger,
    ) -> Result<Result<Placement, Refusal>, StoreError> {
        let needs = self.needs(policy);
        let mut sticky = self.sticky(context.store, prompt, policy)?;
        let holder = self.holder(context.store, prompt)?;
        if let Some(key) = sticky.as_ref().filter(|sticky| sticky.rules != Rules::Manual) {
            self.tally.sourced(key.key.source);
        }
        let mut search = Search::new(nodes, prompt, needs.placements);
        // A key that is known mostly stays where it is, and then nobody asks who holds the prompt.
        if !sticky.as_ref().is_some_and(Sticky::is_known) {
            self.search(context.store, fleet, &mut search)?;
        }
        let mut reads = Vec::with_capacity(pool.blocks.len());
        for &block in &pool.blocks {
            reads.push(self.load.read(context.store, block)?);
        }
        let key = match prompt.key {
            Some(key) => Some((key, ledger.keys.read(context.store, key)?)),
            None => None,
        };
        let keys = key.as_ref().map(|(_, known)| known);
        let brings = |id: SlotId| keys.is_some_and(|known| known.in_flight(id) == 0);
        let mut turn = None;
        for attempt in 1.. {
            let reports = self.fetch_reports(context, &reads)?;
            let candidates = self.candidates(context, fleet, pool, &reads, &reports, needs.last_load);
            if candidates.is_empty() {
                self.count_nobody(policy, sticky.is_some());
                return Ok(Err(Self::why_nobody(context, fleet, pool, &reads, &reports, prompt.model)));
            }
            let held = holder.among(fleet, &candidates);
            // What goes on from a response has no choice; its key is left where it is.
            let sticky_now = sticky.as_mut().filter(|_| held.is_none());
            let known = sticky_now.map(|sticky| sticky.look_up(fleet, &candidates, keys));
            let pick = if let Some(index) = held.or_else(|| known.and_then(|(_, index)| index)) {
                Pick::unscored(index)
            } else {
                self.search_again(context, fleet, &candidates, &mut search)?;
                if needs.turn && turn.is_none() {
                    turn = Some(self.turns.take(context.store, set_hash(&candidates))?);
                }
                let view = View {
                    candidates: &candidates,
                    prefix: &search.found.matched,
                    token_ids: prompt.tokens_known(),
                    turn: turn.unwrap_or_default(),
                    said: prompt.said(),
                    ring: needs.ring.then(|| fleet.ring(pool)),
                };
                match self.pick(context, policy, &view, sticky.as_ref()) {
                    Ok(pick) => pick,
                    Err(branch) => {
                        let kept = sticky.as_ref().and_then(Sticky::branch).filter(|&of| of == Branch::CapRespill);
                        self.tally.branches(branch.into_iter().chain(kept));
                        return Ok(Err(Refusal::NoAvailableWorkers));
                    }
                }
            };
            let Some(winner) = candidates.get(pick.index) else { return Ok(Err(Refusal::NoAvailableWorkers)) };
            let (worker, id, in_flight) = (winner.worker, winner.id, winner.in_flight);
            if let (Some(sticky), Some((known, _))) = (&mut sticky, known)
                && !self.keep(context, fleet, sticky, known, (worker, keys.map_or(0, |keys| keys.in_flight(id))))?
                && attempt < TRIES
            {
                // Another thread has placed the key: follow it.
                continue;
            }
            let Some(read) = reads.iter_mut().find(|read| read.number == id.block()) else {
                return Ok(Err(Refusal::NoAvailableWorkers));
            };
            let before = read.block.slot(id.position());
            let mut slot = before;
            let breaker = fleet.worker(worker).map_or(self.config.breaker, |worker| worker.breaker);
            credit(&breaker, &mut slot, &pick, brings(id), context.now_ms);
            read.block.set_slot(id.position(), slot);
            let healthy = slot.breaker == BreakerState::Closed && slot.failures == 0;
            let written = self.load.write(context.store, read)?;
            if written == Write::Conflict && attempt < TRIES {
                *read = self.load.read(context.store, id.block())?;
                continue;
            }
            let list = self.list(context, &candidates, &pick, policy, fleet, pool);
            if written == Write::Done {
                if before.breaker != slot.breaker {
                    let url = fleet.worker(worker).map_or("", |worker| &worker.url);
                    super::settle::log_transition(context, url, before.breaker, slot.breaker);
                }
                ledger.note(id, 1);
            } else {
                // Lost every race: keep the pick and apply what it costs as a mere change.
                let now_ms = context.now_ms;
                let applied = self.load.change(context.store, id, |slot| {
                    credit(&breaker, slot, &pick, brings(id), now_ms);
                    true
                })?;
                if applied == Changed::Lost {
                    ledger.count(context.store, id, Delta { in_flight: 1, keys: i32::from(brings(id)) });
                } else {
                    ledger.note(id, 1);
                }
            }
            let brought = brings(id);
            let key = key.and_then(|(key, known)| track(context, ledger, known, key, id, brought));
            let (response, sticky) = (holder.branch(held.is_some()), sticky.as_ref().and_then(Sticky::branch));
            let (found, known) = (search.found, search.marked);
            return Ok(Ok(Placement {
                pick,
                response,
                sticky,
                worker,
                id,
                in_flight,
                list,
                key,
                healthy,
                found,
                known,
            }));
        }
        Ok(Err(Refusal::NoAvailableWorkers))
    }

    /// Whom the policy picks, or the assignment mode of a key; else how it is counted that nobody is.
    fn pick(
        &self,
        context: &mut Context<'_>,
        policy: PolicyRef,
        view: &View<'_>,
        sticky: Option<&Sticky<'_>>,
    ) -> Result<Pick, Option<Branch>> {
        if let Some(mode) = sticky.and_then(|sticky| sticky.mode) {
            return manual::assign(mode, view.candidates, context.rng).map(Pick::unscored).ok_or(None);
        }
        let policy = self.policy(policy).ok_or(None)?;
        let mut pick = policy.pick(view, context.rng).ok_or_else(|| policy.why_none(view))?;
        if sticky.is_some_and(|sticky| sticky.rules == Rules::Manual) {
            pick.branch = None;
        }
        Ok(pick)
    }

    /// Notes where a key is placed; false if another thread has been faster.
    fn keep(
        &mut self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        sticky: &mut Sticky<'_>,
        known: Known,
        (worker, in_flight): (u16, u32),
    ) -> Result<bool, StoreError> {
        let hash = fleet.worker(worker).map_or(0, |worker: &Worker| worker.hash);
        self.pin(context, sticky, known, hash, in_flight)
    }

    /// Counts that nobody may be chosen, under a policy that counts it.
    fn count_nobody(&mut self, policy: PolicyRef, sticky: bool) {
        let own = self.policy(policy).and_then(|policy| policy.why_none(&View::of_nobody()));
        let branch = if sticky { Some(Branch::NoHealthyWorkers(Family::Manual)) } else { own };
        self.tally.branches(branch.into_iter());
    }

    /// The workers that Envoy may try.
    fn list(
        &self,
        context: &mut Context<'_>,
        candidates: &[Candidate<'_>],
        pick: &Pick,
        policy: PolicyRef,
        fleet: &Fleet,
        pool: &Pool,
    ) -> Vec<u16> {
        let most = self.max_attempts();
        if let Some(position) = pick.position {
            // Behind the owner of a key stands who would own it without that one.
            let index = |worker: u16| candidates.binary_search_by_key(&worker, |candidate| candidate.worker).ok();
            let first = candidates.get(pick.index).map(|candidate| candidate.worker);
            let order = fleet.ring(pool).order(position, most.min(candidates.len()), |worker| index(worker).is_some());
            let rest: Vec<u16> = order.into_iter().filter(|&worker| Some(worker) != first).collect();
            return first.into_iter().chain(rest).cycle().take(if first.is_some() { most } else { 0 }).collect();
        }
        let ranking = self.policy(policy).map(Policy::ranking).unwrap_or_default();
        super::list::workers(candidates, pick.index, most, self.needs(policy), &ranking, context.rng)
    }

    /// Asks the tree who holds the prompt, once.
    fn search(&self, store: &mut dyn Store, fleet: &Fleet, search: &mut Search<'_>) -> Result<(), StoreError> {
        if search.times == 0 && search.by_marks {
            search.times = 1;
            search.marked = Some(self.placements.read(store, search.nodes)?);
        } else if search.times == 0 && !search.nodes.is_empty() {
            search.times = 1;
            search.found = self.tree.search(store, search.nodes, search.total, &|id| fleet.by_slot(id).is_some())?;
        }
        Ok(())
    }

    /// Asks again, once, if all holders of the longest prefix are out: for an available holder of a shorter one.
    fn search_again(
        &self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        candidates: &[Candidate<'_>],
        search: &mut Search<'_>,
    ) -> Result<(), StoreError> {
        self.search(context.store, fleet, search)?;
        if let Some(marked) = &search.marked {
            search.found.matched = self.holders(context, marked, search.nodes, search.total, candidates);
            return Ok(());
        }
        let available = |id: SlotId| candidates.iter().any(|candidate| candidate.id == id);
        let holders = &search.found.matched.holders;
        if search.times == 1 && !holders.is_empty() && !holders.iter().any(|id| available(*id)) {
            search.times = 2;
            let shorter = self.tree.search(context.store, search.nodes, search.total, &available)?;
            if !shorter.matched.holders.is_empty() {
                search.found = shorter;
            }
        }
        Ok(())
    }
}

impl<'n> Search<'n> {
    fn new(nodes: &'n [Node], prompt: Prompt<'_>, by_marks: bool) -> Self {
        let total = if prompt.tokens.is_empty() { prompt.text_bytes } else { prompt.token_count };
        let mut found = Found::default();
        found.matched.total = total;
        Self { nodes, total, found, by_marks, marked: None, times: 0 }
    }
}

impl<'a> Prompt<'a> {
    /// How many token ids the request has brought, if any.
    fn tokens_known(&self) -> Option<u32> {
        (self.token_count > 0).then(|| u32::try_from(self.token_count).unwrap_or(u32::MAX))
    }

    fn said(&self) -> Said<'a> {
        Said {
            target: self.target,
            hash_key: self.hash_key,
            routing_key: self.routing_key,
            text: self.text,
            tokens: self.tokens,
        }
    }
}

/// The write that a pick makes to its worker's slot.
fn credit(config: &Breaker, slot: &mut Slot, pick: &Pick, brings_key: bool, now_ms: u64) {
    slot.in_flight = slot.in_flight.saturating_add(1);
    slot.keys = slot.keys.saturating_add(i32::from(brings_key));
    if let Some(tokens) = pick.credit {
        slot.tally_tokens = slot.tally_tokens.saturating_add(tokens);
        slot.tally_requests = slot.tally_requests.saturating_add(1);
    }
    breaker::on_dispatch(config, slot, now_ms);
}

/// Counts a request of `key` at `id`, whose number of distinct keys was raised already if it `brought` a new one, and
/// mends that number where another thread has been faster. The key, if it is tracked now.
fn track(
    context: &mut Context<'_>,
    ledger: &mut Ledger,
    known: KeyPage,
    key: u64,
    id: SlotId,
    brought: bool,
) -> Option<u64> {
    let (tracked, keys) = ledger.join(context.store, known, key, id);
    let keys = keys - i32::from(brought);
    if keys != 0 {
        ledger.count(context.store, id, Delta { in_flight: 0, keys });
    }
    tracked.then_some(key)
}

/// What names a candidate set: its ordered members, each with the generation of its registration.
fn set_hash(candidates: &[Candidate<'_>]) -> u64 {
    let mut bytes = Vec::with_capacity(candidates.len() * 4);
    for candidate in candidates {
        bytes.extend_from_slice(&candidate.id.slot.to_le_bytes());
        bytes.extend_from_slice(&candidate.id.generation.to_le_bytes());
    }
    xxh3_64(&bytes)
}
