//! Best-of-N: sample N candidates of one problem, keep the best by the model's own log-probability or by the grader. `sample`
//! is the same without choosing: for pass@k.

use petgraph::graph::NodeIndex;
use serde::{Deserialize, Serialize};

use super::{Job, Outcome, Sample};
use crate::error::Result;
use crate::tree::SamplingTree;

/// What makes a candidate the best. Of equals, the smallest index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The largest log-probability of the whole text.
    Logprob,
    /// The largest log-probability per token.
    MeanLogprob,
    /// The first that the grader accepts; where it accepts none, the largest log-probability per token.
    Grade,
}

pub fn best_of_n(tree: &mut SamplingTree, at: NodeIndex, n: usize, by: By, job: &mut Job<'_>) -> Result<Outcome> {
    let mut outcome = sample(tree, at, n, job)?;
    if let Some(best) = outcome.samples.iter().reduce(|best, next| if better(by, next, best) { next } else { best }) {
        outcome.chosen = Some(best.index);
        outcome.prediction = best.answer.clone();
        outcome.correct = best.correct;
    }
    Ok(outcome)
}

/// N candidates, none chosen.
pub fn sample(tree: &mut SamplingTree, at: NodeIndex, n: usize, job: &mut Job<'_>) -> Result<Outcome> {
    let candidates = tree.fork(at, n)?;
    let mut growing = tree.start(&candidates, job.params, job.stop)?;
    let mut samples = Vec::with_capacity(n);
    while let Some(sample) = job.next_sample(&mut growing)? {
        samples.push(sample);
    }
    samples.sort_by_key(|sample| sample.index);
    Ok(Outcome { samples, prediction: None, correct: None, votes: Vec::new(), chosen: None, cancelled: 0 })
}

/// Strictly better; samples come by rising index, so that of equals the first stays.
fn better(by: By, a: &Sample, b: &Sample) -> bool {
    let mean = |sample: &Sample| sample.logprob / sample.tokens.max(1) as f64;
    match by {
        By::Logprob => a.logprob > b.logprob,
        By::MeanLogprob => mean(a) > mean(b),
        By::Grade => (a.correct == Some(true), mean(a)) > (b.correct == Some(true), mean(b)) && !right(b),
    }
}

fn right(sample: &Sample) -> bool {
    sample.correct == Some(true)
}
