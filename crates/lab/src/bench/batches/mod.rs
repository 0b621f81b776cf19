//! `bench batches`: runs the jobs of the papers that Offshoot is compared with through the engine and its scheduler, on
//! a model with random weights: on this machine's device by the wall clock, or on a simulated device. Prints one JSON
//! line per run, as soon as it is done. `tables` defines the runs, `line` the output.

mod line;
mod tables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use self::line::BatchesLine;
pub use self::tables::Table;
use self::tables::{BatchRun, Measurement};
use super::tables::print_json;
use super::workload_file::read_shape;
use offshoot_args::words::{DTYPES, KV_DTYPES, one_of};
use offshoot_args::{arrivals, seconds, whole};
use offshoot_backend::{Backend, Dtype, KvDtype, KvShape, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::out;
use offshoot_estimate::replay::{
    JobRecord, LoadedModel, RateSearch, ReplayJob, ReplaySettings, SimulatedMachine, WallClock, replay,
    sustainable_rate, warm_up, with_system_prompt,
};
use offshoot_launch::{DeviceBackend, DeviceChoice, OnDevice};
use offshoot_model::ModelConfig;
use offshoot_sim::{DeviceProfile, Sim};

// The options of `bench batches`.
#[derive(Clone, Debug, Args)]
pub struct BatchesOptions {
    /// Shape of the model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Tables to run, one after another
    #[arg(long = "table", value_enum, value_name = "NAME", value_delimiter = ',', required = true)]
    pub tables: Vec<Table>,
    /// Only jobs with names that start with one of these (default: all jobs of the tables)
    #[arg(long = "job", value_name = "NAME", value_delimiter = ',')]
    pub jobs: Vec<String>,
    /// Only these variants of a job: fcfs, batchllm, ours, ours-by-arrival, ours-256-branches, ours-unshared,
    /// ours-flat-plan (default: all that the table compares)
    #[arg(long = "way", value_name = "NAME", value_delimiter = ',')]
    pub ways: Vec<String>,
    /// Maximum number of requests per job (default: as in the table)
    #[arg(long, value_name = "N", value_parser = whole::<u32>(1..=1 << 20))]
    pub requests: Option<u32>,
    /// Tables chunk and rate: requests per second; several values run one after another (default: 1 and 4; table rate:
    /// a search for the highest sustainable rate)
    #[arg(long = "rate", value_name = "R", value_delimiter = ',', value_parser = arrivals)]
    pub rates: Vec<f64>,
    /// Tables chunk and rate: seconds in which requests arrive; an average in the table chunk, where the number of
    /// requests is this times the rate (default: 120)
    #[arg(long, value_name = "S", value_parser = span)]
    pub span: Option<Duration>,
    /// Table rate: requests per second at which the search starts (default: 8)
    #[arg(long, value_name = "R", value_parser = arrivals, conflicts_with = "rates")]
    pub first_rate: Option<f64>,
    /// Table rate: stop when the lowest rate that fails is at most this many times the highest one that is sustained
    /// (default: 1.04)
    #[arg(long, value_name = "TIMES", value_parser = above_one, conflicts_with = "rates")]
    pub precision: Option<f64>,
    /// Tables relay and rate: file with lengths of prompt and answer, `N,M` per line (.csv)
    #[arg(long, value_name = "FILE")]
    pub lengths: Option<PathBuf>,
    /// Table mmlu: file with lengths of prompts (.json)
    #[arg(long, value_name = "FILE")]
    pub questions: Option<PathBuf>,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    /// Storage format of keys and values
    #[arg(long = "kv-dtype", value_parser = one_of(KV_DTYPES), default_value = "model", value_name = "DTYPE")]
    pub kv: KvDtype,
    /// Rows of a step: prompts fill the rows that decoding branches leave
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 2048)]
    pub step_rows: usize,
    /// Size of the KV cache in tokens (default: nine tenths of the free memory, as far as the job can use it)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub kv_tokens: Option<usize>,
    /// Compute nothing: estimate the runs on this device (h200, cpu, or a file with a device's figures)
    #[arg(long, value_name = "NAME_OR_JSON")]
    pub simulated: Option<String>,
}

/// A duration above 0, at most an hour.
fn span(text: &str) -> Result<Duration> {
    const MOST: Duration = Duration::from_secs(3600);
    let fits = |span: &Duration| !span.is_zero() && *span <= MOST;
    let expected = || format!("a number of seconds above 0, at most {}", MOST.as_secs());
    seconds(text).ok().filter(fits).ok_or_else(|| Error::value("time", expected(), text))
}

fn above_one(text: &str) -> Result<f64> {
    const LEAST: f64 = 1.001;
    let times = text.parse().ok().filter(|times: &f64| times.is_finite() && *times >= LEAST);
    times.ok_or_else(|| Error::value("number", format!("a number from {LEAST} up"), text))
}

/// Default of `--span`.
const SPAN: Duration = Duration::from_secs(120);

impl BatchesOptions {
    /// Duration in which requests arrive, for tables with arrivals over time.
    fn span(&self) -> Duration {
        self.span.unwrap_or(SPAN)
    }

    /// Most requests of a job.
    fn most_requests(&self) -> usize {
        self.requests.map_or(usize::MAX, |requests| requests as usize)
    }

    fn search(&self) -> RateSearch {
        let usual = RateSearch::default();
        RateSearch {
            first: self.first_rate.unwrap_or(usual.first),
            precision: self.precision.unwrap_or(usual.precision),
            ..usual
        }
    }

    /// # Errors
    ///
    /// An option was given that no selected table uses.
    pub fn refuse_ignored_options(&self) -> Result<()> {
        const ARRIVING: &[Table] = &[Table::Chunk, Table::Rate];
        const SEARCHED: &[Table] = &[Table::Rate];
        let options = [
            ("--rate", !self.rates.is_empty(), ARRIVING),
            ("--span", self.span.is_some(), ARRIVING),
            ("--first-rate", self.first_rate.is_some(), SEARCHED),
            ("--precision", self.precision.is_some(), SEARCHED),
            ("--lengths", self.lengths.is_some(), &[Table::Relay, Table::Rate]),
            ("--questions", self.questions.is_some(), &[Table::Mmlu]),
        ];
        let is_unused = |tables: &[Table]| !tables.iter().any(|table| self.tables.contains(table));
        let unused = options.into_iter().find(|&(_, is_given, tables)| is_given && is_unused(tables));
        let Some((option, _, tables)) = unused else { return Ok(()) };
        let of: Vec<String> = tables.iter().map(Table::to_string).collect();
        let found: Vec<String> = self.tables.iter().map(Table::to_string).collect();
        Err(Error::value(option, format!("a table that uses it ({})", of.join(" or ")), found.join(", ")))
    }
}

/// Runs the tables on this machine's device, by the wall clock.
pub fn measured(device: DeviceChoice, options: &BatchesOptions) -> Result<()> {
    device.open(None)?.with(MeasureBatches(options))
}

struct MeasureBatches<'a>(&'a BatchesOptions);

impl OnDevice for MeasureBatches<'_> {
    type Output = ();

    fn run<B: DeviceBackend>(self, backend: B) -> Result<()> {
        measure_on(backend, self.0)
    }
}

fn measure_on<B: Backend>(mut backend: B, options: &BatchesOptions) -> Result<()> {
    let (model, runs) = (read_shape(options.file.as_deref(), &options.shape)?, tables::runs(options)?);
    let device = backend.describe();
    let session = Session::new(options, pool_bytes(&mut backend, options, &model), device);
    let mut loaded = LoadedModel::random(backend, model, options.dtype, options.kv, StateDtype::default())?;
    let most = runs.iter().map(|run| run.measurement.most_samples()).max().unwrap_or(1);
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
    let machine =
        SimulatedMachine { model, dtype: options.dtype, kv: options.kv, states: StateDtype::default(), profile };
    session.all(&runs, |settings, job| replay(&machine, settings, job))
}

/// Bytes of the pool, rounded up to whole pages, if its size in tokens is given.
fn pool_bytes<B: Backend>(backend: &mut B, options: &BatchesOptions, model: &ModelConfig) -> Option<usize> {
    options.kv.set_on(backend, model.heads(), options.dtype);
    let layer_pages = model.layer_pages();
    let (places, groups) = (layer_pages.places.clone(), layer_pages.groups(backend.page_tokens()).count());
    let shape = KvShape { places, ..KvShape::one_group(model.stored_heads().collect(), options.dtype, 1) };
    let pages = groups * backend.page_bytes(&shape);
    options.kv_tokens.map(|tokens| tokens.div_ceil(backend.page_tokens() as usize).saturating_mul(pages))
}

struct Session<'a> {
    options: &'a BatchesOptions,
    /// Settings except policy and planner, which depend on the run.
    settings: ReplaySettings,
    device: String,
}

impl<'a> Session<'a> {
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
