//! Builds an engine from a device, its budgets and a model: the first step of `run`, `batch`, `serve`, of measurements
//! and of programs that use the library. No other module builds engines, except `inspect` and `lab::check`, which test
//! them.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::shares::{PoolDemand, TextTokens};
use super::{
    DeviceKind, Devices, EngineBudget, EngineOptions, LaunchedJudge, LaunchedSecond, ModelSource, OnBackend,
    PrefixFolder, SecondFolder, SecondSizes, WhyNotCuda,
};
use offshoot_backend::Backend;
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{LATENT_COPIES, STATE_DTYPE};
use offshoot_engine::{
    CopyFacts, CopyMemory, Engine, EngineConfig, EngineFacts, EngineHandle, PoolParts, PoolSize, PrefixStoreOptions,
    PreparedModel, useful_states,
};
use offshoot_kv::{PageCounts, PageGroups};
use offshoot_model::{Decoder, ModelFolder, ModelWeights, StepRunner};
use offshoot_score::ScorerModel;
use offshoot_text::Tokenizer;

/// Upper bounds on what a job can use.
pub struct Demand<'a> {
    /// Branches that grow at once.
    pub branches: usize,
    /// Tokens of keys and values worth caching, as a function of the number of branches that run at once and the page
    /// size in tokens.
    pub tokens: Box<dyn Fn(usize, usize) -> usize + 'a>,
    /// Tokens of the longest text, prompt and sample together; `None`: it is not known.
    pub longest: Option<usize>,
}

impl<'a> Demand<'a> {
    pub fn new(branches: usize, tokens: impl Fn(usize, usize) -> usize + 'a) -> Self {
        Demand { branches, tokens: Box::new(tokens), longest: None }
    }

    /// The demand of a job whose longest text, prompt and sample together, has so many tokens.
    #[must_use]
    pub fn with_longest(self, tokens: usize) -> Self {
        Demand { longest: Some(tokens), ..self }
    }

    /// No bounds: for jobs that are not known in advance.
    pub fn unbounded() -> Self {
        Demand::new(usize::MAX, |_, _| usize::MAX)
    }
}

/// The inputs from which an engine is built.
pub struct Launch<'a> {
    pub model: ModelSource<'a>,
    /// `None`: the engine returns tokens without text.
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub demand: Demand<'a>,
    pub options: EngineOptions,
    /// The model beside it, with which it divides the memory of the device; `None`: there is none.
    pub second: Option<SecondFolder>,
}

impl EngineOptions {
    /// Opens a model folder for jobs that are not known in advance.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, the folder is no model that is known, or no device has room for it.
    pub fn open(&self, model: &Path) -> Result<(Launched, Arc<Tokenizer>)> {
        self.open_beside(model, None)
    }

    /// As [`open`](Self::open), with a second model beside it.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), with the second model's.
    pub fn open_beside(&self, model: &Path, second: Option<SecondFolder>) -> Result<(Launched, Arc<Tokenizer>)> {
        self.budget.check()?;
        let folder = ModelFolder::open(model)?.with(self.budget.weights)?;
        let tokenizer = Arc::new(Tokenizer::load(model)?);
        let launch = self.launch(ModelSource::folder(&folder)?, Some(&tokenizer), Demand::unbounded());
        Ok((launch.beside(second).start()?, tokenizer))
    }

    /// The inputs of an engine. Without a tokenizer it returns tokens without text.
    pub fn launch<'a>(
        &self,
        model: ModelSource<'a>,
        tokenizer: Option<&Arc<Tokenizer>>,
        demand: Demand<'a>,
    ) -> Launch<'a> {
        Launch { model, tokenizer: tokenizer.cloned(), demand, options: self.clone(), second: None }
    }
}

/// Opens a model folder for sampling, on the first device that can hold it and with the default budgets.
pub fn open(model: &Path) -> Result<(EngineHandle, Arc<Tokenizer>)> {
    let (launched, tokenizer) = EngineOptions::default().open(model)?;
    Ok((launched.engine, tokenizer))
}

/// A model in memory, and the engine that runs it.
pub struct Launched {
    pub engine: EngineHandle,
    /// The model beside it, if one was asked for.
    pub second: Option<LaunchedSecond>,
    /// Why no GPU is used; `None` if the user chose the device or a GPU is used.
    pub not_cuda: Option<WhyNotCuda>,
    pub seconds_loading: f64,
}

impl Launched {
    /// The scorer beside the model, if there is one.
    pub fn scorer(&self) -> Option<&Arc<ScorerModel>> {
        match &self.second {
            Some(LaunchedSecond::Scorer(scorer)) => Some(scorer),
            Some(LaunchedSecond::Embedder(_) | LaunchedSecond::Judge(_)) | None => None,
        }
    }

    /// The judge beside the model, if there is one.
    pub fn judge(&self) -> Option<&LaunchedJudge> {
        match &self.second {
            Some(LaunchedSecond::Judge(judge)) => Some(judge),
            Some(LaunchedSecond::Scorer(_) | LaunchedSecond::Embedder(_)) | None => None,
        }
    }
}

/// Sizes of the engine of one device, as far as they are known before the model is loaded.
pub struct LaunchSizes {
    /// The device's name, one line.
    pub device: String,
    /// Devices that compute the model together, among which all bytes are divided evenly.
    pub ranks: usize,
    /// How many of them divide the positions of a key head, and how many at most have copies of one.
    pub position_members: usize,
    pub kv_copies: usize,
    /// Branches that grow at once.
    pub branches: usize,
    /// Bytes for keys and values.
    pub pool: usize,
    /// Memory for copies of latents, of models with latent attention.
    pub copies: CopyMemory,
    pub kv_bytes_per_token: usize,
    /// Bytes of a page, and how many pages texts take.
    pub page_bytes: usize,
    pub pages: PageCounts,
    /// The number of states for recurrent layers, and the bytes of one; 0 if the model has none.
    pub states: usize,
    pub state_bytes: usize,
    /// Bytes of the weights on the device, and of those that one token uses.
    pub weights: usize,
    pub active_weights: usize,
    /// Bytes that are kept free for adapters.
    pub adapters: usize,
    /// The sizes of the model beside it.
    pub second: Option<SecondSizes>,
}

impl<'a> Launch<'a> {
    /// The launch with a second model beside it.
    #[must_use]
    pub fn beside(self, second: Option<SecondFolder>) -> Launch<'a> {
        Launch { second, ..self }
    }
}

impl Launch<'_> {
    /// Loads the model on the chosen device, or on each of several, and starts its engine. The KV cache gets as much
    /// memory as the budget allows and the job can use. With a second model both are loaded, and divide that memory.
    pub fn start(&self) -> Result<Launched> {
        if let Some(second) = &self.second {
            return self.start_pair(second);
        }
        if self.options.budget.keeps_routes {
            self.model.config.route_shape()?; // Before the model is loaded.
        }
        let choices = self.options.devices.choices()?;
        if let Devices::Ranks(_) = self.options.devices {
            return self.start_ranks(&choices);
        }
        let [choice] = choices[..] else { return self.start_each(&choices) };
        let opened = choice.open(Some(self.model))?;
        let (started, not_cuda) = (Instant::now(), opened.not_cuda().cloned());
        let model = opened.with_engine(self.is_exact(), self.loading())?;
        Ok(Launched { not_cuda, ..self.start_loaded(model, started)? })
    }

    /// Whether one GPU is to add up as several would: if results are to be deterministic, and the model could be
    /// divided. Quantised models and mixtures do so only where `--tensor-parallel` says so.
    pub fn is_exact(&self) -> bool {
        let config = self.model.config;
        let is_dense = config.quantisation.is_none() && config.formats.is_empty() && !config.has_experts();
        self.options.budget.deterministic && is_dense && config.check_ranks(1, true).is_ok()
    }

    /// Loads the model on an open backend and starts its engine.
    pub fn start_on<B: Backend>(&self, backend: B) -> Result<Launched> {
        let started = Instant::now();
        self.start_loaded(self.load(backend)?, started)
    }

    /// Starts the engine of a loaded model. `started`: when its loading began.
    pub(super) fn start_loaded(&self, model: Box<dyn StepRunner>, started: Instant) -> Result<Launched> {
        let (engine, handle) = self.build(model)?;
        engine.spawn()?;
        let seconds_loading = started.elapsed().as_secs_f64();
        log::info!("the model was loaded in {seconds_loading:.2} s");
        Ok(Launched { engine: handle, second: None, not_cuda: None, seconds_loading })
    }

    /// Loads the model on an open backend, which then stores keys and values in the budget's format.
    pub fn load<B: Backend>(&self, backend: B) -> Result<Box<dyn StepRunner>> {
        self.loading().run(backend)
    }

    pub(super) fn loading(&self) -> Load<'_> {
        Load { model: self.model, budget: self.options.budget }
    }

    /// An engine for a loaded model, without a thread: it works when its owner calls [`Engine::turn`]. The model can be
    /// reused for another engine ([`Engine::into_model`]).
    pub fn build(&self, model: Box<dyn StepRunner>) -> Result<(Engine, EngineHandle)> {
        self.build_changed(model, |config| config)
    }

    /// Like `build`, after `change` has modified the configuration.
    pub fn build_changed(
        &self,
        model: Box<dyn StepRunner>,
        change: impl FnOnce(EngineConfig) -> EngineConfig,
    ) -> Result<(Engine, EngineHandle)> {
        self.prepare(model, change)?.build(self.tokenizer.clone())
    }

    /// The loaded model with the memory of its steps, before that of its keys and values.
    pub fn prepared(&self, model: Box<dyn StepRunner>) -> Result<PreparedModel> {
        self.prepare(model, |config| config)
    }

    /// The loaded model with the memory of its steps, for an engine whose configuration `change` modifies.
    pub(super) fn prepare(
        &self,
        model: Box<dyn StepRunner>,
        change: impl FnOnce(EngineConfig) -> EngineConfig,
    ) -> Result<PreparedModel> {
        let (facts, free) = (model.facts(), model.free_bytes()?);
        let config = self.engine_config(DeviceKind::from(&facts), free, facts.kv_bytes_per_token)?;
        let config = EngineConfig { prefix_store: self.store_options()?, ..config };
        PreparedModel::new(model, change(config))
    }

    fn store_options(&self) -> Result<Option<PrefixStoreOptions>> {
        let EngineOptions { budget, prefix_store, .. } = &self.options;
        let Some(PrefixFolder { path, most_bytes, keeps }) = prefix_store else { return Ok(None) };
        let mut formats = format!("{} kv", budget.kv);
        if !budget.weights.is_as_stored() {
            formats += &format!(", {}", budget.weights);
        }
        if let Some(context) = budget.context {
            formats += &format!(", context {context}");
        }
        let weights = self.model.identity()?;
        Ok(Some(PrefixStoreOptions { folder: path.clone(), most_bytes: *most_bytes, weights, formats, keeps: *keeps }))
    }

    /// The sizes of the engine of each device, without loading the model.
    pub fn sizes(&self) -> Result<Vec<LaunchSizes>> {
        if let Some(second) = &self.second {
            return Ok(vec![self.sizes_of_pair(second)?]);
        }
        let choices = self.options.devices.choices()?;
        match self.options.devices {
            Devices::Ranks(_) => Ok(vec![self.size_of_ranks(&choices)?]),
            Devices::One(_) | Devices::Each(_) | Devices::AllGpus => self.sizes_of_each(&choices),
        }
    }

    /// `free`: bytes of device memory left after the weights.
    fn engine_config(&self, device: DeviceKind, free: usize, kv_bytes_per_token: usize) -> Result<EngineConfig> {
        let budget = self.budget_of_each(device.is_async)?;
        let branches = budget.branches(device, self.model.config, free).min(self.demand.branches);
        let useful = (self.demand.tokens)(branches, device.page_tokens).saturating_mul(kv_bytes_per_token);
        let useful = match (self.model.config.latents(), budget.pool_bytes) {
            (Some(_), Some(_)) => useful.saturating_add(budget.useful_copies(device.is_async, useful)),
            (None, _) | (_, None) => useful,
        };
        // Of a number of bytes that the user gives, half at least is for keys and values.
        let states = useful_states(branches).saturating_mul(self.model.config.state_bytes(budget.states));
        let useful = match (states, budget.pool_bytes) {
            (0, _) | (_, None) => useful,
            (states, Some(_)) => useful.max(states).saturating_mul(2),
        };
        Ok(budget.engine_config(device, branches, self.options.plan.unwrap_or_default(), useful))
    }
}

/// Loads a model, on one of several devices too.
pub(super) struct Load<'a> {
    pub model: ModelSource<'a>,
    pub budget: EngineBudget,
}

impl OnBackend for Load<'_> {
    type Output = Box<dyn StepRunner>;

    fn run<B: Backend>(self, mut backend: B) -> Result<Box<dyn StepRunner>> {
        let decoder = decoder_on(&mut backend, &self.model.weights()?, &self.budget)?;
        Ok(decoder.on(backend))
    }
}

pub(super) struct Size<'a>(pub &'a Launch<'a>);

impl OnBackend for Size<'_> {
    type Output = LaunchSizes;

    fn run<B: Backend>(self, mut backend: B) -> Result<LaunchSizes> {
        let free = backend.free_bytes()?;
        size_on(self.0, &mut backend, free)
    }
}

/// The sizes of an engine on an open backend, which has `free` bytes; its name is left to the caller.
pub(super) fn size_on<B: Backend>(launch: &Launch<'_>, backend: &mut B, free: usize) -> Result<LaunchSizes> {
    let held = held_on(launch, backend, free)?;
    let room = free.saturating_sub(held.taken);
    held.with_pool(room)
}

/// What an engine has on a backend but for keys and values.
pub(super) struct HeldSizes {
    /// All but what its pool is, which is 0.
    sizes: LaunchSizes,
    pub config: EngineConfig,
    /// Bytes of weights, adapters and work space.
    pub taken: usize,
    pub page_tokens: u32,
    groups: PageGroups,
    copies: CopyFacts,
}

impl HeldSizes {
    /// The sizes with a pool of this size.
    pub fn in_pool(self, pool: PoolSize, room: usize) -> Result<LaunchSizes> {
        HeldSizes { config: EngineConfig { pool, ..self.config }, ..self }.with_pool(room)
    }

    /// The sizes where `room` bytes are left for keys, values and states.
    fn with_pool(self, room: usize) -> Result<LaunchSizes> {
        let HeldSizes { sizes, config, page_tokens, groups, copies, .. } = self;
        let parts = config.pool.divide(room, sizes.page_bytes, sizes.state_bytes, config.max_branches)?;
        let PoolParts { states, branches, .. } = parts;
        let copies = config.copy_memory(&parts, &copies)?;
        let pool = parts.pages_beside(&copies);
        let pages = EngineConfig { max_branches: branches, ..config }.page_counts(page_tokens, groups);
        Ok(LaunchSizes { branches, pool, copies, pages, states, ..sizes })
    }

    /// What it can use of the memory for keys and values, for so many tokens of text.
    pub fn demand(&self, tokens: TextTokens) -> PoolDemand {
        let LaunchSizes { kv_bytes_per_token, state_bytes, page_bytes, .. } = self.sizes;
        PoolDemand {
            tokens,
            bytes_per_token: kv_bytes_per_token,
            states: useful_states(self.config.max_branches).saturating_mul(state_bytes),
            least: self.groups.count() * page_bytes,
            page_tokens: self.page_tokens as usize,
        }
    }
}

/// What an engine has on an open backend with `free` bytes.
pub(super) fn held_on<B: Backend>(launch: &Launch<'_>, backend: &mut B, free: usize) -> Result<HeldSizes> {
    let all = free;
    let Launch { model, options: EngineOptions { budget, .. }, .. } = launch;
    budget.kv.set_on(backend, model.config.stored_heads(), model.dtype);
    let kv_bytes_per_token = model.config.kv_bytes_per_token_on(backend, model.dtype);
    let held = model.held_by(backend);
    let weights = model.weight_bytes_on(backend);
    // What all have is read by all.
    let active_weights =
        held.weight_bytes_read(1, model.dtype) + weights - held.held_bytes(model.dtype, backend.latent_map_copies());
    let free = free.saturating_sub(weights);
    let config = launch.engine_config(DeviceKind::of(backend), free, kv_bytes_per_token)?;
    if config.deterministic {
        // It may free pages in other tiles, and takes no memory for chunks.
        backend.set_batch_invariant();
    }
    let element_bytes = if B::IS_ASYNC { model.dtype.bytes() } else { size_of::<f32>() };
    let adapters = config.adapters.bytes(model.config, element_bytes);
    let free = free.saturating_sub(adapters);
    let rows = config.largest_step().rows;
    let scratch = |layer| backend.state_scratch_bytes(layer, model.dtype, rows);
    let free = free.saturating_sub(model.config.states().map(scratch).max().unwrap_or(0));
    let groups = model.config.page_groups(backend);
    let page_tokens = backend.page_tokens();
    let sizes = LaunchSizes {
        device: String::new(),
        ranks: backend.devices(),
        position_members: backend.sharing(),
        kv_copies: model.config.stored_heads().map(|heads| backend.kv_copies(heads)).max().unwrap_or(1),
        branches: config.max_branches,
        pool: 0,
        copies: CopyMemory::default(),
        kv_bytes_per_token,
        page_bytes: backend.page_bytes(&model.config.kv_shape(model.dtype, 1)),
        pages: config.page_counts(page_tokens, groups),
        states: 0,
        state_bytes: model.config.state_bytes(budget.states),
        weights,
        active_weights,
        adapters,
        second: None,
    };
    let copies = CopyFacts {
        page_bytes: model.config.copy_page_bytes(backend, model.dtype),
        page_tokens: page_tokens as usize,
        longest: config.context.map_or(model.config.context, |context| context.min(model.config.context)),
        latent_page_bytes: sizes.page_bytes,
        is_exact: backend.tile() > 1,
    };
    Ok(HeldSizes { sizes, config, taken: all - free, page_tokens, groups, copies })
}

/// Loads the model on an open backend, which then stores keys, values and states in the budget's formats; on one of
/// several devices, too.
pub(super) fn decoder_on<B: Backend>(
    backend: &mut B,
    weights: &ModelWeights,
    budget: &EngineBudget,
) -> Result<Decoder<B>> {
    budget.kv.set_on(backend, weights.config().stored_heads(), weights.dtype());
    let mut decoder = Decoder::of(backend, weights)?;
    if backend.is_first() && decoder.config().state_dtype(budget.states) != budget.states {
        log::warn!("{STATE_DTYPE} {}: the model has no states of recurrent layers", budget.states);
    }
    if backend.is_first() && budget.latent_copies.is_some() && decoder.config().latents().is_none() {
        log::warn!("{LATENT_COPIES}: the model has no latent attention");
    }
    decoder.set_state_dtype(budget.states);
    Ok(decoder)
}

/// Rewrites an out-of-pages error as the memory options that set the number of pages, in MiB.
pub fn in_bytes(error: Error, facts: &EngineFacts) -> Error {
    let Error::OutOfPages { needed, capacity, .. } = error else { return error };
    let mib = |pages: usize| (pages * facts.page_bytes).div_ceil(1 << 20);
    let expected = format!("at least {} MiB, which one sample's keys and values need", mib(needed));
    Error::kv_memory(expected, format!("{} MiB", mib(capacity)))
}
