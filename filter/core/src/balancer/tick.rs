//! What is done on ticks, and what a load snapshot changes.

use std::rc::Rc;

use super::table::TRIES;
use super::{Balancer, Changed, Context, Ledger, Level, hashes};
use crate::config::PolicyName;
use crate::fleet::{Fleet, UNKNOWN_MODEL};
use crate::metrics::Metrics;
use crate::report::Snapshot;
use crate::state::census::Census;
use crate::state::fleet::url_hash;
use crate::state::load::{BreakerState, Slot, SlotId};
use crate::state::report::{Entry, ReportBlock};
use crate::state::tree::Label;
use crate::store::{StoreError, Write, version_of};

/// What became of a snapshot's workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Reports taken.
    pub taken: u64,
    /// Reports older than what is known.
    pub old: u64,
    /// Reports of workers that no configuration names.
    pub foreign: u64,
    /// Reports that lost every race; the next snapshot brings newer ones.
    pub lost: u64,
}

/// What is shown of each worker.
const WORKER_GAUGES: [&str; 4] =
    ["smg_worker_requests_active", "smg_worker_health", "smg_worker_cb_state", "smg_worker_routing_keys_active"];

/// A sidecar that claims to report less often than that is not believed: one wrong number would freeze a worker's load.
const MAX_INTERVAL_MS: u32 = 600_000;

/// The leader looks for forgotten slots once in so many of its ticks.
const BEATS_PER_SWEEP: u32 = 16;

impl Balancer {
    /// One tick of this configuration in this VM: the lease, the fleet as it stands, and, as leader, what is done once
    /// per process.
    ///
    /// # Errors
    /// When the store cannot answer; the next tick tries again.
    pub fn tick(&mut self, context: &mut Context<'_>, ledger: &mut Ledger) -> Result<(), StoreError> {
        self.publish(context.metrics);
        let (leads, seed) = self.lease.beat(context.store)?;
        if seed != 0 {
            self.seed = seed;
        }
        if let Some(state) = self.fleet_table.read_newer(context.store, self.fleet_version)? {
            self.fleet = Rc::new(Fleet::new(&self.config, &state));
            self.fleet_version = state.version();
            self.gauges.clear();
        }
        self.warn_unplaced(context);
        if leads {
            self.lead(context, ledger)?;
        }
        Ok(())
    }

    fn warn_unplaced(&mut self, context: &mut Context<'_>) {
        if self.fleet.unplaced().is_empty() {
            self.warned_unplaced = false;
        } else if !self.warned_unplaced {
            self.warned_unplaced = true;
            let line = format!(
                "workers without an address or a slot cannot be chosen: {}; a URL with a host name needs an `address` \
                 in the configuration or from the sidecar, and all workers of an instance must fit `max_workers`",
                self.fleet.unplaced().join(" ")
            );
            context.log.line(Level::Warn, &line);
        }
    }

    /// Says once that all but one worker of a pool stay idle under `passthrough`.
    fn warn_passthrough(&mut self, context: &mut Context<'_>) {
        if self.config.policy != PolicyName::Passthrough || self.warned_passthrough {
            return;
        }
        let mut models = self.fleet.models();
        if models.is_empty() {
            models.push(UNKNOWN_MODEL);
        }
        let widest = models.iter().map(|model| self.fleet.pool(model).workers.len()).max().unwrap_or(0);
        if widest > 1 {
            self.warned_passthrough = true;
            let line = format!(
                "the policy passthrough is for a single backend: of {widest} workers only the first available one \
                 receives traffic"
            );
            context.log.line(Level::Warn, &line);
        }
    }

    fn lead(&mut self, context: &mut Context<'_>, ledger: &mut Ledger) -> Result<(), StoreError> {
        self.beats = self.beats.wrapping_add(1);
        if self.beats.is_multiple_of(BEATS_PER_SWEEP) {
            context.metrics.forget_delivered();
            self.sweep(context)?;
        }
        self.warn_passthrough(context);
        self.audit.check(context, ledger)?;
        ledger.patrol(context)?;
        let fleet = Rc::clone(&self.fleet);
        if let Some(counted) = self.census.step(context.store, &self.tree, &|id| fleet.by_slot(id).is_some())? {
            show_trees(context.metrics, &fleet, &counted);
            let line = format!("prefix tree: {} nodes in {} bytes", counted.nodes, counted.bytes);
            context.log.line(Level::Info, &line);
        }
        self.gauges(context)
    }

    /// Notes that this configuration's workers are in use and gives up slots that nobody names any more.
    fn sweep(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let now_secs = context.now_secs();
        let state = self.fleet_table.refresh(context.store, &hashes(&self.config), now_secs)?;
        let forgotten = state.forgotten(now_secs);
        // A clock that leaps makes other configurations' workers look forgotten until their own sweep: a slot goes only
        // when two sweeps in a row have found it so.
        let before = std::mem::replace(&mut self.forgotten, forgotten.clone());
        for id in forgotten.into_iter().filter(|id| before.contains(id)) {
            self.release(context, id)?;
        }
        Ok(())
    }

    /// Gives up a slot whose owner nobody names any more, once nothing is in flight there.
    fn release(&mut self, context: &mut Context<'_>, id: SlotId) -> Result<(), StoreError> {
        // The load table goes first: a slot of a later generation there was released already, up to the second step.
        let mut released = true;
        let done = self.load.change(context.store, id, |slot| {
            released = slot.in_flight == 0;
            *slot = Slot { generation: id.generation.wrapping_add(1), ..Slot::default() };
            released
        })?;
        if done == Changed::Done && released {
            self.fleet_table.free(context.store, id)?;
        }
        Ok(())
    }

    /// Sets the gauges of all workers.
    fn gauges(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let fleet = Rc::clone(&self.fleet);
        if self.gauges.len() != fleet.workers().len() {
            let mut named = |url: &str| WORKER_GAUGES.map(|name| context.metrics.gauge(name, &[("worker", url)]));
            self.gauges = fleet.workers().iter().map(|worker| named(&worker.url)).collect();
        }
        let mut block = None;
        for (number, worker) in fleet.workers().iter().enumerate() {
            if block.as_ref().is_none_or(|(number, _)| *number != worker.id.block()) {
                block = Some((worker.id.block(), self.load.read(context.store, worker.id.block())?.block));
            }
            let Some((_, block)) = &block else { continue };
            let slot = block.slot(worker.id.position());
            if slot.generation != worker.id.generation {
                // Named again in the middle of its release: with the release finished, the next tick gives it a slot.
                self.fleet_table.free(context.store, worker.id)?;
                continue;
            }
            let state = match slot.breaker {
                BreakerState::Closed => 0,
                BreakerState::Open => 1,
                BreakerState::HalfOpen => 2,
            };
            let keys = u64::try_from(slot.keys).unwrap_or(0);
            let values = [u64::from(slot.in_flight), u64::from(slot.status.is_selectable()), state, keys];
            let gauges = self.gauges.get(number).copied().unwrap_or_default();
            for (gauge, value) in gauges.into_iter().zip(values) {
                if let Some(gauge) = gauge {
                    context.metrics.set_at(gauge, value);
                }
            }
        }
        for model in fleet.models().into_iter().chain([UNKNOWN_MODEL]) {
            let labels = [("worker_type", "regular"), ("connection_mode", "http"), ("model", model)];
            context.metrics.set("smg_worker_pool_size", &labels, fleet.pool(model).workers.len() as u64);
        }
        Ok(())
    }

    /// Takes the reports of `snapshot`: cold table first, then the hot one (zero the tally, name the new version).
    /// A report that failed to come leaves the tally alone and the last load in place.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn apply(&mut self, context: &mut Context<'_>, snapshot: &Snapshot) -> Result<Applied, StoreError> {
        let slots = self.fleet_table.read(context.store)?.slots();
        let mut applied = Applied::default();
        let mut addresses = Vec::new();
        let mut reports: Vec<(SlotId, Entry)> = Vec::with_capacity(snapshot.workers.len());
        for worker in &snapshot.workers {
            let hash = url_hash(&worker.url);
            let Some(&id) = slots.get(&hash) else {
                applied.foreign += 1;
                continue;
            };
            if let Some(address) = worker.address.as_deref().and_then(canonical) {
                addresses.push((hash, address));
            }
            let entry = Entry {
                load: worker.load,
                loaded_ms: context.now_ms,
                silent: worker.load.is_none(),
                received_ms: context.now_ms,
                interval_ms: snapshot.interval_ms.min(MAX_INTERVAL_MS),
                epoch: snapshot.epoch,
                sequence: snapshot.sequence,
                generation: id.generation,
            };
            reports.push((id, entry));
        }
        for block in 0..self.load.blocks() {
            let of_block: Vec<_> = reports.iter().filter(|(id, _)| id.block() == block).collect();
            if of_block.is_empty() {
                continue;
            }
            match self.write_reports(context, block, &of_block)? {
                None => applied.lost += of_block.len() as u64,
                Some(taken) => {
                    applied.old += (of_block.len() - taken.len()) as u64;
                    if self.name_reports(context, block, &taken)? {
                        applied.taken += taken.len() as u64;
                    } else {
                        applied.lost += taken.len() as u64;
                    }
                }
            }
        }
        if applied.taken > 0 {
            self.fleet_table.set_addresses(context.store, &addresses)?;
        }
        Ok(applied)
    }

    /// Writes one block of the cold table; the reports that were news, or none if every try lost its race.
    fn write_reports(
        &self,
        context: &mut Context<'_>,
        block: u16,
        reports: &[&(SlotId, Entry)],
    ) -> Result<Option<Vec<(SlotId, bool)>>, StoreError> {
        let key = self.load.report_key(block);
        for _ in 0..TRIES {
            let stored = context.store.get(&key)?;
            let version = version_of(stored.as_ref());
            let mut cold = ReportBlock::new(stored.map(|stored| stored.value).unwrap_or_default());
            let mut taken = Vec::with_capacity(reports.len());
            for (id, entry) in reports {
                let known = cold.entry(id.position());
                let mut news = *entry;
                if known.generation == id.generation {
                    if !known.is_superseded_by(entry.epoch, entry.sequence, context.now_ms) {
                        continue;
                    }
                    news.follow(&known);
                }
                cold.set_entry(id.position(), &news);
                taken.push((*id, entry.load.is_some()));
            }
            if taken.is_empty() || context.store.set(&key, cold.as_bytes(), version)? == Write::Done {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// Makes new reports of one block count: zeroes the tallies they cover and names the new version.
    fn name_reports(
        &self,
        context: &mut Context<'_>,
        block: u16,
        taken: &[(SlotId, bool)],
    ) -> Result<bool, StoreError> {
        if taken.is_empty() {
            return Ok(true);
        }
        for _ in 0..TRIES {
            let mut read = self.load.read(context.store, block)?;
            for (id, _) in taken.iter().filter(|(_, reports)| *reports) {
                let slot = read.block.slot(id.position());
                if slot.generation == id.generation {
                    read.block.set_slot(id.position(), Slot { tally_tokens: 0, tally_requests: 0, ..slot });
                }
            }
            read.block.bump_report_version();
            if self.load.write(context.store, &read)? == Write::Done {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Sets the gauges of the prefix tree. Only models that the fleet names have their own.
fn show_trees(metrics: &mut Metrics, fleet: &Fleet, counted: &Census) {
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

/// The `ip:port` in `text` as Envoy writes it, if it is one that a host can have.
fn canonical(text: &str) -> Option<String> {
    let address: std::net::SocketAddr = text.parse().ok()?;
    let scoped = matches!(address, std::net::SocketAddr::V6(v6) if v6.scope_id() != 0);
    (address.port() != 0 && !scoped).then(|| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn only_addresses_that_a_host_can_have_are_taken_and_written_as_envoy_writes_them() {
        assert_eq!(canonical("10.0.0.1:80").as_deref(), Some("10.0.0.1:80"));
        assert_eq!(canonical("[0:0:0:0:0:0:0:1]:80").as_deref(), Some("[::1]:80"));
        for text in ["10.0.0.1", "10.0.0.1:0", "[fe80::1%3]:80", "engine:80", ""] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
