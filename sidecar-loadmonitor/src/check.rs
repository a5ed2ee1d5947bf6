//! `sidecar-loadmonitor check URL…`: what can be learned from an engine, from where, and what it would come to.

use std::{
    ffi::OsString,
    fmt::{self, Write as _},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::Parser;
use filter_core::{config::ScoreParams, policy::score, report::Load};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::{
    config::{ApiKey, ConfigError, Worker},
    engine::{Engine, RankLoad},
    fetch::{self, Asker},
    resolve::Names,
    source::{Freshness, Reading},
    spec::WorkerSpec,
    trust::Trust,
};

/// Asks engines once for all that a balancer wants to know, and prints what each said. Succeeds (0) if the load of
/// every engine could be learned, fails (1) if that of any could not.
#[derive(Debug, Parser)]
#[command(name = "sidecar-loadmonitor check", bin_name = "sidecar-loadmonitor check", version)]
pub struct Check {
    /// Engines: http, https, grpc or grpcs, host and port.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,

    /// Seconds that one answer may take.
    #[arg(long, value_name = "SECONDS", env = "POLL_TIMEOUT", default_value = "5", value_parser = crate::args::seconds)]
    timeout: Duration,

    /// Key sent to the engines as "Authorization: Bearer KEY". Others on this machine can read a command line: prefer
    /// the variable or --api-key-file.
    #[arg(long, value_name = "KEY", env = "API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// File that holds the key for the engines.
    #[arg(long, value_name = "FILE", env = "API_KEY_FILE")]
    api_key_file: Option<OsString>,

    /// File of certificate authorities in PEM that engines with https or grpcs are held against, in place of the
    /// system's.
    #[arg(long, value_name = "FILE", env = "CA_FILE")]
    ca_file: Option<OsString>,

    /// What is asked of engines that speak HTTP to see whether they work.
    #[arg(long, value_name = "PATH", env = "HEALTH_CHECK_ENDPOINT", default_value = "/health")]
    health_check_endpoint: String,

    /// What the engines are (sglang, vllm, trtllm, …), if they shall not be asked.
    #[arg(long, value_name = "RUNTIME", default_value = "")]
    runtime: String,
}

/// What was learned of all engines.
#[derive(Debug)]
pub struct Learned {
    /// For people.
    pub text: String,
    /// Whether the load of each is known.
    pub all: bool,
}

impl Check {
    /// Asks.
    ///
    /// # Errors
    /// [`ConfigError`] says which argument is wrong and what to do about it.
    pub async fn run(self) -> Result<Learned, ConfigError> {
        let trust = Trust::given(self.ca_file)?;
        let key = ApiKey::given(self.api_key, self.api_key_file)?;
        let names = Names::default();
        let client = fetch::client(&names, &trust).map_err(|error| ConfigError::Client(error.to_string()))?;
        let asker = Asker::new(client, key, trust);
        let engine = |url: &String| {
            let spec = WorkerSpec { url: url.clone(), runtime: self.runtime.clone(), ..WorkerSpec::default() };
            Ok(Engine::new(Arc::new(spec), Worker::parse(url)?, asker.clone(), &names))
        };
        let engines = self.urls.iter().map(engine).collect::<Result<Vec<_>, ConfigError>>()?;
        let all = join_all(engines.iter().map(|engine| look(engine, &self.health_check_endpoint, self.timeout))).await;
        Ok(Learned {
            text: all.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>().join("\n"),
            all: all.iter().all(|(_, learned)| *learned),
        })
    }
}

/// What one engine says, and whether its load is known.
async fn look(engine: &Engine, path: &str, timeout: Duration) -> (String, bool) {
    let mut text = String::new();
    let mut line = |name: &str, what: &dyn fmt::Display| {
        let _ = writeln!(text, "  {name:<9} {what}");
    };
    match engine.address(timeout).await {
        Ok(address) => line("address", &address),
        Err(why) => line("address", &format_args!("unknown: {why}")),
    }
    match engine.probe(path, timeout).await {
        Ok(()) => line("health", &"ready"),
        Err(why) => line("health", &format_args!("not ready: {why}")),
    }
    let unknown = |word: String| if word.is_empty() { "unknown".to_owned() } else { word };
    match engine.identify(timeout).await {
        Ok(info) => {
            line("engine", &unknown(info.runtime));
            line("models", &unknown(info.models.join(", ")));
            line("dp size", &unknown(if info.dp_size > 0 { info.dp_size.to_string() } else { String::new() }));
            let labels = info.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
            if !labels.is_empty() {
                line("labels", &labels.join(", "));
            }
        }
        Err(why) => line("engine", &format_args!("unknown: {why}")),
    }

    let mut load: Option<(Load, Vec<RankLoad>)> = None;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let freshness = Freshness { now, most: Duration::from_secs(30) };
    for &source in engine.face().sources() {
        let until = Instant::now() + timeout;
        let (name, reading) = match engine.face().settled(source, until).await {
            Ok(source) => (source.name(), engine.face().ask(source, until, freshness).await),
            Err(why) => (source.name(), Reading::Inconclusive(why)),
        };
        match reading {
            Reading::Load(..) if load.is_some() => line(name, &"tells the load, too, and is not needed"),
            Reading::Load(together, ranks) => {
                line(name, &"tells the load");
                load = Some((together, ranks));
            }
            // Another source would only hide it.
            Reading::Unknown(why) if load.is_none() => {
                line(name, &why);
                break;
            }
            Reading::Unknown(why) | Reading::Inconclusive(why) | Reading::Absent(why) => line(name, &why),
        }
    }
    match &load {
        Some((together, ranks)) => {
            line("load", &Shown(together));
            for rank in ranks.iter().filter(|_| ranks.len() > 1) {
                line(&format!("  rank {}", rank.dp_rank), &Shown(&rank.load));
            }
            let params = ScoreParams::default();
            let wait = score::of_report(&params, together);
            line(
                "score",
                &format_args!("{wait:.4} s, the expected wait by the defaults of least_load and cache_aware"),
            );
            // The line above has 0 for what the engine does not tell.
            if together.queued_tokens == 0.0 && together.waiting > 0.0 {
                line(
                    "",
                    &format_args!("at {} tokens for each that waits, as it tells none", params.mean_prefill_tokens),
                );
            }
            if together.throughput == 0.0 {
                line("", &format_args!("at {} tokens/s, as it tells no rate", params.default_throughput));
            }
        }
        None => line("load", &"unknown: the filter goes by its own count of requests in flight"),
    }
    (format!("{}\n{text}", engine.spec().url), load.is_some())
}

/// A load in words.
struct Shown<'a>(&'a Load);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = self.0.as_sent();
        write!(f, "{} running, {} waiting, ", load.running, load.waiting)?;
        // On the wire 0 stands for what an engine does not tell.
        if load.queued_tokens > 0.0 || load.waiting == 0.0 {
            write!(f, "{} queued tokens, ", load.queued_tokens)?;
        }
        write!(f, "{} of the KV memory", load.kv_usage)?;
        if load.throughput > 0.0 { write!(f, ", {} tokens/s", load.throughput) } else { Ok(()) }
    }
}
