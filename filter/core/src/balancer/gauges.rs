//! What the leader sees of the workers on each of its ticks: the gauges, and statuses that nobody stands for any more.

use std::collections::HashMap;
use std::rc::Rc;

use super::available::is_vetoed;
use super::table::Read;
use super::{Balancer, CachedReports, Context};
use crate::breaker;
use crate::fleet::{ConnectionMode, Fleet, UNKNOWN_MODEL};
use crate::metrics::Metrics;
use crate::state::census::Census;
use crate::state::load::{BreakerState, Status};
use crate::state::tree::Label;
use crate::store::StoreError;

/// What is shown of each worker.
const WORKER_GAUGES: [&str; 6] = [
    "smg_worker_requests_active",
    "smg_worker_health",
    "smg_worker_cb_state",
    "smg_worker_routing_keys_active",
    "smg_worker_cb_consecutive_failures",
    "smg_worker_cb_consecutive_successes",
];

impl Balancer {
    /// Looks at all workers once.
    pub(super) fn watch(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let fleet = Rc::clone(&self.fleet);
        let mut reads = Vec::new();
        for &block in &fleet.pool(UNKNOWN_MODEL).blocks {
            reads.push(self.load.read(context.store, block)?);
        }
        let reports = self.fetch_reports(context, &reads)?;
        self.expire_statuses(context, &fleet, &mut reads, &reports)?;
        if fleet.is_limited() {
            show_overloaded(context, &fleet, &reports);
        }
        self.show_workers(context, &fleet, &reads)
    }

    /// Whoever probed a worker has fallen silent: nobody knows its health, so that it may be chosen.
    fn expire_statuses(
        &self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        reads: &mut [Read],
        reports: &[Rc<CachedReports>],
    ) -> Result<(), StoreError> {
        for (read, reports) in reads.iter_mut().zip(reports) {
            let mut changed = false;
            for worker in fleet.workers().iter().filter(|worker| worker.id.block() == read.number) {
                let mut slot = read.block.slot(worker.id.position());
                let Some(entry) = reports.entries.get(worker.id.position()) else { continue };
                let told = entry.generation == worker.id.generation && !entry.is_expired(context.now_ms);
                if slot.generation == worker.id.generation && slot.status != Status::Unset && !told {
                    slot.status = Status::Unset;
                    read.block.set_slot(worker.id.position(), slot);
                    changed = true;
                }
            }
            // A lost race may be one to a new report: the next tick looks again.
            if changed {
                self.load.write(context.store, read)?;
            }
        }
        Ok(())
    }

    /// Sets the gauges of all workers.
    fn show_workers(&mut self, context: &mut Context<'_>, fleet: &Fleet, reads: &[Read]) -> Result<(), StoreError> {
        if self.gauges.len() != fleet.workers().len() {
            let mut named = |url: &str| WORKER_GAUGES.map(|name| context.metrics.gauge(name, &[("worker", url)]));
            self.gauges = fleet.workers().iter().map(|worker| named(&worker.url)).collect();
        }
        for (number, worker) in fleet.workers().iter().enumerate() {
            let Some(read) = reads.iter().find(|read| read.number == worker.id.block()) else { continue };
            let slot = read.block.slot(worker.id.position());
            if slot.generation != worker.id.generation {
                // Named again in the middle of its release: with the release finished, the next tick gives it a slot.
                self.roster.fleet.free(context.store, worker.id)?;
                continue;
            }
            let state = match slot.breaker {
                BreakerState::Closed => 0,
                // Whoever may be chosen again is half open, whether or not anybody has been sent there.
                BreakerState::Open if breaker::lets_through(&worker.breaker, &slot, context.now_ms) => 2,
                BreakerState::Open => 1,
                BreakerState::HalfOpen => 2,
            };
            let keys = u64::try_from(slot.keys).unwrap_or(0);
            let values = [
                u64::from(slot.in_flight),
                u64::from(slot.status.is_selectable()),
                state,
                keys,
                u64::from(slot.failures),
                u64::from(slot.successes),
            ];
            let gauges = self.gauges.get(number).copied().unwrap_or_default();
            for (gauge, value) in gauges.into_iter().zip(values) {
                if let Some(gauge) = gauge {
                    context.metrics.set_at(gauge, value);
                }
            }
        }
        for model in fleet.models().into_iter().chain([UNKNOWN_MODEL]) {
            show_pool(context.metrics, fleet, model, |mode| {
                let pool = fleet.pool(model).workers.iter().filter_map(|&worker| fleet.worker(worker));
                pool.filter(|worker| worker.mode == mode).count() as u64
            });
        }
        Ok(())
    }
}

/// Shows how many workers of each model overload protection keeps out.
fn show_overloaded(context: &mut Context<'_>, fleet: &Fleet, reports: &[Rc<CachedReports>]) {
    let mut of_model: HashMap<&str, u64> = HashMap::new();
    let (mut of_any, mut all) = (0, 0);
    let pool = fleet.pool(UNKNOWN_MODEL);
    for (&number, &id) in pool.workers.iter().zip(&pool.ids) {
        let block = pool.blocks.iter().zip(reports).find(|(block, _)| **block == id.block());
        let entry = block.and_then(|(_, reports)| reports.entries.get(id.position()));
        let Some(worker) = fleet.worker(number).filter(|_| is_vetoed(fleet, number, id, entry, context.now_ms)) else {
            continue;
        };
        all += 1;
        of_any += u64::from(worker.models.is_empty());
        worker.models.iter().for_each(|model| *of_model.entry(model).or_default() += 1);
    }
    for model in fleet.models() {
        let count = of_any + of_model.get(model).copied().unwrap_or(0);
        context.metrics.set("smg_workers_overloaded", &[("model", model)], count);
    }
    context.metrics.set("smg_workers_overloaded", &[("model", UNKNOWN_MODEL)], all);
}

/// Sets the gauges of a worker that has gone to 0: Envoy's gauges cannot be -1 as SMG's are.
pub(super) fn show_gone(metrics: &mut Metrics, url: &str) {
    for gauge in WORKER_GAUGES {
        metrics.set(gauge, &[("worker", url)], 0);
    }
}

/// Shows how large the pool of `model` is, by connection mode.
pub(super) fn show_pool(metrics: &mut Metrics, fleet: &Fleet, model: &str, size: impl Fn(ConnectionMode) -> u64) {
    for &mode in fleet.modes() {
        let labels = [("worker_type", "regular"), ("connection_mode", mode.as_str()), ("model", model)];
        metrics.set("smg_worker_pool_size", &labels, size(mode));
    }
}

/// Sets the gauges of the prefix tree. Only models that the fleet names have their own.
pub(super) fn show_trees(metrics: &mut Metrics, fleet: &Fleet, counted: &Census) {
    metrics.set("smg_cache_tree_nodes", &[], counted.nodes);
    metrics.set("smg_cache_tree_bytes", &[], counted.bytes);
    for model in fleet.models().into_iter().chain([UNKNOWN_MODEL]) {
        for (tokens, units, name) in
            [(false, "smg_cache_tree_chars", "string"), (true, "smg_cache_tree_tokens", "token")]
        {
            let tree = counted.trees.get(&Label::new(model, tokens));
            let (units_held, holders) = tree.map_or((0, 0), |tree| (tree.units, tree.holders.len() as u64));
            metrics.set(units, &[("model", model)], units_held);
            metrics.set("smg_cache_tree_tenants", &[("model", model), ("tree", name)], holders);
        }
    }
}
