//! `cache_index: hash` at work: looking up who was sent a prompt's first token ids, noting who is, and the sweep.

use super::{Balancer, Context};
use crate::config::CacheIndex;
use crate::fleet::UNKNOWN_MODEL;
use crate::policy::{Branch, Candidate};
use crate::prefix::Match;
use crate::prefix::path::Node;
use crate::state::load::SlotId;
use crate::state::placements::Known;
use crate::state::tree::Label;
use crate::store::StoreError;

impl Balancer {
    /// The holders of the deepest of `marks` that any of the candidates holds, of a prompt of `total` ids.
    pub(super) fn holders(
        &self,
        context: &Context<'_>,
        known: &Known,
        marks: &[Node],
        total: u64,
        candidates: &[Candidate<'_>],
    ) -> Match {
        let available = |id: SlotId| candidates.iter().any(|candidate| candidate.id == id);
        let (matched, holders) = self.placements.search(known, marks, context.now_secs(), &available);
        Match { matched, total, holders }
    }

    /// Notes that `worker` is sent a prompt of `model` (a name that the fleet knows) with these marks.
    ///
    /// Best effort: a lost race or a failing store costs a hint, never the request.
    pub(super) fn note_holder(
        &mut self,
        context: &mut Context<'_>,
        known: Known,
        marks: &[Node],
        model: &str,
        worker: SlotId,
    ) {
        let (label, now_secs) = (Label::new(model, true).model, context.now_secs());
        let evicted = self.placements.note(context.store, known, marks, label, worker, now_secs);
        self.tally.evicted_placements(evicted.unwrap_or(0));
    }

    /// The leader sweeps a few pages; once all have been, the gauges are set.
    pub(super) fn sweep_placements(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        if self.config.cache.index != CacheIndex::Hash {
            return Ok(());
        }
        let (fleet, now_secs) = (std::rc::Rc::clone(&self.fleet), context.now_secs());
        let usable = |id| fleet.by_slot(id).is_some();
        if let Some(swept) = self.placements.sweep(context.store, &mut self.survey, now_secs, &usable)? {
            for model in fleet.models().into_iter().chain([UNKNOWN_MODEL]) {
                let keys = swept.keys.get(&Label::new(model, true).model).copied().unwrap_or(0);
                context.metrics.set("smg_cache_placement_entries", &[("model", model)], keys);
            }
        }
        Ok(())
    }
}

/// The debug line of a decision by hashes.
pub(super) fn line(branch: Branch, matched: &Match, url: &str, model: &str) -> String {
    let level = if matches!(branch, Branch::HashHit | Branch::HashSpill) { matched.matched } else { 0 };
    let branch = branch.as_str();
    format!("Cache-aware selection index=\"hash\" branch={branch} level={level} worker={url} model_id={model}")
}
