//! What the response says, and the end of a request.

use super::table::Delta;
use super::{Balancer, Changed, Context, Ledger, Level, Ticket};
use crate::breaker::{self, Outcome};
use crate::state::load::BreakerState;

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
        ledger: &mut Ledger,
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
                    self.count_outcome(ticket, worker, Outcome::Failure);
                    self.feed(context, ticket, worker, Outcome::Failure);
                }
            }
        }
        if let (Some(last), Some(outcome)) = (last, response.outcome) {
            self.count_outcome(ticket, last, outcome);
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
                left = ledger.leave(context.store, key, counted);
                let known = ledger.keys.read(context.store, key).ok();
                let (tracked, keys) = known.map_or((false, 0), |known| ledger.join(context.store, known, key, id));
                ticket.key = tracked.then_some(key);
                came = keys;
            }
            ledger.count(context.store, id, Delta { in_flight: 1, keys: came });
            ledger.count(context.store, counted, Delta { in_flight: -1, keys: left });
            ledger.save(context.store);
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
    pub fn ended(&mut self, context: &mut Context<'_>, ticket: &mut Ticket, ledger: &mut Ledger) {
        if let Some(id) = ticket.counted.take() {
            let keys = ticket.key.take().map_or(0, |key| ledger.leave(context.store, key, id));
            ledger.count(context.store, id, Delta { in_flight: -1, keys });
            ledger.save(context.store);
        }
    }

    /// Counts what a worker's breaker is told, whether or not it changes anything.
    fn count_outcome(&mut self, ticket: &Ticket, worker: u16, outcome: Outcome) {
        if outcome != Outcome::Capacity
            && let Some(worker) = ticket.fleet.worker(worker)
        {
            self.requests.judged(worker.id, outcome == Outcome::Failure);
        }
    }

    fn feed(&self, context: &mut Context<'_>, ticket: &Ticket, worker: u16, outcome: Outcome) {
        let Some(worker) = ticket.fleet.worker(worker) else { return };
        let now_ms = context.now_ms;
        let mut transition = None;
        let fed = self.load.change(context.store, worker.id, |slot| {
            let before = slot.breaker;
            let changed = breaker::on_outcome(&worker.breaker, slot, outcome, now_ms);
            transition = (before != slot.breaker).then_some((before, slot.breaker));
            changed
        });
        if fed == Ok(Changed::Done)
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
