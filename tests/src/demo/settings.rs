//! What a demo run is made of; the flags and environment of the `demo` binary.

use std::path::PathBuf;
use std::time::Duration;

use filter_core::config::PolicyName;

use crate::workload::{SessionOptions, TraceOptions};

/// Real seconds that a trace takes if no speed is asked for.
const TRACE_SECONDS: f64 = 28.0;

/// What every other policy is compared with.
const BASELINE: &str = "round_robin";

/// Settings of a demo run.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoSettings {
    /// Policies to compare, in this order. `direct-round-robin` and `ideal-affinity` go without a gateway.
    #[arg(long, env = "POLICIES", value_delimiter = ',', default_values_t = default_policies())]
    pub policies: Vec<String>,

    /// Compare `round_robin` with this policy, whatever POLICIES says.
    #[arg(long, env = "POLICY", value_parser = parse_policy)]
    pub policy: Option<String>,

    /// Number of engines.
    #[arg(long, env = "ENGINES", default_value_t = 4, value_parser = parse_positive)]
    pub engines: usize,

    /// Replay this trace (Mooncake's format) instead of the sessions.
    #[arg(long, env = "TRACE")]
    pub trace: Option<PathBuf>,

    /// Times faster: than the trace's own time, or than the sessions' usual pace.
    #[arg(long, env = "SPEED", value_parser = parse_speed)]
    pub speed: Option<f64>,

    /// Seed of the sessions.
    #[arg(long, env = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Number of sessions.
    #[arg(long, env = "SESSIONS", default_value_t = SessionOptions::default().sessions, value_parser = parse_positive)]
    pub session_count: usize,

    /// Each engine's memory is the workload's distinct tokens divided by this: 4, or 16 for the hard case.
    #[arg(long, env = "CACHE_DIVISOR", default_value_t = 4, value_parser = parse_positive)]
    pub cache_divisor: usize,

    /// Requests of a trace to replay at most.
    #[arg(long, env = "LIMIT", default_value_t = usize::MAX, hide_default_value = true)]
    pub limit: usize,

    /// Where the outcome goes as JSON.
    #[arg(long, env = "DEMO_OUTPUT", default_value = "target/demo.json")]
    pub output: PathBuf,
}

impl Default for DemoSettings {
    fn default() -> Self {
        Self {
            policies: default_policies(),
            policy: None,
            engines: 4,
            trace: None,
            speed: None,
            seed: 1,
            session_count: SessionOptions::default().sessions,
            cache_divisor: 4,
            limit: usize::MAX,
            output: PathBuf::from("target/demo.json"),
        }
    }
}

impl DemoSettings {
    /// The policies to compare, in order.
    pub(super) fn compared(&self) -> Vec<String> {
        let Some(policy) = &self.policy else { return self.policies.clone() };
        let mut both = vec![BASELINE.to_owned(), policy.clone()];
        both.dedup();
        both
    }

    /// The sessions to generate.
    pub(super) fn sessions(&self) -> SessionOptions {
        let usual = SessionOptions::default();
        SessionOptions {
            seed: self.seed,
            sessions: self.session_count,
            // Fewer sessions must not be more of the workload at once.
            open_sessions: (usual.open_sessions * self.session_count / usual.sessions).clamp(1, usual.open_sessions),
            requests_per_second: usual.requests_per_second * self.speed.unwrap_or(1.0),
            ..usual
        }
    }

    pub(super) fn trace_options(&self, speed: f64) -> TraceOptions {
        TraceOptions { speed, limit: self.limit, ..TraceOptions::default() }
    }

    /// The speed that fits a trace of this length into a demo.
    pub(super) fn speed_for(&self, duration: Duration) -> f64 {
        (duration.as_secs_f64() / TRACE_SECONDS).max(1.0)
    }
}

fn default_policies() -> Vec<String> {
    [BASELINE, "cache_aware"].map(str::to_owned).to_vec()
}

fn parse_policy(text: &str) -> Result<String, String> {
    let known = PolicyName::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>();
    match known.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is none of {}", known.join(", "))),
    }
}

fn parse_positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| speed.is_finite() && *speed > 0.0);
    speed.ok_or_else(|| format!("`{text}` is not a number above 0"))
}
