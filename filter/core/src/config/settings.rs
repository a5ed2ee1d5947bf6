//! The settings that belong together: one type for each policy that has some, for sticky keys and for breakers.

use super::named;

named! {
    /// How `cache_aware` remembers who was sent which prompts.
    CacheIndex {
        /// The prefix tree.
        Tree = "tree",
        /// Hashes of a prompt's first token ids, at fixed numbers of them.
        Hash = "hash",
    }
}

/// The settings of `cache_aware`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheAware {
    /// A match counts if more than this share of the prompt is matched, 0 to 1.
    pub threshold: f32,
    /// A holder is hot if it has more than this many requests above the mean in flight ...
    pub balance_abs: u64,
    /// ... and more than this many times the mean. At least 1.
    pub balance_rel: f64,
    /// Affinity is off while the KV usage of any two workers is further apart; above 0, from 1 on never.
    pub balance_token_usage: f64,
    /// Affinity is off while the KV usage of any worker is higher; above 0, from 1 on never.
    pub overload_token_usage: f64,
    /// How fast a backlog devalues a match. 0 is not at all.
    pub overlap_decay: f64,
    /// How freely among unequal matches one is drawn. 0 takes the best.
    pub selection_temperature: f64,
    /// Token ids per page of the prefix tree.
    pub block_size: u32,
    /// How prompts are remembered.
    pub index: CacheIndex,
    /// With [`CacheIndex::Hash`]: who was sent a prompt counts as its holder for so many seconds. At least 1.
    pub ttl_secs: u32,
}

impl Default for CacheAware {
    fn default() -> Self {
        Self {
            threshold: 0.3,
            balance_abs: 64,
            balance_rel: 1.5,
            balance_token_usage: 1.0,
            overload_token_usage: 1.0,
            overlap_decay: 0.0,
            selection_temperature: 0.0,
            block_size: 16,
            index: CacheIndex::Tree,
            ttl_secs: 180,
        }
    }
}

named! {
    /// Who is given a key that has no worker yet.
    AssignmentMode {
        /// Any.
        Random = "random",
        /// The one with the fewest requests in flight.
        MinLoad = "min_load",
        /// The one with the fewest active keys.
        MinGroup = "min_group",
        /// The policy decides; under `manual` as `min_load`.
        Delegate = "delegate",
    }
}

/// Keys that stay with their workers: the policy `manual` and the routing-key override.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sticky {
    /// Whether any policy but `manual` and `consistent_hashing` keeps a key where it was placed.
    pub routing_key_override: bool,
    /// None: `random` under `manual`, `delegate` under the override.
    pub assignment_mode: Option<AssignmentMode>,
    /// A key that is not used for so many seconds is forgotten; 0 is never.
    pub max_idle_secs: u32,
    /// Forgotten keys are looked for this often, in seconds; 0 is never.
    pub eviction_interval_secs: u32,
    /// So many keys are remembered at least before the least recently used must make room.
    pub max_keys: u32,
}

impl Default for Sticky {
    fn default() -> Self {
        Self {
            routing_key_override: false,
            assignment_mode: None,
            max_idle_secs: 14_400,
            eviction_interval_secs: 120,
            max_keys: 1 << 20,
        }
    }
}

/// So many ids of responses are remembered where the configuration does not say.
pub const DEFAULT_RESPONSE_IDS: u32 = 1 << 20;

/// The settings of `prefix_hash`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixHash {
    /// Tokens of the head that is hashed where no boundary is reached; of text four characters each. At least 1.
    pub token_count: u32,
    /// An owner is overloaded with more than this many times the average in flight ...
    pub load_factor: f64,
    /// ... and more than this many requests above it.
    pub balance_abs: u32,
}

impl Default for PrefixHash {
    fn default() -> Self {
        Self { token_count: 256, load_factor: 1.25, balance_abs: 10 }
    }
}

/// The expected-wait score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreParams {
    /// The weight of KV pressure, in seconds. Finite, at least 0.
    pub kv_pressure_weight: f64,
    /// Tokens assumed of a request whose number is not known. At least 1.
    pub mean_prefill_tokens: u32,
    /// Tokens per second assumed of a worker that reports none. Finite, above 0.
    pub default_throughput: f64,
    /// A worker with so many waiting requests is no candidate. 0 is no cap.
    pub max_waiting: u32,
}

impl Default for ScoreParams {
    fn default() -> Self {
        Self { kv_pressure_weight: 0.15, mean_prefill_tokens: 1024, default_throughput: 2000.0, max_waiting: 0 }
    }
}

/// The circuit breaker of each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Breaker {
    /// So many failures in a row open it. At least 1.
    pub failure_threshold: u32,
    /// So many successes in a row close a half-open one. At least 1.
    pub success_threshold: u32,
    /// An open one is tried again after so many seconds. At least 1.
    pub timeout_secs: u32,
    /// Whether it opens at all.
    pub enabled: bool,
}

impl Default for Breaker {
    fn default() -> Self {
        Self { failure_threshold: 10, success_threshold: 3, timeout_secs: 60, enabled: true }
    }
}
