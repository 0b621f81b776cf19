//! `bench decode`: tokens per second of N samples of one prompt, compared with the physical lower bound for the same
//! shape at the machine's rates, measured in the same run. Uses the engine as a run does; sampling is greedy and
//! ignores end-of-text, so that every case does the same work.

use std::path::PathBuf;
use std::time::Instant;

use serde::Serialize;

use crate::backend::{Dtype, KvDtype, Rates, WeightFormat};
use crate::engine::{EngineFacts, EngineHandle, ForkKind, Hear, Metrics, Priority, SamplingParams, Stop, UniformKey};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::launch::{
    Demand, DeviceBackend, DeviceChoice, EngineBudget, Generation, Generator, Launch, ModelSource, OnDevice,
    PromptRequest, Release, in_bytes,
};
use crate::model::check::facts;
use crate::model::{ModelConfig, ModelFolder, WeightChoice};
use crate::out;
use crate::plan::Planner;

use super::tables::print_json;

/// The options of `bench decode`.
#[derive(Clone, Debug)]
pub struct DecodeOptions {
    /// Model folder, or a config.json for random weights.
    pub config: PathBuf,
    pub random_weights: bool,
    /// Dtype of random weights; `None`: the config's, else f32.
    pub dtype: Option<Dtype>,
    pub prompt: usize,
    pub samples: Vec<usize>,
    pub generate: usize,
    pub plans: Vec<Planner>,
    /// Runs of each case.
    pub repeat: usize,
    pub json: bool,
    pub device: DeviceChoice,
    pub budget: EngineBudget,
}

/// One case, measured.
#[derive(Debug, Serialize)]
struct MeasuredDecode {
    config: String,
    dtype: Dtype,
    kv_dtype: KvDtype,
    weights: WeightChoice,
    device: String,
    plan: Planner,
    #[serde(flatten)]
    case: DecodeCase,
    runs: Vec<DecodeRun>,
    /// Medians, tokens per second.
    prompt_rate: f64,
    decode_rate: f64,
    /// Median of [`DecodeRun::idle`].
    idle: Option<f64>,
    /// Tokens per second that the rates measured in this run allow; see [`floor_rate`].
    floor_rate: f64,
    machine: Rates,
    engine: Metrics,
}

/// Most samples of a prompt: more than any step holds.
const MOST_SAMPLES: usize = 1 << 20;

/// Measures every plan x samples, prints a table or JSON lines.
pub fn main(options: &DecodeOptions) -> Result<()> {
    if options.repeat == 0 {
        return Err(Error::value("--repeat", "a number from 1 up", "0"));
    }
    if let Some(dtype) = options.dtype.filter(|_| !options.random_weights) {
        let found = format!("{dtype:?} for a folder's weights").to_lowercase();
        return Err(Error::value(
            "--dtype",
            "--random-weights with it (a folder's weights have their own dtype)",
            found,
        ));
    }
    options.budget.check()?;
    let model = BenchModel::of(options)?;
    check_cases(options, model.config.context)?;
    let (device, machine, held) = options.device.open(Some(model.source()))?.with(Rated(model.source()))?;
    if !options.json {
        out::line(format_args!("{device}: {machine}"))?;
        out::line(format_args!(
            "{:<9} {:>7} {:>8} {:>12} {:>12} {:>12} {:>7} {:>7}",
            "plan", "prompt", "samples", "prompt tok/s", "decode tok/s", "floor tok/s", "share", "idle"
        ))?;
    }
    for &plan in &options.plans {
        for &samples in &options.samples {
            let case = DecodeCase { prompt: options.prompt, samples, generate: options.generate };
            let measured = measure(&model, &held, options, plan, case, machine)?;
            match options.json {
                true => print_json(&measured)?,
                false => out::line(&measured)?,
            }
        }
    }
    Ok(())
}

/// Checks the options before anything is measured.
fn check_cases(options: &DecodeOptions, context: usize) -> Result<()> {
    let DecodeOptions { prompt, generate, .. } = *options;
    for (what, count) in [("--prompt", prompt), ("--generate", generate)] {
        if count == 0 {
            return Err(Error::value(what, "a number from 1 up", "0"));
        }
    }
    if let Some(samples) = options.samples.iter().find(|samples| !(1..=MOST_SAMPLES).contains(*samples)) {
        return Err(Error::value("--samples", format!("numbers from 1 to {MOST_SAMPLES}"), samples.to_string()));
    }
    let tokens = prompt.saturating_add(generate);
    if tokens > context {
        let what = format!("a prompt of {prompt} and {generate} generated tokens");
        return Err(Error::ContextTooLong { what, tokens, context });
    }
    Ok(())
}

/// Returns a device's name, its peak rates for weights of a model's dtype, and the model as it holds it.
struct Rated<'a>(ModelSource<'a>);

impl OnDevice for Rated<'_> {
    type Output = (String, Rates, ModelConfig);

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<(String, Rates, ModelConfig)> {
        let held = self.0.held_by(&backend);
        let quantised = held.quantisation.as_ref().and_then(|how| how.formats().next());
        let weights = quantised.map_or(WeightFormat::Dense(self.0.dtype), WeightFormat::Quantised);
        Ok((backend.describe(), backend.rates(self.0.dtype, weights)?, held))
    }
}

/// `held`: the model as the device holds it.
fn measure(
    model: &BenchModel,
    held: &ModelConfig,
    options: &DecodeOptions,
    plan: Planner,
    case: DecodeCase,
    machine: Rates,
) -> Result<MeasuredDecode> {
    let dtype = &model.dtype;
    let tokens = |_, page_tokens: usize| case.prompt + (case.samples + 2) * (case.generate + 2 * page_tokens);
    let launch = Launch {
        prefix_store: None,
        model: model.source(),
        tokenizer: None,
        devices: options.device.into(),
        budget: options.budget,
        planner: plan,
        demand: Demand::new(usize::MAX, tokens),
    };
    let engine = launch.start()?.engine;
    let runs = (0..options.repeat).map(|salt| case.run(&engine, salt as u64)).collect::<Result<Vec<_>>>();
    let runs = runs.map_err(|error| in_bytes(error, engine.facts()))?;
    Ok(MeasuredDecode {
        config: options.config.display().to_string(),
        dtype: *dtype,
        kv_dtype: options.budget.kv,
        weights: options.budget.weights,
        device: engine.facts().device.clone(),
        plan,
        case,
        prompt_rate: median(runs.iter().map(|run| case.prompt_rate(run))),
        decode_rate: median(runs.iter().map(|run| case.decode_rate(run))),
        idle: runs.iter().map(|run| run.idle).collect::<Option<Vec<_>>>().map(|idle| median(idle.into_iter())),
        floor_rate: floor_rate(held, *dtype, engine.facts(), case, &machine),
        runs,
        machine,
        engine: engine.metrics()?,
    })
}

/// The model to measure on.
struct BenchModel {
    config: ModelConfig,
    dtype: Dtype,
    /// `None`: random weights.
    folder: Option<ModelFolder>,
}

impl BenchModel {
    fn of(options: &DecodeOptions) -> Result<Self> {
        if !options.random_weights {
            let folder = ModelFolder::open(&options.config)?.with(options.budget.weights)?;
            let (config, dtype) = (folder.config.clone(), facts(&folder)?.dtype);
            return Ok(Self { config, dtype, folder: Some(folder) });
        }
        let file = if options.config.is_dir() { options.config.join("config.json") } else { options.config.clone() };
        let config = ModelConfig::from_file(&file)?.with(options.budget.weights, &file)?;
        let dtype = options.dtype.or(config.dtype).unwrap_or(Dtype::F32);
        Ok(Self { config, dtype, folder: None })
    }

    fn source(&self) -> ModelSource<'_> {
        match &self.folder {
            Some(folder) => ModelSource::folder_of(folder, self.dtype),
            None => ModelSource::random(&self.config, self.dtype),
        }
    }
}

/// Upper bound of tokens per second on this machine, for any plan. A step reads the weights once, those of the experts
/// that its rows need among them, and multiplies each row by those it uses; it reads the shared and the own keys and
/// values once and multiplies each row by those it sees. Each part takes the longer of its reads and its products, which
/// are counted at the rate of the dtype's, whatever the weights' format. The context is that of the middle of the
/// generation.
pub fn floor_rate(config: &ModelConfig, dtype: Dtype, facts: &EngineFacts, case: DecodeCase, machine: &Rates) -> f64 {
    let Rates { flops_per_s: flops, bytes_per_s: bandwidth } = *machine;
    let rows = case.samples as f64;
    let embeddings = if config.tied_embeddings { 0 } else { config.vocab * config.hidden };
    let inputs = config.per_layer_inputs.map_or(0, |inputs| inputs.vocab * inputs.width * config.layers.len());
    let multiplied = (config.active_parameters() - embeddings - inputs) as f64;
    let read = config.weight_bytes_read(case.samples, dtype) - (embeddings + inputs) * dtype.bytes();
    let linear = (2.0 * multiplied * rows / flops).max(read as f64 / bandwidth);
    let own = case.generate as f64 / 2.0;
    let context = case.prompt as f64 + own;
    let products = 4.0 * config.heads().map(|heads| heads.q_width()).sum::<usize>() as f64 * context * rows / flops;
    let reads = (case.prompt as f64 + rows * own) * facts.kv_bytes_per_token as f64 / bandwidth;
    // Each branch's state is read and written once.
    let states = 2.0 * rows * facts.state_bytes as f64 / bandwidth;
    rows / (linear + products.max(reads) + states)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

impl std::fmt::Display for MeasuredDecode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DecodeCase { prompt, samples, .. } = self.case;
        let share = 100.0 * self.decode_rate / self.floor_rate;
        let plan = self.plan;
        let idle = self.idle.map_or("-".to_string(), |idle| format!("{:.1} %", 100.0 * idle));
        write!(
            f,
            "{plan:<9} {prompt:>7} {samples:>8} {:>12.0} {:>12.0} {:>12.0} {share:>5.0} % {idle:>7}",
            self.prompt_rate, self.decode_rate, self.floor_rate
        )
    }
}

/// One shape to measure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DecodeCase {
    pub prompt: usize,
    pub samples: usize,
    pub generate: usize,
}

/// Seconds of one run of a case.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DecodeRun {
    /// From the prompt's arrival to its first token.
    pub prompt_seconds: f64,
    /// From the fork to the last token of the last sample.
    pub decode_seconds: f64,
    /// Share of the decode's steps in which the CPU's threads had no work, in the mean of all threads; `None` on other
    /// devices.
    pub idle: Option<f64>,
}

impl DecodeCase {
    pub fn prompt_rate(&self, run: &DecodeRun) -> f64 {
        self.prompt as f64 / run.prompt_seconds
    }

    pub fn decode_rate(&self, run: &DecodeRun) -> f64 {
        (self.samples * self.generate) as f64 / run.decode_seconds
    }

    /// Samples `generate` tokens from each of `samples` forks of a prompt. `salt` makes prompts differ, so that none is
    /// found in the cache.
    pub fn run(&self, engine: &EngineHandle, salt: u64) -> Result<DecodeRun> {
        let prompt = self.prompt_tokens(engine.facts().vocab, salt);
        let params = SamplingParams::greedy();
        let [one, all] = [1, self.generate].map(|tokens| Stop { ignore_eos: true, ..Stop::max_tokens(tokens) });
        let begin = |n, stop, release| {
            let (tokens, params, uniforms) = (prompt.as_slice(), &params, UniformKey::root(0, "bench"));
            let priority = Priority::default();
            let request = PromptRequest { tokens, n, prompt_logprobs: None, params, stop, uniforms, priority };
            Generation::new(vec![request], Generator::new(engine.clone(), Hear::Finishes, release))
        };
        let mut once = begin(1, &one, Release::EachSample);
        let started = Instant::now();
        once.count_tokens()?;
        let prompt_seconds = started.elapsed().as_secs_f64();

        let before = engine.metrics()?;
        let mut samples = begin(self.samples, &all, Release::AtEnd);
        let started = Instant::now();
        let drawn = samples.count_tokens()?;
        let decode_seconds = started.elapsed().as_secs_f64();
        let after = engine.metrics()?;
        let idle = after
            .seconds_idle
            .map(|idle| (idle - before.seconds_idle.unwrap_or(0.0)) / (after.seconds_forward - before.seconds_forward));
        if drawn != self.samples * self.generate {
            let expected = self.samples * self.generate;
            return Err(Error::Internal(format!("{drawn} tokens were sampled instead of {expected}")));
        }
        Ok(DecodeRun { prompt_seconds, decode_seconds, idle })
    }

    fn prompt_tokens(&self, vocab: usize, salt: u64) -> Vec<TokenId> {
        let key = UniformKey::root(salt, "bench").child(ForkKind::Sample, 0);
        (0..self.prompt as u32).map(|position| TokenId::new((key.uniform(position) * vocab as f64) as usize)).collect()
    }
}
