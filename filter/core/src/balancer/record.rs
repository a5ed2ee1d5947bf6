//! What is counted and logged of a placement.

use super::place::{Placement, Prompt};
use super::{Balancer, Context, Level};
use crate::config::PolicyName;
use crate::fleet::{ConnectionMode, Fleet, PolicyRef};
use crate::policy::{Branch, Family};

impl Balancer {
    /// Metrics and log of a placement.
    pub(super) fn record(
        &mut self,
        context: &mut Context<'_>,
        fleet: &Fleet,
        prompt: Prompt<'_>,
        policy: PolicyRef,
        placement: &Placement,
    ) {
        if policy.name == PolicyName::Bucket {
            self.bucketless.note();
        }
        let name = policy.name.as_str();
        let model = fleet.model_label(prompt.model);
        let mode = fleet.worker(placement.worker).map_or(ConnectionMode::Http, |worker| worker.mode);
        self.tally.selected(model, name, mode);
        let (pick, matched) = (&placement.pick, &placement.found.matched);
        // Decisions by hashes are logged and not counted.
        let hashed = placement.known.is_some();
        let own = pick.branch.filter(|_| !hashed);
        self.tally.branches(own.into_iter().chain(placement.sticky).chain(placement.response));
        if !hashed
            && pick.branch.is_some_and(|branch| branch.family() == Family::CacheAware && branch != Branch::KvPressure)
        {
            self.tally.matched(matched.matched, matched.total);
        }
        if !context.log.wants(Level::Debug) {
            return;
        }
        let url = fleet.worker(placement.worker).map_or("", |worker| worker.url.as_str());
        let debug = |context: &mut Context<'_>, line: String| context.log.line(Level::Debug, &line);
        if let Some(branch) = placement.response {
            debug(context, format!("Response routing branch={} worker={url} model_id={model}", branch.as_str()));
        }
        if let (Some(branch), Some(key)) = (placement.sticky, prompt.sticky_key)
            && policy.name != PolicyName::Manual
        {
            let line = format!(
                "Sticky routing decision source={} key=\"{}\" branch={} worker={url} model_id={model}",
                key.source.as_str(),
                String::from_utf8_lossy(key.key).escape_debug(),
                branch.as_str(),
            );
            debug(context, line);
        }
        match pick.branch {
            Some(branch) if hashed => debug(context, super::placements::line(branch, matched, url, model)),
            Some(Branch::KvPressure) => {
                let branch = Branch::KvPressure.as_str();
                debug(context, format!("Cache-aware selection branch={branch} worker={url} model_id={model}"));
            }
            Some(branch) if branch.family() == Family::CacheAware => {
                let line = format!(
                    "Cache-aware selection index=\"tree\" branch={} worker={url} model_id={model} matched_ratio={:.4} \
                     threshold={}",
                    branch.as_str(),
                    matched.ratio(),
                    self.config.cache.threshold
                );
                debug(context, line);
            }
            Some(branch) if branch.family() == Family::PrefixHash => {
                let line = format!(
                    "Prefix-hash selection branch={} level={} worker={url} model_id={model}",
                    branch.as_str(),
                    branch.level()
                );
                debug(context, line);
            }
            _ => {}
        }
        if let Some(score) = pick.score {
            let in_flight = placement.in_flight;
            debug(context, format!("{name} selected {url} (score {score:.4}, in_flight {in_flight})"));
        }
    }
}
