//! HTTP with bounds: on time, on size, and on trust.

use std::{sync::Arc, time::Duration};

use reqwest::{Client, RequestBuilder, Response, header::AUTHORIZATION, redirect};
use tokio::time::{Instant, timeout_at};

use crate::{config::ApiKey, resolve::Names};

/// Much more than any engine has to say, and little enough for a thousand of them.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

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
    #[error("broke off: {0}")]
    Broken(String),
}

/// A client that goes nowhere but where it is sent: no redirects, no proxy from the environment, and to the
/// addresses of `names`, so that a poll and the snapshot's address mean the same machine.
pub(crate) fn client(names: &Names) -> reqwest::Result<Client> {
    Client::builder()
        .user_agent(concat!("sidecar-loadmonitor/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(1)
        .dns_resolver(Arc::new(names.clone()))
        .build()
}

/// Asks engines.
#[derive(Clone)]
pub(crate) struct Asker {
    client: Client,
    api_key: Option<ApiKey>,
}

impl Asker {
    pub(crate) const fn new(client: Client, api_key: Option<ApiKey>) -> Self {
        Self { client, api_key }
    }

    /// The answer to GET `url`, complete before `deadline`.
    pub(crate) async fn get(&self, url: &str, deadline: Instant) -> Result<Answer, FetchError> {
        let request = || {
            let request = self.client.get(url);
            match &self.api_key {
                Some(key) => request.header(AUTHORIZATION, key.header()),
                None => request,
            }
        };
        match exchange(request(), MAX_BODY_BYTES, deadline).await {
            // Engines close idle connections after a few seconds (uvicorn: 5), often at the very moment of our next
            // request. That says nothing of the engine: once more, on a new connection.
            Err(FetchError::Broken(_)) => exchange(request(), MAX_BODY_BYTES, deadline).await,
            outcome => outcome,
        }
    }
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
        if connecting { Self::Unreachable(why) } else { Self::Broken(why) }
    }
}

/// The cause at the bottom, which is the one that names the trouble ("Connection refused").
fn innermost(error: &dyn std::error::Error) -> String {
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
