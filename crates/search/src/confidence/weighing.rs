//! The vote of finished samples, each weighed by its confidence, as a choice of a search. The confidences follow from
//! what samples record, so a vote that is counted again later is the same.

use super::{Measure, Windows, percentile, token_confidence};
use crate::outcome::{Details, Outcome, Sample, tied, verdict_on};
use crate::select::largest;
use crate::vote::VoteTally;
use offshoot_engine::SampledToken;

/// How a vote counts samples by their confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceVote {
    /// The confidence that a vote weighs.
    pub by: Measure,
    /// Its sizes. Of the samples that have answers, the share [`Windows::keep`] with the highest confidences votes.
    pub windows: Windows,
}

/// The confidence of each token of a sample, the one that ended it included: of the likeliest tokens in its place that
/// were recorded, and its own if it is not among them. Tokens without records have none.
pub fn sample_confidences(sample: &Sample) -> Vec<f64> {
    let of_token = |token: &SampledToken| {
        let is_listed = token.top.iter().any(|&(listed, _)| listed == token.token);
        let own = (!is_listed).then_some(token.logprob);
        let logprobs = token.top.iter().map(|&(_, logprob)| logprob).chain(own).map(f64::from);
        token_confidence(&logprobs.collect::<Vec<_>>())
    };
    sample.logprobs.iter().flatten().chain(&sample.ending).filter_map(of_token).collect()
}

/// The vote of the samples of `outcome`, each weighed by its confidence; of answers with equal weights, the first. The
/// votes of the outcome are the numbers of samples that voted, its scores the confidences of all samples. Where no
/// voter has a confidence above 0, the outcome stays as it is.
pub fn weigh_votes(outcome: Outcome, how: &ConfidenceVote) -> Outcome {
    let measure = |sample: &Sample| how.windows.measure(how.by, &sample_confidences(sample));
    let scores: Vec<f64> = outcome.samples.iter().map(measure).collect();
    let answered = outcome.samples.iter().zip(&scores).filter(|(sample, _)| sample.answer.is_some());
    let mut voters: Vec<(&Sample, f64)> = answered.map(|(sample, &score)| (sample, score)).collect();
    let all: Vec<f64> = voters.iter().map(|&(_, score)| score).collect();
    if let Some(least) = percentile(&all, (1.0 - how.windows.keep) * 100.0) {
        voters.retain(|&(_, score)| score >= least);
    }
    if !voters.iter().any(|&(_, score)| score > 0.0) {
        return outcome;
    }
    let mut tally = VoteTally::default();
    for (sample, score) in voters {
        tally.add_copies(sample.index as usize, sample.answer.as_deref(), 1, score);
    }
    let weights: Vec<f64> = tally.votes().iter().map(|votes| votes.weight).collect();
    let best: Vec<u64> = largest(&weights).into_iter().map(|ix| tally.votes()[ix].first as u64).collect();
    let chosen = best.first().copied();
    let winner = outcome.samples.iter().find(|sample| Some(sample.index) == chosen);
    let prediction = winner.and_then(|sample| sample.answer.clone());
    Outcome {
        correct: prediction.as_deref().and_then(|answer| verdict_on(answer, &outcome.samples)),
        prediction,
        chosen,
        tied: tied(best.into_iter()),
        votes: tally.most_first(),
        details: Some(Details::Scores { scores: scores.into_iter().map(Some).collect() }),
        ..outcome
    }
}
