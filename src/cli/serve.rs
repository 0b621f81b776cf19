//! The options of `offshoot serve`.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::words::{LOGPROBS_MODES, REASONINGS, SPECIAL_TEXTS, STORED_PREFIXES};
use offshoot_args::words::one_of;
use offshoot_args::{AdapterArgs, LaunchArgs, ScorerArgs, mib, seconds, whole};
use offshoot_core::error::{Error, Result};
use offshoot_engine::{LogprobsMode, StoredPrefixes};
use offshoot_launch::Devices;
use offshoot_openai::protocol::{ProtocolLimits, Reasoning};
use offshoot_serve::dispatch::QueueLimits;
use offshoot_serve::{
    AdapterFolder, AllowedOrigin, AllowedOrigins, LeaseLimits, RolloutOptions, ServeLimits, ServeOptions,
};
use offshoot_text::SpecialText;

#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Model folder or GGUF file; a reward model's is served as a scorer (default: the one of --scorer alone)
    #[arg(long, value_name = "DIR", required_unless_present = "scorer")]
    pub model: Option<PathBuf>,
    /// Address to listen at; others than this machine's own reach the server only if it is changed
    #[arg(long, value_name = "ADDRESS", value_parser = address, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen at; 0: any free one
    #[arg(long, value_name = "PORT", value_parser = port, default_value_t = 8000)]
    pub port: u16,
    /// Name by which requests call the model; may be given several times (default: the folder's name)
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Name by which requests call the model of --scorer; may be given several times (default: its folder's name)
    #[arg(long = "scorer-name", value_name = "NAME", requires = "scorer")]
    pub scorer_names: Vec<String>,
    /// Adapter (LoRA) that requests may name in place of the model: its name and its folder, as PEFT writes it; may be
    /// given several times
    #[arg(long = "lora", value_name = "NAME=DIR", value_parser = adapter)]
    pub adapters: Vec<AdapterFolder>,
    #[command(flatten)]
    pub room: AdapterArgs,
    /// File with API keys, one per line; requests need one of them (default: those in OFFSHOOT_API_KEYS, separated by
    /// commas; without any, requests need none)
    #[arg(long = "api-keys", value_name = "FILE")]
    pub keys: Option<PathBuf>,
    /// Lets trainers drive the server: pauses, weight updates, sleep, and samples from token ids to token ids, by the
    /// verbs of `vllm serve`
    #[arg(long)]
    pub rollout: bool,
    /// File with the keys of operators, one per line; the verbs of --rollout need one of them, and there must be some
    /// if there are API keys (default: those in OFFSHOOT_ROLLOUT_KEYS, separated by commas)
    #[arg(long, value_name = "FILE", requires = "rollout")]
    pub rollout_keys: Option<PathBuf>,
    /// Seconds without a word from the trainer after which a weight update in progress is dropped
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "300", requires = "rollout")]
    pub update_timeout: Duration,
    /// Returns the tokens that each token was drawn from, as `sampling_mask` of each choice of /inference/v1/generate,
    /// by which trainers correct their ratios where `top_k`, `top_p` or `min_p` cut
    #[arg(long, requires = "rollout")]
    pub return_sampling_mask: bool,
    /// Origin whose pages may read answers in a browser (CORS), such as `https://example.org`, or * for every one; may
    /// be given several times (default: none)
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub origins: Vec<AllowedOrigin>,
    /// Seed of requests without one, whose answers are then always the same (default: a random one for each)
    #[arg(long, value_name = "N", value_parser = whole::<u64>(0..))]
    pub seed: Option<u64>,
    /// What happens to the reasoning (`<think>`) in chats that do not say by `reasoning`
    #[arg(long, value_parser = one_of(REASONINGS), default_value = "keep")]
    pub reasoning: Reasoning,
    /// Whose log-probabilities are returned to requests that do not say by `logprobs_mode`
    #[arg(long, value_parser = one_of(LOGPROBS_MODES), default_value = "raw_logprobs")]
    pub logprobs_mode: LogprobsMode,
    /// Lets a chat bring a template in `chat_template` in place of the model's. Templates run bounded in memory and
    /// time
    #[arg(long)]
    pub trust_request_chat_template: bool,
    /// What becomes of the texts of special tokens in prompts, choices and whatever a chat template sees of a request,
    /// where users could end their turn by them; requests may choose by `special_tokens_in_text`, but not `allow` if it
    /// is not allowed here
    #[arg(long, value_parser = one_of(SPECIAL_TEXTS), default_value = "allow")]
    pub special_tokens_in_text: SpecialText,
    /// File whose text many prompts begin with (a system prompt, examples, a document), or a .json file with the
    /// messages that many chats begin with: computed at the start and never evicted; may be given several times
    #[arg(long = "prefix", value_name = "FILE")]
    pub prefixes: Vec<PathBuf>,
    /// Folder of uploaded files and batches, which go on after a restart (default: runs/serve, if no other server has
    /// it)
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Most MiB of uploaded files and batch results together
    #[arg(long, value_name = "MIB", value_parser = whole::<u64>(1..=1 << 30), default_value_t = 16_384)]
    pub max_data: u64,
    /// Leaves out the page at `/` that shows what runs
    #[arg(long)]
    pub no_page: bool,
    /// Requests that may wait; further ones are refused with 429 and Retry-After
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 4096)]
    pub max_queue: usize,
    /// Longest body of a request in MiB
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(1..=4096), default_value_t = 64)]
    pub max_body: usize,
    /// Most choices (`n`, `best_of`) of a prompt
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=1 << 20), default_value_t = 16_384)]
    pub max_n: usize,
    /// Most connections at once
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..=1 << 20), default_value_t = 16_384)]
    pub max_connections: usize,
    /// Most branches that each API key may keep
    #[arg(long, value_name = "N", value_parser = whole::<usize>(0..), default_value_t = 65_536)]
    pub max_kept: usize,
    /// Seconds after which a kept branch is released, from its last use, if its request does not say
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "600")]
    pub keep_seconds: Duration,
    /// Shortest time between two chunks of a stream in milliseconds; tokens in between share a chunk. On the CPU it
    /// grows with the number of streams, so that writing takes about a fiftieth of the cores
    #[arg(long, value_name = "MS", value_parser = whole::<u64>(0..=10_000), default_value_t = 30)]
    pub chunk_interval: u64,
    /// Return the experts that the model's layers have chosen for each token, prompts included, as `routed_experts` of
    /// each choice whose request does not say `"return_routed_experts": false`. Only of mixtures of experts; takes a
    /// byte or two a token, layer and chosen expert beside keys and values
    #[arg(long)]
    pub return_routed_experts: bool,
    #[command(flatten)]
    pub scorer: ScorerArgs,
    #[command(flatten)]
    pub engine: LaunchArgs,
    /// Whose prefixes are written to --prefix-store
    #[arg(long, value_parser = one_of(STORED_PREFIXES), default_value = "prompts", requires = "prefix_store")]
    pub prefix_store_keeps: StoredPrefixes,
}

/// Prompt tokens of all requests that have not ended.
const MOST_PROMPT_TOKENS: usize = 1 << 28;

/// Parses an IP address. `localhost` is the one that the server listens at by default.
fn address(text: &str) -> Result<IpAddr> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text.parse().map_err(|_| Error::value("address", "an IP address such as 127.0.0.1, or localhost", text)),
    }
}

fn port(text: &str) -> Result<u16> {
    text.parse().map_err(|_| Error::value("port", "a port from 0 to 65535", text))
}

/// Parses the name and the folder of an adapter.
fn adapter(text: &str) -> Result<AdapterFolder> {
    match text.split_once('=') {
        Some((name, folder)) if !name.is_empty() && !folder.is_empty() => {
            Ok(AdapterFolder { name: name.to_owned(), folder: PathBuf::from(folder) })
        }
        _ => Err(Error::value("adapter", "a name and a folder, NAME=DIR", text)),
    }
}

impl ServeArgs {
    pub fn on(self, devices: Devices) -> ServeOptions {
        let args = self;
        let mut engine = args.engine.on(devices);
        engine.budget.keeps_routes = args.return_routed_experts;
        engine.budget.adapters = args.room.limits(args.adapters.len());
        if let Some(store) = &mut engine.prefix_store {
            store.keeps = args.prefix_store_keeps;
        }
        let of_clients = if args.rollout { ProtocolLimits::rollout() } else { ProtocolLimits::default() };
        ServeOptions {
            model: args.model,
            host: args.host,
            port: args.port,
            names: args.names,
            scorer: args.scorer.into(),
            scorer_names: args.scorer_names,
            adapters: args.adapters,
            keys: args.keys,
            rollout: args.rollout.then_some(RolloutOptions {
                keys: args.rollout_keys,
                update_timeout: args.update_timeout,
                sampling_masks: args.return_sampling_mask,
            }),
            origins: AllowedOrigins::new(args.origins),
            seed: args.seed,
            reasoning: args.reasoning,
            logprobs_mode: args.logprobs_mode,
            has_page: !args.no_page,
            engine,
            data: args.data,
            prefixes: args.prefixes,
            limits: ServeLimits {
                queue: QueueLimits { jobs: args.max_queue, prompt_tokens: MOST_PROMPT_TOKENS },
                leases: LeaseLimits { each: args.max_kept, time_to_live: args.keep_seconds },
                protocol: ProtocolLimits {
                    n: args.max_n,
                    templates: args.trust_request_chat_template,
                    special_text: args.special_tokens_in_text,
                    ..of_clients
                },
                body: mib(args.max_body),
                data: args.max_data << 20,
                connections: args.max_connections,
                chunk_interval: Duration::from_millis(args.chunk_interval),
            },
        }
    }
}
