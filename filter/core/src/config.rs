#![allow(missing_docs)]
//! stub
use serde::Deserialize;
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    CacheAware,
    LeastLoad,
    RoundRobin,
    Random,
    Passthrough,
}
impl PolicyName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CacheAware => "cache_aware",
            Self::LeastLoad => "least_load",
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::Passthrough => "passthrough",
        }
    }
}
#[derive(Debug, Clone)]
pub struct CacheAware {
    pub threshold: f32,
    pub balance_abs: u64,
    pub balance_rel: f64,
    pub block_size: u32,
}
impl Default for CacheAware {
    fn default() -> Self {
        Self { threshold: 0.3, balance_abs: 64, balance_rel: 1.5, block_size: 16 }
    }
}
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoreParams {
    pub kv_pressure_weight: f64,
    pub mean_prefill_tokens: u32,
    pub default_throughput: f64,
    pub max_waiting: u32,
}
impl Default for ScoreParams {
    fn default() -> Self {
        Self { kv_pressure_weight: 0.15, mean_prefill_tokens: 1024, default_throughput: 2000.0, max_waiting: 0 }
    }
}
#[derive(Debug, Clone)]
pub struct Breaker {
    pub failure_threshold: u32,
    pub success_threshold: u32,
    pub timeout_secs: u32,
    pub enabled: bool,
}
impl Default for Breaker {
    fn default() -> Self {
        Self { failure_threshold: 10, success_threshold: 3, timeout_secs: 60, enabled: true }
    }
}
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    Regular,
    Prefill,
    Decode,
}
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    pub url: String,
    pub address: Option<String>,
    pub models: Vec<String>,
    pub leg: Leg,
}
#[derive(Debug, Clone)]
pub struct Config {
    pub policy: PolicyName,
    pub cache: CacheAware,
    pub score: ScoreParams,
    pub breaker: Breaker,
    pub workers: Vec<WorkerConfig>,
    pub max_attempts: u16,
    pub instance: String,
    pub max_workers: u16,
    pub max_tree_size: u64,
}
impl Config {
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum W {
            S(String),
            O {
                url: String,
                #[serde(default)]
                models: Vec<String>,
            },
        }
        #[derive(Deserialize, Default)]
        #[serde(default)]
        struct C {
            workers: Vec<W>,
            policy: Option<String>,
            max_attempts: Option<u16>,
        }
        let c: C = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        Ok(Self {
            policy: match c.policy.as_deref() {
                Some("least_load") => PolicyName::LeastLoad,
                Some("round_robin") => PolicyName::RoundRobin,
                Some("random") => PolicyName::Random,
                Some("passthrough") => PolicyName::Passthrough,
                _ => PolicyName::CacheAware,
            },
            cache: CacheAware::default(),
            score: ScoreParams::default(),
            breaker: Breaker::default(),
            max_attempts: c.max_attempts.unwrap_or(5),
            instance: String::new(),
            max_workers: 1024,
            max_tree_size: 64 << 20,
            workers: c
                .workers
                .into_iter()
                .map(|w| {
                    let (url, models) = match w {
                        W::S(u) => (u, vec![]),
                        W::O { url, models } => (url, models),
                    };
                    let a = url.trim_start_matches("http://").to_owned();
                    let address = a.parse::<std::net::SocketAddr>().is_ok().then_some(a);
                    WorkerConfig { url, address, models, leg: Leg::Regular }
                })
                .collect(),
        })
    }
}
