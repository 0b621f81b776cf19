//! The confidence of a sample, from the log-probabilities of the likeliest tokens at each of its positions, and votes
//! that it weighs: the definitions of DeepConf (Fu et al. 2025, "Deep Think with Confidence"), with the roundings of
//! its package deepconf 0.1.0. Pure functions of numbers; the engine finds the log-probabilities.

mod sample;
mod votes;
mod weighing;

use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

pub use sample::SampleConfidence;
pub use votes::{ConfidentAnswer, VoteResult, VotingMethod, voting_results};
pub use weighing::{ConfidenceSource, ConfidenceVote, sample_confidences, weigh_votes};

/// What a sample's confidence is made of, given that of each of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The mean of all tokens.
    Mean,
    /// The mean of the last [`Windows::tail`] tokens.
    Tail,
    /// The mean of the lowest windows: of the share [`Windows::bottom`] of them.
    Bottom,
    /// The lowest window.
    Lowest,
}

/// The sizes that the measures of a sample's confidence depend on; by default deepconf's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// Tokens at a sample's end that [`Measure::Tail`] reads. 2048 by default.
    pub tail: NonZeroUsize,
    /// Tokens of a window; one begins at each token that has enough behind it. 2048 by default.
    pub window: NonZeroUsize,
    /// The share of the windows that [`Measure::Bottom`] reads, in [0, 1]; at least one window. 0.1 by default.
    pub bottom: f64,
    /// The share of the samples that pass a filter by confidence, in [0, 1]. 0.1 by default.
    pub keep: f64,
}

impl Default for Windows {
    fn default() -> Self {
        let size = NonZeroUsize::new(2048).expect("not 0");
        Windows { tail: size, window: size, bottom: 0.1, keep: 0.1 }
    }
}

impl Windows {
    /// Windows and a tail of this size; the rest as by default.
    pub fn of_size(window: NonZeroUsize) -> Self {
        Windows { tail: window, window, ..Windows::default() }
    }

    /// The confidence of a sample whose tokens have these confidences; 0 without tokens. A sample that is shorter than
    /// a window is one window.
    pub fn measure(&self, by: Measure, confidences: &[f64]) -> f64 {
        let tokens = confidences.len();
        match by {
            Measure::Mean => mean(confidences),
            Measure::Tail => mean(&confidences[tokens.saturating_sub(self.tail.get())..]),
            Measure::Bottom | Measure::Lowest if tokens < self.window.get() => mean(confidences),
            Measure::Lowest => self.running_means(confidences).into_iter().fold(f64::INFINITY, f64::min),
            Measure::Bottom => {
                let mut means = self.running_means(confidences);
                let lowest = ((means.len() as f64 * self.bottom) as usize).clamp(1, means.len());
                means.sort_by(f64::total_cmp);
                mean(&means[..lowest])
            }
        }
    }

    /// The mean of each window, of at least one, from a sum that moves along.
    fn running_means(&self, confidences: &[f64]) -> Vec<f64> {
        let window = self.window.get();
        let mut sum: f64 = confidences[..window].iter().sum();
        let mut means = vec![sum / window as f64];
        for (left, entered) in confidences.iter().zip(&confidences[window..]) {
            sum = sum - left + entered;
            means.push(sum / window as f64);
        }
        means
    }
}

/// The confidence of a token: minus the mean of the log-probabilities, in nats, that are given for its position (the
/// likeliest 20 and its own, as vLLM gives them), rounded to thousandths. `None`: none are given.
pub fn token_confidence(logprobs: &[f64]) -> Option<f64> {
    let is_any = !logprobs.is_empty();
    is_any.then(|| thousandths(-mean(logprobs)))
}

/// The mean confidence of each window of tokens, rounded to thousandths. Of a sample that is shorter than a window, the
/// mean of its tokens, not rounded; 0 without tokens.
pub fn group_means(confidences: &[f64], window: NonZeroUsize) -> Vec<f64> {
    let in_order = |tokens: &[f64]| tokens.iter().fold(0.0, |sum, token| sum + token) / tokens.len() as f64;
    match confidences.len() {
        0 => vec![0.0],
        tokens if tokens < window.get() => vec![in_order(confidences)],
        // Each window is summed anew: a sum that moves along may round a mean of x.xxx5 to the other side.
        _ => confidences.windows(window.get()).map(|tokens| thousandths(in_order(tokens))).collect(),
    }
}

/// The lowest of [`group_means`]: the confidence by which a sample passes a bar, or does not.
pub fn lowest_group(confidences: &[f64], window: NonZeroUsize) -> f64 {
    group_means(confidences, window).into_iter().fold(f64::INFINITY, f64::min)
}

/// The bar that a warm-up sets: the share `keep` of its samples, whose lowest confidences are given, is not below it,
/// as far as [`percentile`] can divide them. `None` without samples.
pub fn bar(lowest: &[f64], keep: f64) -> Option<f64> {
    percentile(lowest, (1.0 - keep) * 100.0)
}

/// The `percent`-th percentile of `values`, in [0, 100], interpolated linearly between its two neighbours, as numpy
/// does. `None` without values.
pub fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let place = last as f64 * (percent / 100.0);
    let below = (place.floor() as usize).min(last);
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    let between = place - below as f64;
    Some(match between < 0.5 {
        true => low + (high - low) * between,
        false => high - (high - low) * (1.0 - between),
    })
}

/// A number rounded to thousandths, as numpy rounds: half of the last digit to the even one, of the product.
fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round_ties_even() / 1000.0
}

/// The mean; 0 without numbers.
fn mean(numbers: &[f64]) -> f64 {
    if numbers.is_empty() { 0.0 } else { pairwise_sum(numbers) / numbers.len() as f64 }
}

/// The sum in numpy's order, which decides how a mean of x.xxx5 is rounded: eight sums side by side up to 128 numbers,
/// halves of more.
fn pairwise_sum(numbers: &[f64]) -> f64 {
    match numbers.len() {
        0..8 => numbers.iter().sum(),
        8..=128 => {
            let (eights, rest) = numbers.as_chunks::<8>();
            let mut sums = eights[0];
            for eight in &eights[1..] {
                for (sum, number) in sums.iter_mut().zip(eight) {
                    *sum += number;
                }
            }
            let [a, b, c, d, e, f, g, h] = sums;
            rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, number| sum + number)
        }
        many => {
            let half = many / 2 - many / 2 % 8;
            pairwise_sum(&numbers[..half]) + pairwise_sum(&numbers[half..])
        }
    }
}
