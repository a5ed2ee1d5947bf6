//! Placing a request: pool, available workers, policy, and the one write that makes it so.

use std::rc::Rc;

use super::sticky::StickyKey;
use super::{Balancer, Context, Ledger, Level};
use crate::answer::Refusal;
use crate::config::PolicyName;
use crate::fleet::{Fleet, PolicyRef, Pool, UNKNOWN_MODEL, Worker};
use crate::policy::{Branch, Pick};
use crate::prefix::path::{self, Node, Root};
use crate::request::Target;
use crate::state::load::SlotId;
use crate::state::placements::Known;
use crate::state::tree::{Found, Label};
use crate::store::StoreError;

/// What is asked of a placement.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prompt<'a> {
    /// The place in the configuration's list of the cluster it is routed to, if that is known.
    pub cluster: Option<usize>,
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
    /// The hash of the routing key that it is counted under, see [`Balancer::key_hash`].
    pub key: Option<u64>,
    /// The worker that it names by an index.
    pub target: Target,
    /// The first valid configured routing-key header, as it came.
    pub routing_key: Option<&'a [u8]>,
    /// The key that `consistent_hashing` goes by.
    pub hash_key: Option<&'a [u8]>,
    /// The key that `manual` goes by.
    pub manual_key: Option<StickyKey<'a>>,
    /// The key that the routing-key override goes by.
    pub sticky_key: Option<StickyKey<'a>>,
    /// The id of the response that it refers to.
    pub response: Option<&'a [u8]>,
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
    /// Why it was placed as it was, if that is wanted.
    pub(super) decision: Option<Box<str>>,
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

    /// Why it was placed as it was, see [`Config::explain_decisions`](crate::config::Config::explain_decisions).
    #[must_use]
    pub fn decision(&self) -> Option<&str> {
        self.decision.as_deref()
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
pub(super) struct Placement {
    pub(super) pick: Pick,
    /// What became of the response that it refers to, if it does.
    pub(super) response: Option<Branch>,
    /// How its key was treated, if it has one that stays with a worker.
    pub(super) sticky: Option<Branch>,
    /// The picked worker, as a position in the fleet.
    pub(super) worker: u16,
    pub(super) id: SlotId,
    /// Its requests in flight before this one.
    pub(super) in_flight: u32,
    pub(super) list: Vec<u16>,
    pub(super) key: Option<u64>,
    pub(super) healthy: bool,
    pub(super) found: Found,
    /// The pages of the prompt's marks, if it is known by them.
    pub(super) known: Option<Known>,
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
        let pool = fleet.pool_within(prompt.cluster, prompt.model);
        if pool.workers.is_empty() {
            if fleet.waits() {
                // Workers are registered whose addresses nobody has told yet, or nobody has told of any: one may serve it.
                return Err(Refusal::NoAvailableWorkers);
            }
            let model = if prompt.model.is_empty() { UNKNOWN_MODEL } else { prompt.model };
            return Err(Refusal::ModelNotFound(model.to_owned()));
        }
        let mut nodes = Vec::new();
        let policy = self.policy_for(pool, prompt);
        let needs = self.needs(policy);
        // The text of a request that goes on from a response is not the beginning of its prompt.
        if needs.prefix && prompt.response.is_none() {
            self.path(&fleet, pool, prompt, needs.placements, &mut nodes);
        }
        ledger.prepare(context.store);
        let placement = match self.choose(context, &fleet, pool, prompt, policy, &nodes, ledger) {
            Ok(placement) => placement.inspect_err(|refusal| shed(context, prompt, refusal))?,
            Err(error) => return Ok(self.place_blindly(context, &fleet, pool, error)),
        };
        ledger.save(context.store);
        self.record(context, &fleet, prompt, policy, &placement);
        let explain = self.config.explain_decisions && !prompt.any_worker;
        let decision = explain.then(|| self.explain(&fleet, policy, &placement, context.now_ms));
        let Placement { id, list, key, healthy, found, known, sticky, .. } = placement;
        // The prompt of a request that went where its key belongs tells nothing of what its policy would have done.
        let asked = sticky != Some(Branch::OccupiedHit) && prompt.response.is_none();
        if let Some(known) = known.filter(|_| asked) {
            self.note_holder(context, known, &nodes, fleet.model_label(prompt.model), id);
        } else if asked && !needs.placements && !nodes.is_empty() {
            // Best effort: a lost race or a failing store costs a hint, never the request.
            let label = Label::new(fleet.model_label(prompt.model), !prompt.tokens.is_empty());
            let evicted = self.tree.insert(context.store, &nodes, label, id, found);
            self.tally.evicted_nodes(evicted.unwrap_or(0));
        }
        Ok(Ticket { fleet, list, counted: Some(id), key, healthy, decision })
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

    /// The policy of a request: what is no inference request has its own, then the route decides, then the model's label.
    fn policy_for(&self, pool: &Pool, prompt: Prompt<'_>) -> PolicyRef {
        if prompt.any_worker {
            return PolicyRef::tuned(PolicyName::LeastLoad);
        }
        let named = prompt.policy.map(PolicyRef::tuned).or(pool.policy);
        named.unwrap_or(PolicyRef::tuned(self.config.policy))
    }

    pub(super) fn max_attempts(&self) -> usize {
        usize::try_from(self.config.max_attempts).unwrap_or(1).max(1)
    }

    /// The store fails: any worker of the pool, counted nowhere. Serving badly beats not serving.
    fn place_blindly(&self, context: &mut Context<'_>, fleet: &Rc<Fleet>, pool: &Pool, error: StoreError) -> Ticket {
        context.metrics.add("smg_store_errors_total", &[], 1);
        context.log.line(Level::Error, &format!("{error}; the request goes to a random worker"));
        let start = context.rng.next_u32() as usize % pool.workers.len().max(1);
        let list = pool.workers.iter().cycle().skip(start).take(self.max_attempts());
        Ticket {
            fleet: Rc::clone(fleet),
            list: list.copied().collect(),
            counted: None,
            key: None,
            healthy: true,
            decision: None,
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
