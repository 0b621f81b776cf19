//! `bench workloads`: runs whole jobs from a file through the engine on a model with random weights: prompts that share
//! levels of tokens, each with a number of continuations of known lengths. One JSON line per job. `run` runs a job
//! once, `floor` is the least time that it may take.

pub(super) mod floor;
pub(super) mod run;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use self::floor::{JobFloor, Limits};
use self::run::{JobRun, SampleLengths, run};
use super::floor::{FloorArgs, StepFloor};
use super::sampling::{Recorded, SamplingOptions};
use super::tables::{print_json, rounded};
use super::workload_file::{Generate, Workload, read_jobs};
use offshoot_args::words::{DTYPES, KV_DTYPES, PLANNERS, one_of};
use offshoot_args::{WeightArgs, mebibytes, whole};
use offshoot_backend::{Backend, Dtype, KvDtype, StateDtype};
use offshoot_core::error::{Error, Result};
use offshoot_engine::{AdapterLimits, EngineFacts, EngineHandle, Metrics};
use offshoot_kv::plan::Planner;
use offshoot_launch::{
    Demand, DeviceBackend, DeviceChoice, Devices, EngineBudget, EngineOptions, Launch, ModelSource, OnBackend,
    OnDevice, in_bytes,
};
use offshoot_model::{ModelConfig, WeightChoice};

// The options of `bench workloads`.
#[derive(Clone, Debug, Args)]
pub struct WorkloadOptions {
    /// Shape of the model: llama3-8b, codellama-7b, or one of the file's
    #[arg(long, value_name = "NAME")]
    pub shape: String,
    /// Workloads to run (default: all)
    #[arg(long = "workload", value_name = "NAME", value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Shapes and workloads, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    #[command(flatten)]
    pub weights: WeightArgs,
    /// Storage format of keys and values
    #[arg(long = "kv-dtype", value_parser = one_of(KV_DTYPES), default_value = "model", value_name = "DTYPE")]
    pub kv: KvDtype,
    /// How shared prefixes are attended to
    #[arg(long = "plan", value_parser = one_of(PLANNERS), default_value = "balanced")]
    pub planner: Planner,
    /// Leave out attention, to measure the upper bound for any attention
    #[arg(long)]
    pub without_attention: bool,
    /// Make samples depend only on their own tokens and random numbers, to the last bit
    #[arg(long)]
    pub deterministic: bool,
    /// Branches that run at once (default: all of the largest workload)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub max_branches: Option<usize>,
    /// Rows of a step: prompts fill the rows that decoding branches leave
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 4096)]
    pub step_rows: usize,
    /// Memory for keys and values in MiB (default: nine tenths of the free memory, as far as the job can use it)
    #[arg(long = "kv-memory", value_name = "MIB", value_parser = mebibytes)]
    pub pool_bytes: Option<usize>,
    /// Memory in MiB for copies of latents that are expanded to keys and values (default: an eighth of that for keys
    /// and values on a GPU)
    #[arg(long, value_name = "MIB", value_parser = whole::<usize>(0..))]
    pub latent_copies: Option<usize>,
    #[command(flatten)]
    pub sampling: SamplingOptions,
    #[command(flatten)]
    pub floor: FloorArgs,
}

/// Share of the free memory that keys and values may take.
const MEMORY: f64 = 0.9;

/// One job, measured.
#[derive(Debug, Serialize)]
struct MeasuredWorkload<'a> {
    engine: &'static str,
    shape: &'a str,
    workload: &'a str,
    seconds: f64,
    /// Time of the same job with one token per continuation: the smaller of two runs.
    prefill_s: f64,
    out_tokens: usize,
    tok_s: f64,
    /// Tokens per second without the time of the same job with one token; `None` if that is the whole job.
    decode_tok_s: Option<f64>,
    /// The least time; `None` on several devices and without attention.
    #[serde(skip_serializing_if = "Option::is_none")]
    floor: Option<JobFloor>,
    device: String,
    dtype: Dtype,
    #[serde(skip_serializing_if = "WeightChoice::is_as_stored")]
    weights: WeightChoice,
    kv_dtype: KvDtype,
    plan: Planner,
    deterministic: bool,
    #[serde(flatten)]
    sampling: &'a SamplingOptions,
    #[serde(skip_serializing_if = "Recorded::is_none")]
    records: Recorded,
    prompts: usize,
    samples: usize,
    generate: Generate,
    /// The tokens of each sample, of the first prompt's samples first, where they have numbers of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<Vec<usize>>,
    /// Bytes of keys and values held at the end, and what they would have been without sharing. Where samples have
    /// lengths of their own and give back what they held: the most that was held when one ended.
    kv_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_bytes_unshared: Option<u64>,
    steps: u64,
    steps_replanned: u64,
    mean_step_ms: f64,
    /// Per step: scheduling, planning and committing; submitting; waiting for the device.
    host_ms: f64,
    submit_ms: f64,
    wait_ms: f64,
    preemptions: u64,
    tokens_recomputed: u64,
    /// Prompt tokens of the measured run, all devices together.
    prompt_tokens_computed: u64,
    /// Copied from the device that had computed them to another one.
    #[serde(skip_serializing_if = "is_zero")]
    prompt_tokens_copied: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    over_one_device: Option<OverOneDevice>,
}

/// A job on several devices over the same job on one of them.
#[derive(Debug, Serialize)]
struct OverOneDevice {
    devices: usize,
    /// Tokens per second, times those of one device.
    speed: f64,
    /// Prompt tokens computed, times those of one device.
    prompt_tokens: f64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Measures the requested workloads, printing each result as soon as it is known; on several devices, on the first
/// alone, then on all.
pub fn main(devices: &Devices, options: &WorkloadOptions) -> Result<()> {
    let choices = devices.choices()?;
    if let Devices::Ranks(_) = devices {
        return measure_ranks(devices, options);
    }
    let [choice] = choices[..] else { return measure_replicas(&choices, options) };
    if options.deterministic && !options.without_attention {
        let limits = choice.open(None)?.with(FindLimits(options))?;
        return measure_engine(choice.into(), options, Some(&limits));
    }
    choice.open(None)?.with(options)
}

/// The model, and its jobs.
fn read(options: &WorkloadOptions) -> Result<(ModelConfig, Vec<Workload>)> {
    let (config, jobs) = read_jobs(options.file.as_deref(), &options.shape, &options.workloads)?;
    Ok((config.with(options.weights.into(), Path::new("the shape"))?, jobs))
}

/// Refuses what is asked of one device.
fn refuse_on_several(devices: &dyn Display, options: &WorkloadOptions) -> Result<()> {
    match options.without_attention {
        true => Err(Error::value("--without-attention", "one device", devices.to_string())),
        false => Ok(()),
    }
}

/// Measures every workload on devices that compute one model together.
fn measure_ranks(devices: &Devices, options: &WorkloadOptions) -> Result<()> {
    refuse_on_several(devices, options)?;
    measure_engine(devices.clone(), options, None)
}

/// Measures every workload on an engine as `run` has it.
fn measure_engine(devices: Devices, options: &WorkloadOptions, limits: Option<&Limits>) -> Result<()> {
    let (config, jobs) = read(options)?;
    let engine = launch(&config, &jobs, options, devices)?.start()?.engine;
    measure_jobs(&engine, &jobs, options, limits)
}

/// The limits of a device for the model of these options.
struct FindLimits<'a>(&'a WorkloadOptions);

impl OnDevice for FindLimits<'_> {
    type Output = Limits;

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<Limits> {
        let (config, _) = read(self.0)?;
        limits(&mut backend, &config, self.0)
    }
}

fn limits<B: DeviceBackend>(backend: &mut B, config: &ModelConfig, options: &WorkloadOptions) -> Result<Limits> {
    let (config, rates) = options.floor.of_model(backend, ModelSource::random(config, options.dtype))?;
    Ok(Limits { config, rates })
}

/// Measures every workload on the first of these devices, then on all of them.
fn measure_replicas(choices: &[DeviceChoice], options: &WorkloadOptions) -> Result<()> {
    refuse_on_several(&format_args!("{} of them", choices.len()), options)?;
    let (config, jobs) = read(options)?;
    // The first alone is what one device can do; on the CPU it has its share of the cores, as beside the others.
    let mut alone: Vec<OneDevice> = Vec::new();
    for devices in [&choices[..1], choices] {
        let launch = launch(&config, &jobs, options, Devices::Each(devices.to_vec()))?;
        let engine = match devices {
            [one] => {
                let opened = one.open_as_one_of(choices.len(), Some(launch.model))?;
                opened.with_engine(launch.is_exact(), StartOne(&launch))?
            }
            _ => launch.start()?.engine,
        };
        for (at, job, recorded) in runs(&jobs, options) {
            let measured = measure(&engine, job, (at, recorded), options, None);
            let mut measured = measured.map_err(|error| in_bytes(error, engine.facts()))?;
            match devices {
                [_] => alone.push(OneDevice { seconds: measured.seconds, tokens: measured.prompt_tokens_computed }),
                _ => measured.compare(&alone[at as usize], devices.len()),
            }
            print_json(&measured)?;
        }
    }
    Ok(())
}

/// A job on one of several devices.
struct OneDevice {
    seconds: f64,
    tokens: u64,
}

impl MeasuredWorkload<'_> {
    /// Compares the job on several devices with the same job on one of them.
    fn compare(&mut self, one: &OneDevice, devices: usize) {
        self.over_one_device = Some(OverOneDevice {
            devices,
            speed: rounded(one.seconds / self.seconds, 3),
            prompt_tokens: rounded(self.prompt_tokens_computed as f64 / one.tokens.max(1) as f64, 3),
        });
    }
}

/// Starts a launch's engine on an open device.
struct StartOne<'a>(&'a Launch<'a>);

impl OnBackend for StartOne<'_> {
    type Output = EngineHandle;

    fn run<B: Backend>(self, backend: B) -> Result<EngineHandle> {
        Ok(self.0.start_on(backend)?.engine)
    }
}

/// Measures every workload on one device, perhaps without attention.
impl OnDevice for &WorkloadOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let (config, jobs) = read(self)?;
        if self.without_attention && !backend.without_attention() {
            return Err(Error::value("--without-attention", "a device that can leave it out", backend.describe()));
        }
        let limits = match self.without_attention {
            true => None,
            false => Some(limits(&mut backend, &config, self)?),
        };
        let engine = launch(&config, &jobs, self, Devices::default())?.start_on(backend)?.engine;
        measure_jobs(&engine, &jobs, self, limits.as_ref())
    }
}

/// The jobs, each as often as it is measured: number, job, what is recorded.
fn runs<'a>(
    jobs: &'a [Workload],
    options: &'a WorkloadOptions,
) -> impl Iterator<Item = (u64, &'a Workload, Recorded)> + 'a {
    let each = jobs.iter().flat_map(|job| options.sampling.records.iter().map(move |&recorded| (job, recorded)));
    (0..).zip(each).map(|(number, (job, recorded))| (number, job, recorded))
}

/// Measures the jobs one after the other.
fn measure_jobs(
    engine: &EngineHandle,
    jobs: &[Workload],
    options: &WorkloadOptions,
    limits: Option<&Limits>,
) -> Result<()> {
    for (number, job, recorded) in runs(jobs, options) {
        let measured = measure(engine, job, (number, recorded), options, limits);
        print_json(&measured.map_err(|error| in_bytes(error, engine.facts()))?)?;
    }
    Ok(())
}

/// What an engine with room for the largest job is started from.
fn launch<'a>(
    config: &'a ModelConfig,
    jobs: &'a [Workload],
    options: &WorkloadOptions,
    devices: Devices,
) -> Result<Launch<'a>> {
    let longest = jobs.iter().map(|job| job.context()).max().unwrap_or(0);
    if longest > config.context {
        let (what, context) = ("a prompt with its continuation".to_owned(), config.context);
        return Err(Error::ContextTooLong { what, tokens: longest, context });
    }
    let branches = jobs.iter().map(Workload::continuations).max().unwrap_or(1);
    // Earlier jobs stay cached until the memory is needed.
    let tokens = move |_, page: usize| jobs.iter().map(|job| job.kv_tokens(page)).max().unwrap_or(0) + 64 * page;
    let budget = EngineBudget {
        gpu_memory: None,
        max_branches: Some(options.max_branches.unwrap_or(branches)),
        context: None,
        step_rows: Some(options.step_rows),
        pool_bytes: options.pool_bytes,
        memory: Some(MEMORY),
        latent_copies: options.latent_copies.map(|mib| mib << 20),
        swap_bytes: Some(0),
        deterministic: options.deterministic,
        keeps_routes: false,
        adapters: AdapterLimits::NONE,
        kv: options.kv,
        states: StateDtype::default(),
        weights: options.weights.into(),
    };
    let engine = EngineOptions { devices, budget, plan: Some(options.planner), ..EngineOptions::default() };
    Ok(engine.launch(ModelSource::random(config, options.dtype), None, Demand::new(usize::MAX, tokens)))
}

fn measure<'a>(
    engine: &EngineHandle,
    job: &'a Workload,
    (number, records): (u64, Recorded),
    options: &'a WorkloadOptions,
    limits: Option<&Limits>,
) -> Result<MeasuredWorkload<'a>> {
    let salt = 4 * number;
    let params = options.sampling.params(engine.facts().vocab, records)?;
    let lengths = SampleLengths::of(job);
    let run = |lengths: &SampleLengths, salt| run(engine, job, &params, lengths, salt);
    run(&lengths.of_warm_up(), salt)?;
    // The smaller of two, because the decode time is a difference: a delay of a tenth here would change the decode time
    // by a third.
    let once = run(&SampleLengths::Each(1), salt + 1)?;
    let again = run(&SampleLengths::Each(1), salt + 2)?;
    let (prefill_s, before) = (once.seconds.min(again.seconds), again.metrics);
    let JobRun { seconds, metrics: after, kv_bytes } = run(&lengths, salt + 3)?;
    let out_tokens = lengths.total(job.continuations());
    let floor = limits.map(|Limits { config, rates }| {
        let EngineFacts { kv_bytes_per_token, state_bytes, .. } = *engine.facts();
        let steps = StepFloor::new(config, options.dtype, (kv_bytes_per_token, state_bytes), *rates);
        JobFloor::of(job, &lengths, &steps, options.step_rows, *rates)
    });
    let steps = after.steps - before.steps;
    let a_step = |seconds: fn(&Metrics) -> f64| rounded(1e3 * (seconds(&after) - seconds(&before)) / steps as f64, 3);
    Ok(MeasuredWorkload {
        engine: if options.without_attention { "offshoot without attention" } else { "offshoot" },
        shape: &options.shape,
        workload: &job.name,
        seconds: rounded(seconds, 3),
        prefill_s: rounded(prefill_s, 6),
        out_tokens,
        tok_s: rounded(out_tokens as f64 / seconds, 0),
        decode_tok_s: (job.generate.most() > 1).then(|| rounded(out_tokens as f64 / (seconds - prefill_s), 0)),
        floor,
        device: engine.facts().device.clone(),
        dtype: options.dtype,
        weights: options.weights.into(),
        kv_dtype: options.kv,
        plan: options.planner,
        deterministic: options.deterministic,
        sampling: &options.sampling,
        records,
        prompts: job.prompts(),
        samples: job.samples,
        generate: job.generate,
        kv_bytes,
        kv_bytes_unshared: match lengths {
            SampleLengths::Each(_) => Some(unshared_bytes(engine.facts(), job)),
            SampleLengths::Own(_) => None,
        },
        lengths: match &lengths {
            SampleLengths::Each(_) => None,
            SampleLengths::Own(lengths) => Some(lengths.clone()),
        },
        steps,
        steps_replanned: after.steps_replanned - before.steps_replanned,
        mean_step_ms: rounded(1e3 * seconds * engine.facts().replicas as f64 / steps as f64, 3),
        host_ms: a_step(|m| m.seconds_scheduling + m.seconds_planning + m.seconds_committing),
        submit_ms: a_step(|m| m.seconds_forward),
        wait_ms: a_step(|m| m.seconds_waiting),
        preemptions: after.preemptions - before.preemptions,
        tokens_recomputed: after.tokens_recomputed - before.tokens_recomputed,
        prompt_tokens_computed: after.prompt_tokens_computed - before.prompt_tokens_computed,
        prompt_tokens_copied: after.prompt_tokens_copied - before.prompt_tokens_copied,
        over_one_device: None,
    })
}

/// Bytes that the branches of a job, all as long as the longest, would hold at the end without sharing, with none freed
/// behind a window.
fn unshared_bytes(facts: &EngineFacts, job: &Workload) -> u64 {
    let pages = facts.page_groups.count() * job.context().div_ceil(facts.page_tokens);
    (job.continuations() * pages * facts.page_bytes) as u64
}
