//! N samples of one problem, each valued by a scorer: the best of them, or the vote that the values weigh. A scorer of
//! another model is handed each sample as it finishes, while the others go on.

use std::collections::HashMap;

use super::best_of_n::until;
use super::settings::SampleScoring;
use crate::job::SearchJob;
use crate::outcome::{Details, Outcome, Sample, tied, verdict_on};
use crate::scorer::{NodeText, Scorer, step_ends};
use crate::select::largest;
use crate::tree::SamplingTree;
use crate::vote::VoteTally;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;

/// The candidate with the highest value by `scorer`; of equal ones, the smallest index. Where no sample has a value,
/// none is chosen. The tree has no tokens of candidates sampled by an earlier process: use
/// [`best_of_n`](crate::best_of_n()) for the mean log-probability of those.
pub fn best_by_scorer(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    scorer: &mut Scorer<'_>,
    how: &SampleScoring,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let mut outcome = scored(tree, at, n, scorer, how, job)?;
    let values: Vec<(&Sample, f64)> =
        outcome.samples.iter().filter_map(|sample| Some((sample, sample.score()?))).collect();
    let Some(&(best, most)) = values.iter().reduce(|best, next| if next.1 > best.1 { next } else { best }) else {
        outcome.correct = job.no_answer();
        return Ok(outcome);
    };
    let (chosen, prediction, correct) = (Some(best.index), best.answer.clone(), best.correct);
    let tied = tied(values.iter().filter(|(_, value)| *value == most).map(|(sample, _)| sample.index));
    Ok(Outcome { chosen, prediction, correct, tied, ..outcome })
}

/// The answer with the largest sum of the values of its samples by `scorer`; of equal ones, the first. A sample without
/// a value has no vote; where none has a vote, no answer is chosen.
pub fn vote_by_scorer(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    scorer: &mut Scorer<'_>,
    how: &SampleScoring,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let outcome = scored(tree, at, n, scorer, how, job)?;
    let mut tally = VoteTally::default();
    for sample in outcome.samples.iter().filter(|sample| sample.score().is_some()) {
        tally.add_copies(sample.index as usize, sample.answer.as_deref(), 1, scorer.weight(sample.score()));
    }
    let weights: Vec<f64> = tally.votes().iter().map(|votes| votes.weight).collect();
    let best: Vec<u64> = match weights.is_empty() {
        true => Vec::new(),
        false => largest(&weights).into_iter().map(|ix| tally.votes()[ix].first as u64).collect(),
    };
    let chosen = best.first().copied();
    let winner = outcome.samples.iter().find(|sample| Some(sample.index) == chosen);
    let prediction = winner.and_then(|sample| sample.answer.clone());
    Ok(Outcome {
        correct: prediction.as_deref().map_or(job.no_answer(), |answer| verdict_on(answer, &outcome.samples)),
        prediction,
        chosen,
        tied: tied(best.into_iter()),
        votes: tally.most_first(),
        ..outcome
    })
}

/// N samples with what the scorer made of them; none is chosen.
fn scored(
    tree: &mut SamplingTree,
    at: NodeId,
    n: usize,
    scorer: &mut Scorer<'_>,
    how: &SampleScoring,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    let mut nodes: HashMap<u64, NodeId> = HashMap::new();
    let hand_in = |tree: &SamplingTree, sample: &Sample| {
        if nodes.is_empty() {
            nodes.extend(tree.children(at).into_iter().map(|node| (tree.node(node).ordinal, node)));
        }
        // What an earlier process scored keeps its score.
        if sample.scored.is_none() {
            let ends = step_ends(&sample.text, &how.delimiter);
            scorer.begin(tree, &NodeText { node: nodes[&sample.index], text: &sample.text, ends: &ends })?;
        }
        scorer.attend(tree).map(drop)
    };
    let mut outcome = until(tree, at, n, job, |_| false, hand_in)?;
    job.check_interrupted()?;
    let missing: Vec<&mut Sample> = outcome.samples.iter_mut().filter(|sample| sample.scored.is_none()).collect();
    let ends: Vec<Vec<usize>> = missing.iter().map(|sample| step_ends(&sample.text, &how.delimiter)).collect();
    let of = missing.iter().zip(&ends);
    let of: Vec<NodeText<'_>> =
        of.map(|(sample, ends)| NodeText { node: nodes[&sample.index], text: &sample.text, ends }).collect();
    let found = scorer.values(tree, &of, how.aggregate, job)?;
    for (text, value) in of.iter().zip(&found.values) {
        value.score().into_iter().for_each(|score| tree.set_score(text.node, score));
    }
    for (sample, value) in missing.into_iter().zip(found.values) {
        sample.scored = Some(value);
    }
    outcome.search_prompt_tokens = found.prompt_tokens;
    outcome.scorer = scorer.work().cloned();
    outcome.details = Some(Details::Scores { scores: outcome.samples.iter().map(Sample::score).collect() });
    Ok(outcome)
}
