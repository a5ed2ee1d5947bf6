//! What the response says, and the end of a request.

use super::table::Delta;
use super::{Balancer, Context, Level, Pending, Ticket};
use crate::breaker::{self, Outcome};
use crate::state::keys::{Change, KeyPage};
use crate::state::load::{BreakerState, SlotId};

/// The head of a response, as far as it tells who gave it.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// Attempts that Envoy has made, if it says.
    pub attempts: Option<u64>,
    /// The address of the last host it tried, if it tried any.
    pub address: Option<&'a str>,
    /// The response's status.
    pub status: u16,
    /// What the status says of the worker; none when Envoy answered itself for a reason that is no worker's fault.
    pub outcome: Option<Outcome>,
}

impl Balancer {
    /// Takes note of who answered: moves the in-flight count to it and feeds the breakers.
    /// Returns the worker's position in the ticket's fleet, if a worker of ours answered.
    pub fn answered(
        &mut self,
        context: &mut Context<'_>,
        ticket: &mut Ticket,
        response: Answered<'_>,
        pending: &mut Vec<Pending>,
    ) -> Option<u16> {
        let last = response.address.and_then(|address| ticket.fleet.by_address(address));
        let picked = ticket.list.first().copied();
        let attempts = response.attempts.and_then(|attempts| usize::try_from(attempts).ok()).unwrap_or(1);
        if response.address.is_some() && (last.is_none() || (attempts <= 1 && last != picked)) {
            // Envoy does not know the pick: its host list lags behind ours, or the addresses differ.
            context.metrics.add("smg_destination_unknown_total", &[], 1);
            self.warn_unknown(context, ticket, response.address.unwrap_or_default());
        }
        // What the attempts before the last were answered is not told. When the last one says that it is full, those before
        // it most likely were too, and being full is nobody's failure.
        // Where a stranger was tried last before the list was used up, it was not followed: nobody on it is to blame.
        let followed = last.is_some() || attempts > ticket.list.len();
        if attempts > 1 && followed && response.outcome != Some(Outcome::Capacity) {
            let before = ticket.list.get(..attempts - 1).unwrap_or(&ticket.list);
            let mut charged: Vec<u16> = Vec::with_capacity(before.len());
            for &worker in before {
                // The last host is judged by its answer below.
                if Some(worker) != last && !charged.contains(&worker) {
                    charged.push(worker);
                    self.feed(context, ticket, worker, Outcome::Failure);
                }
            }
        }
        if let (Some(last), Some(outcome)) = (last, response.outcome) {
            let unremarkable = outcome == Outcome::Success && Some(last) == picked && ticket.healthy && attempts <= 1;
            if !unremarkable && outcome != Outcome::Capacity {
                self.feed(context, ticket, last, outcome);
            }
        }
        if let Some(worker) = last.and_then(|last| ticket.fleet.worker(last))
            && let Some(counted) = ticket.counted
            && counted != worker.id
        {
            let id = worker.id;
            let (mut came, mut left) = (0, 0);
            if let Some(key) = ticket.key {
                left = self.leave(context, key, counted, pending);
                let known = self.keys.read(context.store, key).ok();
                (ticket.key, came) = known.map_or((None, 0), |known| self.join(context, known, key, id));
            }
            self.load.count(context.store, id, Delta { in_flight: 1, keys: came }, pending);
            self.load.count(context.store, counted, Delta { in_flight: -1, keys: left }, pending);
            ticket.counted = Some(id);
        }
        last
    }

    /// Says once that Envoy and this configuration disagree about who is where.
    fn warn_unknown(&mut self, context: &mut Context<'_>, ticket: &Ticket, address: &str) {
        if std::mem::replace(&mut self.warned_unknown, true) {
            return;
        }
        let wanted = ticket.destination();
        let line = format!(
            "Envoy sent a request for {wanted} to {address}: the endpoints of the cluster and the `workers` of the plugin \
             configuration must have the same ip:port (with host names, mind IPv4 and IPv6)"
        );
        context.log.line(Level::Warn, &line);
    }

    /// Ends the request: its worker has one less in flight. Does nothing the second time.
    pub fn ended(&mut self, context: &mut Context<'_>, ticket: &mut Ticket, pending: &mut Vec<Pending>) {
        if let Some(id) = ticket.counted.take() {
            let keys = ticket.key.take().map_or(0, |key| self.leave(context, key, id, pending));
            self.load.count(context.store, id, Delta { in_flight: -1, keys }, pending);
        }
    }

    /// Counts a request of `key` at `id`: the key if it is tracked now, and what that did to the worker's number of
    /// distinct keys. A store that fails leaves the request untracked.
    pub(super) fn join(&self, context: &mut Context<'_>, known: KeyPage, key: u64, id: SlotId) -> (Option<u64>, i32) {
        match self.keys.add(context.store, known, id) {
            Ok(Change::Keys(keys)) => (Some(key), keys),
            Ok(Change::Untracked | Change::Lost) | Err(_) => (None, 0),
        }
    }

    /// Counts a request of `key` less at `id` and returns what that did to the worker's number of distinct keys.
    fn leave(&self, context: &mut Context<'_>, key: u64, id: SlotId, pending: &mut Vec<Pending>) -> i32 {
        Pending::drop_key(context.store, &self.keys, self.load.name(), key, id, pending)
    }

    fn feed(&self, context: &mut Context<'_>, ticket: &Ticket, worker: u16, outcome: Outcome) {
        let Some(worker) = ticket.fleet.worker(worker) else { return };
        let now_secs = context.now_secs();
        let mut transition = None;
        let fed = self.load.change(context.store, worker.id, |slot| {
            let before = slot.breaker;
            let changed = breaker::on_outcome(&self.config.breaker, slot, outcome, now_secs);
            transition = (before != slot.breaker).then_some((before, slot.breaker));
            changed
        });
        if fed == Ok(true)
            && let Some((from, to)) = transition
        {
            log_transition(context, &worker.url, from, to);
        }
    }
}

pub(super) fn log_transition(context: &mut Context<'_>, url: &str, from: BreakerState, to: BreakerState) {
    let labels = [("worker", url), ("from", from.as_str()), ("to", to.as_str())];
    context.metrics.add("smg_worker_cb_transitions_total", &labels, 1);
    let line = format!("circuit breaker of {url}: {} -> {}", from.as_str(), to.as_str());
    context.log.line(Level::Info, &line);
}
