//! Best-of-N: samples N candidates of one problem and chooses the best by the model's own log-probability or by the
//! grader or judge. `sample` does the same without choosing, for pass@k; choosing by a scorer is left to `by_scorer`.

use super::settings::{BestBy, BestOfN};
use crate::job::{SearchJob, failed};
use crate::outcome::{Outcome, Sample, tied};
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_core::sorting::sort_by_number;

/// Samples N candidates below `at` and chooses the best; of equal ones, the smallest index. [`BestBy::Grade`]: the
/// first that the grader accepts, or, if it accepts none, the one with the largest mean log-probability per token.
///
/// With [`BestOfN::stop_when_passed`] it stays reproducible whether the problem is solved: if and only if one of the N
/// candidates is right, because the search stops early only after a right one. *Which* right candidate is chosen, and
/// how many had finished by then, depends on timing.
pub fn best_of_n(tree: &mut SamplingTree, at: NodeId, how: &BestOfN, job: &mut SearchJob<'_>) -> Result<Outcome> {
    let enough = |sample: &Sample| how.stop_when_passed && right(sample);
    Ok(choose_best(until(tree, at, how.samples, job, enough, |_, _| Ok(()))?, how.by))
}

/// Chooses the best of the samples of `outcome`. By grades, it is not known whether the choice is right where no sample
/// is and some have no grade: one of these may be.
pub fn choose_best(mut outcome: Outcome, by: BestBy) -> Outcome {
    if let Some(best) = outcome.samples.iter().reduce(|best, next| if better(by, next, best) { next } else { best }) {
        let equal = |sample: &&Sample| match by {
            BestBy::Logprob => sample.logprob == best.logprob,
            BestBy::MeanLogprob => mean_logprob(sample) == mean_logprob(best),
            // All that the grader accepts are right, and none is among those that it does not.
            BestBy::Grade => sample.index == best.index,
        };
        outcome.tied = tied(outcome.samples.iter().filter(equal).map(|sample| sample.index));
        outcome.chosen = Some(best.index);
        outcome.prediction = best.answer.clone();
        outcome.correct = match by {
            BestBy::Grade if !right(best) && outcome.samples.iter().any(|sample| sample.correct.is_none()) => None,
            BestBy::Grade | BestBy::Logprob | BestBy::MeanLogprob => best.correct,
        };
    }
    outcome
}

/// Samples N candidates and chooses none.
pub fn sample(tree: &mut SamplingTree, at: NodeId, n: usize, job: &mut SearchJob<'_>) -> Result<Outcome> {
    until(tree, at, n, job, |_| false, |_, _| Ok(()))
}

/// Samples N candidates; stops early when `enough` returns true for one. `taken`: called with each sample that counts,
/// as it is taken.
pub(crate) fn until(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    job: &mut SearchJob<'_>,
    enough: impl Fn(&Sample) -> bool,
    mut taken: impl FnMut(&SamplingTree, &Sample) -> Result<()>,
) -> Result<Outcome> {
    let (mut samples, candidates) = job.candidates(tree, at, n)?;
    samples.iter().try_for_each(|sample| taken(tree, sample))?;
    let mut passed = samples.iter().any(&enough);
    if !passed && !job.group_is_over(&samples) {
        let mut growing = tree.start(&candidates, job.params, job.stop)?;
        while let Some(sample) = job.next_sample(&mut growing)? {
            passed = enough(&sample);
            taken(growing.tree(), &sample)?;
            samples.push(sample);
            if passed {
                job.cancel_remaining(&growing);
                break;
            } else if job.group_is_over(&samples) {
                growing.cancel_all();
            }
        }
    }
    let cancelled = n - samples.len() - failed(tree, &candidates);
    let mut outcome = Outcome { cancelled, ..Outcome::default() };
    sort_by_number(&mut samples, |sample| sample.index);
    for &candidate in &candidates {
        let index = tree.node(candidate).ordinal;
        let counts = samples.binary_search_by_key(&index, |sample| sample.index).is_ok();
        if !counts && !tree.has_failed(candidate) {
            outcome.cancelled_tokens += tree.node(candidate).tokens.len();
            match passed || job.group_end.is_none() {
                true => tree.prune(candidate),
                false => outcome.stragglers.push(job.set_aside(tree, candidate)),
            }
        }
    }
    Ok(Outcome { samples, ..outcome })
}

/// Whether `a` is strictly better. Samples are compared by rising index, so the first of equal ones stays.
fn better(by: BestBy, a: &Sample, b: &Sample) -> bool {
    match by {
        BestBy::Logprob => a.logprob > b.logprob,
        BestBy::MeanLogprob => mean_logprob(a) > mean_logprob(b),
        BestBy::Grade => !right(b) && (right(a), mean_logprob(a)) > (false, mean_logprob(b)),
    }
}

/// Log-probability per token.
fn mean_logprob(sample: &Sample) -> f64 {
    sample.logprob / sample.tokens.max(1) as f64
}

fn right(sample: &Sample) -> bool {
    sample.correct == Some(true)
}
