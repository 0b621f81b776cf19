//! `offshoot run`: a task from file to results. Prepares prompts, loads the model, works on several items at once (one driver
//! a thread, one engine for all), writes each result as it comes and sums up. How one problem is searched is `search`'s.

pub mod demo;
mod dry_run;
mod prepare;
mod progress;
mod summary;
mod worker;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use crate::backend::cpu::{Cpu, free_bytes};
use crate::backend::{Backend, Dtype};
use crate::engine::{Engine, EngineConfig, EngineFacts, EngineHandle, PoolSize};
use crate::error::{Error, Result};
use crate::journal::{Journal, fresh_folder};
use crate::model::check::facts;
use crate::model::{Decoder, ModelConfig, ModelFolder};
use crate::out;
use crate::plan::Planner;
use crate::report::{Summary, bytes};
use crate::tokenizer::Tokenizer;

pub use demo::bundled;
pub use prepare::{ItemPrompt, Prepared};
use progress::Progress;

/// What a run is asked to do.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// `None`: the bundled demo.
    pub task: Option<PathBuf>,
    pub model: Option<PathBuf>,
    pub limit: Option<usize>,
    pub samples: Option<u32>,
    pub seed: Option<u64>,
    /// `key=value` changes to the task file.
    pub set: Vec<String>,
    /// `None`: the default planner.
    pub plan: Option<Planner>,
    pub out: Option<PathBuf>,
    /// Also write each item's sampling tree.
    pub trees: bool,
    pub dry_run: bool,
    pub budget: Budget,
}

/// The engine's budgets.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Branches that grow at once.
    pub max_branches: usize,
    /// Bytes for keys and values; `None`: half of the free memory.
    pub kv_bytes: Option<usize>,
}

/// A model in memory, and the engine that runs it.
pub struct Loaded {
    pub engine: EngineHandle,
    pub seconds_loading: f64,
}

/// Runs what `options` ask for; Ctrl-C sets `interrupted`.
pub fn run(options: &RunOptions, interrupted: &AtomicBool) -> Result<ExitCode> {
    let Some(path) = &options.task else { return demo::run(options, interrupted) };
    let prepared = Prepared::new(path, options)?;
    if options.dry_run {
        out::text(dry_run::report(&prepared, options)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let folder = options.out.clone().unwrap_or_else(|| fresh_folder(&PathBuf::from("runs").join(&prepared.task.name)));
    Journal::check_free(&folder)?;
    let loaded = load(&prepared, options)?;
    let journal = Journal::create(&folder)?;
    journal.file("task.json", &format!("{:#}\n", prepared.task.source))?;
    let progress = Progress::new(prepared.prompts.len());
    let run = worker::work(&prepared, &loaded, options, Some(&journal), &progress, interrupted);
    progress.finish();
    let run = run?;
    // Whatever cannot be written: first the page, then every file, then the error that came first.
    let printed = out::text(format_args!("{}{:<11} {}\n", run.summary, "results", folder.display()));
    let summed = pretty(&run.summary).and_then(|text| journal.file("summary.json", &text));
    let sorted = if run.ended.is_none() { journal.finish() } else { Ok(()) };
    run.ended.map_or(Ok(()), Err).and(summed).and(sorted).and(printed)?;
    Ok(ExitCode::SUCCESS)
}

/// A model folder ready to sample from, with the default budgets: for programs of one's own.
pub fn open(model: &Path) -> Result<(EngineHandle, Arc<Tokenizer>)> {
    let folder = ModelFolder::open(model)?;
    let tokenizer = Arc::new(Tokenizer::load(model)?);
    let mut backend = Cpu::new();
    fits(&folder.config, facts(&folder)?.dtype)?;
    let decoder = Decoder::load(&mut backend, &folder)?;
    let config = Budget::default().engine_config(Planner::default(), usize::MAX);
    Ok((Engine::start(backend, decoder, Some(tokenizer.clone()), config)?, tokenizer))
}

/// Loads the model and starts its engine, with as much KV memory as the budget allows and the job can use.
pub fn load(prepared: &Prepared, options: &RunOptions) -> Result<Loaded> {
    let started = Instant::now();
    let mut backend = Cpu::new();
    fits(&prepared.folder.config, prepared.facts.dtype)?;
    let decoder = Decoder::load(&mut backend, &prepared.folder)?;
    let useful = useful_bytes(prepared, options.budget.max_branches);
    let config = options.budget.engine_config(options.plan.unwrap_or_default(), useful);
    let engine = Engine::start(backend, decoder, Some(prepared.tokenizer.clone()), config)?;
    let seconds_loading = started.elapsed().as_secs_f64();
    log::info!("loaded {} in {seconds_loading:.2} s", prepared.model.display());
    Ok(Loaded { engine, seconds_loading })
}

/// The most KV bytes that the job can make use of.
fn useful_bytes(prepared: &Prepared, max_branches: usize) -> usize {
    let tokens = prepared.most_kv_tokens(worker::in_flight(prepared, max_branches), Cpu::PAGE_TOKENS as usize);
    tokens.saturating_mul(prepared.folder.config.kv_bytes_per_token(prepared.facts.dtype))
}

impl Loaded {
    /// An error in the units of the command line: memory rather than pages.
    fn in_bytes(&self, error: Error) -> Error {
        in_bytes(error, self.engine.facts())
    }
}

/// Pages that are lacking, as the option and the memory that they stand for.
pub fn in_bytes(error: Error, facts: &EngineFacts) -> Error {
    let Error::OutOfPages { needed, capacity, .. } = error else { return error };
    let mib = |pages: usize| (pages * facts.page_bytes).div_ceil(1 << 20);
    let expected = format!("at least {} MiB, which one sample's keys and values need", mib(needed));
    Error::value("--kv-memory", expected, format!("{} MiB", mib(capacity)))
}

impl Default for Budget {
    fn default() -> Self {
        Self { max_branches: EngineConfig::default().max_branches, kv_bytes: None }
    }
}

impl Budget {
    /// Names the budget that nothing can be done with.
    pub fn check(&self) -> Result<()> {
        match self.kv_bytes {
            Some(0) => Err(Error::value("--kv-memory", "a number of MiB from 1 up", "0")),
            _ => Ok(()),
        }
    }

    /// The engine's configuration; `useful` is the most KV bytes that the job can make use of.
    pub fn engine_config(&self, planner: Planner, useful: usize) -> EngineConfig {
        let share = PoolSize::Share { of_free: 0.5, at_most: useful };
        let pool = self.kv_bytes.map_or(share, |bytes| PoolSize::Bytes(bytes.min(useful)));
        EngineConfig { max_branches: self.max_branches, planner, pool, ..EngineConfig::default() }
    }
}

/// Whether a model's weights fit into the memory that is free.
pub fn fits(config: &ModelConfig, dtype: Dtype) -> Result<()> {
    let (weights, free) = (config.weight_bytes(dtype), free_bytes());
    if weights > free {
        let expected = format!("at least {}, the size of the weights", bytes(weights as u64));
        return Err(Error::value("free memory", expected, bytes(free as u64)));
    }
    Ok(())
}

fn pretty(summary: &Summary) -> Result<String> {
    let text = serde_json::to_string_pretty(summary);
    text.map(|text| text + "\n").map_err(|error| Error::Internal(format!("the summary is not JSON: {error}")))
}
