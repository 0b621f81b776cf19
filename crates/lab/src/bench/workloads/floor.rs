//! The lower bound of a whole job: its steps if all samples run at once, each as long as the machine's rates allow.
//! Prompts are computed first, every token once, in as few full steps as there may be; then each step samples one token
//! of every sample that has not ended.

use serde::Serialize;

use super::super::floor::{FloorRows, FloorTokens, StepFloor};
use super::super::tables::rounded;
use super::super::workload_file::Workload;
use super::run::SampleLengths;
use offshoot_backend::Rates;
use offshoot_model::ModelConfig;

/// What lower bounds follow from: the model as the device holds it, and the device's rates.
pub struct Limits {
    pub config: ModelConfig,
    pub rates: Rates,
}

/// The least time that a job may take.
#[derive(Debug, Serialize)]
pub struct JobFloor {
    /// Steps with prompts.
    pub prefill_s: f64,
    /// The steps after them.
    pub decode_s: f64,
    pub tok_s: f64,
    /// Tokens per second without the time of the prompts; `None` if each sample has one token.
    pub decode_tok_s: Option<f64>,
    #[serde(flatten)]
    pub machine: Rates,
}

impl JobFloor {
    /// The bound of `job` whose samples have these lengths. `step_rows`: the rows of a step with prompts.
    pub fn of(
        job: &Workload,
        lengths: &SampleLengths,
        floor: &StepFloor<'_>,
        step_rows: usize,
        machine: Rates,
    ) -> Self {
        let own = lengths.each(job.continuations());
        let (prefill_s, decode_s) = (prefill(job, floor, step_rows), decode(job, &own, floor));
        let out_tokens = own.iter().sum::<usize>() as f64;
        Self {
            prefill_s: rounded(prefill_s, 3),
            decode_s: rounded(decode_s, 3),
            tok_s: rounded(out_tokens / (prefill_s + decode_s), 0),
            decode_tok_s: (decode_s > 0.0).then(|| rounded(out_tokens / decode_s, 0)),
            machine,
        }
    }
}

/// Seconds of the steps in which prompts are computed; the last one samples the first token of every sample.
fn prefill(job: &Workload, floor: &StepFloor<'_>, step_rows: usize) -> f64 {
    let (mut nodes, mut first, mut rows) = (1, 0, 0);
    // Each node's tokens: how many nodes there are, the position of the first token, and how many tokens.
    let mut levels = Vec::new();
    for &(tokens, branching) in &job.levels {
        nodes *= branching;
        levels.push((nodes as f64, first as f64, tokens as f64));
        first += tokens;
        rows += nodes * tokens;
    }
    let steps = rows.div_ceil(step_rows);
    let prompts = job.prompts() / steps;
    let step = FloorRows { rows: rows / steps, logit_rows: prompts, branches: prompts, adapters: 0 };
    floor.seconds_of_steps(step, steps as f64, |window| {
        let of_level = |&(nodes, first, tokens): &(f64, f64, f64)| {
            // Tokens before the window is full see all before them, and themselves.
            let growing = (window - first).clamp(0.0, tokens);
            let grown = if growing < tokens { (tokens - growing) * window } else { 0.0 };
            let seen = nodes * (growing * first + growing * (growing + 1.0) / 2.0 + grown);
            FloorTokens { stored: nodes * tokens, seen }
        };
        levels.iter().map(of_level).collect::<Vec<_>>()
    })
}

/// Seconds of the steps after those with prompts. `own`: the length of every sample.
fn decode(job: &Workload, own: &[usize], floor: &StepFloor<'_>) -> f64 {
    // For each level the longest sample below each node, rising; the leaves are the samples.
    let mut nodes: Vec<(f64, Vec<usize>)> = Vec::new();
    let mut count = 1;
    for &(tokens, branching) in &job.levels {
        count *= branching;
        let longest = own.chunks(own.len() / count).map(|below| below.iter().copied().max().unwrap_or(0));
        nodes.push((tokens as f64, rising(longest)));
    }
    let samples = rising(own.iter().copied());
    let longest = samples.last().copied().unwrap_or(0);
    let left = |lengths: &[usize], step: usize| lengths.len() - lengths.partition_point(|&length| length <= step);
    let seconds = (1..longest).map(|step| {
        let rows = left(&samples, step);
        let tokens = |window: f64| {
            let own = window.min(step as f64);
            let mut tokens = vec![FloorTokens { stored: rows as f64 * own, seen: rows as f64 * own }];
            let mut rest = window - own;
            for (in_node, lengths) in nodes.iter().rev() {
                let seen = rest.min(*in_node);
                tokens.push(FloorTokens { stored: left(lengths, step) as f64 * seen, seen: rows as f64 * seen });
                rest -= seen;
            }
            tokens
        };
        floor.seconds(FloorRows { rows, logit_rows: rows, branches: rows, adapters: 0 }, tokens)
    });
    seconds.sum()
}

fn rising(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut lengths: Vec<usize> = lengths.collect();
    lengths.sort_unstable();
    lengths
}
