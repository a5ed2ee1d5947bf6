//! The command line and its environment variables.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};

use crate::config::{self, ApiKey, Config, ConfigError};

/// What SMG allows an engine for one answer.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longer intervals are a slip of the keyboard: nothing balances on reports of yesterday.
const MAX_SECONDS: f64 = 600.0;

/// Asks inference engines (SGLang, vLLM and what answers like them) how loaded they are and pushes the answers into
/// the load-balancing filter of one or several Envoys.
#[derive(Debug, Parser)]
#[command(name = "sidecar-loadmonitor", version)]
pub struct Args {
    /// URL of an engine, as it stands in the filter's configuration. Repeat it, or separate several by commas or
    /// spaces.
    #[arg(long = "worker", value_name = "URL", env = "WORKERS")]
    pub workers: Vec<String>,

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

    /// How much to log, on standard error.
    #[arg(long, value_enum, value_name = "LEVEL", env = "LOG_LEVEL", default_value = "info", ignore_case = true)]
    pub log_level: LogLevel,
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
        // Compose files set variables they have no value for to nothing: that is no key.
        let key = self.api_key.filter(|key| !key.is_empty());
        let key = match self.api_key_file.filter(|path| !path.is_empty()).map(PathBuf::from) {
            Some(_) if key.is_some() => return Err(ConfigError::TwoApiKeys),
            Some(path) => std::fs::read_to_string(&path).map_err(|source| ConfigError::ApiKeyFile { path, source })?,
            None => key.unwrap_or_default(),
        };
        Ok(Config {
            workers: config::workers(&self.workers)?,
            push_urls: config::push_urls(&self.push_urls)?,
            interval,
            timeout,
            api_key: ApiKey::parse(&key)?,
        })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("must be a number of seconds from 0.001 to {MAX_SECONDS}");
    let seconds: f64 = text.trim().parse().map_err(|_| wrong())?;
    if (0.001..=MAX_SECONDS).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
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
}
