//! Which workers of a pool may be chosen now, and why none may.

use std::rc::Rc;

use super::table::Read;
use super::{Balancer, CachedReports, Context};
use crate::answer::Refusal;
use crate::breaker;
use crate::fleet::{Fleet, Pool, UNKNOWN_MODEL};
use crate::policy::Candidate;
use crate::state::load::{BreakerState, SLOTS_PER_BLOCK, SlotId};
use crate::state::report::{Entry, ReportBlock};
use crate::store::StoreError;

impl Balancer {
    /// The reports of the blocks in `reads`, in their order and of the versions that the blocks name.
    pub(super) fn fetch_reports(
        &mut self,
        context: &mut Context<'_>,
        reads: &[Read],
    ) -> Result<Vec<Rc<CachedReports>>, StoreError> {
        let mut reports = Vec::with_capacity(reads.len());
        for read in reads {
            let version = read.block.report_version();
            let cached = self.reports.entry(read.number).or_default();
            // A block that nobody has reported to has version 0 and nothing to fetch.
            if cached.version != version {
                let stored = context.store.get(&self.load.report_key(read.number))?;
                let block = ReportBlock::new(stored.map(|stored| stored.value).unwrap_or_default());
                let entries = (0..SLOTS_PER_BLOCK).map(|position| block.entry(position)).collect();
                *cached = Rc::new(CachedReports { version, entries });
            }
            reports.push(Rc::clone(cached));
        }
        Ok(reports)
    }

    /// The workers of `pool` that may be chosen now. `last_load`: see [`crate::policy::Needs`].
    pub(super) fn candidates<'a>(
        &self,
        context: &Context<'_>,
        fleet: &Fleet,
        pool: &Pool,
        reads: &[Read],
        reports: &'a [Rc<CachedReports>],
        last_load: bool,
    ) -> Vec<Candidate<'a>> {
        let mut candidates = Vec::with_capacity(pool.workers.len());
        // Neighbours mostly share a block: what belongs to it is looked up once for a run of them.
        let mut run: Option<(&Read, &[Entry])> = None;
        for (&worker, &id) in pool.workers.iter().zip(&pool.ids) {
            if run.is_none_or(|(read, _)| read.number != id.block()) {
                let mut blocks = reads.iter().zip(reports);
                run = blocks.find(|(read, _)| read.number == id.block()).map(|(read, told)| (read, &*told.entries));
            }
            let Some((read, entries)) = run else { continue };
            let Some(slot) = read.block.view(id.position()) else { continue };
            let available = slot.generation() == id.generation
                && slot.is_selectable()
                && (slot.breaker() == BreakerState::Closed
                    || fleet
                        .worker(worker)
                        .is_some_and(|worker| breaker::lets_through(&worker.breaker, &slot.decode(), context.now_ms)));
            if !available {
                continue;
            }
            let entry = entries.get(id.position());
            if fleet.is_limited() && is_vetoed(fleet, worker, id, entry, context.now_ms) {
                continue;
            }
            let counts = |entry: &&Entry| entry.generation == id.generation && (last_load || !entry.silent);
            candidates.push(Candidate {
                worker,
                id,
                in_flight: slot.in_flight(),
                keys: slot.keys(),
                tally_tokens: slot.tally_tokens(),
                tally_requests: slot.tally_requests(),
                report: entry.filter(counts).and_then(|entry| entry.load_at(context.now_ms)),
            });
        }
        candidates
    }

    /// Why nobody of `pool` may be chosen: only if overload protection keeps all of them out, they are overloaded.
    pub(super) fn why_nobody(
        context: &Context<'_>,
        fleet: &Fleet,
        pool: &Pool,
        reads: &[Read],
        reports: &[Rc<CachedReports>],
        model: &str,
    ) -> Refusal {
        let mut interval_ms = u32::MAX;
        for (&worker, &id) in pool.workers.iter().zip(&pool.ids) {
            let block = reads.iter().zip(reports).find(|(read, _)| read.number == id.block());
            let Some((read, told)) = block else { return Refusal::NoAvailableWorkers };
            let selectable = read.block.view(id.position()).is_some_and(|slot| slot.is_selectable());
            let entry = told.entries.get(id.position());
            if !selectable || !is_vetoed(fleet, worker, id, entry, context.now_ms) {
                return Refusal::NoAvailableWorkers;
            }
            interval_ms = interval_ms.min(entry.map_or(u32::MAX, |entry| entry.interval_ms));
        }
        let model = if model.is_empty() { UNKNOWN_MODEL } else { model };
        Refusal::Overloaded { model: model.to_owned(), retry_after_secs: interval_ms.div_ceil(1000).max(1) }
    }
}

/// Whether overload protection keeps `worker` out: its last report counts and is at a limit. A report that has expired
/// and a later poll that has failed clear the veto.
pub(super) fn is_vetoed(fleet: &Fleet, worker: u16, id: SlotId, entry: Option<&Entry>, now_ms: u64) -> bool {
    let Some((worker, entry)) = fleet.worker(worker).zip(entry) else { return false };
    let told = entry.generation == id.generation && !entry.silent;
    told && entry.load_at(now_ms).is_some_and(|load| worker.is_overloaded(load))
}
