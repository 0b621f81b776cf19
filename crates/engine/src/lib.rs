//! The step loop. Defines the requests, the events and the channel client (`EngineHandle`) on which everything above is
//! built. The model (`StepRunner`) and the prefix tree live on one thread behind it. What a search does with branches
//! is left to `search`.
//!
//! To its client a branch is a list of tokens. Which of them have keys and values in the prefix tree is internal: a
//! root, a fork, a continuation and a preempted branch all become runnable in the same way, by matching their tokens
//! with the tree (`cache`). `scheduler` defines the order of rows and which logits forks share.
//!
//! A step is submitted, then collected (`step`). If steps run ahead, the newest token of a branch may exist on the
//! device only: its row then names a sample of the step before, its slot is already assigned, and its uniform follows
//! from its position. If what may be sampled depends on that token, as in a form, the step gets its requests once the
//! token is collected (`late`).
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod adapters;
mod adapting;
mod admission;
mod allowed;
mod batch;
mod branch;
mod cache;
mod claims;
mod commands;
mod commit;
mod confidence;
mod config;
mod copies;
mod count;
mod engine;
mod events;
mod facts;
pub mod finish_fields;
mod gate;
mod group;
mod growth;
pub mod handle;
mod kept_adapter;
mod late;
mod lending;
mod lent;
mod live;
mod masks;
pub mod metrics;
mod path_adapters;
mod path_form;
mod pin;
mod place;
mod pool;
mod prefix_costs;
mod prefix_store;
mod prepared;
mod ready;
mod receiver;
mod records;
pub mod replicas;
pub mod request;
mod routes;
mod said;
mod sampled_lengths;
mod sampler;
mod schedule;
mod scheduler;
mod scores;
pub mod scripted;
mod states;
mod status;
mod step;
mod stored;
mod text;
mod token_counts;
mod token_path;
pub mod uniforms;
mod updates;
mod values;
mod weights;

pub(crate) use adapters::NewAdapter;
pub use adapters::{AdapterLimits, AdapterSource, LoadedAdapter};
pub use commands::Turn;
pub(crate) use commands::{busy_branch, unknown_branch};
pub use confidence::ConfidenceStop;
pub use config::EngineConfig;
pub use copies::{CopyFacts, CopyMemory, CopySize};
pub use count::Occupancy;
pub use engine::Engine;
pub use events::Hear;
pub(crate) use events::{EventBatcher, EventReader, EventSender};
pub use facts::EngineFacts;
pub use gate::{StepGate, StepTurn};
pub use group::{GroupEnd, OpenGroup, Stragglers};
pub use handle::EngineHandle;
pub(crate) use handle::{Command, live as run_to_the_end};
pub use kept_adapter::KeptAdapter;
pub(crate) use lent::{Lend, LentPart};
pub(crate) use live::LivePlace;
pub use live::{LiveMetrics, PoolPages};
pub use metrics::Metrics;
pub use pin::PinnedPrefix;
pub(crate) use place::QueueKey;
pub use place::{Priority, RootOptions};
pub use pool::{PoolParts, PoolSize, useful_states};
pub use prefix_costs::PrefixCosts;
pub use prefix_store::{CHUNK_TOKENS, PrefixStoreOptions, StoredPrefixes};
pub use prepared::PreparedModel;
pub(crate) use ready::ReadyExtend;
pub use receiver::{EventReceiver, First, wait};
pub use records::{KeptForm, LogprobsMode, TokenRecord, TokenRecords};
pub use request::{Continuation, Event, Extend, Finish, FinishReason, PositionValues, SamplingParams, Scoring, Stop};
pub use routes::TokenRoutes;
pub(crate) use said::Said;
pub use sampled_lengths::SampledLengths;
pub use scripted::{ScriptedCall, ScriptedReply};
pub use status::{EngineStatus, Pause, PauseMode};
pub(crate) use token_path::TokenPath;
pub use uniforms::{ForkKind, UniformKey};
pub use weights::{
    AdapterSpan, VersionSpan, WeightLabels, WeightSpan, Weights, WeightsUpdate, split_versions, version_of_token,
};

pub use offshoot_backend::{Drawn, Records, SampledToken};
