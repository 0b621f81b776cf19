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
//! from its position.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod admission;
mod batch;
mod branch;
mod cache;
mod cache_map;
mod claims;
mod commands;
mod commit;
mod count;
mod events;
pub mod finish_fields;
mod growth;
pub mod handle;
mod lending;
mod live;
pub mod metrics;
mod pin;
mod place;
mod pool;
mod prefix_store;
mod receiver;
pub mod replicas;
pub mod request;
mod sampler;
mod schedule;
mod scheduler;
mod scores;
pub mod scripted;
mod states;
mod step;
mod stored;
mod text;
mod token_path;
pub mod uniforms;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

pub use cache_map::CacheSegment;
pub use commands::Turn;
pub(crate) use commands::{busy_branch, unknown_branch};
pub use count::Occupancy;
pub use events::Hear;
pub(crate) use events::{EventBatcher, EventReader, EventSender};
pub(crate) use handle::{Command, live as run_to_the_end};
pub use handle::{EngineFacts, EngineHandle};
pub use lending::PrefixCosts;
pub(crate) use lending::{Lend, LentPart};
pub(crate) use live::LivePlace;
pub use live::{LiveMetrics, PoolPages};
pub use metrics::Metrics;
pub use pin::PinnedPrefix;
pub(crate) use place::QueueKey;
pub use place::{Priority, RootOptions};
pub use pool::{PoolParts, PoolSize, useful_states};
pub use prefix_store::{CHUNK_TOKENS, PrefixStoreOptions};
pub use receiver::{EventReceiver, First};
pub use request::{Continuation, Event, Extend, Finish, FinishReason, SampledToken, SamplingParams, Stop};
pub use scripted::{ScriptedCall, ScriptedReply};
pub(crate) use token_path::TokenPath;
pub use uniforms::{ForkKind, UniformKey};

use crossbeam_channel::Receiver;

use crate::cache::{Branches, KvCache, RestoreCost};
use crate::handle::{EngineThread, ExitReason};
use crate::lending::PendingLend;
use crate::prefix_store::PrefixStore;
use crate::scheduler::Scheduler;
use crate::step::{LoadedStep, SubmittedStep};
use offshoot_backend::{SavedPages, StepShape};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_kv::plan::Planner;
use offshoot_kv::{PageCounts, PageGroups, PrefixTree};
use offshoot_model::{RunnerFacts, StepLimits, StepRunner};
use offshoot_text::Tokenizer;

/// How an engine works. No field changes what is sampled, except by rounding where results are not exact
/// ([`EngineFacts::exact`]).
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Most branches that run at once; each has one row in a step.
    pub max_branches: usize,
    /// The longest sequence in tokens; `None`: the model's context.
    pub context: Option<usize>,
    /// Rows of a step: one for each branch that decodes; prompts and given tokens fill the rest, at least 1/8 of the
    /// rows.
    pub step_rows: usize,
    pub planner: Planner,
    /// Memory for keys and values, all layers.
    pub pool: PoolSize,
    /// Bytes of host memory for keys, values and states of preempted branches.
    pub swap_bytes: usize,
    /// Whether preempted branches are swapped wherever there is room, and prefixes copied between replicas (in
    /// small parts), even if computing again would be faster: for checks.
    pub swap_at_any_cost: bool,
    /// Whether the next step is submitted while the last one is computed. Saves the host's time if the device computes
    /// asynchronously, and costs one discarded token per finished branch.
    pub run_ahead: bool,
    /// Whether results must be exact, also where that is slower.
    pub deterministic: bool,
    /// Where computed prefixes are kept on disk; `None`: nowhere.
    pub prefix_store: Option<PrefixStoreOptions>,
    /// Whether every plan is checked before it is used, and the prefix tree whenever nothing runs.
    pub check_plans: bool,
}

/// Prompts and given tokens get at least 1/`PROMPT_PART` of a step's rows.
const PROMPT_PART: usize = 8;

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            max_branches: 128,
            context: None,
            step_rows: 256,
            planner: Planner::default(),
            pool: PoolSize::Share { of_free: 0.5, at_most: 1 << 30 },
            swap_bytes: 0,
            swap_at_any_cost: false,
            run_ahead: false,
            deterministic: false,
            prefix_store: None,
            check_plans: cfg!(debug_assertions),
        }
    }
}

impl EngineConfig {
    /// Most rows with logits in a step: one for each branch, and at least 256, so that given tokens are scored in large
    /// chunks. Memory for that many logits is reserved.
    pub fn max_logit_rows(&self) -> usize {
        self.max_branches.max(256)
    }

    /// Rows that a step reserves for prompts and given tokens, however many branches decode.
    fn prompt_rows(&self) -> usize {
        (self.step_rows / PROMPT_PART).max(1)
    }

    /// An empty prefix tree whose prompts get slots for the rows of a step.
    fn prefix_tree(&self, page_tokens: u32, groups: PageGroups) -> PrefixTree {
        let rows = u32::try_from(self.largest_step().rows).expect("a step has fewer than 2^32 rows");
        PrefixTree::with_groups(page_tokens, groups).laying_ahead(rows)
    }

    /// How many pages texts will take in an engine of this configuration.
    pub fn page_counts(&self, page_tokens: u32, groups: PageGroups) -> PageCounts {
        self.prefix_tree(page_tokens, groups).page_counts()
    }

    /// The shape of the largest step.
    pub fn largest_step(&self) -> StepShape {
        let rows = self.step_rows.max(self.max_branches.saturating_add(self.prompt_rows()));
        StepShape { rows, logit_rows: self.max_logit_rows(), samples: true }
    }
}

/// A model, its keys and values, and the branches that grow on them.
pub struct Engine {
    model: Box<dyn StepRunner>,
    model_facts: RunnerFacts,
    /// Keys and values, and states, of swapped branches.
    swapped: HashMap<BranchId, SwappedBytes>,
    loaded: Option<LoadedStep>,
    /// Oldest first; at most one between two calls of `step`.
    submitted: VecDeque<SubmittedStep>,
    /// The most rows of a step, below those of one that failed while it ran and changed states, since when there was
    /// always work.
    most_run_rows: usize,
    tokenizer: Option<Arc<Tokenizer>>,
    facts: EngineFacts,
    config: EngineConfig,
    cache: KvCache,
    branches: Branches,
    scheduler: Scheduler,
    metrics: Metrics,
    live: LivePlace,
    /// Requests for prefixes that are being computed.
    lends: Vec<PendingLend>,
    /// Of models with states: prefixes of which more is to be lent.
    lent_prefixes: Vec<Arc<[TokenId]>>,
    /// Dropped before the channel closes, so that a client that finds it closed finds the reason.
    end: ExitGuard,
    commands: Receiver<Command>,
    /// The handles' place for this engine's thread.
    thread: Weak<EngineThread>,
}

/// What a swapped branch has in host memory.
struct SwappedBytes {
    pages: SavedPages,
    /// Only of models with delta-rule layers.
    state: Option<Vec<u8>>,
}

/// Sets the exit reason when the engine is dropped without another one.
struct ExitGuard(ExitReason);

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.0.get_or_init(|| "it was dropped".to_owned());
    }
}

impl Engine {
    /// Starts a thread that owns the model, and returns its client. Without a tokenizer, text is empty and stop strings
    /// are an error.
    pub fn start(
        model: Box<dyn StepRunner>,
        tokenizer: Option<Arc<Tokenizer>>,
        config: EngineConfig,
    ) -> Result<EngineHandle> {
        let (engine, handle) = Self::build(model, tokenizer, config)?;
        engine.spawn()?;
        Ok(handle)
    }

    /// Moves the engine to a thread of its own, which works until the last handle is dropped.
    pub fn spawn(mut self) -> Result<()> {
        let (exit_reason, place) = (self.end.0.clone(), self.thread.clone());
        let thread = std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || handle::live(&exit_reason, || self.run()))
            .map_err(|error| Error::EngineStopped { why: format!("its thread cannot start: {error}") })?;
        if let Some(place) = place.upgrade() {
            place.set(thread);
        }
        Ok(())
    }

    /// The same without a thread: the engine works when its owner calls [`Engine::turn`]. Whoever calls `turn` must not
    /// wait for events or metrics of the handle in between: nobody else makes them.
    pub fn build(
        mut model: Box<dyn StepRunner>,
        tokenizer: Option<Arc<Tokenizer>>,
        mut config: EngineConfig,
    ) -> Result<(Self, EngineHandle)> {
        for (what, value) in [("max_branches", config.max_branches), ("step_rows", config.step_rows)] {
            if value == 0 {
                return Err(Error::value(what, "a number from 1 up", "0"));
            }
        }
        let largest = config.largest_step();
        check_room(&*model, largest)?;
        let longest = config.context.unwrap_or(usize::MAX).min(model.config().context);
        model.prepare(StepLimits { deterministic: config.deterministic, longest, largest })?;
        let model_facts = model.facts();
        let RunnerFacts { page_bytes, state_bytes, page_groups, swap_rates, .. } = model_facts;
        let PoolParts { pages: pool_bytes, states, branches } =
            config.pool.divide(model.kv_room()?, state_bytes, config.max_branches)?;
        config.max_branches = branches;
        let pool_pages = pool_bytes / page_bytes;
        if pool_pages < page_groups.count() {
            let expected = format!("at least one page ({})", bytes((page_groups.count() * page_bytes) as u64));
            return Err(Error::value("memory for keys and values", expected, bytes(pool_bytes as u64)));
        }
        model.allocate(pool_pages, states)?;
        let prefix = config.prefix_tree(model_facts.page_tokens, page_groups);
        let prefix = if state_bytes > 0 { prefix.keeping_states(states) } else { prefix };
        let computed_row = 2.0 * model.config().active_parameters() as f64 / swap_rates.flops;
        let vocab = model.config().vocab;
        let facts = EngineFacts {
            context: longest,
            vocab,
            bos: model.config().bos,
            eos: model.config().eos.iter().copied().filter(|token| token.ix() < vocab).collect(),
            device: model_facts.device.clone(),
            arithmetic: model_facts.arithmetic.clone(),
            exact: model_facts.batch_invariant,
            is_async: model_facts.is_async,
            page_tokens: model_facts.page_tokens as usize,
            page_bytes,
            kv_bytes_per_token: model_facts.kv_bytes_per_token,
            pool_pages,
            page_groups,
            window_pages: prefix.page_counts().window_pages,
            max_branches: config.max_branches,
            state_bytes,
            states,
            prefix_costs: prefix_costs(&model_facts, computed_row, config.swap_at_any_cost),
            replicas: 1,
        };
        let (handle, commands, exit_reason) = EngineHandle::new(facts.clone());
        let restore_cost = RestoreCost {
            page_bytes,
            state_bytes,
            swapped_byte: if config.swap_at_any_cost { 0.0 } else { 2.0 / swap_rates.host_bytes },
            computed_row,
        };
        let mut cache = KvCache::new(prefix, pool_pages, config.swap_bytes, restore_cost);
        if let Some(options) = &config.prefix_store {
            cache.store = Some(PrefixStore::open(options, &facts, &model_facts.page_layout)?);
        }
        let mut engine = Engine {
            model,
            model_facts,
            swapped: HashMap::new(),
            loaded: None,
            submitted: VecDeque::new(),
            most_run_rows: usize::MAX,
            tokenizer,
            facts,
            config,
            cache,
            branches: Branches::default(),
            scheduler: Scheduler::default(),
            metrics: Metrics::default(),
            live: handle.live_place(),
            lends: Vec::new(),
            lent_prefixes: Vec::new(),
            end: ExitGuard(exit_reason),
            commands,
            thread: handle.thread(),
        };
        engine.publish();
        Ok((engine, handle))
    }

    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Ends the engine with all that it holds but the model, for another engine.
    pub fn into_model(mut self) -> Box<dyn StepRunner> {
        self.model.clear();
        self.model
    }
}

/// Refuses steps whose rows and logits alone are more than the memory that is free.
fn check_room(model: &dyn StepRunner, shape: StepShape) -> Result<()> {
    let config = model.config();
    let (rows, logit_rows) = (shape.rows.saturating_mul(config.hidden), shape.logit_rows.saturating_mul(config.vocab));
    let (needed, free) = (rows.saturating_add(logit_rows).saturating_mul(size_of::<f32>()), model.free_bytes()?);
    if needed > free {
        let expected = format!("at least {} for a step of {} rows", bytes(needed as u64), shape.rows);
        return Err(Error::value("free memory (max_branches, step_rows)", expected, bytes(free as u64)));
    }
    Ok(())
}

/// What prefixes cost an engine whose model computes a token in `computed_row` seconds.
fn prefix_costs(facts: &RunnerFacts, computed_row: f64, copies_at_any_cost: bool) -> PrefixCosts {
    let RunnerFacts { kv_bytes_per_token, state_bytes, swap_rates, is_async, .. } = *facts;
    let costs = PrefixCosts::new(kv_bytes_per_token, state_bytes, computed_row, swap_rates.host_bytes, is_async);
    if copies_at_any_cost { costs.copying_at_any_cost() } else { costs }
}
