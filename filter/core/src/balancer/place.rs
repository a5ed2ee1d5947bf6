//! Placing a request: pool, available workers, policy, and the one write that makes it so.

use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64;

use super::table::{Delta, TRIES};
use super::{Balancer, Changed, Context, Ledger, Level};
use crate::answer::Refusal;
use crate::breaker;
use crate::config::{Breaker, PolicyName};
use crate::fleet::{ConnectionMode, Fleet, Pool, UNKNOWN_MODEL, Worker};
use crate::policy::{Branch, Candidate, Pick, View};
use crate::prefix::path::{self, Node, Root};
use crate::state::keys::KeyPage;
use crate::state::load::{BreakerState, Slot, SlotId};
use crate::state::placements::Known;
use crate::state::tree::{Found, Label};
use crate::store::{StoreError, Write};

/// What is asked of a placement.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// The model; empty means any.
    pub model: &'a str,
    /// The routing text.
    pub text: &'a [u8],
    /// Bytes of the whole text, of which `text` may be the beginning.
    pub text_bytes: u64,
    /// Token ids; if there are any, the text is not looked at.
    pub tokens: &'a [u32],
    /// All token ids, of which `tokens` may be the first.
    pub token_count: u64,
    /// The cache partition.
    pub namespace: Option<u64>,
    /// Not an inference request: the least loaded worker, whatever the policy.
    pub any_worker: bool,
    /// The policy, if it is another one than the configuration's.
    pub policy: Option<PolicyName>,
    /// The routing key's hash, see [`Balancer::key_hash`].
    pub key: Option<u64>,
}

/// A placed request: what it holds until it ends.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub(super) fleet: Rc<Fleet>,
    /// The workers that Envoy may try, in order, as positions in the fleet.
    pub(super) list: Vec<u16>,
    /// Whose in-flight count the request is part of.
    pub(super) counted: Option<SlotId>,
    /// The routing key under which it is counted there.
    pub(super) key: Option<u64>,
    /// The picked worker's breaker had nothing to forget.
    pub(super) healthy: bool,
}

impl Ticket {
    /// The addresses that Envoy may try, in order, comma-separated.
    #[must_use]
    pub fn destination(&self) -> String {
        let mut text = String::with_capacity(self.list.len() * 22);
        for worker in self.list.iter().filter_map(|&worker| self.fleet.worker(worker)) {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&worker.address);
        }
        text
    }

    /// The picked worker.
    #[must_use]
    pub fn worker(&self) -> Option<&Worker> {
        self.fleet.worker(*self.list.first()?)
    }

    /// The worker that Envoy knows as `address`.
    #[must_use]
    pub fn worker_at(&self, address: &str) -> Option<&Worker> {
        self.fleet.by_address(address).and_then(|at| self.fleet.worker(at))
    }

    /// The fleet it was placed in.
    #[must_use]
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Whose in-flight count the request is part of, while it is.
    #[must_use]
    pub fn counted(&self) -> Option<SlotId> {
        self.counted
    }
}

/// How a placement came about.
struct Placement {
    pick: Pick,
    /// The picked worker, as a position in the fleet.
    worker: u16,
    id: SlotId,
    /// Its requests in flight before this one.
    in_flight: u32,
    list: Vec<u16>,
    key: Option<u64>,
    healthy: bool,
    found: Found,
    /// The pages of the prompt's marks, if it is known by them.
    known: Option<Known>,
}

impl Balancer {
    /// Chooses a worker for `prompt` and credits it, in one atomic step; remembers it as a holder of the prompt.
    ///
    /// # Errors
    /// When nobody serves the model or nobody may be chosen.
    pub fn place(
        &mut self,
        context: &mut Context<'_>,
        prompt: Prompt<'_>,
        ledger: &mut Ledger,
    ) -> Result<Ticket, Refusal> {
        let fleet = Rc::clone(&self.fleet);
        let pool = fleet.pool(prompt.model);
        if pool.workers.is_empty() {
            if fleet.waits() {
                // Workers are registered whose addresses nobody has told yet, or nobody has told of any: one may serve it.
                return Err(Refusal::NoAvailableWorkers);
            }
            let model = if prompt.model.is_empty() { UNKNOWN_MODEL } else { prompt.model };
            return Err(Refusal::ModelNotFound(model.to_owned()));
        }
        let mut nodes = Vec::new();
        let policy = self.policy_for(prompt);
        let needs = self.needs(policy);
        if needs.prefix {
            self.path(&fleet, pool, prompt, needs.placements, &mut nodes);
        }
        ledger.prepare(context.store);
        let placement = match self.choose(context, &fleet, pool, prompt, &nodes, ledger) {
            Ok(placement) => placement.inspect_err(|refusal| shed(context, prompt, refusal))?,
            Err(error) => return Ok(self.place_blindly(context, &fleet, pool, error)),
        };
        ledger.save(context.store);
        self.record(context, &fleet, prompt, &placement);
        let Placement { id, list, key, healthy, found, known, .. } = placement;
        if let Some(known) = known {
            self.note_holder(context, known, &nodes, fleet.model_label(prompt.model), id);
        } else if !nodes.is_empty() {
            // Best effort: a lost race or a failing store costs a hint, never the request.
            let label = Label::new(fleet.model_label(prompt.model), !prompt.tokens.is_empty());
            let evicted = self.tree.insert(context.store, &nodes, label, id, found);
            self.tally.evicted(evicted.unwrap_or(0));
        }
        Ok(Ticket { fleet, list, counted: Some(id), key, healthy })
    }

    /// The nodes of the prompt in the tree of its model, or its marks.
    fn path(&self, fleet: &Fleet, pool: &Pool, prompt: Prompt<'_>, marks: bool, nodes: &mut Vec<Node>) {
        let first = pool.workers.first().and_then(|&worker| fleet.worker(worker));
        let model = match prompt.model {
            "" | UNKNOWN_MODEL => first.map_or(UNKNOWN_MODEL, Worker::model),
            model => model,
        };
        let root = Root { seed: self.seed, model, namespace: prompt.namespace };
        if marks {
            path::of_boundaries(root, prompt.tokens, &self.config.cache_boundaries, nodes);
        } else if prompt.tokens.is_empty() {
            path::of_text(root, prompt.text, nodes);
        } else {
            path::of_tokens(root, prompt.tokens, self.config.cache.block_size, nodes);
        }
    }

    fn choose(
        &mut self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        pool: &Pool,
        prompt: Prompt<'_>,
        nodes: &[Node],
        ledger: &mut Ledger,
    ) -> Result<Result<Placement, Refusal>, StoreError> {
        let total = if prompt.tokens.is_empty() { prompt.text_bytes } else { prompt.token_count };
        let mut found = Found::default();
        found.matched.total = total;
        let needs = self.needs(self.policy_for(prompt));
        let mut known = None;
        if needs.placements {
            known = Some(self.placements.read(context.store, nodes)?);
        } else if !nodes.is_empty() {
            found = self.tree.search(context.store, nodes, total, &|id| fleet.by_slot(id).is_some())?;
        }
        let mut reads = Vec::with_capacity(pool.blocks.len());
        for &block in &pool.blocks {
            reads.push(self.load.read(context.store, block)?);
        }
        let key = match prompt.key {
            Some(key) => Some((key, ledger.keys.read(context.store, key)?)),
            None => None,
        };
        let brings = |id: SlotId| key.as_ref().is_some_and(|(_, known)| known.in_flight(id) == 0);
        let mut turn = None;
        let mut searched_again = false;
        let token_ids = (prompt.token_count > 0).then(|| u32::try_from(prompt.token_count).unwrap_or(u32::MAX));
        for attempt in 1.. {
            let reports = self.fetch_reports(context, &reads)?;
            let candidates = self.candidates(context, fleet, pool, &reads, &reports, needs.last_load);
            if candidates.is_empty() {
                return Ok(Err(Self::why_nobody(context, fleet, pool, &reads, &reports, prompt.model)));
            }
            if let Some(known) = &known {
                found.matched = self.holders(context, known, nodes, total, &candidates);
            }
            let available = |id: SlotId| candidates.iter().any(|candidate| candidate.id == id);
            if !searched_again
                && !found.matched.holders.is_empty()
                && !found.matched.holders.iter().any(|id| available(*id))
            {
                // All holders of the longest prefix are out: look for an available holder of a shorter one.
                let shorter = self.tree.search(context.store, nodes, total, &available)?;
                searched_again = true;
                if !shorter.matched.holders.is_empty() {
                    found = shorter;
                }
            }
            let Some(policy) = self.policy(self.policy_for(prompt)) else {
                return Ok(Err(Refusal::NoAvailableWorkers));
            };
            if needs.turn && turn.is_none() {
                turn = Some(self.turns.take(context.store, set_hash(&candidates))?);
            }
            let view =
                View { candidates: &candidates, prefix: &found.matched, token_ids, turn: turn.unwrap_or_default() };
            let Some(pick) = policy.pick(&view, context.rng) else { return Ok(Err(Refusal::NoAvailableWorkers)) };
            let Some(winner) = candidates.get(pick.index) else { return Ok(Err(Refusal::NoAvailableWorkers)) };
            let (worker, id, in_flight) = (winner.worker, winner.id, winner.in_flight);
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
            let most = self.max_attempts();
            let list = super::list::workers(&candidates, pick.index, most, needs, &self.config.score, context.rng);
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
            return Ok(Ok(Placement { pick, worker, id, in_flight, list, key, healthy, found, known }));
        }
        Ok(Err(Refusal::NoAvailableWorkers))
    }

    fn policy_for(&self, prompt: Prompt<'_>) -> PolicyName {
        let named = prompt.policy.unwrap_or(self.config.policy);
        if prompt.any_worker { PolicyName::LeastLoad } else { named }
    }

    fn max_attempts(&self) -> usize {
        usize::try_from(self.config.max_attempts).unwrap_or(1).max(1)
    }

    /// The store fails: any worker of the pool, counted nowhere. Serving badly beats not serving.
    fn place_blindly(&self, context: &mut Context<'_>, fleet: &Rc<Fleet>, pool: &Pool, error: StoreError) -> Ticket {
        context.metrics.add("smg_store_errors_total", &[], 1);
        context.log.line(Level::Error, &format!("{error}; the request goes to a random worker"));
        let start = context.rng.next_u32() as usize % pool.workers.len().max(1);
        let list = pool.workers.iter().cycle().skip(start).take(self.max_attempts());
        Ticket { fleet: Rc::clone(fleet), list: list.copied().collect(), counted: None, key: None, healthy: true }
    }

    /// Metrics and log of a placement.
    fn record(&mut self, context: &mut Context<'_>, fleet: &Fleet, prompt: Prompt<'_>, placement: &Placement) {
        let policy = self.policy_for(prompt);
        if policy == PolicyName::Bucket {
            self.bucketless.note();
        }
        let policy = policy.as_str();
        let model = fleet.model_label(prompt.model);
        let mode = fleet.worker(placement.worker).map_or(ConnectionMode::Http, |worker| worker.mode);
        self.tally.selected(model, policy, mode);
        let (pick, matched) = (&placement.pick, &placement.found.matched);
        let hashed = placement.known.is_some();
        if let Some(branch) = pick.branch.filter(|branch| !hashed && *branch != Branch::KvPressure) {
            self.tally.decided(branch, matched.matched, matched.total);
        }
        if !context.log.wants(Level::Debug) {
            return;
        }
        let url = fleet.worker(placement.worker).map_or("", |worker| worker.url.as_str());
        if let Some(branch) = pick.branch {
            let line = if hashed {
                super::placements::line(branch, matched, url, model)
            } else if branch == Branch::KvPressure {
                format!("Cache-aware selection branch={} worker={url} model_id={model}", branch.as_str())
            } else {
                format!(
                    "Cache-aware selection index=\"tree\" branch={} worker={url} model_id={model} matched_ratio={:.4} threshold={}",
                    branch.as_str(),
                    matched.ratio(),
                    self.config.cache.threshold
                )
            };
            context.log.line(Level::Debug, &line);
        }
        if let Some(score) = pick.score {
            let in_flight = placement.in_flight;
            let line = format!("{policy} selected {url} (score {score:.4}, in_flight {in_flight})");
            context.log.line(Level::Debug, &line);
        }
    }
}

/// Counts and logs that a request is shed, if it is.
fn shed(context: &mut Context<'_>, prompt: Prompt<'_>, refusal: &Refusal) {
    // What is no inference request is not refused.
    if prompt.any_worker || !matches!(refusal, Refusal::Overloaded { .. }) {
        return;
    }
    context.metrics.add("smg_worker_overload_shed_total", &[("stage", "selection")], 1);
    context.log.line(Level::Debug, "Overload shed branch=all_overloaded_shed stage=selection");
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
