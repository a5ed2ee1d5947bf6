//! What the sidecar does, checked: no value of these types can be wrong.

use std::{collections::HashSet, ffi::OsString, fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use reqwest::header::HeaderValue;
use url::{Host, Url};

use crate::{
    discovery::{DnsName, EnvoyAdmin},
    health::Thresholds,
    trust::Trust,
};

/// A snapshot of so many workers with the longest URLs stays below `report::MAX_SNAPSHOT_BYTES`.
pub(crate) const MAX_WORKERS: usize = 4096;
/// See [`MAX_WORKERS`], in bytes.
const MAX_URL_BYTES: usize = 512;

/// What [`crate::run`] is told to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where workers come from.
    pub discovery: Discovery,
    /// The ingest listeners that get every snapshot, one per Envoy.
    pub push_urls: Vec<Url>,
    /// From the start of one round to the start of the next.
    pub interval: Duration,
    /// How long one poll of one worker, or one push, may take; at most the interval.
    pub timeout: Duration,
    /// Sent to every engine as bearer token.
    pub api_key: Option<ApiKey>,
    /// Whose certificates are believed.
    pub trust: Trust,
    /// Whether engines are asked for their load.
    pub monitoring: bool,
    /// How workers are probed.
    pub probes: Probes,
    /// Names this sidecar to the filter.
    pub reporter: String,
    /// What it serves, if anything.
    pub face: Option<Face>,
    /// Sent with every push, and asked of readers.
    pub token: Option<ApiKey>,
}

/// Where workers come from; several sources may be used at once. Of a worker that two name the first one's word counts,
/// in the order of these fields.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// The engines named on the command line, each once.
    pub workers: Vec<Worker>,
    /// A file that describes workers.
    pub workers_file: Option<PathBuf>,
    /// Names whose addresses are workers.
    pub dns: Vec<DnsName>,
    /// From one look-up of a name to the next.
    pub dns_interval: Duration,
    /// An Envoy that knows workers.
    pub envoy: Option<EnvoyAdmin>,
    /// From one look at the file, and at Envoy, to the next.
    pub interval: Duration,
    /// What engines that are found as addresses speak.
    pub scheme: &'static str,
}

impl Discovery {
    /// Whether no source is given.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.workers.is_empty() && self.workers_file.is_none() && self.dns.is_empty() && self.envoy.is_none()
    }
}

/// How workers are probed, unless something else is said of one.
#[derive(Debug, Clone)]
pub struct Probes {
    /// Whether at all; if not, everybody is ready.
    pub enabled: bool,
    /// From one probe to the next.
    pub interval: Duration,
    /// What one probe may take.
    pub timeout: Duration,
    /// How many it takes.
    pub(crate) thresholds: Thresholds,
    /// What is asked of engines that speak HTTP.
    pub path: String,
    /// How long a worker drains before it is removed.
    pub drain_settle: Duration,
    /// Whether workers that are given up are removed.
    pub remove_failed: bool,
}

/// The sidecar's own HTTP server.
#[derive(Debug, Clone, Copy)]
pub struct Face {
    /// Where it listens.
    pub listen: SocketAddr,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    given: String,
    base: Url,
    grpc: bool,
}

/// A bearer token that no log shows.
#[derive(Clone)]
pub struct ApiKey(HeaderValue);

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nothing to poll.
    #[error(
        "no worker to poll: give --worker http://host:port (repeat it for more), or set WORKERS; or say where they can \
         be found, with --workers-file, --dns, or --envoy-admin and --envoy-cluster"
    )]
    NoWorker,
    /// More workers than a snapshot can hold.
    #[error(
        "--worker: {0} workers; at most {MAX_WORKERS} fit into one snapshot: run several sidecars, each with a part of them"
    )]
    TooManyWorkers(usize),
    /// One engine named twice.
    #[error("--worker {0}: this engine is listed twice; remove one of the two")]
    SameWorker(String),
    /// Nowhere to push.
    #[error(
        "nobody hears of it: give --push-url with the URL of an Envoy's ingest listener, such as \
         http://127.0.0.1:9902/v1/reports (or set PUSH_URL), or --listen with an address where filters fetch what is \
         known"
    )]
    NoReader,
    /// A URL that cannot be used.
    #[error("{option} {given:?}: {problem}; write it as {example}")]
    Url {
        /// The option that gave it.
        option: &'static str,
        /// The URL as given.
        given: String,
        /// What is wrong with it.
        problem: String,
        /// What a good one looks like.
        example: &'static str,
    },
    /// A value that cannot be read.
    #[error("{option} {given:?}: {problem}")]
    Value {
        /// The option that gave it.
        option: &'static str,
        /// The value as given.
        given: String,
        /// What is wrong with it, and how it should look.
        problem: String,
    },
    /// An Envoy without clusters, or clusters without an Envoy.
    #[error("--envoy-admin and --envoy-cluster belong together: where Envoy is asked, and for which of its clusters")]
    HalfAnEnvoy,
    /// Polls that would outlast their round.
    #[error(
        "--timeout of {timeout:?} is longer than --load-monitor-interval of {interval:?}: a poll must end before the \
         next one starts; use at most the interval"
    )]
    Timeout {
        /// The timeout asked for.
        timeout: Duration,
        /// The interval it must not exceed.
        interval: Duration,
    },
    /// No HTTP client.
    #[error("the HTTP client cannot be set up: {0}")]
    Client(String),
    /// A key that cannot be sent.
    #[error("the API key must be one line of visible ASCII characters; check --api-key, --api-key-file or API_KEY")]
    ApiKey,
    /// A file of certificate authorities that cannot be used.
    #[error("--ca-file {path}: {problem}; the file must hold one or more certificates in PEM")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Two keys for the engines.
    #[error("both --api-key and --api-key-file (or API_KEY and API_KEY_FILE) are given; drop one of the two")]
    TwoApiKeys,
    /// A file with a key or token that cannot be read.
    #[error("{option} {path}: {source}; the file must hold the key alone and be readable by this user")]
    KeyFile {
        /// The option that names it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What reading it said.
        source: std::io::Error,
    },
    /// An empty token, which anybody could send.
    #[error("--token-file {path}: holds no token; write one line of visible ASCII characters into it")]
    NoToken {
        /// The file.
        path: PathBuf,
    },
    /// A face that everybody may ask.
    #[error(
        "--listen on another address than loopback needs --token-file with a token that readers must send: whoever \
         reaches it could drain workers"
    )]
    OpenToAll,
    /// A name that no snapshot should carry.
    #[error("--reporter-name {0:?}: must be 1 to at most 100 visible ASCII characters")]
    Reporter(String),
}

impl Worker {
    /// The worker at `given`: an `http` or `https` URL with an optional path in front of the engine's routes, or a
    /// `grpc` or `grpcs` one.
    ///
    /// # Errors
    /// [`ConfigError::Url`] when it is no such URL.
    pub fn parse(given: &str) -> Result<Self, ConfigError> {
        let (option, example) = ("--worker", "http://host:port or grpc://host:port");
        let scheme = given.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let grpc = matches!(scheme.as_deref(), Some("grpc" | "grpcs"));
        // What differs is only what is spoken there.
        let base = match given.get("grpc".len()..).filter(|_| grpc) {
            Some(rest) => checked_url(option, example, given, &format!("http{rest}"))?,
            None => http_url(option, example, given)?,
        };
        if grpc && base.path() != "/" {
            let problem = "gRPC knows no path in front of its services".into();
            return Err(ConfigError::Url { option, given: given.to_owned(), problem, example });
        }
        Ok(Self { given: given.to_owned(), base, grpc })
    }

    /// Whether the engine speaks gRPC.
    pub(crate) const fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// The URL byte for byte as it was given: the name that filter and sidecar know the worker by.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.given
    }

    /// The URL as a URL.
    pub(crate) const fn base(&self) -> &Url {
        &self.base
    }

    /// The address, if the URL has it and not a name.
    pub(crate) fn literal_address(&self) -> Option<String> {
        let ip = match self.base.host()? {
            Host::Ipv4(ip) => ip.into(),
            Host::Ipv6(ip) => ip.into(),
            Host::Domain(_) => return None,
        };
        Some(SocketAddr::new(ip, self.base.port_or_known_default()?).to_string())
    }

    /// Where the engine serves `path`, which starts with a slash and may hold a query.
    pub(crate) fn route(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }
}

impl ApiKey {
    /// The key that is given, or the one in the file that is given.
    ///
    /// # Errors
    /// [`ConfigError`] when there are two, or one that cannot be read or sent.
    pub(crate) fn given(key: Option<String>, file: Option<OsString>) -> Result<Option<Self>, ConfigError> {
        // Compose files set variables they have no value for to nothing: that is no key.
        let key = key.filter(|key| !key.is_empty());
        match file.filter(|path| !path.is_empty()).map(PathBuf::from) {
            Some(_) if key.is_some() => Err(ConfigError::TwoApiKeys),
            Some(path) => match std::fs::read_to_string(&path) {
                Ok(text) => Self::parse(&text),
                Err(source) => Err(ConfigError::KeyFile { option: "--api-key-file", path, source }),
            },
            None => Self::parse(&key.unwrap_or_default()),
        }
    }

    /// The key in `text`, white space around it removed; `None` if there is none.
    ///
    /// # Errors
    /// [`ConfigError::ApiKey`] when no header can carry it.
    pub fn parse(text: &str) -> Result<Option<Self>, ConfigError> {
        let key = text.trim();
        if key.is_empty() {
            return Ok(None);
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ConfigError::ApiKey);
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| ConfigError::ApiKey)?;
        value.set_sensitive(true);
        Ok(Some(Self(value)))
    }

    /// The value of the `Authorization` header.
    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// Every URL in `given`, which may each be a list separated by commas or white space.
pub(crate) fn split(given: &[String]) -> impl Iterator<Item = &str> {
    given.iter().flat_map(|list| list.split([',', ' ', '\t', '\r', '\n'])).filter(|url| !url.is_empty())
}

/// All that `option` gives, in order, each once.
pub(crate) fn each<T: FromStr<Err = String> + PartialEq>(
    option: &'static str,
    given: &[String],
) -> Result<Vec<T>, ConfigError> {
    let mut all = Vec::new();
    for text in split(given) {
        let wrong = |problem| ConfigError::Value { option, given: text.to_owned(), problem };
        let value = text.parse().map_err(wrong)?;
        if !all.contains(&value) {
            all.push(value);
        }
    }
    Ok(all)
}

/// The URL of an admin endpoint.
pub(crate) fn admin_url(given: &str) -> Result<Url, ConfigError> {
    http_url("--envoy-admin", "http://host:port", given)
}

/// The workers in `given`, in order.
pub(crate) fn workers(given: &[String]) -> Result<Vec<Worker>, ConfigError> {
    let workers = split(given).map(Worker::parse).collect::<Result<Vec<_>, _>>()?;
    if workers.len() > MAX_WORKERS {
        return Err(ConfigError::TooManyWorkers(workers.len()));
    }
    let mut seen = HashSet::new();
    match workers.iter().find(|worker| !seen.insert(worker.route(""))) {
        Some(twice) => Err(ConfigError::SameWorker(twice.given.clone())),
        None => Ok(workers),
    }
}

/// The ingest listeners in `given`, in order, each once.
pub(crate) fn push_urls(given: &[String]) -> Result<Vec<Url>, ConfigError> {
    let mut urls: Vec<Url> = Vec::new();
    for text in split(given) {
        let url = http_url("--push-url", "http://host:port/v1/reports", text)?;
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    Ok(urls)
}

/// The reporter's name: the given one, or the host's.
pub(crate) fn reporter(given: Option<String>) -> Result<String, ConfigError> {
    match given.filter(|name| !name.is_empty()) {
        Some(name) if name.len() > 100 || !name.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Err(ConfigError::Reporter(name))
        }
        Some(name) => Ok(name),
        None => {
            let mut name = gethostname::gethostname().to_string_lossy().into_owned();
            name.retain(|character| character.is_ascii_graphic());
            name.truncate(100);
            Ok(if name.is_empty() { "sidecar".to_owned() } else { name })
        }
    }
}

fn http_url(option: &'static str, example: &'static str, given: &str) -> Result<Url, ConfigError> {
    checked_url(option, example, given, given)
}

/// The URL that `meant` is; what is wrong with it is said of `given`.
fn checked_url(option: &'static str, example: &'static str, given: &str, meant: &str) -> Result<Url, ConfigError> {
    let refused =
        |problem: &str| ConfigError::Url { option, given: given.to_owned(), problem: problem.into(), example };
    if given.len() > MAX_URL_BYTES {
        return Err(refused(&format!("longer than {MAX_URL_BYTES} bytes")));
    }
    // The snapshot carries the text as it stands, and the filter compares it byte by byte.
    if !given.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\') {
        return Err(refused("has characters that do not belong in a URL"));
    }
    let url = Url::parse(meant).map_err(|error| refused(&format!("not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refused("must start with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not hold a user name, password or @rank"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must have neither a query nor a fragment"));
    }
    if url.port() == Some(0) {
        return Err(refused("port 0 cannot be reached"));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_keeps_its_url_byte_for_byte() {
        for (given, loads) in [
            ("http://10.0.0.1:8000", "http://10.0.0.1:8000/v1/loads"),
            ("http://10.0.0.1:8000/", "http://10.0.0.1:8000/v1/loads"),
            ("HTTP://Engine:80/tenant/", "http://engine/tenant/v1/loads"),
            ("https://[::1]:8443", "https://[::1]:8443/v1/loads"),
        ] {
            let worker = Worker::parse(given).unwrap();
            assert_eq!((worker.url(), worker.route("/v1/loads").as_str()), (given, loads));
        }
    }

    #[test]
    fn an_engine_may_speak_grpc() {
        for (given, base) in [("grpc://10.0.0.1:30001", "http://10.0.0.1:30001/"), ("GRPCS://e", "https://e/")] {
            let worker = Worker::parse(given).unwrap();
            assert_eq!((worker.url(), worker.base().as_str(), worker.is_grpc()), (given, base, true));
        }
        assert!(!Worker::parse("http://a").unwrap().is_grpc());
    }

    #[test]
    fn lists_are_split_at_commas_and_white_space() {
        let given = ["http://a:1,http://b:2 http://c:3\n".to_owned(), ", http://d:4".to_owned()];
        let urls: Vec<_> = workers(&given).unwrap().iter().map(|worker| worker.url().to_owned()).collect();
        assert_eq!(urls, ["http://a:1", "http://b:2", "http://c:3", "http://d:4"]);
    }

    #[track_caller]
    fn refuses(workers_given: &str, part: &str) {
        let error = workers(&[workers_given.to_owned()]).unwrap_err().to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        refuses("10.0.0.1:8000", "--worker \"10.0.0.1:8000\": not a URL");
        refuses("localhost:8000", "must start with http://");
        refuses("grpc://a:1/x", "gRPC knows no path");
        refuses("ftp://a:1", "must start with http://");
        refuses("http://a:8000@2", "@rank");
        refuses("http://a:8000?x=1", "neither a query");
        refuses("http://a:99999", "not a URL (invalid port number)");
        refuses("http://ä:1", "characters that do not belong");
        refuses("http://a:80,http://b,http://a/", "http://a/: this engine is listed twice");
        refuses(&format!("http://a/{}", "x".repeat(600)), "longer than 512 bytes");
        let many: Vec<_> = (0..=MAX_WORKERS).map(|n| format!("http://w{n}")).collect();
        refuses(&many.join(","), "4097 workers; at most 4096");
    }

    #[test]
    fn a_key_is_trimmed_checked_and_never_shown() {
        let key = ApiKey::parse(" secret\n").unwrap().unwrap();
        assert_eq!(key.header().to_str().unwrap(), "Bearer secret");
        assert!(!format!("{key:?} {:?}", key.header()).contains("secret"));
        assert!(ApiKey::parse(" \n").unwrap().is_none());
        assert!(ApiKey::parse("two\nlines").is_err());
    }
}
