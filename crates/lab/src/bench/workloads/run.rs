//! Runs a job once: prompts that no run before it had, and as many tokens of each sample as it is to have.

use std::time::Instant;

use super::super::workload_file::{Generate, Workload};
use offshoot_core::dice::Dice;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_engine::{
    EngineHandle, Event, Extend, ForkKind, Hear, Metrics, Priority, SamplingParams, Stop, UniformKey,
};
use offshoot_launch::{Generation, Generator, PromptRequest, Release};

/// How many tokens the samples of a run have.
pub enum SampleLengths {
    Each(usize),
    /// Those of each: of the first prompt's samples, then of the second's, and so on.
    Own(Vec<usize>),
}

/// Tokens per continuation of the warm-up run: enough for every shape of step to occur and be cached.
const WARM_UP: usize = 4;

/// Lengths of samples of their own are divided by this in the warm-up run, so that it has steps of all numbers of rows,
/// as samples end one after the other.
const SHORTER: usize = 16;

impl SampleLengths {
    pub fn of(job: &Workload) -> Self {
        match job.generate {
            Generate::Each(tokens) => Self::Each(tokens),
            Generate::LogNormal(lengths) => Self::Own(lengths.draw(job.continuations())),
        }
    }

    /// Those of the run before the measured ones.
    pub fn of_warm_up(&self) -> Self {
        match self {
            Self::Each(tokens) => Self::Each((*tokens).min(WARM_UP)),
            Self::Own(lengths) => Self::Own(lengths.iter().map(|length| length.div_ceil(SHORTER)).collect()),
        }
    }

    /// One for each of `samples` samples.
    pub fn each(&self, samples: usize) -> Vec<usize> {
        match self {
            Self::Each(tokens) => vec![*tokens; samples],
            Self::Own(lengths) => lengths.clone(),
        }
    }

    /// Tokens of all of `samples` samples.
    pub fn total(&self, samples: usize) -> usize {
        match self {
            Self::Each(tokens) => samples * tokens,
            Self::Own(lengths) => lengths.iter().sum(),
        }
    }
}

/// A run.
pub struct JobRun {
    /// From its first command to its last token.
    pub seconds: f64,
    /// The counters at its end.
    pub metrics: Metrics,
    /// The most bytes of keys and values that were held when a sample ended, or at the end.
    pub kv_bytes: u64,
}

/// Runs a job with new prompts. Samples that all have the same number of tokens keep their keys and values to the end
/// of the run; others give them back when they end.
pub fn run(
    engine: &EngineHandle,
    job: &Workload,
    params: &SamplingParams,
    lengths: &SampleLengths,
    salt: u64,
) -> Result<JobRun> {
    let prompts = job.texts(engine.facts().vocab, salt);
    let (tokens, run) = match lengths {
        SampleLengths::Each(generate) => alike(engine, job, params, *generate, (&prompts, salt))?,
        SampleLengths::Own(lengths) => ragged(engine, job, params, lengths, (prompts, salt))?,
    };
    let expected = lengths.total(job.continuations());
    if tokens != expected {
        return Err(Error::Internal(format!("{tokens} tokens were sampled instead of {expected}")));
    }
    Ok(run)
}

/// Samples `generate` tokens of every sample; returns how many were sampled.
fn alike(
    engine: &EngineHandle,
    job: &Workload,
    params: &SamplingParams,
    generate: usize,
    (prompts, salt): (&[Vec<TokenId>], u64),
) -> Result<(usize, JobRun)> {
    let stop = exactly(generate);
    let requests = (0u64..).zip(prompts).map(|(item, tokens)| {
        let uniforms = UniformKey::root(salt, &item.to_string());
        let (n, priority) = (job.samples, Priority::default());
        PromptRequest { tokens, n, prompt_logprobs: None, params, stop: &stop, uniforms, priority }
    });
    let mut generation =
        Generation::new(requests.collect(), Generator::new(engine.clone(), Hear::Finishes, Release::AtEnd));
    let begun = Instant::now();
    let sampled = generation.count_tokens()?;
    let seconds = begun.elapsed().as_secs_f64();
    // Read before the generation releases the job's memory.
    let metrics = engine.metrics()?;
    Ok((sampled, JobRun { seconds, kv_bytes: metrics.kv_bytes_held, metrics }))
}

/// Samples as many tokens of each sample as `lengths` says; returns how many were sampled.
fn ragged(
    engine: &EngineHandle,
    job: &Workload,
    params: &SamplingParams,
    lengths: &[usize],
    (prompts, salt): (Vec<Vec<TokenId>>, u64),
) -> Result<(usize, JobRun)> {
    let begun = Instant::now();
    let mut extends = Vec::with_capacity(lengths.len());
    for ((item, prompt), lengths) in (0u64..).zip(prompts).zip(lengths.chunks(job.samples)) {
        let uniforms = UniformKey::root(salt, &item.to_string());
        let root = engine.root(prompt)?;
        for ((sample, branch), &length) in (0u64..).zip(engine.fork(root, job.samples)?).zip(lengths) {
            let uniforms = uniforms.child(ForkKind::Sample, sample);
            extends.push(Extend::sampled(branch, params, &exactly(length), uniforms));
        }
        engine.release(&[root]);
    }
    let mut receiver = engine.receiver(Hear::Finishes);
    receiver.start(extends)?;
    let (mut sampled, mut kv_bytes) = (0, 0);
    while let Some(event) = receiver.next() {
        match event {
            Event::Tokens { .. } => {}
            Event::Finished { id, finish } => {
                sampled += finish.tokens.len();
                kv_bytes = kv_bytes.max(engine.live()?.metrics.kv_bytes_held);
                engine.release(&[id]);
            }
            Event::Failed { error, .. } => return Err(error),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    Ok((sampled, JobRun { seconds, kv_bytes, metrics: engine.metrics()? }))
}

/// Ends after so many tokens, and by nothing else.
pub fn exactly(tokens: usize) -> Stop {
    Stop { ignore_eos: true, ..Stop::max_tokens(tokens) }
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
