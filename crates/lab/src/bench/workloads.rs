//! `bench workloads`: runs whole jobs from a file through the engine on a model with random weights: prompts that share
//! levels of tokens, with a fixed number of continuations of fixed length. One JSON line per job.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;

use super::sampling::{Recorded, SamplingOptions};
use super::tables::{print_json, rounded};
use super::workload_file::{Workload, read_jobs};
use offshoot_args::words::{DTYPES, KV_DTYPES, PLANNERS, one_of};
use offshoot_args::{WeightArgs, mebibytes, whole};
use offshoot_backend::{Backend, Dtype, KvDtype, StateDtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::{
    AdapterLimits, EngineFacts, EngineHandle, Hear, Metrics, Priority, SamplingParams, Stop, UniformKey,
};
use offshoot_kv::plan::Planner;
use offshoot_launch::{
    Demand, DeviceBackend, DeviceChoice, Devices, EngineBudget, EngineOptions, Generation, Generator, Launch,
    ModelSource, OnBackend, OnDevice, PromptRequest, Release, in_bytes,
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
    #[command(flatten)]
    pub sampling: SamplingOptions,
}

/// Share of the free memory that keys and values may take.
const MEMORY: f64 = 0.9;

/// Tokens per continuation of the warm-up run: enough for every shape of step to occur and be cached.
const WARM_UP: usize = 4;

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
    generate: usize,
    /// Bytes of keys and values held at the end, and what they would have been without sharing.
    kv_bytes: u64,
    kv_bytes_unshared: u64,
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
        return measure_engine(choice.into(), options);
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
    measure_engine(devices.clone(), options)
}

/// Measures every workload on an engine as `run` has it.
fn measure_engine(devices: Devices, options: &WorkloadOptions) -> Result<()> {
    let (config, jobs) = read(options)?;
    let engine = launch(&config, &jobs, options, devices)?.start()?.engine;
    measure_jobs(&engine, &jobs, options)
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
            let measured = measure(&engine, job, (at, recorded), options);
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
        let engine = launch(&config, &jobs, self, Devices::default())?.start_on(backend)?.engine;
        measure_jobs(&engine, &jobs, self)
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
fn measure_jobs(engine: &EngineHandle, jobs: &[Workload], options: &WorkloadOptions) -> Result<()> {
    for (number, job, recorded) in runs(jobs, options) {
        let measured = measure(engine, job, (number, recorded), options);
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
        swap_bytes: Some(0),
        deterministic: options.deterministic,
        keeps_routes: false,
        adapters: AdapterLimits::NONE,
        kv: options.kv,
        states: StateDtype::default(),
        weights: options.weights.into(),
    };
    let engine = EngineOptions { devices, budget, plan: Some(options.planner), prefix_store: None };
    Ok(engine.launch(ModelSource::random(config, options.dtype), None, Demand::new(usize::MAX, tokens)))
}

fn measure<'a>(
    engine: &EngineHandle,
    job: &'a Workload,
    (number, records): (u64, Recorded),
    options: &'a WorkloadOptions,
) -> Result<MeasuredWorkload<'a>> {
    let salt = 4 * number;
    let params = options.sampling.params(engine.facts().vocab, records)?;
    let run = |generate, salt| run(engine, job, &params, generate, salt);
    run(job.generate.min(WARM_UP), salt)?;
    // The smaller of two, because the decode time is a difference: a delay of a tenth here would change the decode time
    // by a third.
    let (once, _) = run(1, salt + 1)?;
    let (again, before) = run(1, salt + 2)?;
    let prefill_s = once.min(again);
    let (seconds, after) = run(job.generate, salt + 3)?;
    let out_tokens = job.continuations() * job.generate;
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
        decode_tok_s: (job.generate > 1).then(|| rounded(out_tokens as f64 / (seconds - prefill_s), 0)),
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
        kv_bytes: after.kv_bytes_held,
        kv_bytes_unshared: unshared_bytes(engine.facts(), job),
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

/// Bytes that the branches of a job would hold at the end without sharing, with none freed behind a window.
fn unshared_bytes(facts: &EngineFacts, job: &Workload) -> u64 {
    let pages = facts.page_groups.count() * job.context().div_ceil(facts.page_tokens);
    (job.continuations() * pages * facts.page_bytes) as u64
}

/// Runs a job with new prompts; returns seconds from its first command to its last token, and the counters then.
fn run(
    engine: &EngineHandle,
    job: &Workload,
    params: &SamplingParams,
    generate: usize,
    salt: u64,
) -> Result<(f64, Metrics)> {
    let prompts = job.texts(engine.facts().vocab, salt);
    let stop = Stop { ignore_eos: true, ..Stop::max_tokens(generate) };
    let requests = (0u64..).zip(&prompts).map(|(item, tokens)| {
        let uniforms = UniformKey::root(salt, &item.to_string());
        let (n, priority) = (job.samples, Priority::default());
        PromptRequest { tokens, n, prompt_logprobs: None, params, stop: &stop, uniforms, priority }
    });
    let mut generation =
        Generation::new(requests.collect(), Generator::new(engine.clone(), Hear::Finishes, Release::AtEnd));
    let begun = Instant::now();
    let drawn = generation.count_tokens()?;
    let seconds = begun.elapsed().as_secs_f64();
    let expected = job.continuations() * generate;
    if drawn != expected {
        return Err(Error::Internal(format!("{drawn} tokens were sampled instead of {expected}")));
    }
    // Read before the generation releases the job's memory.
    let metrics = engine.metrics()?;
    Ok((seconds, metrics))
}

impl Workload {
    /// The prompts: every node of a level has its own tokens. Different salts give different prompts from the first
    /// token on.
    fn texts(&self, vocab: usize, salt: u64) -> Vec<Vec<TokenId>> {
        let mut texts = vec![Vec::new()];
        for (level, &(tokens, branching)) in (0u64..).zip(&self.levels) {
            let mut longer = Vec::with_capacity(texts.len() * branching);
            for text in &texts {
                for _ in 0..branching {
                    let seed = salt << 40 | level << 32 | longer.len() as u64;
                    longer.push([text.as_slice(), &Dice::new(seed).text(tokens, vocab)].concat());
                }
            }
            texts = longer;
        }
        texts
    }
}
