//! `bench batches`: runs the jobs of the papers that Offshoot is compared with through the engine and its scheduler, on
//! a model with random weights: on this machine's device by the wall clock, or on a simulated device. Prints one JSON
//! line per run, as soon as it is done. `options` is what can be asked for, `tables` defines the runs, `line` the
//! output.

mod line;
mod options;
mod tables;

use std::sync::Arc;

use self::line::BatchesLine;
pub use self::options::{BatchesOptions, Table};
use self::tables::{BatchRun, Measurement};
use super::tables::print_json;
use super::workload_file::read_shape;
use offshoot_backend::{Backend, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_estimate::replay::{
    JobRecord, LoadedModel, ReplayJob, ReplaySettings, SimulatedMachine, WallClock, replay, sustainable_rate, warm_up,
    with_system_prompt,
};
use offshoot_launch::{DeviceBackend, OnDevice};
use offshoot_model::ModelConfig;
use offshoot_sim::{DeviceProfile, Sim};

/// Runs the tables on this machine's device, by the wall clock.
impl OnDevice for &BatchesOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let options = self;
        let (model, runs) = (read_shape(options.file.as_deref(), &options.shape)?, tables::runs(options)?);
        let device = backend.describe();
        let session = BatchRuns::new(options, pool_bytes(&mut backend, options, &model), device);
        let mut loaded = LoadedModel::random(backend, model, options.dtype, options.kv, StateDtype::default())?;
        let most = runs.iter().map(|run| run.measurement.most_samples()).max().unwrap_or(1);
        out::aside(format_args!("{}: the model is loaded; warming up", session.device));
        loaded.run(WallClock::beside::<B>(), &session.settings, &warm_up(most))?;
        session.all(&runs, |settings, job| loaded.run(WallClock::beside::<B>(), settings, job))
    }
}

/// Runs the tables on the simulated device of this profile.
pub fn simulated(profile: &str, options: &BatchesOptions) -> Result<()> {
    let (model, runs) = (read_shape(options.file.as_deref(), &options.shape)?, tables::runs(options)?);
    let profile = DeviceProfile::named(profile).map_err(|error| match error {
        Error::Value { expected, found, .. } => Error::value("--simulated", expected, found),
        other => other,
    });
    let profile = Arc::new(profile?);
    let mut backend = Sim::new(profile.clone());
    let session = BatchRuns::new(options, pool_bytes(&mut backend, options, &model), backend.describe());
    let machine =
        SimulatedMachine { model, dtype: options.dtype, kv: options.kv, states: StateDtype::default(), profile };
    session.all(&runs, |settings, job| replay(&machine, settings, job))
}

/// Bytes of the pool, rounded up to whole pages, if its size in tokens is given.
fn pool_bytes<B: Backend>(backend: &mut B, options: &BatchesOptions, model: &ModelConfig) -> Option<usize> {
    options.kv.set_on(backend, model.heads(), options.dtype);
    let pages = model.page_groups(backend).count() * backend.page_bytes(&model.kv_shape(options.dtype, 1));
    options.kv_tokens.map(|tokens| tokens.div_ceil(backend.page_tokens() as usize).saturating_mul(pages))
}

struct BatchRuns<'a> {
    options: &'a BatchesOptions,
    /// Settings except policy and planner, which depend on the run.
    settings: ReplaySettings,
    device: String,
}

impl<'a> BatchRuns<'a> {
    fn new(options: &'a BatchesOptions, pool_bytes: Option<usize>, device: String) -> Self {
        let settings = ReplaySettings { step_rows: options.step_rows, pool_bytes, ..ReplaySettings::default() };
        Self { options, settings, device }
    }

    /// Makes all runs, and continues after failures.
    ///
    /// # Errors
    /// The first failure, once all runs are over.
    fn all(
        &self,
        runs: &[BatchRun],
        mut act: impl FnMut(&ReplaySettings, &ReplayJob) -> Result<JobRecord>,
    ) -> Result<()> {
        let mut failure = None;
        for (number, run) in runs.iter().enumerate() {
            out::aside(format_args!("{} of {}: {run}", number + 1, runs.len()));
            match self.one(run, &mut act) {
                Ok(()) => {}
                Err(error) if out::reader_has_gone(&error) => return Err(error),
                Err(error) => {
                    out::aside(format_args!("{run}: {error}"));
                    print_json(&self.header(run).failed(&error))?;
                    failure.get_or_insert(error);
                }
            }
        }
        failure.map_or(Ok(()), Err)
    }

    fn header(&self, run: &BatchRun) -> BatchesLine {
        BatchesLine::of(self.options, &self.device, run)
    }

    /// Makes one run and prints its result.
    fn one(
        &self,
        run: &BatchRun,
        act: &mut impl FnMut(&ReplaySettings, &ReplayJob) -> Result<JobRecord>,
    ) -> Result<()> {
        let settings = ReplaySettings { policy: run.way.policy, planner: run.way.planner, ..self.settings };
        let mut printed = |job: &ReplayJob, rate: Option<f64>| {
            if job.requests.is_empty() {
                let expected = format!("seconds in which a request arrives, at {} per second", rate.unwrap_or(0.0));
                return Err(Error::value("--span", expected, self.options.span().as_secs_f64().to_string()));
            }
            let record = act(&settings, job)?;
            print_json(&self.header(run).done(rate, &record, settings.step_rows))?;
            Ok(record)
        };
        match run.measurement.as_ref() {
            Measurement::Job { job, rate } => printed(job, *rate).map(drop),
            Measurement::Rate { system, lengths } => {
                let found = sustainable_rate(self.options.search(), |rate| {
                    let mut job =
                        with_system_prompt(*system, lengths, rate, self.options.span().as_secs_f64(), tables::SEED);
                    job.requests.truncate(self.options.most_requests());
                    Ok(printed(&job, Some(rate))?.totals(settings.step_rows).normalised_latency)
                })?;
                print_json(&self.header(run).found(&found))
            }
        }
    }
}
