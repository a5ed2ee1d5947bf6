//! One HTTP/2 connection to one engine, and calls over it, each with a deadline.

use std::{
    error::Error,
    fmt,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::{
    Code, Request, Status,
    client::Grpc,
    metadata::MetadataValue,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    config::Worker,
    fetch::{Asker, FetchError, USER_AGENT, innermost},
};

/// Far more than an engine has to say.
const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// As SMG's, so that a connection whose other end is gone is noticed between two polls.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));
/// A call gives up earlier; this ends what is left of it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps the connection.
pub(super) struct Dialer {
    worker: Worker,
    asker: Asker,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    address: Option<SocketAddr>,
    channel: Option<Channel>,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The engine does not have the method or the service.
    Unimplemented,
    /// Anything else.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unimplemented => f.write_str("is not implemented"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Dialer {
    pub(super) fn new(worker: Worker, asker: Asker) -> Self {
        Self { worker, asker, kept: Mutex::default() }
    }

    /// Where the engine is now.
    pub(super) fn is_at(&self, address: SocketAddr) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.address != Some(address) {
            *kept = Kept { address: Some(address), channel: None };
        }
    }

    /// The answer of `service`'s `method`, complete before `until`.
    pub(super) async fn call<Q, A>(
        &self,
        service: &str,
        method: &str,
        question: Q,
        until: Instant,
    ) -> Result<A, Refusal>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let failed = |why: &dyn fmt::Display| Refusal::Failed(why.to_string());
        let channel = self.channel()?;
        let path = PathAndQuery::try_from(format!("/{service}/{method}")).map_err(|error| failed(&error))?;
        let mut request = Request::new(question);
        request.set_timeout(until.saturating_duration_since(Instant::now()));
        if let Some(key) = self.asker.api_key() {
            let key = MetadataValue::try_from(key.header().as_bytes()).map_err(|error| failed(&error))?;
            request.metadata_mut().insert("authorization", key);
        }
        let mut client = Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let exchange = async {
            client.ready().await.map_err(|error| Status::from_error(error.into()))?;
            client.unary(request, path, ProstCodec::<Q, A>::default()).await
        };
        match timeout_at(until, exchange).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(Refusal::of(&status)),
            Err(_late) => Err(failed(&FetchError::Late)),
        }
    }

    /// The connection, which is opened when it is first needed.
    fn channel(&self) -> Result<Channel, Refusal> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = &kept.channel {
            return Ok(channel.clone());
        }
        let address = kept.address.ok_or_else(|| Refusal::Failed("has no address".into()))?;
        let endpoint = self.endpoint(address).map_err(|error| Refusal::Failed(innermost(&error)))?;
        Ok(kept.channel.insert(endpoint.connect_lazy()).clone())
    }

    fn endpoint(&self, address: SocketAddr) -> Result<Endpoint, tonic::transport::Error> {
        let base = self.worker.base();
        let (interval, patience) = PING;
        let endpoint = Endpoint::from_shared(format!("{}://{address}", base.scheme()))?
            .user_agent(USER_AGENT)?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(interval)
            .keep_alive_timeout(patience)
            .keep_alive_while_idle(true);
        let endpoint = match base.as_str().parse() {
            Ok(origin) => endpoint.origin(origin),
            Err(_) => endpoint,
        };
        if base.scheme() != "https" {
            return Ok(endpoint);
        }
        let host = base.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let tls = ClientTlsConfig::new().domain_name(host);
        endpoint.tls_config(match self.asker.trust().pem() {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_native_roots(),
        })
    }
}

impl Refusal {
    fn of(status: &Status) -> Self {
        match (status.code(), status.source()) {
            (Code::Unimplemented, _) => Self::Unimplemented,
            // The connection, not the engine.
            (_, Some(cause)) => Self::Failed(FetchError::of_connection(innermost(cause)).to_string()),
            (Code::Unauthenticated | Code::PermissionDenied, None) => {
                Self::Failed(format!("answered {:?}: it wants another API key", status.code()))
            }
            (code, None) => Self::Failed(format!("answered {code:?}: {:?}", status.message())),
        }
    }
}
