//! Which policy a model has: the first worker registered for it decides by its label, until the last one leaves.

use super::{Fleet, Pool};
use crate::config::{Config, PolicyName};

/// A policy and how it is tuned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PolicyRef {
    /// Which one.
    pub name: PolicyName,
    /// It has SMG's built-in settings; otherwise those of the configuration.
    pub built_in: bool,
}

impl PolicyRef {
    /// `name`, tuned by the configuration.
    #[must_use]
    pub fn tuned(name: PolicyName) -> Self {
        Self { name, built_in: false }
    }

    /// The policy that a worker's label names, see [`Self::spelled`]: one that the configuration names too is tuned by it,
    /// any other has the built-in settings. None if there is no such policy.
    #[must_use]
    pub fn of_label(config: &Config, label: &str) -> Option<Self> {
        let name = Self::spelled(label)?;
        Some(Self { name, built_in: name != config.policy })
    }

    /// The policy of this name, in which capitals and underscores do not matter.
    #[must_use]
    pub fn spelled(name: &str) -> Option<PolicyName> {
        fn plain(name: &str) -> impl Iterator<Item = u8> {
            name.bytes().filter(|&byte| byte != b'_').map(|byte| byte.to_ascii_lowercase())
        }
        PolicyName::ALL.iter().copied().find(|known| plain(known.as_str()).eq(plain(name)))
    }
}

impl Fleet {
    /// The policy of `model`, whose pool is `pool`, if a label decides it. What was decided before stays while any of
    /// the model's workers does.
    pub(super) fn policy_of(&self, model: &str, pool: &Pool, before: Option<&Self>) -> Option<PolicyRef> {
        let members = || pool.workers.iter().filter_map(|&worker| self.worker(worker));
        if let Some((before, known)) = before.and_then(|before| Some((before, before.by_model.get(model)?)))
            && members().any(|worker| before.by_hash(worker.hash).is_some_and(|was| known.workers.contains(&was)))
        {
            return known.policy;
        }
        // A worker that names no model is registered for none.
        members().find(|worker| worker.models.iter().any(|named| named == model)).and_then(|first| first.policy)
    }
}
