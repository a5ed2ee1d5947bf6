//! An engine that speaks gRPC: which service it has, and what that can be asked.

mod channel;
mod messages;

use std::{
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use filter_core::report::Load;
use tokio::time::Instant;

use crate::{
    config::Worker,
    engine::RankLoad,
    fetch::Asker,
    grpc::{
        channel::{Dialer, Refusal},
        messages::{Health, Loads, proto},
    },
    runtime::{Identity, Runtime, models},
    source::{Reading, Source},
};

const HEALTH: &str = "HealthCheck";
const MODEL_INFO: &str = "GetModelInfo";
const SERVER_INFO: &str = "GetServerInfo";

/// What SMG asks for.
const SECTIONS: [&str; 4] = ["core", "disagg", "queues", "memory"];

/// A service that engines have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    Sglang,
    Vllm,
    Trtllm,
    TokenSpeed,
    Mlx,
}

impl Service {
    /// In the order in which SMG tries them.
    const ALL: [Self; 5] = [Self::Sglang, Self::Vllm, Self::Trtllm, Self::TokenSpeed, Self::Mlx];

    /// The full name.
    const fn name(self) -> &'static str {
        match self {
            Self::Sglang => "sglang.grpc.scheduler.SglangScheduler",
            Self::Vllm => "vllm.grpc.engine.VllmEngine",
            Self::Trtllm => "trtllm.TrtllmService",
            Self::TokenSpeed => "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
            Self::Mlx => "mlx.grpc.engine.MlxEngine",
        }
    }

    const fn runtime(self) -> Runtime {
        match self {
            Self::Sglang => Runtime::Sglang,
            Self::Vllm => Runtime::Vllm,
            Self::Trtllm => Runtime::Trtllm,
            Self::TokenSpeed => Runtime::TokenSpeed,
            Self::Mlx => Runtime::Mlx,
        }
    }

    fn of(runtime: Runtime) -> Option<Self> {
        Self::ALL.into_iter().find(|service| service.runtime() == runtime)
    }
}

/// Asks one engine over gRPC.
pub(crate) struct Grpc {
    dialer: Dialer,
    /// What the operator says it is.
    told: Option<Service>,
    found: Mutex<Option<Service>>,
    /// Whether it has ever counted anything. vLLM that keeps no statistics says zeros for ever, and no capacity.
    counts: AtomicBool,
}

impl Grpc {
    pub(crate) fn new(worker: Worker, asker: Asker, told: Option<Runtime>) -> Self {
        let told = told.and_then(Service::of);
        Self { dialer: Dialer::new(worker, asker), told, found: Mutex::default(), counts: AtomicBool::new(false) }
    }

    /// Where it is now.
    pub(crate) fn is_at(&self, address: SocketAddr) {
        self.dialer.is_at(address);
    }

    /// Its own HealthCheck says that it works.
    pub(crate) async fn probe(&self, until: Instant) -> Result<(), String> {
        match self.known() {
            Some(service) => self.health(service, until).await.map_err(|refusal| {
                self.forget();
                refusal.to_string()
            })?,
            None => self.find(until).await?.1,
        }
        .verdict()
    }

    /// What GetLoads tells.
    pub(crate) async fn loads(&self, until: Instant) -> Reading {
        let service = match self.service(until).await {
            Ok(service) => service,
            Err(why) => return Reading::Inconclusive(why),
        };
        let loads = match self.ask_loads(service, until).await {
            Ok(loads) => loads,
            Err(Refusal::Unimplemented) => return Reading::Absent(format!("is not implemented by {}", service.name())),
            Err(refusal @ Refusal::Failed(_)) => return Reading::Inconclusive(refusal.to_string()),
        };
        let reading = loads.reading();
        match reading {
            Reading::Load(..) => self.counts.store(true, Ordering::Relaxed),
            Reading::Unknown(_) if service == Service::Vllm && self.counts.load(Ordering::Relaxed) => {
                return Reading::Load(Load::default(), vec![RankLoad::default()]);
            }
            Reading::Unknown(_) if service == Service::Vllm => {
                let why = "has only zeros: the engine has had nothing to do yet, or keeps no statistics";
                return Reading::Unknown(why.into());
            }
            _ => {}
        }
        reading
    }

    /// What comes up in the place of an engine that is down may be another one.
    pub(crate) fn forget(&self) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.counts.store(false, Ordering::Relaxed);
    }

    /// What it is.
    pub(crate) async fn identify(&self, until: Instant) -> Result<Identity, String> {
        let service = self.service(until).await?;
        let mut identity = Identity { runtime: Some(service.runtime()), ..Identity::default() };
        let named = self.model(service, until).await.map_err(|refusal| format!("{MODEL_INFO} {refusal}"))?;
        identity.models = models(named.into_iter().filter(|name| !name.is_empty()).take(1));
        // Whoever has no such method has told all it can.
        match service {
            Service::Sglang => {
                let info: Result<proto::sglang::GetServerInfoResponse, _> =
                    self.call(service, SERVER_INFO, until).await;
                identity.dp_size = info.ok().and_then(|info| messages::dp_size(info.server_args?));
            }
            Service::TokenSpeed => {
                let info: Result<proto::tokenspeed::GetServerInfoResponse, _> =
                    self.call(service, SERVER_INFO, until).await;
                identity.dp_size = info.ok().and_then(|info| messages::dp_size(info.server_args?));
            }
            Service::Vllm => {
                let info: Result<proto::vllm::GetServerInfoResponse, _> = self.call(service, SERVER_INFO, until).await;
                let info = info.unwrap_or_default();
                identity.dp_size = u32::try_from(info.data_parallel_size).ok().filter(|size| *size > 0);
                let connector = [
                    ("kv_connector", info.kv_connector),
                    ("kv_role", info.kv_role),
                    ("kv_engine_id", info.kv_engine_id),
                ];
                identity.labels = connector.into_iter().filter(|(_, value)| !value.is_empty()).collect();
            }
            Service::Trtllm | Service::Mlx => {}
        }
        Ok(identity)
    }

    /// Names of its model, the best first.
    async fn model(&self, service: Service, until: Instant) -> Result<Vec<String>, Refusal> {
        Ok(match service {
            Service::Sglang => {
                let info: proto::sglang::GetModelInfoResponse = self.call(service, MODEL_INFO, until).await?;
                vec![info.served_model_name, info.model_path]
            }
            Service::Vllm => {
                let info: proto::vllm::GetModelInfoResponse = self.call(service, MODEL_INFO, until).await?;
                vec![info.served_model_name, info.model_path]
            }
            Service::TokenSpeed => {
                let info: proto::tokenspeed::GetModelInfoResponse = self.call(service, MODEL_INFO, until).await?;
                vec![info.served_model_name, info.model_path]
            }
            Service::Trtllm => {
                let info: proto::trtllm::GetModelInfoResponse = self.call(service, MODEL_INFO, until).await?;
                vec![info.model_id]
            }
            // Its answer is not known.
            Service::Mlx => vec![],
        })
    }

    /// The service that it has, as far as known.
    fn known(&self) -> Option<Service> {
        self.told.or(*self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn service(&self, until: Instant) -> Result<Service, String> {
        match self.known() {
            Some(service) => Ok(service),
            None => Ok(self.find(until).await?.0),
        }
    }

    /// The first service that answers HealthCheck, and the answer.
    async fn find(&self, until: Instant) -> Result<(Service, Health), String> {
        for service in Service::ALL {
            match self.health(service, until).await {
                Ok(health) => {
                    *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(service);
                    return Ok((service, health));
                }
                Err(Refusal::Unimplemented) => {}
                Err(refusal @ Refusal::Failed(_)) => return Err(format!("{HEALTH} {refusal}")),
            }
        }
        Err("speaks gRPC, but has none of the services that are known".into())
    }

    async fn health(&self, service: Service, until: Instant) -> Result<Health, Refusal> {
        if service == Service::Trtllm {
            let answer: proto::trtllm::HealthCheckResponse = self.call(service, HEALTH, until).await?;
            return Ok(answer.into());
        }
        // The others share a message.
        let answer: proto::sglang::HealthCheckResponse = self.call(service, HEALTH, until).await?;
        Ok(answer.into())
    }

    async fn ask_loads(&self, service: Service, until: Instant) -> Result<Loads, Refusal> {
        // All who have the method share the question.
        let include = SECTIONS.map(str::to_owned).to_vec();
        let question = proto::sglang::GetLoadsRequest { dp_rank: None, include };
        let (dialer, name, method) = (&self.dialer, service.name(), Source::GetLoads.name());
        match service {
            Service::Sglang => {
                let answer: proto::sglang::GetLoadsResponse = dialer.call(name, method, question, until).await?;
                Ok(answer.into())
            }
            Service::Vllm => {
                let answer: proto::vllm::GetLoadsResponse = dialer.call(name, method, question, until).await?;
                Ok(answer.into())
            }
            Service::TokenSpeed => {
                let answer: proto::tokenspeed::GetLoadsResponse = dialer.call(name, method, question, until).await?;
                Ok(answer.into())
            }
            Service::Trtllm | Service::Mlx => Err(Refusal::Unimplemented),
        }
    }

    /// The answer to a question without content.
    async fn call<A: prost::Message + Default + 'static>(
        &self,
        service: Service,
        method: &str,
        until: Instant,
    ) -> Result<A, Refusal> {
        self.dialer.call(service.name(), method, (), until).await
    }
}

/// What each service's answer to GetLoads tells.
#[cfg(any(test, fuzzing))]
pub(crate) fn readings(message: &[u8]) -> Vec<Reading> {
    use prost::Message;
    let sglang = proto::sglang::GetLoadsResponse::decode(message).map(Loads::from);
    let vllm = proto::vllm::GetLoadsResponse::decode(message).map(Loads::from);
    let tokenspeed = proto::tokenspeed::GetLoadsResponse::decode(message).map(Loads::from);
    [sglang, vllm, tokenspeed].into_iter().flatten().map(Loads::reading).collect()
}
