//! The scorer, the embedder or the judge beside the model of an estimate: how both divide the memory of the simulated
//! device, and what it computes of a job's texts.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use offshoot_backend::Dtype;
use offshoot_core::error::Result;
use offshoot_core::figures::{bytes, count, counted, seconds};
use offshoot_engine::{Engine, EngineFacts, EngineHandle, PreparedModel};
use offshoot_launch::{Launch, ModelSource, SecondFolder};
use offshoot_sim::{DeviceProfile, Sim};

/// The memory of one of two models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ModelMemory {
    pub weight_bytes: u64,
    /// Activations and what else its steps need.
    pub step_bytes: u64,
    /// Keys, values and states.
    pub pool_bytes: u64,
}

impl ModelMemory {
    pub fn total(&self) -> u64 {
        self.weight_bytes + self.step_bytes + self.pool_bytes
    }
}

/// A model beside the job's.
#[derive(Clone, Debug, Serialize)]
pub struct SecondModel {
    pub path: String,
    pub dtype: Dtype,
    /// The longest text in tokens; of a judge, a question with its answer.
    pub context: usize,
    pub kv_bytes_per_token: u64,
    /// Tokens of which it has all keys and values.
    pub pool_tokens: u64,
    /// Texts that it reads at once.
    pub branches: usize,
    pub memory: ModelMemory,
    /// The memory of the generator, and that of the device.
    pub generator: ModelMemory,
    pub device_bytes: u64,
    #[serde(skip)]
    seconds_per_token: f64,
}

/// What it is. Serialises as an object with one key, `scorer`, `embedder` or `judge`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondAs<M> {
    Scorer {
        form: String,
        #[serde(flatten)]
        model: M,
    },
    Embedder(M),
    Judge(M),
}

impl<M> SecondAs<M> {
    pub fn model(&self) -> &M {
        match self {
            SecondAs::Scorer { model, .. } | SecondAs::Embedder(model) | SecondAs::Judge(model) => model,
        }
    }

    fn map<T>(self, make: impl FnOnce(M) -> T) -> SecondAs<T> {
        match self {
            SecondAs::Scorer { form, model } => SecondAs::Scorer { form, model: make(model) },
            SecondAs::Embedder(model) => SecondAs::Embedder(make(model)),
            SecondAs::Judge(model) => SecondAs::Judge(make(model)),
        }
    }
}

/// What it computes of a job.
#[derive(Clone, Debug, Serialize)]
pub struct SecondWork {
    #[serde(flatten)]
    pub sizes: SecondModel,
    /// Tokens of all prompts and samples, each counted once, in the generator's tokenizer.
    pub tokens: u64,
    /// Time of the products of the steps that read them, beside which the generator works.
    pub seconds: f64,
}

/// A model on the simulated device, before its keys and values.
struct OnDevice {
    prepared: PreparedModel,
    weight_bytes: usize,
    step_bytes: usize,
    seconds_per_token: f64,
}

impl OnDevice {
    fn new(launch: &Launch<'_>, profile: DeviceProfile) -> Result<OnDevice> {
        let memory = profile.memory_bytes as usize;
        let loaded = launch.load(Sim::new(Arc::new(profile)))?;
        let free = loaded.free_bytes()?;
        let seconds_per_token = 2.0 * loaded.config().active_parameters() as f64 / loaded.facts().swap_rates.flops;
        let prepared = launch.prepared(loaded)?;
        let step_bytes = free.saturating_sub(prepared.room()?);
        Ok(OnDevice { prepared, weight_bytes: memory.saturating_sub(free), step_bytes, seconds_per_token })
    }

    /// Its memory, with that of its engine's keys, values and states.
    fn memory(weight_bytes: usize, step_bytes: usize, facts: &EngineFacts) -> ModelMemory {
        let pool_bytes = facts.pool_pages * facts.page_bytes + facts.states * facts.state_bytes;
        ModelMemory { weight_bytes: weight_bytes as u64, step_bytes: step_bytes as u64, pool_bytes: pool_bytes as u64 }
    }
}

/// The engine of a launch's model on a device with this profile, beside that of a second model.
///
/// # Errors
///
/// The device has too little memory for one of the two.
pub fn build_pair(
    launch: &Launch<'_>,
    second: &SecondFolder,
    profile: &Arc<DeviceProfile>,
) -> Result<(Engine, EngineHandle, SecondAs<SecondModel>)> {
    let (source, of_second) = (second.source(), launch.of_second(second));
    let held = source.held_by(&Sim::new(profile.clone()));
    let of_second = Launch { model: ModelSource::random(&held, source.dtype), ..of_second };
    let other = OnDevice::new(&of_second, (**profile).clone())?;
    let taken = (other.weight_bytes + other.step_bytes) as f64;
    let rest = DeviceProfile { memory_bytes: profile.memory_bytes - taken, ..(**profile).clone() };
    let generating = OnDevice::new(launch, rest)?;
    let OnDevice { prepared, weight_bytes, step_bytes, .. } = generating;
    let [generator, other_model] = launch.divide(second, prepared, other.prepared)?;
    let (engine, handle) = generator.build(None)?;
    let (other_engine, beside) = other_model.build(None)?;
    let facts = beside.facts();
    let sizes = SecondModel {
        path: second.path().display().to_string(),
        dtype: source.dtype,
        context: facts.context,
        kv_bytes_per_token: facts.kv_bytes_per_token as u64,
        pool_tokens: (facts.pool_pages / facts.page_groups.count() * facts.page_tokens) as u64,
        branches: facts.max_branches,
        memory: OnDevice::memory(other.weight_bytes, other.step_bytes, facts),
        generator: OnDevice::memory(weight_bytes, step_bytes, handle.facts()),
        device_bytes: profile.memory_bytes as u64,
        seconds_per_token: other.seconds_per_token,
    };
    drop(other_engine);
    let sizes = match second {
        SecondFolder::Scorer(scorer) => SecondAs::Scorer { form: scorer.identity().form.clone(), model: sizes },
        SecondFolder::Embedder(_) => SecondAs::Embedder(sizes),
        SecondFolder::Judge(_) => SecondAs::Judge(sizes),
    };
    Ok((engine, handle, sizes))
}

impl SecondAs<SecondModel> {
    /// What it computes of a job with so many distinct tokens.
    pub fn estimate(&self, tokens: u64) -> SecondAs<SecondWork> {
        let work = |sizes: SecondModel| SecondWork { tokens, seconds: tokens as f64 * sizes.seconds_per_token, sizes };
        self.clone().map(work)
    }
}

impl SecondAs<SecondWork> {
    /// Names and texts of the report's lines.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let SecondWork { sizes, tokens, seconds: time } = self.model();
        let (tokens, time) = (counted(*tokens, "token"), seconds(*time));
        let beside = format!("{time} of computing beside the model");
        let (name, form, work) = match self {
            SecondAs::Scorer { form, .. } => {
                ("scorer", format!(", form {form}"), format!("about {tokens} to score, {beside}"))
            }
            SecondAs::Embedder(_) => ("embedder", String::new(), format!("about {tokens} to read, {beside}")),
            SecondAs::Judge(_) => (
                "judge",
                String::new(),
                format!(
                    "prompts and samples have about {tokens}, {beside} for one who reads each once; how often its \
                     questions show them, and its answers, are not counted"
                ),
            ),
        };
        let kv = format!(
            "{} for the keys and values of {} tokens",
            bytes(sizes.memory.pool_bytes),
            count(sizes.pool_tokens)
        );
        let at_once = count(sizes.branches as u64);
        let all = sizes.generator.total() + sizes.memory.total();
        vec![
            (name, format!("{}{form}, {}; {kv}, {at_once} texts at once", sizes.path, sizes.dtype)),
            ("", work),
            ("memory", format!("the model: {}", sizes.generator)),
            ("", format!("the {name}: {}", sizes.memory)),
            ("", format!("both: {} of {}", bytes(all), bytes(sizes.device_bytes))),
        ]
    }
}

impl fmt::Display for ModelMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [all, weights, steps, pool] =
            [self.total(), self.weight_bytes, self.step_bytes, self.pool_bytes].map(bytes);
        write!(f, "{all}: {weights} of weights, {steps} for steps, {pool} for keys and values")
    }
}
