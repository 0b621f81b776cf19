//! The engine: what it owns, and how it is built, started and ended. Its work is defined beside what it is about: the
//! turn in `commands`, a step in `step`, what came of it in `commit`.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Weak};

use crossbeam_channel::Receiver;

use crate::adapters::Adapters;
use crate::allowed::AllowedSets;
use crate::cache::{Branches, KvCache, RestoreCost};
use crate::config::EngineConfig;
use crate::copies::CopyFacts;
use crate::facts::EngineFacts;
use crate::handle::{Command, EngineHandle, EngineThread, ExitReason, live};
use crate::lent::PendingLend;
use crate::live::LivePlace;
use crate::metrics::Metrics;
use crate::pool::{PoolParts, pages_in};
use crate::prefix_costs::PrefixCosts;
use crate::prefix_store::PrefixStore;
use crate::prepared::PreparedModel;
use crate::ready::FormSource;
use crate::schedule::{LogitsRequest, Schedule};
use crate::scheduler::Scheduler;
use crate::status::StatusPlace;
use crate::uniforms::UniformKey;
use crate::updates::Draining;
use crate::weights::Weights;
use offshoot_backend::{SavedPages, StepBatch};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::bytes;
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};
use offshoot_core::memory::MemoryFault;
use offshoot_form::{FormCompiler, Forms};
use offshoot_kv::CopyCache;
use offshoot_kv::plan::{FormPlans, PlanStats};
use offshoot_model::{KvRoom, RunnerFacts, StepRunner};
use offshoot_text::Tokenizer;

/// A model, its keys and values, and the branches that grow on them.
pub struct Engine {
    pub(super) model: Box<dyn StepRunner>,
    pub(super) model_facts: RunnerFacts,
    /// Keys and values, and states, of swapped branches.
    pub(super) swapped: HashMap<BranchId, SwappedBytes>,
    pub(super) loaded: Option<LoadedStep>,
    /// For each step that was submitted and not collected, one request for each of its samples. Oldest first; at most
    /// one between two calls of `step`.
    pub(super) submitted: VecDeque<Vec<LogitsRequest>>,
    /// The requests of the step that was submitted last, of `submitted`, if the model has not got them yet. `None`
    /// between two calls of `step`.
    pub(super) late: Option<Vec<LogitsRequest>>,
    /// The most rows of a step, below those of one that failed while it ran and changed states, since when there was
    /// always work.
    pub(super) most_run_rows: usize,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) facts: EngineFacts,
    pub(super) config: EngineConfig,
    pub(super) cache: KvCache,
    pub(super) branches: Branches,
    pub(super) scheduler: Scheduler,
    pub(super) allowed: AllowedSets,
    /// What the forms of samples allow.
    pub(super) forms: Forms,
    pub(super) adapters: Adapters,
    /// The adapters that stay in their slots though no branch has them.
    pub(super) kept_adapters: BTreeSet<AdapterVersion>,
    pub(super) metrics: Metrics,
    pub(super) live: LivePlace,
    pub(super) status: StatusPlace,
    pub(super) draining: Draining,
    /// Whether an update has left no weights, and what is in progress waits for word of what becomes of it.
    pub(super) stands: bool,
    /// Requests for prefixes that are being computed.
    pub(super) lends: Vec<PendingLend>,
    /// Prefixes of which more is to be lent; only for models with states.
    pub(super) lent_prefixes: Vec<Arc<[TokenId]>>,
    /// Dropped before the channel closes, so that a client that finds it closed finds the reason.
    pub(super) end: ExitGuard,
    pub(super) commands: Receiver<Command>,
    /// The handles' place for this engine's thread.
    pub(super) thread: Weak<EngineThread>,
}

/// What a swapped branch has in host memory.
pub(super) struct SwappedBytes {
    pub pages: SavedPages,
    /// Only of models with recurrent layers.
    pub state: Option<Vec<u8>>,
}

/// The step that the model has loaded.
pub(super) struct LoadedStep {
    pub schedule: Schedule,
    /// One for each plan.
    pub stats: Vec<PlanStats>,
    /// `None` if the next step cannot repeat this one.
    pub steady: Option<SteadySteps>,
    /// Whether the model gets its requests once the steps before it are collected.
    pub is_late: bool,
    /// Kept only if plans are checked; `forms`: its plans of latent attention, before they got the pages of copies.
    pub copy: Option<StepBatch>,
    pub forms: Option<FormPlans>,
}

/// A step in which each row samples the next token of a branch of its own. Until a branch comes or goes, the steps
/// after it repeat it with every row one token further. The uniforms' keys are kept here, so that the branches need not
/// be read again.
pub(super) struct SteadySteps {
    /// Number of steps that may repeat it. After them a branch reaches its limit, may sample an end token for the first
    /// time (if its requests are not made anew for each step), frees pages, or has as many tokens counted on the device
    /// as the backend allows ([`MOST_COUNTED`](offshoot_backend::MOST_COUNTED)).
    pub steps: usize,
    /// One for each row.
    pub uniforms: Vec<UniformKey>,
}

/// Sets the exit reason when the engine is dropped without another one.
pub(super) struct ExitGuard(ExitReason);

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
            .spawn(move || live(&exit_reason, || self.run()))
            .map_err(|error| Error::EngineStopped {
                why: format!("its thread cannot start: {}", MemoryFault(&error)),
            })?;
        if let Some(place) = place.upgrade() {
            place.set(thread);
        }
        Ok(())
    }

    /// Makes an engine without a thread: it works when its owner calls [`Engine::turn`]. Whoever calls `turn` must not
    /// wait for events or metrics of the handle in between: nobody else makes them.
    pub fn build(
        model: Box<dyn StepRunner>,
        tokenizer: Option<Arc<Tokenizer>>,
        config: EngineConfig,
    ) -> Result<(Self, EngineHandle)> {
        Self::on(PreparedModel::new(model, config)?, tokenizer)
    }

    /// The engine of a model that is prepared: allocates its keys, values and states.
    pub(crate) fn on(prepared: PreparedModel, tokenizer: Option<Arc<Tokenizer>>) -> Result<(Self, EngineHandle)> {
        let kv_room = prepared.room()?;
        let PreparedModel { mut model, facts: mut model_facts, mut config, longest } = prepared;
        let RunnerFacts { page_bytes, state_bytes, page_groups, swap_rates, .. } = model_facts;
        let parts = config.pool.divide(kv_room, page_bytes, state_bytes, config.max_branches)?;
        let PoolParts { states, branches, .. } = parts;
        config.max_branches = branches;
        let copies = config.copy_memory(
            &parts,
            &CopyFacts {
                page_bytes: model_facts.copy_page_bytes,
                page_tokens: model_facts.page_tokens as usize,
                longest,
                latent_page_bytes: page_bytes,
                is_exact: model_facts.batch_invariant,
            },
        )?;
        for latents in model_facts.plan_hints.iter_mut().filter_map(|hints| hints.latents.as_mut()) {
            latents.has_copies = copies.is_some();
        }
        let pool_bytes = parts.pages_beside(&copies);
        let pool_pages = pages_in(pool_bytes, page_bytes);
        let least = page_groups.count() * page_bytes;
        if pool_pages < page_groups.count() {
            let expected = format!("at least one page ({})", bytes(least as u64));
            return Err(Error::kv_memory(expected, bytes(pool_bytes as u64)));
        }
        model.allocate(KvRoom { pages: pool_pages, states, copies: copies.pages })?;
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
            // What is read from copies is rounded otherwise, and depends on what others read.
            batch_invariant: model_facts.batch_invariant && !copies.is_some(),
            is_async: model_facts.is_async,
            page_tokens: model_facts.page_tokens as usize,
            page_bytes,
            kv_bytes_per_token: model_facts.kv_bytes_per_token,
            pool_pages,
            copies,
            page_groups,
            window_pages: prefix.page_counts().window_pages,
            max_branches: config.max_branches,
            state_bytes,
            states,
            keeps_routes: config.keeps_routes,
            values: model_facts.values,
            adapters: config.adapters,
            prefix_costs: prefix_costs(&model_facts, computed_row, config.swap_at_any_cost),
            replicas: 1,
        };
        let identity = config.prefix_store.as_ref().map(|store| store.weights.clone());
        let (handle, commands, exit_reason) = {
            let form = Some(model.weight_form());
            let compiler = |tokenizer: &Arc<Tokenizer>| {
                Arc::new(FormCompiler::new(tokenizer.clone(), facts.eos.clone(), facts.vocab))
            };
            let forms = tokenizer.as_ref().map(compiler).map_or(FormSource::NoTokenizer, FormSource::Compiler);
            EngineHandle::new(facts.clone(), Weights::first(identity), form, forms)
        };
        let restore_cost = RestoreCost {
            page_bytes,
            state_bytes,
            swapped_byte: if config.swap_at_any_cost { 0.0 } else { 2.0 / swap_rates.host_bytes },
            computed_row,
        };
        let mut cache = KvCache::new(prefix, pool_pages, config.swap_bytes, restore_cost);
        cache.copies = CopyCache::new(copies.pages);
        if let Some(options) = &config.prefix_store {
            cache.store = Some(PrefixStore::open(options, &facts, &model_facts.page_layout)?);
        }
        let adapters = Adapters::new(config.adapters);
        let mut engine = Engine {
            model,
            model_facts,
            swapped: HashMap::new(),
            loaded: None,
            submitted: VecDeque::new(),
            late: None,
            most_run_rows: usize::MAX,
            tokenizer,
            facts,
            config,
            cache,
            branches: Branches::default(),
            scheduler: Scheduler::default(),
            allowed: AllowedSets::default(),
            forms: Forms::new(mask_threads()),
            adapters,
            kept_adapters: BTreeSet::new(),
            metrics: Metrics::default(),
            live: handle.live_place(),
            status: handle.status_place(),
            draining: Draining::default(),
            stands: false,
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

/// Threads that compute masks, at most: beyond, masks of one step are too few.
const MOST_MASK_THREADS: usize = 16;

fn mask_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |threads| threads.get().min(MOST_MASK_THREADS))
}

/// What prefixes cost an engine whose model computes a token in `computed_row` seconds.
fn prefix_costs(facts: &RunnerFacts, computed_row: f64, copies_at_any_cost: bool) -> PrefixCosts {
    let RunnerFacts { kv_bytes_per_token, state_bytes, swap_rates, is_async, .. } = *facts;
    let costs = PrefixCosts::new(kv_bytes_per_token, state_bytes, computed_row, swap_rates.host_bytes, is_async);
    if copies_at_any_cost { costs.copying_at_any_cost() } else { costs }
}
