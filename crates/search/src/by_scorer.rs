//! N samples of one problem, each valued by a scorer: the best of them, or the vote that the values weigh. A scorer of
//! another model is handed each sample as it finishes, while the others go on.

use std::collections::{HashMap, HashSet};

use super::best_of_n::until;
use super::settings::SampleScoring;
use crate::job::SearchJob;
use crate::model_scores::ScorerWork;
use crate::outcome::{Details, Outcome, Sample, SampleScore, best_scored, weighted_vote};
use crate::scorer::{NodeText, Scorer, step_ends};
use crate::tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::NodeId;
use offshoot_score::Scale;

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
    let outcome = scored(tree, at, n, scorer, how, job)?;
    Ok(choose_by_scores(outcome, job.no_answer()))
}

/// Chooses the sample with the highest score of an outcome whose samples were scored. `no_answer`: the verdict if none
/// has a score.
pub fn choose_by_scores(outcome: Outcome, no_answer: Option<bool>) -> Outcome {
    best_scored(outcome, |_, sample| sample.score(), no_answer)
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
    Ok(vote_by_scores(outcome, |score| scorer.weight(Some(score)), job.no_answer()))
}

/// The vote of an outcome whose samples were scored. `weight`: of a score; `no_answer`: the verdict if no sample with a
/// score has an answer.
pub fn vote_by_scores(outcome: Outcome, weight: impl Fn(f64) -> f64, no_answer: Option<bool>) -> Outcome {
    weighted_vote(outcome, |_, sample| sample.score().map(&weight), no_answer)
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
    scorer.check(how.aggregate)?;
    let mut nodes: HashMap<u64, NodeId> = HashMap::new();
    let hand_in = |tree: &SamplingTree, sample: &Sample| {
        if nodes.is_empty() {
            nodes.extend(tree.children(at).into_iter().map(|node| (tree.node(node).ordinal, node)));
        }
        // What an earlier process scored keeps its score, or takes part in a comparison with samples that have none.
        if sample.scored.is_none() || scorer.compares() {
            let ends = step_ends(&sample.text, &how.delimiter);
            scorer.begin(tree, &NodeText { node: nodes[&sample.index], text: &sample.text, ends: &ends })?;
        }
        scorer.attend(tree).map(drop)
    };
    let mut outcome = until(tree, at, n, job, |_| false, hand_in)?;
    job.check_interrupted()?;
    if scorer.compares() && outcome.samples.iter().any(|sample| sample.scored.is_none()) {
        outcome.samples.iter_mut().for_each(|sample| sample.scored = None);
    }
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
    outcome.scorer = scorer.work().map(|work| work_on(&outcome.samples, work.scale));
    outcome.details = Some(Details::Scores { scores: outcome.samples.iter().map(Sample::score).collect() });
    Ok(outcome)
}

/// Samples with the scores that they have, of which none is chosen yet. `scale`: what the scores are.
pub fn scored_samples(samples: Vec<Sample>, scale: Scale) -> Outcome {
    let details = Some(Details::Scores { scores: samples.iter().map(Sample::score).collect() });
    Outcome { scorer: Some(work_on(&samples, scale)), details, samples, ..Outcome::default() }
}

/// What a scorer did for these samples, in this process or in an earlier one.
fn work_on(samples: &[Sample], scale: Scale) -> ScorerWork {
    let mut work = ScorerWork { scale, texts: 0, unscored: 0, first_error: None, tokens: 0 };
    let mut seen = HashSet::new();
    for sample in samples.iter().filter(|sample| seen.insert(sample.text.as_str())) {
        match &sample.scored {
            Some(SampleScore::Scored { score_tokens, .. }) => {
                (work.texts, work.tokens) = (work.texts + 1, work.tokens + score_tokens.unwrap_or_default());
            }
            Some(SampleScore::Unscored { .. }) => work.unscored += 1,
            None => {}
        }
        let error = sample.scored.as_ref().and_then(SampleScore::error);
        work.first_error = work.first_error.take().or(error.map(str::to_owned));
    }
    work
}
