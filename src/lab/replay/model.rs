//! A model on a backend, simulated or real, that runs one job after another: an engine is built around it for each, so that
//! every job finds an empty cache and a pool of its own.

use std::sync::Arc;

use super::drive::drive;
use super::job::{Job, Request};
use super::policy::Policy;
use super::record::JobRecord;
use super::time::Timekeeper;
use crate::backend::sim::{DeviceProfile, Sim};
use crate::backend::{Backend, Dtype, KvDtype};
use crate::engine::{Engine, EngineConfig, PoolSize};
use crate::error::{Error, Result};
use crate::launch::ModelSource;
use crate::model::{Decoder, ModelConfig};
use crate::plan::Planner;

/// A model on a device, both by their numbers.
#[derive(Clone, Debug)]
pub struct Machine {
    pub model: ModelConfig,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub profile: Arc<DeviceProfile>,
}

/// How it works.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Policy,
    pub planner: Planner,
    /// Rows of a step; see `EngineConfig`.
    pub step_rows: usize,
    /// Bytes for keys and values; `None`: nine tenths of what weights and activations leave, as far as the job can use it.
    pub pool_bytes: Option<usize>,
    /// Bytes of host memory for branches that had to yield.
    pub swap_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { policy: Policy::OURS, planner: Planner::default(), step_rows: 2048, pool_bytes: None, swap_bytes: 0 }
    }
}

const KV_SHARE: f64 = 0.9;

/// Runs a job to its end on a simulated device. The model's context is as long as the job wants it.
///
/// # Errors
/// A request that the engine refuses (an empty prompt, a path that does not fit the pool) is named with its place in the job.
pub fn replay(machine: &Machine, settings: &Settings, job: &Job) -> Result<JobRecord> {
    let backend = Sim::new(machine.profile.clone());
    let clock = backend.clock();
    let mut model = machine.model.clone();
    model.context = model.context.max(job.longest() + 1);
    LoadedModel::random(backend, model, machine.dtype, machine.kv)?.run(clock, settings, job)
}

/// A model of random weights where it is computed. A real device gives back what an engine held when that ends; a simulated one
/// does not, and has room for one job.
pub struct LoadedModel<B: Backend> {
    /// `None` after an engine could not be built around it.
    parts: Option<(B, Decoder<B>)>,
    context: usize,
    vocab: usize,
}

impl<B: Backend> LoadedModel<B> {
    pub fn random(mut backend: B, model: ModelConfig, dtype: Dtype, kv: KvDtype) -> Result<Self> {
        backend.set_kv_dtype(kv);
        let (context, vocab) = (model.context, model.vocab);
        let decoder = ModelSource::random(&model, dtype).load(&mut backend)?;
        Ok(Self { parts: Some((backend, decoder)), context, vocab })
    }

    /// Runs a job to its end, by the time that `time` tells.
    ///
    /// # Errors
    /// As [`replay`]; a request longer than the model's context; memory that an engine does not get, after which the model is
    /// lost.
    pub fn run(&mut self, time: impl Timekeeper + Send, settings: &Settings, job: &Job) -> Result<JobRecord> {
        if job.longest() > self.context {
            let (what, tokens, context) = ("the longest request".to_owned(), job.longest(), self.context);
            return Err(Error::ContextTooLong { what, tokens, context });
        }
        let (backend, decoder) = self.parts.take().ok_or_else(lost)?;
        let pool = match settings.pool_bytes {
            Some(bytes) => PoolSize::Bytes(bytes),
            None => PoolSize::Share { of_free: KV_SHARE, at_most: useful_bytes(&backend, &decoder, job) },
        };
        let config = EngineConfig {
            max_branches: settings.policy.max_branches(job),
            step_rows: settings.step_rows,
            planner: settings.planner,
            pool,
            swap_bytes: settings.swap_bytes,
            run_ahead: true,
            ..EngineConfig::default()
        };
        let (mut engine, handle) = Engine::build(backend, decoder, None, config)?;
        let (submitted, ordered_in) = settings.policy.submit(job, self.vocab);
        // On a thread of the pool, as each turn goes there: from outside it would put this thread to sleep and wake it.
        let record = rayon::scope(|_| drive(&mut engine, handle, time, &submitted));
        self.parts = Some(engine.into_parts());
        record.map(|record| JobRecord { ordered_in, ..record })
    }
}

/// What a job can use at most, if nothing is shared and everything is kept.
fn useful_bytes<B: Backend>(backend: &B, decoder: &Decoder<B>, job: &Job) -> usize {
    let pages = |tokens: usize| tokens.div_ceil(backend.page_tokens() as usize) + 1;
    let held = |request: &Request| pages(request.prompt.len()) + request.samples * pages(request.output);
    job.requests.iter().map(held).sum::<usize>().saturating_mul(backend.page_bytes(&decoder.kv_shape(1)))
}

fn lost() -> Error {
    let found = "none, for an engine around it could not be built";
    Error::value("a model", "one that was loaded", found)
}
