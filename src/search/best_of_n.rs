//! Best-of-N: sample N candidates of one problem, keep the best by the model's own log-probability or by the grader. `sample`
//! is the same without choosing: for pass@k.

use super::{Job, Outcome, Sample};
use crate::error::Result;
use crate::task::BestBy;
use crate::tree::SamplingTree;
use petgraph::graph::NodeIndex;

/// The best by `by`; of equals, the smallest index. `BestBy::Grade`: the first that the grader accepts, or, where it accepts none,
/// the one with the largest log-probability a token.
pub fn best_of_n(tree: &mut SamplingTree, at: NodeIndex, n: usize, by: BestBy, job: &mut Job<'_>) -> Result<Outcome> {
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
    let (mut samples, candidates) = job.candidates(tree, at, n)?;
    let mut growing = tree.start(&candidates, job.params, job.stop)?;
    while let Some(sample) = job.next_sample(&mut growing)? {
        samples.push(sample);
    }
    samples.sort_by_key(|sample| sample.index);
    Ok(Outcome { samples, ..Outcome::default() })
}

/// Strictly better; samples come by rising index, so that of equals the first stays.
fn better(by: BestBy, a: &Sample, b: &Sample) -> bool {
    let mean = |sample: &Sample| sample.logprob / sample.tokens.max(1) as f64;
    match by {
        BestBy::Logprob => a.logprob > b.logprob,
        BestBy::MeanLogprob => mean(a) > mean(b),
        BestBy::Grade => !right(b) && (right(a), mean(a)) > (false, mean(b)),
    }
}

fn right(sample: &Sample) -> bool {
    sample.correct == Some(true)
}
