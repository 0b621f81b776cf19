//! `bench batches`: the jobs of the papers that Offshoot is measured beside, through the engine and its scheduler on random
//! weights of a model's shape: on this machine's device by the wall clock, or on a simulated one. A JSON line a run, as soon as
//! it is done. Which runs there are is `tables`'; what a line says is `line`'s.

mod line;
mod tables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::line::Line;
pub use self::tables::Table;
use self::tables::{Run, Work};
use super::tables::print_json;
use super::workload_file::read_shape;
use crate::backend::sim::{DeviceProfile, Sim};
use crate::backend::{Backend, Dtype, KvDtype, KvShape};
use crate::error::{Error, Result};
use crate::lab::replay::{
    Job, JobRecord, LoadedModel, Machine, RateSearch, Settings, WallClock, replay, sustainable_rate, warm_up,
    with_system_prompt,
};
use crate::launch::{Device, DeviceChoice, OnDevice};
use crate::model::ModelConfig;
use crate::out;

/// What `bench batches` is asked to run.
#[derive(Clone, Debug)]
pub struct BatchesOptions {
    pub tables: Vec<Table>,
    /// Beginnings of the names of jobs; empty: all.
    pub jobs: Vec<String>,
    /// Names of ways to run a job; empty: all that the table has.
    pub ways: Vec<String>,
    /// The most requests of a job that come at once; `None`: as the table says.
    pub requests: Option<usize>,
    /// Requests a second, where they arrive over time; empty: ChunkAttention's, and a search for the most that can be sustained.
    pub rates: Vec<f64>,
    /// Seconds in which requests arrive, where they arrive over time.
    pub span: Duration,
    pub search: RateSearch,
    /// Lengths of prompts and answers; for RelayAttention's throughput and rate.
    pub lengths: Option<PathBuf>,
    /// Lengths of prompts; for its timing of questions.
    pub questions: Option<PathBuf>,
    /// Shapes; `None`: the built-in ones.
    pub file: Option<PathBuf>,
    pub shape: String,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub step_rows: usize,
    /// Tokens that the pool of keys and values has room for; `None`: nine tenths of what is free, as far as it is useful.
    pub kv_tokens: Option<usize>,
    /// Nothing is begun after so many seconds.
    pub budget: Duration,
    /// The profile of the device on which it is only simulated, if it is.
    pub simulated: Option<String>,
}

/// Runs the tables on this machine's device, by the wall clock.
pub fn measured(device: DeviceChoice, options: &BatchesOptions) -> Result<()> {
    device.open(0)?.with(Measure(options))
}

struct Measure<'a>(&'a BatchesOptions);

impl OnDevice for Measure<'_> {
    type Output = ();

    fn run<B: Device>(self, backend: B) -> Result<()> {
        measure_on(backend, self.0)
    }
}

fn measure_on<B: Backend>(mut backend: B, options: &BatchesOptions) -> Result<()> {
    let (model, runs) = (read_shape(options.file.as_deref(), &options.shape)?, tables::runs(options)?);
    let device = backend.describe();
    let session = Session::new(options, pool_bytes(&mut backend, options, &model), device);
    let mut loaded = LoadedModel::random(backend, model, options.dtype, options.kv)?;
    let most = runs.iter().map(|run| run.work.most_samples()).max().unwrap_or(1);
    out::aside(format_args!("{}: the model is loaded; warming up", session.device));
    loaded.run(WallClock::beside::<B>(), &session.settings, &warm_up(most))?;
    session.all(&runs, |settings, job| loaded.run(WallClock::beside::<B>(), settings, job))
}

/// Runs the tables on the simulated device of this profile.
pub fn simulated(profile: &str, options: &BatchesOptions) -> Result<()> {
    let (model, runs) = (read_shape(options.file.as_deref(), &options.shape)?, tables::runs(options)?);
    let profile = Arc::new(DeviceProfile::named(profile)?);
    let mut backend = Sim::new(profile.clone());
    let session = Session::new(options, pool_bytes(&mut backend, options, &model), backend.describe());
    let machine = Machine { model, dtype: options.dtype, kv: options.kv, profile };
    session.all(&runs, |settings, job| replay(&machine, settings, job))
}

/// Bytes of the pool, where its tokens are given: whole pages.
fn pool_bytes<B: Backend>(backend: &mut B, options: &BatchesOptions, model: &ModelConfig) -> Option<usize> {
    options.kv.set_on(backend, model.heads(), options.dtype);
    let page = backend.page_bytes(&KvShape { heads: model.heads().collect(), dtype: options.dtype, pages: 1 });
    options.kv_tokens.map(|tokens| tokens.div_ceil(backend.page_tokens() as usize).saturating_mul(page))
}

struct Session<'a> {
    options: &'a BatchesOptions,
    /// All but policy and planner.
    settings: Settings,
    device: String,
    begun: Instant,
}

impl<'a> Session<'a> {
    fn new(options: &'a BatchesOptions, pool_bytes: Option<usize>, device: String) -> Self {
        let settings = Settings { step_rows: options.step_rows, pool_bytes, ..Settings::default() };
        Self { options, settings, device, begun: Instant::now() }
    }

    /// Makes all runs as far as the time suffices, also when one fails.
    ///
    /// # Errors
    /// The first failure, once all runs are over.
    fn all(&self, runs: &[Run], mut act: impl FnMut(&Settings, &Job) -> Result<JobRecord>) -> Result<()> {
        let mut failure = None;
        for (number, run) in runs.iter().enumerate() {
            if self.is_over() {
                let left: Vec<String> = runs[number..].iter().map(ToString::to_string).collect();
                out::aside(format_args!("the time is used up before {}", left.join("; ")));
                break;
            }
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

    fn is_over(&self) -> bool {
        self.begun.elapsed() > self.options.budget
    }

    fn header(&self, run: &Run) -> Line {
        Line::of(self.options, &self.device, run)
    }

    /// A run, printed.
    fn one(&self, run: &Run, act: &mut impl FnMut(&Settings, &Job) -> Result<JobRecord>) -> Result<()> {
        let settings = Settings { policy: run.way.policy, planner: run.way.planner, ..self.settings };
        let mut printed = |job: &Job, rate: Option<f64>| {
            if job.requests.is_empty() {
                let expected = format!("seconds in which a request comes, of {} a second", rate.unwrap_or(0.0));
                return Err(Error::value("--span", expected, self.options.span.as_secs_f64().to_string()));
            }
            let record = act(&settings, job)?;
            print_json(&self.header(run).done(rate, &record, settings.step_rows))?;
            Ok(record)
        };
        match run.work.as_ref() {
            Work::Job { job, rate } => printed(job, *rate).map(drop),
            Work::Rate { system, lengths } => {
                let found = sustainable_rate(self.options.search, |rate| {
                    if self.is_over() {
                        return Err(Error::value("--budget-seconds", "time to try every rate", "none left"));
                    }
                    let mut job =
                        with_system_prompt(*system, lengths, rate, self.options.span.as_secs_f64(), tables::SEED);
                    job.requests.truncate(self.options.requests.unwrap_or(usize::MAX));
                    Ok(printed(&job, Some(rate))?.totals(settings.step_rows).normalised_latency)
                })?;
                print_json(&self.header(run).found(&found))
            }
        }
    }
}
