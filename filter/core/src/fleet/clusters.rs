//! Workers that were found in different Envoy clusters: a request can reach only those of the cluster it is routed to, and
//! those of which nobody has said where they are.

use std::collections::HashMap;

use super::{Fleet, Pool, UNKNOWN_MODEL};

/// The pools that requests to one cluster see.
#[derive(Debug, Clone, Default)]
pub(super) struct Reachable {
    by_model: HashMap<String, Pool>,
    any: Pool,
    unnamed: Pool,
}

impl Fleet {
    /// The workers for a request that names `model` and is routed to the cluster at place `cluster` of the configuration's
    /// list, see [`Self::pool`]. All of the model's, where the cluster is not known or no worker was found in it: the hosts
    /// of a cluster may be told as those of another one that shares them.
    #[must_use]
    pub fn pool_within(&self, cluster: Option<usize>, model: &str) -> &Pool {
        let Some(reachable) = cluster.and_then(|cluster| self.by_cluster.get(&cluster)) else {
            return self.pool(model);
        };
        match model {
            "" | UNKNOWN_MODEL => &reachable.any,
            model => reachable.by_model.get(model).unwrap_or(&reachable.unnamed),
        }
    }

    /// Makes the pools of each cluster out of those of all, unless there is but one.
    pub(super) fn build_clusters(&mut self) {
        let mut found: Vec<usize> = self.workers.iter().filter_map(|worker| worker.cluster).collect();
        found.sort_unstable();
        found.dedup();
        if found.len() < 2 {
            return;
        }
        for cluster in found {
            let within = |pool: &Pool| {
                let reaches = |&worker: &u16| {
                    self.worker(worker).is_some_and(|worker| worker.cluster.is_none_or(|of| of == cluster))
                };
                // Which policy a model has does not depend on where its requests go.
                Pool { policy: pool.policy, ..self.pool_of(pool.workers.iter().copied().filter(reaches)) }
            };
            let by_model = self.by_model.iter().map(|(model, pool)| (model.clone(), within(pool)));
            let by_model = by_model.filter(|(_, pool)| !pool.workers.is_empty()).collect();
            let reachable = Reachable { by_model, any: within(&self.any), unnamed: within(&self.unnamed) };
            self.by_cluster.insert(cluster, reachable);
        }
    }
}
