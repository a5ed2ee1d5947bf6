//! What a bench run is made of; the flags and environment of the `bench` binary.

use std::fmt;
use std::path::PathBuf;

use filter_core::config::PolicyName;

use super::cells::Mix;

/// What the filter is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Peer {
    /// SMG itself, in the place of Envoy, with its policy `cache_aware`.
    Smg,
    /// Envoy with an external processor that reads the body and names an engine without a look at it.
    Extproc,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Smg => "smg",
            Self::Extproc => "extproc",
        })
    }
}

/// Settings of a bench run.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchSettings {
    /// Rounds that count; one more goes before them.
    #[arg(long, env = "ROUNDS", default_value_t = 7, value_parser = parse_positive)]
    pub rounds: usize,

    /// Policies to measure; the first one also with other numbers of workers and threads. Without any, all are, those
    /// that read no body with the smallest and the largest prompts of one mix only.
    #[arg(long, env = "POLICIES", value_delimiter = ',', value_parser = parse_policy)]
    pub policies: Vec<String>,

    /// Sizes of the request body in KiB.
    #[arg(long, env = "PROMPT_KB", value_delimiter = ',', default_values_t = [4, 48, 400], value_parser = parse_positive)]
    pub prompt_kb: Vec<usize>,

    /// How prompts resemble each other.
    #[arg(long, env = "MIX", value_delimiter = ',', value_enum, default_values_t = [Mix::Cold, Mix::Turn, Mix::Repeat])]
    pub mix: Vec<Mix>,

    /// Chunks of the streamed answers; 0 measures no streams.
    #[arg(long, env = "STREAM_CHUNKS", default_value_t = 400)]
    pub stream_chunks: usize,

    /// Numbers of engines; everything is measured with the first one.
    #[arg(long, env = "WORKERS", value_delimiter = ',', default_values_t = [2, 256], value_parser = parse_positive)]
    pub workers: Vec<usize>,

    /// Numbers of Envoy's threads; everything is measured with 2 of them if that is among these, else with the first.
    #[arg(long, env = "CONCURRENCY", value_delimiter = ',', default_values_t = [1, 2, 4], value_parser = parse_positive)]
    pub concurrency: Vec<usize>,

    /// What else to measure.
    #[arg(long, env = "PEER", value_delimiter = ',', value_enum)]
    pub peer: Vec<Peer>,

    /// Requests of a measurement with 4 KB; other measurements have fewer.
    #[arg(long, env = "REQUESTS", default_value_t = 1200, value_parser = parse_positive)]
    pub requests: usize,

    /// Envoy's threads while lost races are counted; 0 counts none.
    #[arg(long, env = "SATURATION_CONCURRENCY", default_value_t = 8)]
    pub saturation_concurrency: usize,

    /// SMG's program, for the peer `smg`.
    #[arg(long, env = "SMG_BIN")]
    pub smg: Option<PathBuf>,

    /// The external processor, for the peer `extproc`; beside this program if it is not given.
    #[arg(long, env = "PICKER_BIN")]
    pub picker: Option<PathBuf>,

    /// Where the outcome goes as JSON.
    #[arg(long, env = "BENCH_OUTPUT", default_value = "target/bench.json")]
    pub output: PathBuf,
}

impl Default for BenchSettings {
    fn default() -> Self {
        Self {
            rounds: 7,
            policies: Vec::new(),
            prompt_kb: vec![4, 48, 400],
            mix: vec![Mix::Cold, Mix::Turn, Mix::Repeat],
            stream_chunks: 400,
            workers: vec![2, 256],
            concurrency: vec![1, 2, 4],
            peer: Vec::new(),
            requests: 1200,
            saturation_concurrency: 8,
            smg: None,
            picker: None,
            output: PathBuf::from("target/bench.json"),
        }
    }
}

impl BenchSettings {
    /// The policies to measure.
    pub(super) fn measured(&self) -> Vec<String> {
        if self.policies.is_empty() { all_policies() } else { self.policies.clone() }
    }

    /// Those of them that are not measured with everything: what they cost does not depend on what a prompt says.
    pub(super) fn sparse(&self) -> Vec<String> {
        if !self.policies.is_empty() {
            return Vec::new();
        }
        all_policies().into_iter().filter(|name| !READ_BODIES.contains(&name.as_str())).collect()
    }
}

/// The policies that look at prompts.
pub(super) const READ_BODIES: [&str; 2] = ["cache_aware", "prefix_hash"];

/// `cache_aware` first.
fn all_policies() -> Vec<String> {
    let mut names: Vec<String> = PolicyName::ALL.iter().map(|policy| policy.as_str().to_owned()).collect();
    names.sort_by_key(|name| name != "cache_aware");
    names
}

fn parse_positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
}

fn parse_policy(text: &str) -> Result<String, String> {
    let known = all_policies();
    match known.iter().any(|name| name == text) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is none of {}", known.join(", "))),
    }
}
