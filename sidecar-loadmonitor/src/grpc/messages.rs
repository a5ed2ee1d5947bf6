//! What the services answer, in words of our own.

use prost_types::{Struct, value::Kind};

use crate::source::{Rank, Reading, together};

/// The messages, from `proto/`.
#[allow(clippy::all, dead_code, unreachable_pub, reason = "generated code")]
pub(super) mod proto {
    pub(crate) mod sglang {
        include!(concat!(env!("OUT_DIR"), "/sglang.grpc.scheduler.rs"));
    }
    pub(crate) mod vllm {
        include!(concat!(env!("OUT_DIR"), "/vllm.grpc.engine.rs"));
    }
    pub(crate) mod tokenspeed {
        include!(concat!(env!("OUT_DIR"), "/tokenspeed.grpc.scheduler.rs"));
    }
    pub(crate) mod trtllm {
        include!(concat!(env!("OUT_DIR"), "/trtllm.rs"));
    }
    pub(crate) mod mlx {
        include!(concat!(env!("OUT_DIR"), "/mlx.grpc.engine.rs"));
    }
}

/// What HealthCheck says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Health {
    healthy: bool,
    message: String,
}

impl Health {
    /// An error if it does not work.
    pub(super) fn verdict(self) -> Result<(), String> {
        if self.healthy { Ok(()) } else { Err(format!("HealthCheck says that it is not healthy: {:?}", self.message)) }
    }
}

impl From<proto::sglang::HealthCheckResponse> for Health {
    fn from(answer: proto::sglang::HealthCheckResponse) -> Self {
        Self { healthy: answer.healthy, message: answer.message }
    }
}

impl From<proto::trtllm::HealthCheckResponse> for Health {
    fn from(answer: proto::trtllm::HealthCheckResponse) -> Self {
        Self { healthy: answer.status.trim().eq_ignore_ascii_case("ok"), message: answer.status }
    }
}

/// What GetLoads says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Loads(Vec<Rank>);

impl Loads {
    pub(super) fn reading(self) -> Reading {
        together(self.0)
    }
}

impl From<proto::sglang::GetLoadsResponse> for Loads {
    fn from(answer: proto::sglang::GetLoadsResponse) -> Self {
        Self(
            answer
                .loads
                .into_iter()
                .map(|rank| Rank {
                    dp_rank: u32::try_from(rank.dp_rank).ok(),
                    queued_tokens: told(rank.num_waiting_uncached_tokens),
                    waiting: told(rank.num_waiting_reqs),
                    running: told(rank.num_running_reqs),
                    kv_usage: told(rank.token_usage).map(|usage| usage.min(1.0)),
                    throughput: told(rank.gen_throughput),
                    cache_hit_rate: told(rank.cache_hit_rate),
                    capacity: told(rank.max_total_num_tokens),
                })
                .collect(),
        )
    }
}

impl From<proto::tokenspeed::GetLoadsResponse> for Loads {
    fn from(answer: proto::tokenspeed::GetLoadsResponse) -> Self {
        Self(
            answer
                .loads
                .into_iter()
                .map(|rank| Rank {
                    dp_rank: u32::try_from(rank.dp_rank).ok(),
                    queued_tokens: told(rank.num_waiting_uncached_tokens),
                    waiting: told(rank.num_waiting_reqs),
                    running: told(rank.num_running_reqs),
                    kv_usage: told(rank.token_usage).map(|usage| usage.min(1.0)),
                    throughput: told(rank.gen_throughput),
                    cache_hit_rate: told(rank.cache_hit_rate),
                    capacity: told(rank.max_total_num_tokens),
                })
                .collect(),
        )
    }
}

impl From<proto::vllm::GetLoadsResponse> for Loads {
    fn from(answer: proto::vllm::GetLoadsResponse) -> Self {
        Self(
            answer
                .loads
                .into_iter()
                .map(|rank| Rank {
                    dp_rank: u32::try_from(rank.dp_rank).ok(),
                    queued_tokens: None,
                    waiting: told(rank.num_waiting_reqs),
                    running: told(rank.num_running_reqs),
                    kv_usage: told(rank.token_usage).map(|usage| usage.min(1.0)),
                    throughput: told(rank.gen_throughput),
                    // It has no such number, and sends 0.
                    cache_hit_rate: told(rank.cache_hit_rate).filter(|rate| *rate > 0.0),
                    capacity: told(rank.max_total_num_tokens),
                })
                .collect(),
        )
    }
}

/// A number, unless it cannot be true.
fn told(number: impl Into<f64>) -> Option<f64> {
    Some(number.into()).filter(|number| number.is_finite() && *number >= 0.0)
}

/// The data-parallel ranks in a server's arguments.
pub(super) fn dp_size(arguments: Struct) -> Option<u32> {
    let number = |name| match arguments.fields.get(name)?.kind {
        Some(Kind::NumberValue(number)) => Some(number),
        _ => None,
    };
    let size = number("dp_size").or_else(|| number("data_parallel_size"))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small number")]
    (1.0..65_536.0).contains(&size).then_some(size as u32)
}
