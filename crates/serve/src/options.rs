//! What the user of `offshoot serve` chooses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use offshoot_engine::LogprobsMode;
use offshoot_launch::{EngineOptions, ScorerOptions};
use offshoot_openai::protocol::{ProtocolLimits, Reasoning};

use super::dispatch::QueueLimits;
use super::exchange::AllowedOrigins;
use super::leases::LeaseLimits;
use super::rollout::RolloutOptions;

/// The options of `offshoot serve`.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// `None`: the scorer alone is served.
    pub model: Option<PathBuf>,
    pub host: IpAddr,
    /// 0: any free port.
    pub port: u16,
    /// The names that requests may call the model; empty: its folder's name.
    pub names: Vec<String>,
    /// A scorer beside the model, or alone; `None`: there is none.
    pub scorer: Option<ScorerOptions>,
    /// The names that requests may call the scorer; empty: its folder's name.
    pub scorer_names: Vec<String>,
    /// Adapters that are loaded at the start.
    pub adapters: Vec<AdapterFolder>,
    /// A file with one API key per line; `None`: the environment's, or none are asked for.
    pub keys: Option<PathBuf>,
    /// What trainers may do with the server; `None`: nothing.
    pub rollout: Option<RolloutOptions>,
    /// Origins whose pages may read answers in a browser.
    pub origins: AllowedOrigins,
    /// Seed of requests without one; `None`: a random one for each.
    pub seed: Option<u64>,
    pub reasoning: Reasoning,
    /// Whose log-probabilities are returned to requests that do not say.
    pub logprobs_mode: LogprobsMode,
    /// Whether `/` is a page that shows what runs.
    pub has_page: bool,
    pub engine: EngineOptions,
    /// Folder of uploaded files and batches; `None`: `runs/serve`, if it is free.
    pub data: Option<PathBuf>,
    /// Files with prompts that are computed at the start and stay: texts, and the messages of chats (`.json`).
    pub prefixes: Vec<PathBuf>,
    pub limits: ServeLimits,
}

/// An adapter of the model, as PEFT writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterFolder {
    /// What requests call it.
    pub name: String,
    pub folder: PathBuf,
}

/// What one client, or all of them, may take.
#[derive(Clone, Debug)]
pub struct ServeLimits {
    pub queue: QueueLimits,
    pub leases: LeaseLimits,
    pub protocol: ProtocolLimits,
    /// Longest body of a request, in bytes.
    pub body: usize,
    /// Bytes of all uploaded files.
    pub data: u64,
    /// Connections at once.
    pub connections: usize,
    /// Shortest time between two chunks of a stream, which tokens of the same choice share.
    pub chunk_interval: Duration,
}
