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
            SecondFolder::Judge(judge) => LaunchedSecond::Judge(judge.on(engine)),
        })
    }

    /// The tokens of its texts beside a generator whose texts have `samples` tokens; `branches`: of its own engine.
    fn tokens(&self, samples: usize, branches: usize) -> TextTokens {
        // Its tokenizer may make more of them, and forms, templates and turns add to them.
        let read = samples.saturating_add(samples / 8);
        match self {
            SecondFolder::Scorer(_) => TextTokens::known(read),
            SecondFolder::Judge(judge) => {
                let useful = judge.context().saturating_mul(branches);
                TextTokens { useful, expected: read.max(judge.context().min(LONG_QUESTION)) }
            }
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
            SecondKind::Scorer => self.demand.branches,
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
        let tokens = |prepared: &PreparedModel| {
            (self.demand.tokens)(generator.config().max_branches, prepared.facts().page_tokens as usize)
        };
        let of_second = second.tokens(tokens(&other), other.config().max_branches);
        let demand = |prepared: &PreparedModel, tokens: TextTokens| {
            let facts = prepared.facts();
            PoolDemand {
                tokens,
                bytes_per_token: facts.kv_bytes_per_token,
                states: useful_states(prepared.config().max_branches).saturating_mul(facts.state_bytes),
                least: facts.page_groups.count() * facts.page_bytes,
            }
        };
        let demands = [demand(&generator, TextTokens::known(tokens(&generator))), demand(&other, of_second)];
        let [of_generator, of_second] = self.pools(second, room, generator.facts().is_async, demands)?;
        Ok([generator.with_pool(of_generator), other.with_pool(of_second)])
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
        let part = |name: &str, bytes: usize, demand: PoolDemand| match bytes < demand.least {
            true => {
                let [expected, found] = [demand.least, bytes].map(|bytes| figures::bytes(bytes as u64));
                Err(named(name, Error::kv_memory(format!("at least one page ({expected})"), found)))
            }
            false => Ok(PoolSize::Part { bytes, at_most: demand.kv_bytes() }),
        };
        Ok([part(GENERATOR, of_generator, generator)?, part(&second.kind().to_string(), of_second, other)?])
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
        let tokens =
            |held: &HeldSizes| (self.demand.tokens)(generator.held.config.max_branches, held.page_tokens as usize);
        let of_second = folder.tokens(tokens(&other.held), other.held.config.max_branches);
        let demands = [generator.held.demand(TextTokens::known(tokens(&generator.held))), other.held.demand(of_second)];
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

/// The error of a model beside which another stands: what it lacks is said of its part of the memory.
pub fn beside_second(error: Error) -> Error {
    named(GENERATOR, error)
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
