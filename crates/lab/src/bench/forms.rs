//! `bench forms`: tokens per second of N samples of one prompt that must be JSON of a schema, or each of one of several
//! schemas, beside the same samples without a form. No text can end within its tokens, so every run samples as many.
//! Runs without a form and with some take turns, as machines change their clocks; each is compared with the last run
//! without one. One JSON line per run.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::floor::{FloorArgs, StepFloor};
use super::tables::{print_json, rounded};
use super::workload_file::{Generate, Workload, read_shape};
use super::workloads::floor::JobFloor;
use super::workloads::run::{SampleLengths, exactly};
use offshoot_args::whole;
use offshoot_args::words::{DTYPES, one_of};
use offshoot_backend::{Dtype, KvDtype, Rates, StateDtype};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_engine::{
    AdapterLimits, EngineFacts, EngineHandle, Event, Extend, FinishReason, ForkKind, Hear, Metrics, SamplingParams,
    UniformKey,
};
use offshoot_form::{Form, SampleForm};
use offshoot_launch::{Demand, DeviceBackend, EngineBudget, EngineOptions, ModelSource, OnDevice, in_bytes};
use offshoot_model::{ModelConfig, ModelFolder, WeightChoice};
use offshoot_text::Tokenizer;

/// Tokens of the samples before the measured runs: shapes of steps occur and are cached.
const WARM_UP: usize = 24;
const TEMPERATURE: f32 = 0.8;
/// Share of the free memory that keys and values may take.
const MEMORY: f64 = 0.9;
/// Records that a text of a schema has at least: more than any run samples.
const RECORDS: usize = 512;

// The options of `bench forms`.
#[derive(Clone, Debug, Args)]
pub struct FormOptions {
    /// Shape of a model with random weights: llama3-8b, llama3-1b, or one of the file's
    #[arg(long, value_name = "NAME", requires = "tokenizer", required_unless_present = "model")]
    pub shape: Option<String>,
    /// Folder of the shape's tokenizer
    #[arg(long, value_name = "DIR", requires = "shape")]
    pub tokenizer: Option<PathBuf>,
    /// Model folder, instead of a shape
    #[arg(long, value_name = "DIR", conflicts_with = "shape")]
    pub model: Option<PathBuf>,
    /// Shapes, instead of the built-in ones
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Dtype of the random weights
    #[arg(long, value_parser = one_of(DTYPES), default_value = "bf16")]
    pub dtype: Dtype,
    /// Samples of the prompt
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..), default_value_t = 1024)]
    pub samples: usize,
    /// Tokens of each sample
    #[arg(long, value_name = "G", value_parser = whole::<usize>(1..), default_value_t = 128)]
    pub generate: usize,
    /// Tokens of the prompt
    #[arg(long, value_name = "P", value_parser = whole::<usize>(1..), default_value_t = 64)]
    pub prompt: usize,
    /// Runs: into how many schemas the samples are divided; 0: no form
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0,1,64,0,1,64")]
    pub schemas: Vec<usize>,
    /// Rows of a step (default: the device's)
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1..))]
    pub step_rows: Option<usize>,
    #[command(flatten)]
    pub floor: FloorArgs,
}

/// One run, measured.
#[derive(Debug, Serialize)]
struct MeasuredForms<'a> {
    model: &'a str,
    device: String,
    dtype: Dtype,
    samples: usize,
    prompt: usize,
    generate: usize,
    /// 0: without a form.
    schemas: usize,
    /// Compiling of schemas that no run before had.
    compile_s: f64,
    seconds: f64,
    out_tokens: usize,
    tok_s: f64,
    /// Tokens per second, of those of the last run without a form.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_free: Option<f64>,
    /// Samples that ended before they had all tokens.
    ended_early: usize,
    steps: u64,
    steps_replanned: u64,
    mean_step_ms: f64,
    /// Per step: scheduling, planning and committing; submitting; waiting for the device; for masks.
    host_ms: f64,
    submit_ms: f64,
    wait_ms: f64,
    masking_ms: f64,
    /// Share of the CPU's threads that had no work while ops ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<f64>,
    masks_requested: u64,
    masks_computed: u64,
    masks_shared: u64,
    matchers_replayed: u64,
    tokens_forced: u64,
    floor: &'a JobFloor,
}

/// The model of a bench: random weights of a shape, or a folder's.
enum FormModel {
    Shape(ModelConfig, Dtype),
    Folder(ModelFolder),
}

impl FormModel {
    fn source(&self) -> Result<ModelSource<'_>> {
        match self {
            FormModel::Shape(config, dtype) => Ok(ModelSource::random(config, *dtype)),
            FormModel::Folder(folder) => ModelSource::folder(folder),
        }
    }

    fn config(&self) -> &ModelConfig {
        match self {
            FormModel::Shape(config, _) => config,
            FormModel::Folder(folder) => &folder.config,
        }
    }
}

impl FormOptions {
    /// The model with its name, and its tokenizer.
    fn open(&self) -> Result<(FormModel, String, Arc<Tokenizer>)> {
        let (model, name, folder): (_, _, &Path) = match (&self.model, &self.shape, &self.tokenizer) {
            (Some(folder), _, _) => {
                (FormModel::Folder(ModelFolder::open(folder)?), folder.display().to_string(), folder)
            }
            (None, Some(shape), Some(tokenizer)) => {
                let config = read_shape(self.file.as_deref(), shape)?;
                (FormModel::Shape(config, self.dtype), shape.clone(), tokenizer)
            }
            _ => return Err(Error::value("--shape", "one, with --tokenizer, or --model", "neither")),
        };
        let tokenizer = Arc::new(Tokenizer::load(folder)?);
        let (tokens, vocab) = (self.prompt + self.generate, model.config().vocab);
        if tokens > model.config().context {
            let what = "a prompt with its continuation".to_owned();
            return Err(Error::ContextTooLong { what, tokens, context: model.config().context });
        }
        if tokenizer.vocab_size() > vocab {
            let found = format!("{} of the tokenizer", tokenizer.vocab_size());
            return Err(Error::value("--tokenizer", format!("at most {vocab} tokens, as the shape has"), found));
        }
        Ok((model, name, tokenizer))
    }

    /// The job whose lower bound is that of each run: all tokens are sampled, one a step.
    fn job(&self) -> Workload {
        Workload {
            name: "forms".to_owned(),
            levels: vec![(self.prompt, 1)],
            samples: self.samples,
            generate: Generate::Each(self.generate),
        }
    }
}

impl OnDevice for &FormOptions {
    type Output = ();

    fn run<B: DeviceBackend>(self, mut backend: B) -> Result<()> {
        let (model, name, tokenizer) = self.open()?;
        let (held, rates) = self.floor.of_model(&mut backend, model.source()?)?;
        let job = self.job();
        let tokens = |_, page: usize| job.kv_tokens(page) + 64 * page;
        let budget = EngineBudget {
            gpu_memory: None,
            max_branches: Some(self.samples),
            context: None,
            step_rows: self.step_rows,
            pool_bytes: None,
            memory: Some(MEMORY),
            latent_copies: None,
            swap_bytes: Some(0),
            deterministic: false,
            keeps_routes: false,
            adapters: AdapterLimits::NONE,
            kv: KvDtype::Model,
            states: StateDtype::default(),
            weights: WeightChoice::default(),
        };
        let options = EngineOptions { budget, ..EngineOptions::default() };
        let source = model.source()?;
        let launch = options.launch(source, Some(&tokenizer), Demand::new(usize::MAX, tokens));
        let engine = launch.start_on(backend)?.engine;
        let floor = self.floor(&engine, &held, model.source()?.dtype, &job, rates);
        let bench = FormBench { engine: &engine, options: self, name: &name, dtype: model.source()?.dtype, floor };
        bench.measure().map_err(|error| in_bytes(error, engine.facts()))
    }
}

impl FormOptions {
    fn floor(&self, engine: &EngineHandle, held: &ModelConfig, dtype: Dtype, job: &Workload, rates: Rates) -> JobFloor {
        let EngineFacts { kv_bytes_per_token, state_bytes, .. } = *engine.facts();
        let steps = StepFloor::new(held, dtype, (kv_bytes_per_token, state_bytes), rates);
        JobFloor::of(job, &SampleLengths::Each(self.generate), &steps, self.prompt, rates)
    }
}

/// An engine whose samples are measured.
struct FormBench<'a> {
    engine: &'a EngineHandle,
    options: &'a FormOptions,
    name: &'a str,
    dtype: Dtype,
    floor: JobFloor,
}

/// What a run took.
struct FormRun {
    seconds: f64,
    out_tokens: usize,
    ended_early: usize,
    metrics: Metrics,
}

impl FormBench<'_> {
    /// Every run after a short one of its kind, each printed when it is known.
    fn measure(&self) -> Result<()> {
        let mut seen: Vec<usize> = Vec::new();
        let mut free = None;
        for (salt, &schemas) in (1u64..).zip(&self.options.schemas) {
            let begun = Instant::now();
            let forms: Vec<SampleForm> = (0..schemas).map(|number| schema(number).into()).collect();
            let compiled = forms.iter().map(|form| self.engine.compile_form(&form.form)).collect::<Result<Vec<_>>>()?;
            let compile_s = begun.elapsed().as_secs_f64();
            if !seen.contains(&schemas) {
                self.run(&forms, WARM_UP.min(self.options.generate), salt << 8)?;
                seen.push(schemas);
            }
            let before = self.engine.metrics()?;
            let run = self.run(&forms, self.options.generate, salt)?;
            drop(compiled);
            let measured = self.measured(schemas, &run, &before, (compile_s, free));
            if schemas == 0 {
                free = Some(measured.tok_s);
            }
            print_json(&measured)?;
        }
        Ok(())
    }

    /// Samples so many tokens of each sample, of which sample i has form i, counted round.
    fn run(&self, forms: &[SampleForm], tokens: usize, salt: u64) -> Result<FormRun> {
        let (engine, samples) = (self.engine, self.options.samples);
        let prompt = Dice::new(salt).text(self.options.prompt, engine.facts().vocab);
        let params = |sample: usize| SamplingParams {
            temperature: TEMPERATURE,
            form: (!forms.is_empty()).then(|| forms[sample % forms.len()].clone()),
            ..SamplingParams::default()
        };
        let stop = exactly(tokens);
        let uniforms = UniformKey::root(salt, "forms");
        let root = engine.root(prompt)?;
        let branches = engine.fork(root, samples)?;
        let extends = branches.iter().enumerate().map(|(sample, &branch)| {
            let uniforms = uniforms.child(ForkKind::Sample, sample as u64);
            Extend::sampled(branch, &params(sample), &stop, uniforms)
        });
        let extends: Vec<Extend> = extends.collect();
        engine.release(&[root]);
        let mut receiver = engine.receiver(Hear::Finishes);
        let begun = Instant::now();
        receiver.start(extends)?;
        let (mut out_tokens, mut ended_early) = (0, 0);
        while let Some(event) = receiver.next() {
            match event {
                Event::Tokens { .. } => {}
                Event::Finished { finish, .. } => {
                    out_tokens += finish.tokens.len();
                    ended_early += usize::from(finish.reason != FinishReason::Length);
                }
                Event::Failed { error, .. } => return Err(error),
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        let metrics = engine.metrics()?;
        engine.release(&branches);
        Ok(FormRun { seconds, out_tokens, ended_early, metrics })
    }

    fn measured(
        &self,
        schemas: usize,
        run: &FormRun,
        before: &Metrics,
        (compile_s, free): (f64, Option<f64>),
    ) -> MeasuredForms<'_> {
        let FormRun { seconds, out_tokens, ended_early, metrics: after } = run;
        let steps = after.steps - before.steps;
        let a_step = |seconds: fn(&Metrics) -> f64| rounded(1e3 * (seconds(after) - seconds(before)) / steps as f64, 3);
        let count = |of: fn(&Metrics) -> u64| of(after) - of(before);
        let tok_s = *out_tokens as f64 / seconds;
        let idle = after.seconds_idle.zip(before.seconds_idle).map(|(after, before)| (after - before) / seconds);
        MeasuredForms {
            model: self.name,
            device: self.engine.facts().device.clone(),
            dtype: self.dtype,
            samples: self.options.samples,
            prompt: self.options.prompt,
            generate: self.options.generate,
            schemas,
            compile_s: rounded(compile_s, 3),
            seconds: rounded(*seconds, 3),
            out_tokens: *out_tokens,
            tok_s: rounded(tok_s, 1),
            of_free: free.filter(|_| schemas > 0).map(|free| rounded(tok_s / free, 3)),
            ended_early: *ended_early,
            steps,
            steps_replanned: count(|m| m.steps_replanned),
            mean_step_ms: rounded(1e3 * seconds / steps as f64, 3),
            host_ms: a_step(|m| m.seconds_scheduling + m.seconds_planning + m.seconds_committing),
            submit_ms: a_step(|m| m.seconds_forward),
            wait_ms: a_step(|m| m.seconds_waiting),
            masking_ms: a_step(|m| m.seconds_masking),
            idle: idle.map(|idle| rounded(idle, 3)),
            masks_requested: count(|m| m.masks_requested),
            masks_computed: count(|m| m.masks_computed),
            masks_shared: count(|m| m.masks_shared),
            matchers_replayed: count(|m| m.matchers_replayed),
            tokens_forced: count(|m| m.tokens_forced),
            floor: &self.floor,
        }
    }
}

/// Schema number `number`: an object with more records than a run samples, of all kinds of values. Every number has
/// other names and words.
fn schema(number: usize) -> Form {
    let named = |name: &str| if number == 0 { name.to_owned() } else { format!("{name}_{number}") };
    let (id, kind, note, tags) = (named("id"), named("kind"), named("note"), named("tags"));
    let kinds: Vec<String> = ["request", "reply", "error", "notice"].into_iter().map(named).collect();
    let record = json!({
        "type": "object",
        "properties": {
            &id: {"type": "integer", "minimum": 0, "maximum": 99_999 + number},
            &kind: {"enum": kinds},
            &note: {"type": "string", "maxLength": 80},
            "score": {"type": "number"},
            "is_open": {"type": "boolean"},
            &tags: {"type": "array", "items": {"type": "string", "maxLength": 24}, "maxItems": 5}
        },
        "required": [&id, &kind, &note, "score", "is_open", &tags],
        "additionalProperties": false
    });
    Form::Json(json!({
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 60},
            named("records"): {"type": "array", "items": record, "minItems": RECORDS}
        },
        "required": ["title", named("records")],
        "additionalProperties": false
    }))
}
