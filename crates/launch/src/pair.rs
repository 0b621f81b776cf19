//! Starts a generator and a second model on one device, or a scorer alone. Both are checked before either is loaded,
//! and both are loaded before the memory that is left is divided between their keys and values (`shares`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::assemble::{HeldSizes, held_on};
use super::shares::{PoolDemand, TextTokens, divided};
use super::{
    Demand, Devices, EngineOptions, Launch, LaunchSizes, Launched, LaunchedSecond, OnBackend, ScorerFolder,
    SecondFolder, SecondKind, SecondSizes, WhyNotCuda,
};
use offshoot_backend::Backend;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::setting::DEVICES;
use offshoot_engine::{EngineConfig, EngineHandle, PoolSize, PreparedModel, StepGate, useful_states};
use offshoot_score::{FormChoice, ScorerModel};

/// A scorer without a generator, in memory.
pub struct LaunchedScorer {
    pub scorer: Arc<ScorerModel>,
    /// Its folder, with the weights that were asked for.
    pub folder: ScorerFolder,
    /// Why no GPU is used; `None` if the user chose the device or a GPU is used.
    pub not_cuda: Option<WhyNotCuda>,
    pub seconds_loading: f64,
}

impl EngineOptions {
    /// Opens the folder of a scorer as the only model. `form`: the form that is asked for, in place of the folder's own
    /// or its class's.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, the folder is no scorer, or no device has room for it.
    pub fn open_scorer(&self, path: &Path, form: Option<&FormChoice>) -> Result<LaunchedScorer> {
        ScorerFolder::open(path, form)?.start(self)
    }
}

impl ScorerFolder {
    /// Loads the scorer as the only model, with the weights that the options ask for.
    ///
    /// # Errors
    ///
    /// A budget is out of its range, or no device has room for it.
    pub fn start(self, options: &EngineOptions) -> Result<LaunchedScorer> {
        options.budget.check()?;
        let folder = self.with(options.budget.weights)?;
        let launched = options.launch(folder.source(), None, Demand::unbounded()).start()?;
        let Launched { engine, not_cuda, seconds_loading, .. } = launched;
        Ok(LaunchedScorer { scorer: folder.on(engine)?, folder, not_cuda, seconds_loading })
    }

    /// The scorer whose model runs in this engine.
    fn on(&self, engine: EngineHandle) -> Result<Arc<ScorerModel>> {
        Ok(Arc::new(ScorerModel::new(engine, self.resolved()?, self.identity().clone())?))
    }
}

impl SecondFolder {
    /// The second model that runs in this engine.
    fn on(&self, engine: EngineHandle) -> Result<LaunchedSecond> {
        Ok(match self {
            SecondFolder::Scorer(scorer) => LaunchedSecond::Scorer(scorer.on(engine)?),
            SecondFolder::Embedder(_) => LaunchedSecond::Embedder(engine),
            SecondFolder::Judge(judge) => LaunchedSecond::Judge(judge.on(engine)),
        })
    }

    /// The tokens of its texts beside a generator of these samples; `branches`: of its own engine.
    fn tokens(&self, samples: TextTokens, branches: usize) -> TextTokens {
        // Its tokenizer may make more of them, and forms, templates and turns add to them.
        let read = |tokens: usize| tokens.saturating_add(tokens / 8);
        let expected = read(samples.expected);
        let context = self.source().config.context;
        let longest = samples.longest.map(|longest| read(longest).min(context));
        match self.kind() {
            SecondKind::Scorer | SecondKind::Embedder => TextTokens { useful: read(samples.useful), expected, longest },
            SecondKind::Judge => TextTokens {
                useful: context.saturating_mul(branches),
                expected: expected.max(context.min(LONG_QUESTION)),
                longest,
            },
        }
    }
}

/// Tokens of a long question with its answer. Nothing is known of a judge's questions before they are asked: it gets
/// room for one such at least where a job has few and short samples.
const LONG_QUESTION: usize = 8192;

impl Launch<'_> {
    pub(super) fn start_pair(&self, folder: &SecondFolder) -> Result<Launched> {
        let Devices::One(choice) = self.options.devices else { return Err(self.several_devices(folder)) };
        if self.options.budget.keeps_routes {
            self.model.config.route_shape()?; // Before the models are loaded.
        }
        let (second, name) = (self.of_second(folder), folder.kind().to_string());
        let opened = choice.open_for(&[self.model, second.model])?;
        let (started, not_cuda) = (Instant::now(), opened.not_cuda().cloned());
        let beside = opened.beside()?;
        let generator = opened.with_engine(self.is_exact(), self.loading())?;
        let other = beside.with_engine(second.is_exact(), second.loading())?;
        // On the host both engines use all cores: one computes at a time.
        let gate = (!generator.facts().is_async).then(Arc::<StepGate>::default);
        let gated = |config: EngineConfig| EngineConfig { gate: gate.clone(), ..config };
        let generator = self.prepare(generator, gated).map_err(|error| named(GENERATOR, error))?;
        let other = second.prepare(other, gated).map_err(|error| named(&name, error))?;
        let [generator, other] = self.divide(folder, generator, other)?;
        let (generator, engine) = generator.build(self.tokenizer.clone()).map_err(|error| named(GENERATOR, error))?;
        let (other, beside) = other.build(second.tokenizer.clone()).map_err(|error| named(&name, error))?;
        generator.spawn()?;
        other.spawn()?;
        let seconds_loading = started.elapsed().as_secs_f64();
        log::info!("the model and {name} were loaded in {seconds_loading:.2} s");
        Ok(Launched { engine, second: Some(folder.on(beside)?), not_cuda, seconds_loading })
    }

    /// The launch of the model beside this launch's.
    pub fn of_second<'s>(&self, second: &'s SecondFolder) -> Launch<'s> {
        let EngineOptions { devices, budget, plan, .. } = &self.options;
        let options = EngineOptions {
            devices: devices.clone(),
            budget: budget.of_second(),
            plan: *plan,
            ..EngineOptions::default()
        };
        let branches = match second.kind() {
            SecondKind::Scorer | SecondKind::Embedder => self.demand.branches,
            // A sample may be asked about many times.
            SecondKind::Judge => usize::MAX,
        };
        // The memory of its keys and values is divided with this launch's model.
        let demand = Demand::new(branches, |_, _| usize::MAX);
        options.launch(second.source(), second.engine_tokenizer(), demand)
    }

    /// Divides the memory that both models leave free between their keys and values.
    ///
    /// # Errors
    ///
    /// Less is free than the user gives them.
    pub fn divide(
        &self,
        second: &SecondFolder,
        generator: PreparedModel,
        other: PreparedModel,
    ) -> Result<[PreparedModel; 2]> {
        // What the generator keeps free for adapters is free for neither.
        let room = generator.room()?.min(other.room()?);
        let samples =
            |prepared: &PreparedModel| self.samples(generator.config().max_branches, prepared.facts().page_tokens);
        let of_second = second.tokens(samples(&other), other.config().max_branches);
        let demand = |prepared: &PreparedModel, tokens: TextTokens| {
            let facts = prepared.facts();
            PoolDemand {
                tokens,
                bytes_per_token: facts.kv_bytes_per_token,
                states: useful_states(prepared.config().max_branches).saturating_mul(facts.state_bytes),
                least: facts.page_groups.count() * facts.page_bytes,
                page_tokens: facts.page_tokens as usize,
            }
        };
        let demands = [demand(&generator, samples(&generator)), demand(&other, of_second)];
        let [of_generator, of_second] = self.pools(second, room, generator.facts().is_async, demands)?;
        Ok([generator.with_pool(of_generator), other.with_pool(of_second)])
    }

    /// The tokens of the job's samples on so many branches, in pages of so many.
    fn samples(&self, branches: usize, page_tokens: u32) -> TextTokens {
        let tokens = (self.demand.tokens)(branches, page_tokens as usize);
        TextTokens { useful: tokens, expected: tokens, longest: self.demand.longest }
    }

    /// The pools of the generator and of the second model in `room` bytes.
    fn pools(
        &self,
        second: &SecondFolder,
        room: usize,
        is_async: bool,
        demands: [PoolDemand; 2],
    ) -> Result<[PoolSize; 2]> {
        let total = self.options.budget.pool(is_async, usize::MAX).bytes(room)?;
        let [generator, other] = demands;
        let [of_generator, of_second] = divided(total, generator, other, second.memory());
        let kind = second.kind();
        let part = |name: &str, bytes: usize, demand: PoolDemand| match bytes < demand.least {
            true => {
                let [expected, found] = [demand.least, bytes].map(|bytes| figures::bytes(bytes as u64));
                let error = Error::kv_memory(format!("at least one page ({expected})"), found);
                Err(named(name, of_part(error, kind)))
            }
            false => Ok(PoolSize::Part { bytes, at_most: demand.kv_bytes() }),
        };
        Ok([part(GENERATOR, of_generator, generator)?, part(&kind.to_string(), of_second, other)?])
    }

    /// The sizes of both engines, without loading the models.
    pub(super) fn sizes_of_pair(&self, folder: &SecondFolder) -> Result<LaunchSizes> {
        let Devices::One(choice) = self.options.devices else { return Err(self.several_devices(folder)) };
        let (second, kind) = (self.of_second(folder), folder.kind());
        let opened = choice.open_for(&[self.model, second.model])?;
        let (device, beside) = (opened.to_string(), opened.beside()?);
        let generator = opened.with_engine(self.is_exact(), Hold { launch: self, before: 0 })?;
        let hold = Hold { launch: &second, before: generator.held.taken };
        let other = beside.with_engine(second.is_exact(), hold)?;
        let room = generator.free.saturating_sub(generator.held.taken + other.held.taken);
        let samples = |held: &HeldSizes| self.samples(generator.held.config.max_branches, held.page_tokens);
        let of_second = folder.tokens(samples(&other.held), other.held.config.max_branches);
        let demands = [generator.held.demand(samples(&generator.held)), other.held.demand(of_second)];
        let [of_generator, of_second] = self.pools(folder, room, generator.is_async, demands)?;
        let other = other.held.in_pool(of_second, room).map_err(|error| named(&kind.to_string(), error))?;
        let sizes = generator.held.in_pool(of_generator, room).map_err(|error| named(GENERATOR, error))?;
        let sizes_of_second = Box::new(LaunchSizes { device: device.clone(), ..other });
        Ok(LaunchSizes { device, second: Some(SecondSizes { kind, sizes: sizes_of_second }), ..sizes })
    }

    fn several_devices(&self, second: &SecondFolder) -> Error {
        let (kind, path) = (second.kind(), second.path().display());
        let expected = format!("one device, as {kind} {path} stands beside the model ({})", kind.setting());
        Error::value(DEVICES, expected, self.options.devices.to_string())
    }
}

/// How errors name a model beside which another stands.
const GENERATOR: &str = "the model";

/// The error of a model that lacks memory for keys and values, of which one of this kind beside it has a part.
pub fn beside_second(error: Error, kind: SecondKind) -> Error {
    named(GENERATOR, of_part(error, kind))
}

/// The error of a part of the memory for keys and values, with the setting that divides it.
fn of_part(error: Error, kind: SecondKind) -> Error {
    match error {
        Error::Value { what, expected, found } => {
            let what = format!("{what}; {} is the part of {kind}", kind.share());
            Error::Value { what, expected, found }
        }
        other => other,
    }
}

/// The error of one of two models that divide a device's memory.
fn named(model: &str, error: Error) -> Error {
    match error {
        Error::Value { what, expected, found } => Error::Value { what: format!("{model}: {what}"), expected, found },
        other => other,
    }
}

/// Finds what an engine has on a device where others have taken `before` bytes.
struct Hold<'a> {
    launch: &'a Launch<'a>,
    before: usize,
}

struct HeldOn {
    held: HeldSizes,
    /// Bytes that are free on the empty device.
    free: usize,
    is_async: bool,
}

impl OnBackend for Hold<'_> {
    type Output = HeldOn;

    fn run<B: Backend>(self, mut backend: B) -> Result<HeldOn> {
        let free = backend.free_bytes()?;
        let held = held_on(self.launch, &mut backend, free.saturating_sub(self.before))?;
        Ok(HeldOn { held, free, is_async: B::IS_ASYNC })
    }
}
