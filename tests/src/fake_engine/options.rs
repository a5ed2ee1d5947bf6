//! What a fake engine is made of: its speed, its memory, its models.

use std::time::Duration;

/// Which engine it plays to those who ask for its load, its health and what it is. Requests are served in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Runtime {
    /// `/v1/loads` as SGLang has it and `/metrics` with vLLM's names.
    #[default]
    Both,
    /// `/v1/loads` only; `/metrics` is 404, as SGLang without `--enable-metrics`.
    Sglang,
    /// The same in the shape of older releases.
    SglangOld,
    /// The same at `/loads` only.
    Loads,
    /// `/metrics` with SGLang's names only.
    SglangMetrics,
    /// `/metrics` only; `/v1/loads` is 404.
    Vllm,
    /// `/metrics` without a KV gauge and without labels.
    LlamaCpp,
    /// `/prometheus/metrics`; to read `/metrics` is to empty it, and this is counted.
    Trtllm,
    /// SGLang's gRPC service.
    SglangGrpc,
    /// vLLM's gRPC service.
    VllmGrpc,
    /// TensorRT-LLM's gRPC service, which tells no load.
    TrtllmGrpc,
    /// TokenSpeed's gRPC service.
    TokenspeedGrpc,
    /// MLX's gRPC service, which tells no load.
    MlxGrpc,
}

impl Runtime {
    /// Whether `GET` of this path is there.
    pub(crate) fn serves(self, path: &str) -> bool {
        match path {
            "/loads" => self == Self::Loads,
            "/v1/loads" => matches!(self, Self::Both | Self::Sglang | Self::SglangOld),
            "/metrics" => {
                matches!(self, Self::Both | Self::SglangMetrics | Self::Vllm | Self::LlamaCpp | Self::Trtllm)
            }
            "/prometheus/metrics" => self == Self::Trtllm,
            "/server_info" => {
                matches!(self, Self::Sglang | Self::Loads | Self::SglangMetrics | Self::Trtllm)
            }
            "/get_server_info" => self == Self::SglangOld,
            _ => self.service().is_none(),
        }
    }

    /// The full name of the gRPC service, if that is what it has.
    pub(crate) fn service(self) -> Option<&'static str> {
        match self {
            Self::SglangGrpc => Some("sglang.grpc.scheduler.SglangScheduler"),
            Self::VllmGrpc => Some("vllm.grpc.engine.VllmEngine"),
            Self::TrtllmGrpc => Some("trtllm.TrtllmService"),
            Self::TokenspeedGrpc => Some("tokenspeed.grpc.scheduler.TokenSpeedScheduler"),
            Self::MlxGrpc => Some("mlx.grpc.engine.MlxEngine"),
            _ => None,
        }
    }

    /// Who owns its models.
    pub(crate) fn owner(self) -> &'static str {
        match self {
            Self::Sglang | Self::SglangOld | Self::Loads | Self::SglangMetrics => "sglang",
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llamacpp",
            Self::Trtllm => "tensorrt_llm",
            _ => "fake",
        }
    }
}

/// What it serves if nobody says anything else; the short one is what tests ask for.
const MODELS: [&str; 2] = ["fake-model", "m"];

/// Options of one fake engine; the flags of the `fake-engine` binary.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineOptions {
    /// Name sent as `x-engine` on every response; the address if not given.
    #[arg(long)]
    pub name: Option<String>,

    /// TCP port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,

    /// Model ids that `/v1/models` lists; the first answers requests that name no model.
    #[arg(long = "model", default_values_t = MODELS.map(str::to_owned))]
    pub models: Vec<String>,

    /// Refuse a model that is missing or not listed (404) instead of serving it.
    #[arg(long)]
    pub strict_models: bool,

    /// Which engine it plays to those who ask for its load, its health and what it is.
    #[arg(long, value_enum, default_value_t = Runtime::Both)]
    pub runtime: Runtime,

    /// Data-parallel ranks, each with its own cache, queue and batch.
    #[arg(long, default_value_t = 1)]
    pub dp_ranks: usize,

    /// Tokens in a block of the prefix cache; only full blocks are reused.
    #[arg(long, default_value_t = 16)]
    pub block_tokens: usize,

    /// Bytes of text in one token.
    #[arg(long, default_value_t = 4)]
    pub bytes_per_token: usize,

    /// KV memory of each rank in tokens; 0 switches the prefix cache off (and reports 1,000,000).
    #[arg(long, default_value_t = 1_000_000)]
    pub cache_tokens: usize,

    /// Uncached prompt tokens that a rank computes in one simulated second; 0 computes in no time.
    #[arg(long, default_value_t = 20_000.0)]
    pub prefill_tokens_per_second: f64,

    /// Requests in a rank's batch at most; 0 sets no limit.
    #[arg(long, default_value_t = 256)]
    pub max_running: usize,

    /// Simulated milliseconds of one decode step; 0 answers all tokens at once.
    #[arg(long = "decode-step-ms", default_value = "10", value_parser = parse_millis)]
    pub decode_step: Duration,

    /// Completion tokens of a request that sets no limit.
    #[arg(long, default_value_t = 4)]
    pub default_max_tokens: usize,

    /// Completion tokens of any request at most.
    #[arg(long, default_value_t = 4096)]
    pub max_output_tokens: usize,

    /// Simulated seconds that pass in one real second.
    #[arg(long, default_value_t = 1.0)]
    pub time_scale: f64,

    /// Send the headers of a stream only with its first token (SGLang) instead of at once (vLLM).
    #[arg(long)]
    pub late_headers: bool,

    /// Seed of what is random here: the probability of faults.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// No simulated time, no batch limit, no prefix cache: the cheapest engine for throughput tests.
    #[arg(long)]
    pub instant: bool,
}

impl EngineOptions {
    /// An engine that answers at once and spends as little CPU as it can.
    pub fn instant() -> Self {
        Self { instant: true, ..Self::default() }.normalised()
    }

    /// The same engine with another name.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Spells out what `instant` means and lifts values that would divide by zero.
    pub(crate) fn normalised(mut self) -> Self {
        if self.instant {
            self.prefill_tokens_per_second = 0.0;
            self.decode_step = Duration::ZERO;
            self.max_running = 0;
            self.cache_tokens = 0;
        }
        self.dp_ranks = self.dp_ranks.max(1);
        self.block_tokens = self.block_tokens.max(1);
        self.bytes_per_token = self.bytes_per_token.max(1);
        if self.models.is_empty() {
            self.models.extend(MODELS.map(str::to_owned));
        }
        if self.time_scale.is_nan() || self.time_scale <= 0.0 {
            self.time_scale = 1.0;
        }
        self
    }

    /// KV capacity of a rank in tokens, as the engine reports it.
    pub(crate) fn reported_capacity(&self) -> usize {
        if self.cache_tokens == 0 { 1_000_000 } else { self.cache_tokens }
    }

    /// Real time that a piece of simulated time takes.
    pub(crate) fn real(&self, simulated: Duration) -> Duration {
        simulated.div_f64(self.time_scale)
    }

    /// Real time that the prefill of `tokens` uncached tokens takes.
    pub(crate) fn prefill_time(&self, tokens: usize) -> Duration {
        if self.prefill_tokens_per_second > 0.0 {
            self.real(Duration::from_secs_f64(tokens as f64 / self.prefill_tokens_per_second))
        } else {
            Duration::ZERO
        }
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            name: None,
            port: 0,
            models: MODELS.map(str::to_owned).to_vec(),
            strict_models: false,
            runtime: Runtime::Both,
            dp_ranks: 1,
            block_tokens: 16,
            bytes_per_token: 4,
            cache_tokens: 1_000_000,
            prefill_tokens_per_second: 20_000.0,
            max_running: 256,
            decode_step: Duration::from_millis(10),
            default_max_tokens: 4,
            max_output_tokens: 4096,
            time_scale: 1.0,
            late_headers: false,
            seed: 1,
            instant: false,
        }
    }
}

fn parse_millis(text: &str) -> Result<Duration, String> {
    let millis: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of milliseconds"))?;
    Duration::try_from_secs_f64(millis / 1000.0).map_err(|_| format!("`{text}` is not a duration"))
}
