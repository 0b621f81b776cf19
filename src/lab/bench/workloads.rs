//! `bench workloads`: whole jobs through the engine on a model of random weights, as a file describes them: prompts that share
//! levels of tokens, so many continuations each, of exactly so many tokens. A JSON line a job.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::tables::{print_json, rounded};
use super::timed::Timed;
use super::workload_file::{Job, read_jobs};
use crate::backend::{Dtype, KvDtype};
use crate::engine::{
    CoinKey, Continuation, Engine, EngineConfig, EngineFacts, EngineHandle, Event, Extend, ForkKind, Metrics, PoolSize,
    SamplingParams, Stop,
};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};
use crate::lab::check::dice::Dice;
use crate::launch::in_bytes;
use crate::model::{Decoder, ModelConfig};
use crate::plan::Planner;

/// What `bench workloads` is asked to measure.
#[derive(Clone, Debug)]
pub struct WorkloadOptions {
    /// Shapes and workloads; `None`: the built-in ones.
    pub file: Option<PathBuf>,
    pub shape: String,
    /// Names of workloads; empty: all.
    pub workloads: Vec<String>,
    pub dtype: Dtype,
    pub kv: KvDtype,
    pub planner: Planner,
    /// Leaves out attention: what remains is the ceiling that no attention can pass.
    pub without_attention: bool,
    /// Computes linear layers as the device's library recommends, instead of the fastest way.
    pub recommended_gemm: bool,
    /// Whether what is drawn depends on a branch's own tokens and coins alone.
    pub deterministic: bool,
    /// Branches that grow at once; `None`: all of the largest workload.
    pub max_branches: Option<usize>,
    /// Rows of a step: prompts fill what branches that decode leave of them.
    pub step_rows: usize,
    /// Bytes for keys and values; `None`: what the device has and the largest workload can use.
    pub pool_bytes: Option<usize>,
    /// No workload is begun after so many seconds.
    pub budget: Duration,
}

const TEMPERATURE: f32 = 0.8;

/// Share of the free memory that keys and values may take.
const MEMORY: f64 = 0.9;

/// Tokens of each continuation of the run that is not timed: enough for every shape of step to be met and kept.
const WARM_UP: usize = 4;

/// One job, measured.
#[derive(Debug, Serialize)]
struct Measured<'a> {
    engine: &'static str,
    shape: &'a str,
    workload: &'a str,
    seconds: f64,
    /// The same job with one token a continuation: the less of two.
    prefill_s: f64,
    out_tokens: usize,
    tok_s: f64,
    /// Leaves out the time of the same job with one token; `None` where that is the whole job.
    decode_tok_s: Option<f64>,
    device: String,
    dtype: Dtype,
    kv_dtype: KvDtype,
    plan: Planner,
    deterministic: bool,
    prompts: usize,
    samples: usize,
    generate: usize,
    /// Bytes of keys and values that were held in the end, and what they would have been without sharing.
    kv_bytes: u64,
    kv_bytes_unshared: u64,
    steps: u64,
    steps_replanned: u64,
    mean_step_ms: f64,
    /// Of a step: scheduling, planning and telling branches what they drew; submitting; waiting for the device.
    host_ms: f64,
    submit_ms: f64,
    wait_ms: f64,
    preemptions: u64,
    tokens_recomputed: u64,
}

/// Measures the workloads asked for, printing each as soon as it is done.
pub fn main<B: Timed>(mut backend: B, options: &WorkloadOptions) -> Result<()> {
    let begun = Instant::now();
    let (config, jobs) = read_jobs(options.file.as_deref(), &options.shape, &options.workloads)?;
    if options.without_attention && !backend.without_attention() {
        return Err(Error::value("--without-attention", "a device that can leave it out", backend.describe()));
    }
    if options.recommended_gemm && !backend.choose_products(None) {
        return Err(Error::value("--recommended-gemm", "a device that has a choice", backend.describe()));
    }
    let device = backend.describe();
    let engine = start(backend, config, &jobs, options)?;
    for (number, job) in (0u64..).zip(&jobs) {
        if begun.elapsed() > options.budget {
            log::warn!("the time is used up before {}", job.name);
            break;
        }
        let measured = measure(&engine, job, number, options, &device);
        print_json(&measured.map_err(|error| in_bytes(error, engine.facts()))?)?;
    }
    Ok(())
}

/// An engine with room for the largest of the jobs.
fn start<B: Timed>(
    mut backend: B,
    config: ModelConfig,
    jobs: &[Job],
    options: &WorkloadOptions,
) -> Result<EngineHandle> {
    let longest = jobs.iter().map(|job| job.context()).max().unwrap_or(0);
    if longest > config.context {
        let (what, context) = ("a prompt with its continuation".to_owned(), config.context);
        return Err(Error::ContextTooLong { what, tokens: longest, context });
    }
    options.kv.keep_on(&mut backend, config.heads, options.dtype);
    let decoder = Decoder::random(&mut backend, config, options.dtype, 1)?;
    let page = backend.page_tokens() as usize;
    // Old jobs stay cached until the room is needed.
    let tokens = jobs.iter().map(|job| job.kv_tokens(page)).max().unwrap_or(0);
    let useful = (tokens + 64 * page).saturating_mul(decoder.kv_bytes_per_token());
    let branches = jobs.iter().map(Job::continuations).max().unwrap_or(1);
    let pool = match options.pool_bytes {
        Some(bytes) => PoolSize::Bytes(bytes),
        None => PoolSize::Share { of_free: MEMORY, at_most: useful },
    };
    let config = EngineConfig {
        max_branches: options.max_branches.unwrap_or(branches),
        step_rows: options.step_rows,
        planner: options.planner,
        pool,
        run_ahead: true,
        deterministic: options.deterministic,
        ..EngineConfig::default()
    };
    Engine::start(backend, decoder, None, config)
}

fn measure<'a>(
    engine: &EngineHandle,
    job: &'a Job,
    number: u64,
    options: &'a WorkloadOptions,
    device: &str,
) -> Result<Measured<'a>> {
    let salt = 4 * number;
    run(engine, job, job.generate.min(WARM_UP), salt)?;
    // The less of two, as decoding is told by a difference: what holds one up by a tenth would show as decoding by a third.
    let (once, _) = run(engine, job, 1, salt + 1)?;
    let (again, before) = run(engine, job, 1, salt + 2)?;
    let prefill_s = once.min(again);
    let (seconds, after) = run(engine, job, job.generate, salt + 3)?;
    let out_tokens = job.continuations() * job.generate;
    let steps = after.steps - before.steps;
    let a_step = |seconds: fn(&Metrics) -> f64| rounded(1e3 * (seconds(&after) - seconds(&before)) / steps as f64, 3);
    Ok(Measured {
        engine: if options.without_attention { "offshoot without attention" } else { "offshoot" },
        shape: &options.shape,
        workload: &job.name,
        seconds: rounded(seconds, 3),
        prefill_s: rounded(prefill_s, 6),
        out_tokens,
        tok_s: rounded(out_tokens as f64 / seconds, 0),
        decode_tok_s: (job.generate > 1).then(|| rounded(out_tokens as f64 / (seconds - prefill_s), 0)),
        device: device.to_owned(),
        dtype: options.dtype,
        kv_dtype: options.kv,
        plan: options.planner,
        deterministic: options.deterministic,
        prompts: job.prompts(),
        samples: job.samples,
        generate: job.generate,
        kv_bytes: after.kv_bytes_held,
        kv_bytes_unshared: unshared_bytes(engine.facts(), job),
        steps,
        steps_replanned: after.steps_replanned - before.steps_replanned,
        mean_step_ms: rounded(1e3 * seconds / steps as f64, 3),
        host_ms: a_step(|m| m.seconds_scheduling + m.seconds_planning + m.seconds_committing),
        submit_ms: a_step(|m| m.seconds_forward),
        wait_ms: a_step(|m| m.seconds_waiting),
        preemptions: after.preemptions - before.preemptions,
        tokens_recomputed: after.tokens_recomputed - before.tokens_recomputed,
    })
}

/// What the branches of a job would hold in the end, each with pages of its own.
fn unshared_bytes(facts: &EngineFacts, job: &Job) -> u64 {
    (job.continuations() * job.context().div_ceil(facts.page_tokens) * facts.page_bytes) as u64
}

/// Runs a job whose prompts are known to nobody yet: seconds from its first command to its last token, and the counters then.
fn run(engine: &EngineHandle, job: &Job, generate: usize, salt: u64) -> Result<(f64, Metrics)> {
    let prompts = job.texts(engine.facts().vocab, salt);
    let begun = Instant::now();
    let (mut roots, mut extends) = (Vec::new(), Vec::new());
    for (item, prompt) in (0u64..).zip(prompts) {
        let root = engine.root(prompt)?;
        let key = CoinKey::root(salt, &item.to_string());
        for (ordinal, branch) in (0u64..).zip(engine.fork(root, job.samples)?) {
            extends.push(draw(branch, key.child(ForkKind::Sample, ordinal), generate));
        }
        roots.push(root);
    }
    let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
    let mut extension = engine.start(extends)?;
    let mut drawn = 0;
    while let Some(event) = extension.next() {
        match event {
            Event::Token { .. } => drawn += 1,
            Event::Finished { .. } => {}
            Event::Failed { error, .. } => return Err(error),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let expected = branches.len() * generate;
    if drawn != expected {
        return Err(Error::Internal(format!("{drawn} tokens were drawn where {expected} were asked for")));
    }
    let metrics = engine.metrics()?;
    engine.discard(&branches);
    engine.discard(&roots);
    Ok((seconds, metrics))
}

fn draw(branch: BranchId, coins: CoinKey, generate: usize) -> Extend {
    Extend {
        branch,
        continuation: Continuation::Sampled {
            params: SamplingParams { temperature: TEMPERATURE, ..SamplingParams::default() },
            stop: Stop { ignore_eos: true, ..Stop::max_tokens(generate) },
            coins,
        },
    }
}

impl Job {
    /// The prompts: every node of a level has tokens of its own. No two salts share a first token's node.
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
