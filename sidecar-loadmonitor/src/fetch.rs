//! HTTP with bounds: on time, on size, and on trust.

use std::{sync::Arc, time::Duration};

use reqwest::{
    Certificate, Client, RequestBuilder, Response,
    header::{AUTHORIZATION, CONTENT_TYPE},
    redirect,
};
use tokio::time::{Instant, timeout, timeout_at};

use crate::{config::ApiKey, resolve::Names, trust::Trust};

/// What is read of an answer whose body does not matter, so that its connection can be kept, and for how long.
const IDLE_BODY: (usize, Duration) = (64 << 10, Duration::from_millis(100));

/// An answer read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("did not answer in time")]
    Late,
    #[error("answered more than {0} bytes")]
    TooLarge(usize),
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    #[error(
        "shows a certificate that is not believed ({0}); if it is the right one, name its authority with --ca-file"
    )]
    Certificate(String),
    #[error("broke off: {0}")]
    Broken(String),
}

/// A client that goes nowhere but where it is sent: no redirects, no proxy from the environment, and to the
/// addresses of `names`, so that a poll and the snapshot's address mean the same machine.
pub(crate) fn client(names: &Names, trust: &Trust) -> reqwest::Result<Client> {
    let mut builder = Client::builder()
        .user_agent(USER_AGENT)
        .http1_only()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(1)
        .dns_resolver(Arc::new(names.clone()));
    if let Some(pem) = trust.pem() {
        builder = builder.tls_built_in_root_certs(false);
        for authority in Certificate::from_pem_bundle(pem)? {
            builder = builder.add_root_certificate(authority);
        }
    }
    builder.build()
}

/// What the sidecar calls itself.
pub(crate) const USER_AGENT: &str = concat!("sidecar-loadmonitor/", env!("CARGO_PKG_VERSION"));

/// Asks engines.
#[derive(Clone)]
pub(crate) struct Asker {
    client: Client,
    api_key: Option<ApiKey>,
    trust: Trust,
}

impl Asker {
    /// Asks over `client` with the key that engines get which have none of their own; `trust` is for those that speak
    /// gRPC, and the client has it already.
    pub(crate) const fn new(client: Client, api_key: Option<ApiKey>, trust: Trust) -> Self {
        Self { client, api_key, trust }
    }

    /// The same with another key, or none.
    pub(crate) fn with_key(self, api_key: Option<ApiKey>) -> Self {
        Self { api_key, ..self }
    }

    pub(crate) const fn api_key(&self) -> Option<&ApiKey> {
        self.api_key.as_ref()
    }

    pub(crate) const fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The answer to GET `url` of at most `limit` bytes, complete before `deadline`.
    pub(crate) async fn get(&self, url: &str, limit: usize, deadline: Instant) -> Result<Answer, FetchError> {
        again(|| exchange(self.with(self.client.get(url)), limit, deadline)).await
    }

    /// The status of the answer to GET `url`, whatever its body.
    pub(crate) async fn status(&self, url: &str, deadline: Instant) -> Result<u16, FetchError> {
        again(move || async move {
            let mut response = head(self.with(self.client.get(url)), deadline).await?;
            let (limit, patience) = IDLE_BODY;
            let _ = timeout(patience, read(&mut response, limit)).await;
            Ok(response.status().as_u16())
        })
        .await
    }

    /// Whether HEAD `url` answers 200 with text.
    pub(crate) async fn is_text(&self, url: &str, deadline: Instant) -> Result<bool, FetchError> {
        let response = again(|| head(self.with(self.client.head(url)), deadline)).await?;
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let text = kind.starts_with("text/plain") || kind.starts_with("application/openmetrics-text");
        Ok(response.status() == 200 && text)
    }

    fn with(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.header(AUTHORIZATION, key.header()),
            None => request,
        }
    }
}

/// Engines close idle connections after a few seconds (uvicorn: 5), often at the very moment of our next request. That
/// says nothing of the engine: once more, on a new connection.
async fn again<T, F>(ask: impl Fn() -> F) -> Result<T, FetchError>
where
    F: Future<Output = Result<T, FetchError>>,
{
    match ask().await {
        Err(FetchError::Broken(_)) => ask().await,
        outcome => outcome,
    }
}

async fn head(request: RequestBuilder, deadline: Instant) -> Result<Response, FetchError> {
    let sent = timeout_at(deadline, request.send()).await.map_err(|_| FetchError::Late)?;
    sent.map_err(FetchError::from_reqwest)
}

/// Sends `request` and reads at most `limit` bytes of the answer's body, all before `deadline`.
pub(crate) async fn exchange(request: RequestBuilder, limit: usize, deadline: Instant) -> Result<Answer, FetchError> {
    let within = async {
        let mut response = request.send().await.map_err(FetchError::from_reqwest)?;
        let body = read(&mut response, limit).await?;
        Ok(Answer { status: response.status().as_u16(), body })
    };
    timeout_at(deadline, within).await.unwrap_or(Err(FetchError::Late))
}

async fn read(response: &mut Response, limit: usize) -> Result<Vec<u8>, FetchError> {
    if response.content_length().is_some_and(|length| usize::try_from(length).map_or(true, |length| length > limit)) {
        return Err(FetchError::TooLarge(limit));
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(FetchError::from_reqwest)? {
        if body.len() + chunk.len() > limit {
            return Err(FetchError::TooLarge(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

impl FetchError {
    fn from_reqwest(error: reqwest::Error) -> Self {
        let connecting = error.is_connect();
        let why = innermost(&error);
        if connecting { Self::of_connection(why) } else { Self::Broken(why) }
    }

    /// What is behind a connection that cannot be made.
    pub(crate) fn of_connection(why: String) -> Self {
        match why.strip_prefix("invalid peer certificate: ") {
            Some(why) => Self::Certificate(why.to_owned()),
            None => Self::Unreachable(why),
        }
    }
}

/// The cause at the bottom, which is the one that names the trouble ("Connection refused").
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// The time between now and `deadline` cut into `parts`: the end of the first part.
pub(crate) fn share(deadline: Instant, parts: usize) -> Instant {
    let now = Instant::now();
    let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
    now + deadline.checked_duration_since(now).unwrap_or(Duration::ZERO) / parts
}
