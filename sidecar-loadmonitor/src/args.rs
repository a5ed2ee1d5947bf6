//! The command line and its environment variables.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Parser, ValueEnum};

use crate::{
    config::{self, ApiKey, Config, ConfigError, Discovery, Face, Probes},
    discovery::EnvoyAdmin,
    health::Thresholds,
    trust::Trust,
};

/// What SMG allows an engine for one answer.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer intervals are a slip of the keyboard: nothing balances on reports of yesterday.
const MAX_SECONDS: f64 = 600.0;
/// A probe once an hour is none.
const MAX_PROBE_SECONDS: f64 = 3600.0;
/// Nobody waits for more probes than this.
const MAX_THRESHOLD: i64 = 1000;

/// Asks inference engines (SGLang, vLLM and what answers like them) how loaded they are and pushes the answers into
/// the load-balancing filter of one or several Envoys.
#[derive(Debug, Parser)]
#[command(
    name = "sidecar-loadmonitor",
    version,
    after_help = "sidecar-loadmonitor check URL… asks engines once and prints what can be learned from them."
)]
pub struct Args {
    /// File with arguments, YAML or JSON: names of flags with their values, such as "load-monitor-interval: 2". The
    /// command line and the environment go before it.
    #[arg(long, value_name = "FILE", env = "SIDECAR_CONFIG")]
    pub config: Option<OsString>,

    /// URL of an engine, as it stands in the filter's configuration. Repeat it, or separate several by commas or
    /// spaces.
    #[arg(long = "worker", value_name = "URL", env = "WORKERS")]
    pub workers: Vec<String>,

    /// File that describes workers, JSON or YAML: a list of URLs or of objects with SMG's members (url, models, leg,
    /// runtime, labels, api_key, bootstrap_port, health, resilience, overload, load_monitor_interval_secs). Replace it
    /// whenever you like; while it is missing or wrong, what is known stays.
    #[arg(long, value_name = "FILE", env = "WORKERS_FILE", help_heading = DISCOVERY)]
    pub workers_file: Option<OsString>,

    /// DNS name of which every address is a worker, with its leg (regular, prefill or decode) in front if it has one.
    /// Repeat it, or separate several by commas or spaces. A name that does not resolve, or to nothing, keeps the
    /// workers that it had.
    #[arg(long, value_name = "[LEG=]NAME:PORT", env = "WORKERS_DNS", help_heading = DISCOVERY)]
    pub dns: Vec<String>,

    /// Seconds from one look-up of a DNS name to the next.
    #[arg(long, value_name = "SECONDS", env = "DNS_INTERVAL", default_value = "5", value_parser = seconds,
        help_heading = DISCOVERY)]
    pub dns_interval: Duration,

    /// URL of an Envoy's admin endpoint: the hosts of its clusters named by --envoy-cluster are workers, and those that
    /// Envoy's own health checks or outlier detection speak against are not chosen.
    #[arg(long, value_name = "URL", env = "ENVOY_ADMIN", help_heading = DISCOVERY)]
    pub envoy_admin: Option<String>,

    /// Name of a cluster of engines, with its leg (regular, prefill or decode) behind it if it has one. Repeat it, or
    /// separate several by commas or spaces.
    #[arg(long, value_name = "NAME[=LEG]", env = "ENVOY_CLUSTER", help_heading = DISCOVERY)]
    pub envoy_cluster: Vec<String>,

    /// Seconds from one look at the file, and at Envoy, to the next.
    #[arg(long, value_name = "SECONDS", env = "DISCOVERY_INTERVAL", default_value = "1", value_parser = seconds,
        help_heading = DISCOVERY)]
    pub discovery_interval: Duration,

    /// What workers that are found as addresses speak; their URL is SCHEME://IP:PORT.
    #[arg(long, value_enum, value_name = "SCHEME", env = "DISCOVERED_SCHEME", default_value = "http",
        help_heading = DISCOVERY)]
    pub discovered_scheme: Scheme,

    /// URL of an Envoy's ingest listener, such as http://127.0.0.1:9902/v1/reports. Repeat it, or separate several by
    /// commas or spaces; each gets every snapshot.
    #[arg(long = "push-url", value_name = "URL", env = "PUSH_URL")]
    pub push_urls: Vec<String>,

    /// Seconds from one round of polls to the next, fractions allowed. The filter stops trusting a report after three
    /// of them.
    #[arg(long, value_name = "SECONDS", env = "LOAD_MONITOR_INTERVAL", default_value = "10", value_parser = seconds)]
    pub load_monitor_interval: Duration,

    /// Seconds one poll of one engine may take, its fallback included, and one push; at most the interval [default: 5,
    /// or the interval if that is shorter]
    #[arg(long, value_name = "SECONDS", env = "POLL_TIMEOUT", value_parser = seconds)]
    pub timeout: Option<Duration>,

    /// Key sent to every engine as "Authorization: Bearer KEY". Others on this machine can read a command line: prefer
    /// the variable or --api-key-file.
    #[arg(long, value_name = "KEY", env = "API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,

    /// File that holds the key for the engines; read once, at start.
    #[arg(long, value_name = "FILE", env = "API_KEY_FILE")]
    pub api_key_file: Option<OsString>,

    /// File of certificate authorities in PEM that engines and Envoys with https or grpcs are held against, in place
    /// of the system's.
    #[arg(long, value_name = "FILE", env = "CA_FILE")]
    pub ca_file: Option<OsString>,

    /// Do not ask engines for their load: only probe them, and tell which ones there are. The filter then goes by its
    /// own counts.
    #[arg(long, env = "DISABLE_LOAD_MONITORING")]
    pub disable_load_monitoring: bool,

    /// Seconds from one probe of a worker to the next, fractions allowed. A worker that is not ready is probed more
    /// often, so that it comes in soon.
    #[arg(long, value_name = "SECONDS", env = "HEALTH_CHECK_INTERVAL_SECS", default_value = "60",
        value_parser = probe_seconds, help_heading = PROBES)]
    pub health_check_interval_secs: Duration,

    /// Seconds that one probe may take.
    #[arg(long, value_name = "SECONDS", env = "HEALTH_CHECK_TIMEOUT_SECS", default_value = "5",
        value_parser = probe_seconds, help_heading = PROBES)]
    pub health_check_timeout_secs: Duration,

    /// So many failed probes in a row take a ready worker out of rotation; three times as many in a row (of those at
    /// the interval) give it up for good, as do ten times as many probes if it was never ready. A worker that is given
    /// up stays so until it is named anew: dropped by whoever names it and named again, or described otherwise.
    #[arg(long, value_name = "PROBES", env = "HEALTH_FAILURE_THRESHOLD", default_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=MAX_THRESHOLD), help_heading = PROBES)]
    pub health_failure_threshold: u32,

    /// So many successful probes in a row bring a worker into rotation.
    #[arg(long, value_name = "PROBES", env = "HEALTH_SUCCESS_THRESHOLD", default_value = "2",
        value_parser = clap::value_parser!(u32).range(1..=MAX_THRESHOLD), help_heading = PROBES)]
    pub health_success_threshold: u32,

    /// What is asked of engines that speak HTTP; any answer 2xx will do.
    #[arg(long, value_name = "PATH", env = "HEALTH_CHECK_ENDPOINT", default_value = "/health", value_parser = path,
        help_heading = PROBES)]
    pub health_check_endpoint: String,

    /// Do not probe: every worker counts as ready.
    #[arg(long, env = "DISABLE_HEALTH_CHECK", help_heading = PROBES)]
    pub disable_health_check: bool,

    /// Remove workers that are given up; otherwise they stay, and are told as failed.
    #[arg(long, env = "REMOVE_UNHEALTHY_WORKERS", help_heading = PROBES)]
    pub remove_unhealthy_workers: bool,

    /// Seconds that a worker drains (is sent nothing new) before it is removed.
    #[arg(long, value_name = "SECONDS", env = "DRAIN_SETTLE_SECS", default_value = "5", value_parser = settle_seconds,
        help_heading = PROBES)]
    pub drain_settle_secs: Duration,

    /// The name that tells this sidecar from others that report to the same Envoys; keep it when the sidecar is
    /// replaced [default: the host's name]
    #[arg(long, value_name = "NAME", env = "REPORTER_NAME", help_heading = FACE)]
    pub reporter_name: Option<String>,

    /// ip:port to serve HTTP on: GET /v1/snapshot for filters that fetch what is known, GET /workers, POST
    /// /drain?worker=URL, GET /healthz, /readyz and /metrics. On another address than loopback --token-file must be
    /// given [default: nothing is served]
    #[arg(long, value_name = "ADDRESS", env = "LISTEN", help_heading = FACE)]
    pub listen: Option<SocketAddr>,

    /// File that holds the token: whoever asks for /v1/snapshot, /workers or /drain must send it as "Authorization:
    /// Bearer TOKEN", and it is sent with every push; read once, at start.
    #[arg(long, value_name = "FILE", env = "TOKEN_FILE", help_heading = FACE)]
    pub token_file: Option<OsString>,

    /// How much to log, on standard error.
    #[arg(long, value_enum, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info", ignore_case = true)]
    pub log_level: LogLevel,

    /// How a line of the log looks.
    #[arg(long, value_enum, value_name = "FORMAT", env = "LOG_FORMAT", default_value = "text", ignore_case = true)]
    pub log_format: LogFormat,
}

const DISCOVERY: &str = "Where workers come from";
const PROBES: &str = "Health and rotation";
const FACE: &str = "To others";

/// What an engine speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scheme {
    /// HTTP in the clear.
    Http,
    /// HTTP over TLS.
    Https,
    /// gRPC in the clear.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Grpc => "grpc",
            Self::Grpcs => "grpcs",
        }
    }
}

/// How the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object per line.
    Json,
}

/// Lines of this level and the more serious ones are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Only what ends the process.
    Error,
    /// Also workers that stop reporting and Envoys that cannot be reached.
    Warn,
    /// Also start, stop, and everything that works again.
    Info,
    /// Also every failed poll and push.
    Debug,
    /// Everything.
    Trace,
}

impl Args {
    /// The configuration that the arguments ask for; reads the key file.
    ///
    /// # Errors
    /// [`ConfigError`] says which argument is wrong and what to do about it.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let interval = self.load_monitor_interval;
        let timeout = self.timeout.unwrap_or_else(|| DEFAULT_TIMEOUT.min(interval));
        if timeout > interval {
            return Err(ConfigError::Timeout { timeout, interval });
        }
        let token = match path_in(self.token_file) {
            Some(path) => {
                let token = ApiKey::parse(&read_key("--token-file", &path)?)?;
                Some(token.ok_or(ConfigError::NoToken { path })?)
            }
            None => None,
        };
        let face = self.listen.map(|listen| Face { listen });
        if face.as_ref().is_some_and(|face| !face.listen.ip().is_loopback()) && token.is_none() {
            return Err(ConfigError::OpenToAll);
        }
        let discovery = Discovery {
            workers: config::workers(&self.workers)?,
            workers_file: path_in(self.workers_file),
            dns: config::each("--dns", &self.dns)?,
            dns_interval: self.dns_interval,
            envoy: envoy(self.envoy_admin.filter(|url| !url.is_empty()), &self.envoy_cluster)?,
            interval: self.discovery_interval,
            scheme: self.discovered_scheme.name(),
        };
        if discovery.is_empty() {
            return Err(ConfigError::NoWorker);
        }
        let push_urls = config::push_urls(&self.push_urls)?;
        if push_urls.is_empty() && face.is_none() {
            return Err(ConfigError::NoReader);
        }
        Ok(Config {
            discovery,
            push_urls,
            interval,
            timeout,
            api_key: ApiKey::given(self.api_key, self.api_key_file)?,
            trust: Trust::given(self.ca_file)?,
            monitoring: !self.disable_load_monitoring,
            probes: Probes {
                enabled: !self.disable_health_check,
                interval: self.health_check_interval_secs,
                timeout: self.health_check_timeout_secs,
                thresholds: Thresholds {
                    success: self.health_success_threshold,
                    failure: self.health_failure_threshold,
                },
                path: self.health_check_endpoint,
                drain_settle: self.drain_settle_secs,
                remove_failed: self.remove_unhealthy_workers,
            },
            reporter: config::reporter(self.reporter_name)?,
            face,
            token,
        })
    }
}

fn envoy(admin: Option<String>, clusters: &[String]) -> Result<Option<EnvoyAdmin>, ConfigError> {
    let clusters: Vec<_> = config::each("--envoy-cluster", clusters)?;
    match admin {
        Some(url) if !clusters.is_empty() => Ok(Some(EnvoyAdmin { url: config::admin_url(&url)?, clusters })),
        None if clusters.is_empty() => Ok(None),
        _ => Err(ConfigError::HalfAnEnvoy),
    }
}

/// Compose files set variables they have no value for to nothing: that is no file.
fn path_in(given: Option<OsString>) -> Option<PathBuf> {
    given.filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn read_key(option: &'static str, path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::KeyFile { option, path: path.to_owned(), source };
    std::fs::read_to_string(path).map_err(failed)
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        Ok(text.to_owned())
    } else {
        Err("must be a path such as /health".to_owned())
    }
}

fn probe_seconds(text: &str) -> Result<Duration, String> {
    in_range(text, 0.01, MAX_PROBE_SECONDS)
}

fn settle_seconds(text: &str) -> Result<Duration, String> {
    in_range(text, 0.0, MAX_PROBE_SECONDS)
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    in_range(text, 0.001, MAX_SECONDS)
}

fn in_range(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let wrong = || format!("must be a number of seconds from {least} to {most}");
    let seconds: f64 = text.trim().parse().map_err(|_| wrong())?;
    if (least..=most).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [&str; 4] = ["--worker", "http://a:1", "--push-url", "http://e:9901/v1/reports"];

    fn parse(extra: &[&str]) -> Result<Config, String> {
        let all = ["sidecar-loadmonitor"].iter().chain(&GOOD).chain(extra);
        Args::try_parse_from(all).map_err(|error| error.to_string())?.into_config().map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refuses(extra: &[&str], part: &str) {
        let error = parse(extra).unwrap_err();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }

    #[test]
    fn defaults_are_those_of_smg() {
        let config = parse(&[]).unwrap();
        assert_eq!((config.interval, config.timeout), (Duration::from_secs(10), Duration::from_secs(5)));
        assert!(config.api_key.is_none());
    }

    #[test]
    fn a_short_interval_shortens_the_default_timeout() {
        let config = parse(&["--load-monitor-interval", "0.25"]).unwrap();
        assert_eq!((config.interval, config.timeout), (Duration::from_millis(250), Duration::from_millis(250)));
    }

    #[test]
    fn refusals_name_the_option_and_what_is_allowed() {
        for wrong in ["0", "-1", "NaN", "inf", "0.0001", "100000", "ten", ""] {
            let flag = format!("--load-monitor-interval={wrong}");
            refuses(&[&flag], "'--load-monitor-interval <SECONDS>': must be a number of seconds from 0.001 to 600");
        }
        refuses(&["--timeout", "11"], "--timeout of 11s is longer than --load-monitor-interval of 10s");
        refuses(&["--push-url", "http://e?x"], "--push-url \"http://e?x\": must have neither a query");
        refuses(&["--api-key-file", "/does/not/exist"], "--api-key-file /does/not/exist: No such file");
        refuses(&["--api-key", "k", "--api-key-file", "f"], "both --api-key and --api-key-file");
        refuses(&["--ca-file", "/does/not/exist"], "--ca-file /does/not/exist: No such file");
        refuses(&["--ca-file", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")], "it holds no certificate");
        assert!(parse(&["--api-key", "", "--api-key-file="]).unwrap().api_key.is_none());
        refuses(&["--log-level", "loud"], "possible values: error, warn, info, debug, trace");
    }

    #[test]
    fn workers_and_push_urls_are_required() {
        let without = |flags: &[&str]| {
            let all = ["sidecar-loadmonitor"].iter().chain(flags);
            Args::try_parse_from(all).unwrap().into_config().unwrap_err().to_string()
        };
        assert!(without(&[]).contains("WORKERS"));
        assert!(without(&["--worker", "http://a:1"]).contains("--push-url"));
    }

    #[test]
    fn probes_are_those_of_smg_and_absurd_ones_are_refused() {
        let probes = parse(&[]).unwrap().probes;
        assert_eq!((probes.interval.as_secs(), probes.timeout.as_secs(), probes.drain_settle.as_secs()), (60, 5, 5));
        assert_eq!((probes.thresholds, probes.path.as_str()), (Thresholds { success: 2, failure: 3 }, "/health"));
        assert!(probes.enabled && !probes.remove_failed);
        refuses(&["--health-failure-threshold", "0"], "0 is not in 1..=1000");
        refuses(&["--health-success-threshold", "0"], "0 is not in 1..=1000");
        refuses(&["--health-check-interval-secs", "0"], "must be a number of seconds from 0.01 to 3600");
        refuses(&["--health-check-timeout-secs", "1e9"], "must be a number of seconds from 0.01 to 3600");
        refuses(&["--drain-settle-secs", "-1"], "unexpected argument");
        refuses(&["--drain-settle-secs=-1"], "must be a number of seconds from 0 to 3600");
        refuses(&["--health-check-endpoint", "health"], "must be a path such as /health");
    }

    #[test]
    fn workers_may_come_from_elsewhere() {
        let discovery = |extra: &[&str]| {
            let all = [&["sidecar-loadmonitor", "--listen", "127.0.0.1:0"], extra].concat();
            let config = Args::try_parse_from(all).unwrap().into_config();
            config.map(|config| config.discovery).map_err(|error| error.to_string())
        };
        assert_eq!(discovery(&["--dns", "a:1,decode=b:2 c:3"]).unwrap().dns.len(), 3);
        assert!(discovery(&["--workers-file", "w.yaml"]).unwrap().workers_file.is_some());
        let admin = ["--envoy-admin", "http://127.0.0.1:9901"];
        let envoy = discovery(&[&admin[..], &["--envoy-cluster", "a", "--envoy-cluster", "b=prefill"]].concat());
        assert_eq!(envoy.unwrap().envoy.unwrap().clusters.len(), 2);
        for (arguments, part) in [
            (&admin[..], "--envoy-admin and --envoy-cluster"),
            (&["--envoy-cluster", "a"][..], "--envoy-admin and --envoy-cluster"),
            (&["--envoy-cluster", "a", "--envoy-admin", "e:1"][..], "--envoy-admin \"e:1\""),
            (&["--dns", "engines"][..], "--dns \"engines\": the port is missing"),
            (&[][..], "--workers-file"),
        ] {
            let why = discovery(arguments).unwrap_err();
            assert!(why.contains(part), "{why:?} does not say {part:?}");
        }
    }

    #[test]
    fn what_others_may_reach_needs_a_token() {
        refuses(&["--listen", "0.0.0.0:9903"], "--token-file");
        refuses(&["--listen", "9903"], "invalid socket address");
        refuses(&["--token-file", "/dev/null"], "--token-file /dev/null: holds no token");
        assert!(parse(&["--listen", "127.0.0.1:0"]).unwrap().face.is_some());
        assert!(!parse(&[]).unwrap().reporter.is_empty());
        refuses(&["--reporter-name", "x".repeat(101).as_str()], "at most 100");
    }
}
