//! Runs one job after another on a model, on a simulated or real backend. Each job gets a new engine, and with it an
//! empty cache and its own pool.

use std::sync::Arc;

use super::drive::drive;
use super::job::{ReplayJob, ReplayRequest};
use super::policy::Policy;
use super::record::JobRecord;
use super::time::Timekeeper;
use offshoot_backend::{Backend, Dtype, KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_engine::EngineConfig;
use offshoot_kv::plan::Planner;
use offshoot_launch::{Demand, EngineBudget, EngineOptions, Launch, ModelSource};
use offshoot_model::{ModelConfig, StepRunner};
use offshoot_sim::{DeviceProfile, Sim};

/// A model and a simulated device, both described by numbers.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    pub model: ModelConfig,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub states: StateDtype,
    pub profile: Arc<DeviceProfile>,
}

/// Settings of the engine and its scheduling policy.
#[derive(Clone, Copy, Debug)]
pub struct ReplaySettings {
    pub policy: Policy,
    pub planner: Planner,
    /// Rows of a step; see `EngineConfig`.
    pub step_rows: usize,
    /// Bytes for keys and values; `None`: nine tenths of the memory left by weights and activations, as far as the job
    /// can use it.
    pub pool_bytes: Option<usize>,
    /// Bytes of host memory for keys, values and states of preempted branches.
    pub swap_bytes: usize,
    /// Bytes of `pool_bytes` for copies of latents; see `EngineBudget`.
    pub copies: Option<usize>,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        ReplaySettings {
            policy: Policy::OURS,
            planner: Planner::default(),
            step_rows: 2048,
            pool_bytes: None,
            swap_bytes: 0,
            copies: None,
        }
    }
}

const KV_SHARE: f64 = 0.9;

/// Runs a job to its end on a simulated device. The model's context is extended to the job's longest request.
///
/// # Errors
///
/// A request that the engine refuses (an empty prompt, a sequence that does not fit the pool); the message names its
/// number.
pub fn replay(machine: &SimulatedMachine, settings: &ReplaySettings, job: &ReplayJob) -> Result<JobRecord> {
    let backend = Sim::new(machine.profile.clone());
    let clock = backend.clock();
    let mut model = machine.model.clone();
    model.context = model.context.max(job.longest() + 1);
    LoadedModel::random(backend, model, machine.dtype, machine.kv, machine.states)?.run(clock, settings, job)
}

/// A model with random weights on a device. A real device frees an engine's memory when the engine is dropped; a
/// simulated one does not, and has room for one job.
pub struct LoadedModel {
    /// `None` after building an engine failed.
    model: Option<Box<dyn StepRunner>>,
    config: ModelConfig,
    dtype: Dtype,
    kv: KvDtype,
    states: StateDtype,
}

impl LoadedModel {
    pub fn random<B: Backend>(
        mut backend: B,
        model: ModelConfig,
        dtype: Dtype,
        kv: KvDtype,
        states: StateDtype,
    ) -> Result<Self> {
        backend.set_kv_dtype(kv);
        let decoder = ModelSource::random(&model, dtype).load(&mut backend)?;
        Ok(Self { model: Some(decoder.on(backend)), config: model, dtype, kv, states })
    }

    /// Runs a job to its end, by the clock `time`.
    ///
    /// # Errors
    ///
    /// As [`replay`]; also a request longer than the model's context, and lack of memory for an engine, after which the
    /// model is lost.
    pub fn run(
        &mut self,
        time: impl Timekeeper + Send,
        settings: &ReplaySettings,
        job: &ReplayJob,
    ) -> Result<JobRecord> {
        if job.longest() > self.config.context {
            let (what, tokens, context) = ("the longest request".to_owned(), job.longest(), self.config.context);
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        let model = self.model.take().ok_or_else(lost)?;
        // Also on a device that computes synchronously, so that its steps are those of a simulated one.
        let ahead = |config| EngineConfig { run_ahead: true, ..config };
        let (mut engine, handle) = self.launch(settings, job).build_changed(model, ahead)?;
        let (submitted, ordered_in) = settings.policy.submit(job, self.config.vocab);
        let record = drive(&mut engine, handle, time, &submitted);
        self.model = Some(engine.into_model());
        record.map(|record| JobRecord { ordered_in, ..record })
    }

    fn launch<'a>(&'a self, settings: &ReplaySettings, job: &'a ReplayJob) -> Launch<'a> {
        let budget = EngineBudget {
            max_branches: Some(settings.policy.max_branches(job)),
            step_rows: Some(settings.step_rows),
            pool_bytes: settings.pool_bytes,
            memory: Some(KV_SHARE),
            swap_bytes: Some(settings.swap_bytes),
            latent_copies: settings.copies,
            kv: self.kv,
            states: self.states,
            ..EngineBudget::default()
        };
        let demand = match settings.pool_bytes {
            Some(_) => Demand::unbounded(),
            None => Demand::new(usize::MAX, |_, page_tokens| useful_tokens(job, page_tokens)),
        };
        let engine = EngineOptions { budget, plan: Some(settings.planner), ..EngineOptions::default() };
        engine.launch(ModelSource::random(&self.config, self.dtype), None, demand)
    }
}

/// Most tokens whose keys and values a job can use, in whole pages: nothing shared, everything kept.
fn useful_tokens(job: &ReplayJob, page_tokens: usize) -> usize {
    let pages = |tokens: usize| tokens.div_ceil(page_tokens) + 1;
    let held = |request: &ReplayRequest| pages(request.prompt.len()) + request.samples * pages(request.output);
    job.requests.iter().map(held).sum::<usize>().saturating_mul(page_tokens)
}

fn lost() -> Error {
    let found = "none: building an engine failed earlier";
    Error::value("a model", "one that was loaded", found)
}
