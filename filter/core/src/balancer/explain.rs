//! Why a request was placed as it was, in one line for a client and for Envoy's access log.

use std::fmt::Write as _;

use super::Balancer;
use super::place::Placement;
use crate::config::ExposeWorkerId;
use crate::fleet::{Fleet, PolicyRef, Worker};
use crate::policy::Branch;
use crate::state::load::SlotId;

impl Balancer {
    /// `policy=…;branch=…;matched=…;total=…;score=…;runner_up=…;report_age_ms=…`. What does not apply is left out:
    /// `branch` may be several joined by a plus, a response's, a key's and the policy's; matched and total are bytes, or
    /// token ids; the score is in seconds, or requests where nobody reports; the runner-up is the worker that a retry
    /// would go to.
    pub(super) fn explain(&self, fleet: &Fleet, policy: PolicyRef, placement: &Placement, now_ms: u64) -> Box<str> {
        let mut line = format!("policy={}", policy.name);
        let branches = [placement.response, placement.sticky, placement.pick.branch];
        for (before, branch) in [";branch=", "+", "+"].into_iter().zip(branches.into_iter().flatten()) {
            let _ = write!(line, "{before}{}", branch.as_str());
        }
        let matched = &placement.found.matched;
        let asked = placement.sticky != Some(Branch::OccupiedHit) && placement.response.is_none();
        if self.needs(policy).prefix && asked {
            let _ = write!(line, ";matched={};total={}", matched.matched, matched.total);
        }
        if let Some(score) = placement.pick.score {
            let _ = write!(line, ";score={score:.4}");
        }
        let next = placement.list.iter().find(|&&worker| worker != placement.worker);
        if let Some(id) = next.and_then(|&worker| fleet.worker(worker)).and_then(|worker| self.worker_id(worker)) {
            let _ = write!(line, ";runner_up={id}");
        }
        if let Some(age_ms) = self.report_age_ms(placement.id, now_ms) {
            let _ = write!(line, ";report_age_ms={age_ms}");
        }
        line.into()
    }

    /// How old the last load report of the owner of `id` is, if it counts.
    fn report_age_ms(&self, id: SlotId, now_ms: u64) -> Option<u64> {
        let entry = self.reports.get(&id.block())?.entries.get(id.position())?;
        entry.load_at(now_ms).filter(|_| entry.generation == id.generation)?;
        Some(now_ms.saturating_sub(entry.loaded_ms))
    }

    /// How `worker` is named to a client, if it is.
    #[must_use]
    pub fn worker_id(&self, worker: &Worker) -> Option<String> {
        match self.config.expose {
            ExposeWorkerId::Url => Some(worker.url.clone()),
            ExposeWorkerId::Hash => Some(format!("{:016x}", worker.hash)),
            ExposeWorkerId::Off => None,
        }
    }
}
