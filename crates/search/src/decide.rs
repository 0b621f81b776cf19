//! Ends a search that has several valued solutions: chooses a solution or an answer.

use super::select::largest;
use super::settings::{Aggregate, Decide};
use super::steps::{Solution, Stepper, tokens_off_paths};
use crate::job::SearchJob;
use crate::outcome::{Details, Outcome, Sample, first_with, tied, verdict_on};
use crate::tree::SamplingTree;
use crate::vote::VoteTally;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// A solution with its value, at the end of a search.
#[derive(Clone, Debug)]
pub struct Valued {
    /// The solution.
    pub solution: Solution,
    /// What it is worth; `None`: it could not be scored.
    pub value: Option<f64>,
}

/// Turns all solutions into samples, numbered in order, and chooses one; of equal ones, the first. A vote chooses none
/// if no solution has an answer.
///
/// `aggregate`: how the value of a solution followed from those of its steps.
pub fn conclude(
    tree: &mut SamplingTree,
    valued: Vec<Valued>,
    aggregate: Aggregate,
    by: Decide,
    stepper: &Stepper<'_>,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    // All are assessed at once, and then waited for in turn.
    valued.iter().for_each(|Valued { solution, .. }| job.assessor.request(&solution.text));
    let mut samples = Vec::with_capacity(valued.len());
    for (index, Valued { solution, .. }) in (0..).zip(&valued) {
        samples.push(job.take_solution(tree, solution, solution.scored(aggregate), index)?);
    }
    Ok(decided(tree, valued, samples, by, stepper, job))
}

/// The outcome of samples that were already taken, one per element of `valued`.
pub fn decided(
    tree: &SamplingTree,
    valued: Vec<Valued>,
    samples: Vec<Sample>,
    by: Decide,
    stepper: &Stepper<'_>,
    job: &SearchJob<'_>,
) -> Outcome {
    let weight = |value| stepper.scorer.weight(value);
    let mut weights = Vec::new();
    let best: Vec<usize> = match by {
        Decide::Best => {
            let known: Vec<(usize, f64)> = (0..).zip(&valued).filter_map(|(ix, of)| Some((ix, of.value?))).collect();
            largest(&known.iter().map(|&(_, value)| value).collect::<Vec<_>>())
                .into_iter()
                .map(|at| known[at].0)
                .collect()
        }
        Decide::Vote => ballots(&valued, &samples, |_| Some(1.0)).leaders().iter().map(|votes| votes.first).collect(),
        Decide::WeightedVote => {
            // What could not be scored has no part in it.
            let tally = ballots(&valued, &samples, |value| value.map(|value| weight(Some(value))));
            weights = tally.heaviest_first();
            tally.heaviest().into_iter().map(|votes| votes.first).collect()
        }
    };
    let outcome = take(tree, valued, samples, &best, stepper, job);
    // The best solution is chosen for itself, a vote's winner for its answer.
    let tied = match by {
        Decide::Best => tied(best.iter().map(|&ix| outcome.samples[ix].index)),
        Decide::Vote | Decide::WeightedVote => outcome.tied,
    };
    Outcome { tied, weights, ..outcome }
}

/// The outcome if the first of the samples with the numbers `best`, which tie, is chosen; `best` may be empty.
pub fn take(
    tree: &SamplingTree,
    valued: Vec<Valued>,
    samples: Vec<Sample>,
    best: &[usize],
    stepper: &Stepper<'_>,
    job: &SearchJob<'_>,
) -> Outcome {
    let chosen = best.first().copied();
    let ends: Vec<NodeId> = valued.iter().map(|valued| valued.solution.node).collect();
    let prediction = chosen.and_then(|ix| samples[ix].answer.clone());
    let correct = match (&prediction, chosen) {
        (Some(answer), _) => verdict_on(answer, &samples),
        (None, Some(ix)) => samples[ix].correct,
        (None, None) => job.no_answer(),
    };
    Outcome {
        votes: ballots(&valued, &samples, |_| Some(1.0)).most_first(),
        chosen: chosen.map(|ix| samples[ix].index),
        tied: tied(best.iter().map(|&ix| counted(&samples[ix], &samples))),
        correct,
        search_tokens: tokens_off_paths(tree, &ends),
        search_prompt_tokens: stepper.asked,
        scorer: stepper.scorer.work().cloned(),
        details: Some(Details::Solutions {
            completions: valued.iter().map(|valued| valued.solution.text.clone()).collect(),
            scores: valued.iter().map(|valued| valued.solution.scores.clone()).collect(),
            pred: prediction.clone(),
        }),
        prediction,
        samples,
        ..Outcome::default()
    }
}

/// The index of the sample whose verdict counts for `sample`: the first with its answer, as in [`verdict_on`].
fn counted(sample: &Sample, samples: &[Sample]) -> u64 {
    sample.answer.as_deref().and_then(|answer| first_with(answer, samples)).unwrap_or(sample).index
}

/// The votes of solutions on answers, weighted by their values. `weight`: of a value; one without has no vote.
fn ballots(valued: &[Valued], samples: &[Sample], weight: impl Fn(Option<f64>) -> Option<f64>) -> VoteTally {
    let mut tally = VoteTally::default();
    for (ix, (Valued { solution, value }, sample)) in valued.iter().zip(samples).enumerate() {
        if let Some(weight) = weight(*value) {
            tally.add_copies(ix, sample.answer.as_deref(), solution.copies, weight * f64::from(solution.copies));
        }
    }
    tally
}
