//! The plugin configuration: one JSON object, checked once, into types that cannot be wrong.
//!
//! Keys are SMG's flag names in snake_case. Whatever is unknown or out of range refuses the whole configuration,
//! with a message that names the key, the value and what is allowed.

mod error;
mod keys;
mod overrides;
mod reports;
mod scope;
mod settings;
mod suggest;
mod values;
mod workers;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use error::ConfigError;
pub use reports::{Reports, TOKEN_VARIABLE};
pub use scope::Missing;
pub use settings::{
    AssignmentMode, Breaker, CacheAware, CacheIndex, DEFAULT_RESPONSE_IDS, PrefixHash, ScoreParams, Sticky,
};
pub use workers::{Leg, WorkerConfig, is_worker_url, spelled_address};

use crate::report::Overload;

/// A checked configuration. [`Config::default`] is what an empty one means.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// What the listener with this configuration does.
    pub role: Role,
    /// Names a set of shared tables; at most 32 letters, digits, `-`, `_` and `.`. Equal names share state.
    pub instance: String,
    /// How a worker is chosen.
    pub policy: PolicyName,
    /// The settings of `cache_aware`.
    pub cache: CacheAware,
    /// The numbers of token ids whose beginnings of a prompt are told apart, by `cache_index: hash` and by `prefix_hash`;
    /// above 0 and ascending; at most 16.
    pub cache_boundaries: Vec<u32>,
    /// The settings of `prefix_hash`.
    pub prefix_hash: PrefixHash,
    /// Keys that stay with their workers.
    pub sticky: Sticky,
    /// So many ids of responses are remembered at least, with the workers that hold them; see
    /// [`DEFAULT_RESPONSE_IDS`]. Only a module that reads answers does it.
    pub max_response_ids: Option<u32>,
    /// The expected-wait score as the operator tunes it, for `least_load` only: `cache_aware` uses the defaults.
    pub score: ScoreParams,
    /// What `power_of_two` compares.
    pub load_metric: LoadMetric,
    /// How often `bucket` fits its ranges to what was sent, in seconds. At least 1.
    pub bucket_adjust_secs: u32,
    /// The circuit breaker of each worker.
    pub breaker: Breaker,
    /// The limits of overload protection for workers that have none of their own; see [`Config::limits`].
    pub overload: Overload,
    /// Whether overload protection is on without any limit being named.
    pub overload_protection: bool,
    /// The workers in pool order, their URLs all different.
    pub workers: Vec<WorkerConfig>,
    /// Whether workers that only a sidecar names are chosen too; see [`Config::discovers`].
    pub discovered_workers: Option<bool>,
    /// How often Envoy may try one request: 1 plus the route's `num_retries`. From 1 to 16.
    pub max_attempts: u32,
    /// The clusters whose requests are routed; `None` is all of them.
    pub clusters: Option<Vec<String>>,
    /// Whether the route's metadata is looked at as well.
    pub route_metadata: bool,
    /// A request header, in lower case, that names the model in place of the body.
    pub model_header: Option<String>,
    /// The headers, in lower case, that may carry a request's routing key; the first with a valid one counts.
    pub routing_key_headers: Vec<String>,
    /// Whose routing headers count.
    pub trust_routing_headers: TrustRoutingHeaders,
    /// How a client is told which worker has answered.
    pub expose: ExposeWorkerId,
    /// Whether the client and the access log are told why a worker was chosen.
    pub explain_decisions: bool,
    /// Who takes a prompt that nobody holds where several would have it wait as long.
    pub cold_start_ties: ColdStartTies,
    /// How much of a body is held before the request is routed on what has arrived, in bytes.
    pub max_buffered_request_bytes: u64,
    /// Slots for workers in the shared tables, a multiple of 64.
    pub max_workers: u32,
    /// Shared data for the prefix tree, in bytes.
    pub max_tree_size: u64,
    /// How load reports come.
    pub reports: Reports,
    /// What a listener does whose configuration is refused.
    pub on_invalid_config: OnInvalidConfig,
    /// Log lines below this level are not written.
    pub log_level: LogLevel,
    /// The keys that were given and are valid and change nothing in this version.
    pub without_effect: Vec<&'static str>,
    /// The keys whose values make no sense and stand for the default, as in SMG.
    pub replaced: Vec<&'static str>,
}

impl Config {
    /// The configuration in `bytes`. None, or only white space, is all defaults and no worker.
    ///
    /// # Errors
    /// When the bytes are not a JSON object, or anything in it is unknown, wrong or contradictory.
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        if bytes.trim_ascii().is_empty() {
            return Ok(config);
        }
        let value: Value = serde_json::from_slice(bytes).map_err(|error| ConfigError::Json(error.to_string()))?;
        let Value::Object(members) = value else {
            return Err(ConfigError::value("", &value, "one JSON object"));
        };
        keys::read(&members, &mut config)?;
        if config.role == Role::Ingest && config.reports.cluster.is_some() {
            config.without_effect.push("reports.cluster (an ingest listener fetches nothing)");
        }
        config.check(&members)?;
        Ok(config)
    }

    /// Whether workers that only a sidecar names are chosen too: by default where none is configured.
    #[must_use]
    pub fn discovers(&self) -> bool {
        self.discovered_workers.unwrap_or(self.workers.is_empty())
    }

    /// The limits of overload protection of a worker that has none of its own. Any named limit turns protection on by
    /// itself; the switch alone means SMG's KV usage of 0.9.
    #[must_use]
    pub fn limits(&self) -> Overload {
        let usual = self.overload_protection.then_some(0.9);
        Overload { token_usage: self.overload.token_usage.or(usual), ..self.overload }
    }

    /// What a policy goes by that a worker's label names and the configuration does not: SMG's built-in settings, some of
    /// which are not the defaults of its flags.
    #[must_use]
    pub fn built_in() -> Self {
        let cache = CacheAware { threshold: 0.5, balance_abs: 32, balance_rel: 1.1, ..CacheAware::default() };
        Self { cache, ..Self::default() }
    }

    /// The rules that join several keys.
    fn check(&self, members: &Map<String, Value>) -> Result<(), ConfigError> {
        let given = |key: &str| members.get(key).and_then(values::whole);
        if self.policy == PolicyName::CacheAware
            && let Some(key) = ["eviction_interval", "eviction_interval_secs"].iter().find(|key| given(key) == Some(0))
        {
            return Err(ConfigError::value(key, &0.into(), "at least 1 second with the policy cache_aware"));
        }
        if self.cache.index == CacheIndex::Hash && self.cache_boundaries.is_empty() {
            let allowed = "tree, or hash together with at least one of cache_boundaries";
            return Err(ConfigError::value("cache_index", &self.cache.index.as_str().into(), allowed));
        }
        let longest = given("retry_max_backoff_ms").unwrap_or(30_000);
        if let Some(first) = given("retry_initial_backoff_ms")
            && first > longest
        {
            let allowed = format!("at most retry_max_backoff_ms, {longest}");
            return Err(ConfigError::value("retry_initial_backoff_ms", &first.into(), &allowed));
        }
        if self.workers.len() > self.max_workers as usize {
            return Err(ConfigError::TooManyWorkers { workers: self.workers.len(), max_workers: self.max_workers });
        }
        if self.policy == PolicyName::PowerOfTwo && self.workers.len() < 2 && !self.discovers() {
            return Err(ConfigError::TooFewWorkers { workers: self.workers.len() });
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            role: Role::Route,
            instance: String::new(),
            policy: PolicyName::CacheAware,
            cache: CacheAware::default(),
            prefix_hash: PrefixHash::default(),
            cache_boundaries: Vec::new(),
            sticky: Sticky::default(),
            max_response_ids: None,
            score: ScoreParams::default(),
            load_metric: LoadMetric::ExpectedWait,
            bucket_adjust_secs: 5,
            breaker: Breaker::default(),
            overload: Overload::default(),
            overload_protection: false,
            workers: Vec::new(),
            discovered_workers: None,
            max_attempts: 5,
            clusters: None,
            route_metadata: false,
            model_header: None,
            routing_key_headers: vec!["x-smg-routing-key".to_owned()],
            trust_routing_headers: TrustRoutingHeaders::Always,
            expose: ExposeWorkerId::Url,
            explain_decisions: false,
            cold_start_ties: ColdStartTies::Random,
            max_buffered_request_bytes: 1 << 20,
            max_workers: 1024,
            max_tree_size: 64 << 20,
            reports: Reports::default(),
            on_invalid_config: OnInvalidConfig::Refuse,
            log_level: LogLevel::Info,
            without_effect: Vec::new(),
            replaced: Vec::new(),
        }
    }
}

/// An enum whose values have names in the configuration.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
use named;

named! {
    /// What a listener does with its requests.
    Role {
        /// Routes them.
        Route = "route",
        /// Takes load snapshots from the sidecar.
        Ingest = "ingest",
    }
}

named! {
    /// What becomes of a listener whose configuration is invalid.
    OnInvalidConfig {
        /// Envoy is told, and keeps the configuration it had. It answers 503 to everything where it had none and has
        /// accepted the rest of the configuration before it fetched the module.
        Refuse = "refuse",
        /// Requests pass unrouted: the cluster's own load balancing chooses.
        Passthrough = "passthrough",
    }
}

impl OnInvalidConfig {
    /// What a configuration wants that cannot be used: the value of its key `on_invalid_config`, which is looked for in
    /// the text if the whole is not even JSON.
    #[must_use]
    pub fn of_invalid(bytes: &[u8]) -> Self {
        const KEY: &[u8] = b"\"on_invalid_config\"";
        if let Ok(value) = serde_json::from_slice::<Value>(bytes) {
            let named = value.get("on_invalid_config").and_then(Value::as_str).and_then(Self::from_name);
            return named.unwrap_or(Self::Refuse);
        }
        let after = memchr::memmem::find(bytes, KEY).and_then(|at| bytes.get(at + KEY.len()..)).unwrap_or_default();
        let value = after.trim_ascii_start().strip_prefix(b":").unwrap_or_default().trim_ascii_start();
        if value.starts_with(b"\"passthrough\"") { Self::Passthrough } else { Self::Refuse }
    }
}

named! {
    /// The policies of this version.
    PolicyName {
        /// The longest known prefix, unless its holder is too busy.
        CacheAware = "cache_aware",
        /// The lowest expected wait.
        LeastLoad = "least_load",
        /// The better of two drawn ones.
        PowerOfTwo = "power_of_two",
        /// One after the other.
        RoundRobin = "round_robin",
        /// Any.
        Random = "random",
        /// The first one there is.
        Passthrough = "passthrough",
        /// By length, in a prefill leg; elsewhere any.
        Bucket = "bucket",
        /// The owner of the request's key on the hash ring.
        ConsistentHashing = "consistent_hashing",
        /// The owner of the prompt's head on the hash ring, unless it is overloaded.
        PrefixHash = "prefix_hash",
        /// Where the request's key was placed before.
        Manual = "manual",
    }
}

named! {
    /// What `power_of_two` compares.
    LoadMetric {
        /// The expected waits of two drawn workers.
        ExpectedWait = "expected_wait",
        /// The requests in flight of two drawn workers, then their expected waits.
        Requests = "requests",
        /// The requests in flight of all workers, then the expected waits of those that have fewest.
        LeastRequests = "least_requests",
    }
}

named! {
    /// Whose `X-SMG-*` headers and routing keys count.
    TrustRoutingHeaders {
        /// Everybody's.
        Always = "always",
        /// Those of requests that Envoy itself calls internal (`x-envoy-internal`).
        Internal = "internal",
        /// Nobody's.
        Never = "never",
    }
}

named! {
    /// What `x-smg-routed-worker-id` says.
    ExposeWorkerId {
        /// The worker's URL, as SMG does.
        Url = "url",
        /// The URL's hash: clients can tell workers apart and do not learn where they are.
        Hash = "hash",
        /// Nothing.
        Off = "off",
    }
}

named! {
    /// Who takes a prompt that nobody holds, of those that would have it wait equally long.
    ColdStartTies {
        /// Any.
        Random = "random",
        /// The owner of the prompt's head on the hash ring: several Envoys then send a new prompt to the same worker.
        Ring = "ring",
    }
}

named! {
    /// How much is logged.
    LogLevel {
        /// Everything.
        Trace = "trace",
        /// Each decision.
        Debug = "debug",
        /// What an operator wants to know.
        Info = "info",
        /// What an operator should look at.
        Warn = "warn",
        /// What does not work.
        Error = "error",
    }
}
