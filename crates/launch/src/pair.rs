//! Starts a generator and a scorer on one device, or a scorer alone. Both are checked before either is loaded, and both
//! are loaded before the memory that is left is divided between their keys and values (`shares`).

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::assemble::{HeldSizes, held_on};
use super::shares::{PoolDemand, divided};
use super::{
    Demand, Devices, EngineOptions, Launch, LaunchSizes, Launched, OnBackend, ScorerFolder, ScorerOptions, WhyNotCuda,
};
use offshoot_backend::Backend;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures;
use offshoot_core::setting::{DEVICES, SCORER};
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
    /// The options name a scorer beside it, a budget is out of its range, or no device has room for it.
    pub fn start(self, options: &EngineOptions) -> Result<LaunchedScorer> {
        if let Some(ScorerOptions { path, .. }) = &options.scorer {
            let expected = "none, as the model is a scorer itself";
            return Err(Error::value(SCORER, expected, path.display().to_string()));
        }
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

impl Launch<'_> {
    /// The scorer beside the model, opened into `place` unless it is open.
    pub(super) fn scorer_folder<'s>(&'s self, place: &'s mut Option<ScorerFolder>) -> Result<Option<&'s ScorerFolder>> {
        match (self.scorer, &self.options.scorer) {
            (Some(scorer), _) => Ok(Some(scorer)),
            (None, Some(options)) => Ok(Some(place.insert(options.open()?))),
            (None, None) => Ok(None),
        }
    }

    pub(super) fn start_pair(&self, scorer: &ScorerFolder) -> Result<Launched> {
        let Devices::One(choice) = self.options.devices else { return Err(self.several_devices(scorer)) };
        if self.options.budget.keeps_routes {
            self.model.config.route_shape()?; // Before the models are loaded.
        }
        let second = self.of_scorer(scorer);
        let opened = choice.open_for(&[self.model, second.model])?;
        let (started, not_cuda) = (Instant::now(), opened.not_cuda().cloned());
        let beside = opened.beside()?;
        let generator = opened.with_engine(self.is_exact(), self.loading())?;
        let scoring = beside.with_engine(second.is_exact(), second.loading())?;
        // On the host both engines use all cores: one computes at a time.
        let gate = (!generator.facts().is_async).then(Arc::<StepGate>::default);
        let gated = |config: EngineConfig| EngineConfig { gate: gate.clone(), ..config };
        let generator = self.prepare(generator, gated).map_err(|error| named(GENERATOR, error))?;
        let scoring = second.prepare(scoring, gated).map_err(|error| named(SCORER_NAME, error))?;
        let [generator, scoring] = self.divide(&second, generator, scoring)?;
        let (generator, engine) = generator.build(self.tokenizer.clone()).map_err(|error| named(GENERATOR, error))?;
        let (scoring, scores) = scoring.build(None).map_err(|error| named(SCORER_NAME, error))?;
        generator.spawn()?;
        scoring.spawn()?;
        let seconds_loading = started.elapsed().as_secs_f64();
        log::info!("the model and the scorer were loaded in {seconds_loading:.2} s");
        Ok(Launched { engine, scorer: Some(scorer.on(scores)?), not_cuda, seconds_loading })
    }

    /// The launch of a scorer that reads what this launch's model writes.
    pub fn of_scorer<'s>(&'s self, scorer: &'s ScorerFolder) -> Launch<'s> {
        let EngineOptions { devices, budget, plan, .. } = &self.options;
        let options = EngineOptions {
            devices: devices.clone(),
            budget: budget.of_scorer(),
            plan: *plan,
            ..EngineOptions::default()
        };
        let tokens = |branches, page_tokens| scorer_tokens((self.demand.tokens)(branches, page_tokens));
        options.launch(scorer.source(), None, Demand::new(self.demand.branches, tokens))
    }

    /// Divides the memory that both models leave free between their keys and values. `scorer`: see
    /// [`of_scorer`](Self::of_scorer).
    ///
    /// # Errors
    ///
    /// Less is free than the user gives them.
    pub fn divide(
        &self,
        scorer: &Launch<'_>,
        generator: PreparedModel,
        scoring: PreparedModel,
    ) -> Result<[PreparedModel; 2]> {
        // What the generator keeps free for adapters is free for neither.
        let room = generator.room()?.min(scoring.room()?);
        let branches = generator.config().max_branches;
        let demands = [(self, &generator), (scorer, &scoring)].map(|(launch, prepared)| {
            let facts = prepared.facts();
            PoolDemand {
                tokens: (launch.demand.tokens)(branches, facts.page_tokens as usize),
                bytes_per_token: facts.kv_bytes_per_token,
                states: useful_states(prepared.config().max_branches).saturating_mul(facts.state_bytes),
                least: facts.page_groups.count() * facts.page_bytes,
            }
        });
        let [of_generator, of_scorer] = self.pools(room, generator.facts().is_async, demands)?;
        Ok([generator.with_pool(of_generator), scoring.with_pool(of_scorer)])
    }

    /// The pools of the generator and of the scorer in `room` bytes.
    fn pools(&self, room: usize, is_async: bool, demands: [PoolDemand; 2]) -> Result<[PoolSize; 2]> {
        let total = self.options.budget.pool(is_async, usize::MAX).bytes(room)?;
        let share = self.options.scorer.as_ref().and_then(|scorer| scorer.memory);
        let [generator, scorer] = demands;
        let [of_generator, of_scorer] = divided(total, generator, scorer, share);
        let part = |name, bytes: usize, demand: PoolDemand| match bytes < demand.least {
            true => {
                let [expected, found] = [demand.least, bytes].map(|bytes| figures::bytes(bytes as u64));
                Err(named(name, Error::kv_memory(format!("at least one page ({expected})"), found)))
            }
            false => Ok(PoolSize::Part { bytes, at_most: demand.kv_bytes() }),
        };
        Ok([part(GENERATOR, of_generator, generator)?, part(SCORER_NAME, of_scorer, scorer)?])
    }

    /// The sizes of both engines, without loading the models.
    pub(super) fn sizes_of_pair(&self, scorer: &ScorerFolder) -> Result<LaunchSizes> {
        let Devices::One(choice) = self.options.devices else { return Err(self.several_devices(scorer)) };
        let second = self.of_scorer(scorer);
        let opened = choice.open_for(&[self.model, second.model])?;
        let (device, beside) = (opened.to_string(), opened.beside()?);
        let generator = opened.with_engine(self.is_exact(), Hold { launch: self, before: 0 })?;
        let hold = Hold { launch: &second, before: generator.held.taken };
        let scoring = beside.with_engine(second.is_exact(), hold)?;
        let room = generator.free.saturating_sub(generator.held.taken + scoring.held.taken);
        let branches = generator.held.config.max_branches;
        let demands = [(self, &generator.held), (&second, &scoring.held)]
            .map(|(launch, held)| held.demand((launch.demand.tokens)(branches, held.page_tokens as usize)));
        let [of_generator, of_scorer] = self.pools(room, generator.is_async, demands)?;
        let scoring = scoring.held.in_pool(of_scorer, room).map_err(|error| named(SCORER_NAME, error))?;
        let sizes = generator.held.in_pool(of_generator, room).map_err(|error| named(GENERATOR, error))?;
        let scorer = Some(Box::new(LaunchSizes { device: device.clone(), ..scoring }));
        Ok(LaunchSizes { device, scorer, ..sizes })
    }

    fn several_devices(&self, scorer: &ScorerFolder) -> Error {
        let expected =
            format!("one device, as the scorer {} stands beside the model ({SCORER})", scorer.path().display());
        Error::value(DEVICES, expected, self.options.devices.to_string())
    }
}

/// Tokens of a scorer's texts for so many of the generator's: its tokenizer may make more of them, and its form adds
/// tags, turns and ends.
fn scorer_tokens(tokens: usize) -> usize {
    tokens.saturating_add(tokens / 8)
}

/// How errors name the two models.
const GENERATOR: &str = "the model";
const SCORER_NAME: &str = "the scorer";

/// The error of a model beside a scorer: what it lacks is said of its part of the memory.
pub fn beside_scorer(error: Error) -> Error {
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
