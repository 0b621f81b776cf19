//! The vote of finished samples, filtered and weighed by their confidences, as a choice of a search. All of it follows
//! from what samples record, so a vote that is counted again later is the same.

use std::collections::HashMap;
use std::num::{NonZeroU16, NonZeroU32};

use super::{Measure, Windows, bar, percentile, token_confidence};
use crate::outcome::{Details, Outcome, Sample, weighted_vote};
use offshoot_engine::{FinishReason, SampledToken};

/// How a vote counts samples by their confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceVote {
    /// The confidence that a vote weighs; `None`: votes are equal.
    pub by: Option<Measure>,
    /// The sizes of windows. [`Windows::keep`]: with a warm-up, the share of it that passes; without one, the share of
    /// the samples with answers that votes, those of the highest confidences.
    pub windows: Windows,
    /// Where confidences come from.
    pub source: ConfidenceSource,
}

/// Where the confidences of a vote come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidenceSource {
    /// The likeliest tokens that each sample lists in its tokens' places, as in deepconf's offline mode
    /// ([`sample_confidences`]).
    Listed,
    /// The sampler, which finds the mean of the `top` likeliest tokens in each place ([`Sample::confidence`]).
    Sampler {
        /// Of how many of the likeliest tokens a confidence is.
        top: NonZeroU16,
        /// So many samples, the first, are drawn whole and set the bar: the lowest confidence that a sample may have.
        /// Later ones end where a window of their tokens is below it. `None`: all are drawn whole.
        warm_up: Option<NonZeroU32>,
    },
}

impl ConfidenceVote {
    /// The number of samples that set the bar; `None`: there is no bar.
    pub fn warm_up(&self) -> Option<NonZeroU32> {
        match self.source {
            ConfidenceSource::Listed => None,
            ConfidenceSource::Sampler { warm_up, .. } => warm_up,
        }
    }

    /// The number of the likeliest tokens that the sampler finds the mean of; `None`: it finds none.
    pub fn measured_of(&self) -> Option<NonZeroU16> {
        match self.source {
            ConfidenceSource::Listed => None,
            ConfidenceSource::Sampler { top, .. } => Some(top),
        }
    }

    /// The bar that the warm-up among `samples` sets: the share [`Windows::keep`] of it is not below the bar, as far as
    /// [`percentile`] can divide it. `None`: there is no warm-up, one of its samples is missing (it failed, and a
    /// resumed search draws it again), or no confidence of it is known.
    pub fn bar(&self, samples: &[Sample]) -> Option<f64> {
        let warm_up = self.warm_up()?.get();
        let drawn: Vec<&Sample> = samples.iter().filter(|sample| sample.index < u64::from(warm_up)).collect();
        if drawn.len() < warm_up as usize {
            return None;
        }
        let lowest: Vec<f64> =
            drawn.into_iter().filter_map(|sample| self.confidence(sample, Measure::Lowest)).collect();
        bar(&lowest, self.windows.keep)
    }

    /// The answers of the samples that pass `bar`, in their order: `None` of one that passes without an answer. A
    /// sample that ended by low confidence, or that has a window below the bar, does not pass.
    pub fn answers<'s>(&self, samples: &'s [Sample], bar: Option<f64>) -> Vec<Option<&'s str>> {
        samples.iter().filter(|sample| self.passes(sample, bar)).map(|sample| sample.answer.as_deref()).collect()
    }

    fn passes(&self, sample: &Sample, bar: Option<f64>) -> bool {
        let is_above = |bar| self.confidence(sample, Measure::Lowest).is_some_and(|lowest| lowest >= bar);
        sample.finish != FinishReason::LowConfidence && bar.is_none_or(is_above)
    }

    /// A sample's confidence; `None`: it is not known.
    fn confidence(&self, sample: &Sample, by: Measure) -> Option<f64> {
        match self.source {
            ConfidenceSource::Listed => Some(self.windows.measure(by, &sample_confidences(sample))),
            ConfidenceSource::Sampler { .. } => {
                let of_size = |confidence: &super::SampleConfidence| confidence.window == self.windows.window;
                sample.confidence.filter(of_size).map(|confidence| confidence.by(by))
            }
        }
    }
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
/// votes of the outcome are the numbers of samples that voted, its scores the confidences of all samples, by the lowest
/// window where votes are equal; an unknown one weighs nothing. Where no voter has a weight above 0, the outcome stays
/// as it is: the vote of all samples that have an answer.
pub fn weigh_votes(outcome: Outcome, how: &ConfidenceVote) -> Outcome {
    let measure = how.by.unwrap_or(Measure::Lowest);
    let samples = &outcome.samples;
    let scores: Vec<Option<f64>> = samples.iter().map(|sample| how.confidence(sample, measure)).collect();
    let bar = how.bar(samples);
    let passing = samples.iter().zip(&scores).filter(|(sample, _)| sample.answer.is_some() && how.passes(sample, bar));
    let mut voters: Vec<(&Sample, f64)> = passing.map(|(sample, score)| (sample, score.unwrap_or(0.0))).collect();
    if how.warm_up().is_none() {
        let all: Vec<f64> = voters.iter().map(|&(_, score)| score).collect();
        let least = percentile(&all, (1.0 - how.windows.keep) * 100.0);
        voters.retain(|&(_, score)| least.is_none_or(|least| score >= least));
    }
    let weight = |score: f64| if how.by.is_some() { score } else { 1.0 };
    if !voters.iter().any(|&(_, score)| weight(score) > 0.0) {
        return outcome;
    }
    let weights: HashMap<u64, f64> = voters.into_iter().map(|(sample, score)| (sample.index, weight(score))).collect();
    // A voter has an answer.
    let voted = weighted_vote(outcome, |_, sample| weights.get(&sample.index).copied(), None);
    Outcome {
        weights: if how.by.is_some() { voted.weights } else { Vec::new() },
        bar,
        details: Some(Details::Scores { scores }),
        ..voted
    }
}
