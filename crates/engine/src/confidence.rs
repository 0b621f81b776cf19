//! Ends samples that lose confidence: [`ConfidenceStop`] says when, and a window over a sample's newest tokens finds
//! out. What the confidence of a token is, is defined by [`SampledToken`](crate::SampledToken); where thresholds come
//! from is left to whoever samples.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use serde::{Deserialize, Serialize};

/// Ends a sample in which the model loses confidence: behind the first token at which the mean confidence
/// ([`SampledToken::confidence`](crate::SampledToken::confidence)) of the newest `window` tokens is lower than `below`.
/// A sample of fewer tokens is never ended by it. An extend's window begins empty, whatever its branch or the branch
/// that it was forked from has sampled before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfidenceStop {
    /// Tokens of a window.
    pub window: NonZeroUsize,
    /// The lowest mean that a sample goes on with, in nats: a number, above 0 as confidences are.
    pub below: f64,
}

/// The confidences of an extend's newest tokens.
pub(crate) struct ConfidenceWindow {
    stop: ConfidenceStop,
    /// The newest ones, at most `stop.window`.
    newest: VecDeque<f32>,
    /// Their sum.
    sum: f64,
    /// Tokens since the sum was made from all of `newest`, so that no rounding is carried on for longer than a window.
    since: usize,
}

impl ConfidenceWindow {
    pub fn new(stop: ConfidenceStop) -> Self {
        ConfidenceWindow { stop, newest: VecDeque::new(), sum: 0.0, since: 0 }
    }

    /// Adds the confidence of the next token. Returns whether the window is full and its mean too low.
    pub fn push(&mut self, confidence: f32) -> bool {
        let window = self.stop.window.get();
        let oldest = if self.newest.len() == window { self.newest.pop_front() } else { None };
        self.newest.push_back(confidence);
        self.since += 1;
        if self.since == window {
            self.sum = self.newest.iter().copied().map(f64::from).sum();
            self.since = 0;
        } else {
            self.sum += f64::from(confidence) - oldest.map_or(0.0, f64::from);
        }
        self.newest.len() == window && self.sum / (window as f64) < self.stop.below
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The place of the first token at which a window's mean is too low, by the definition: each mean anew.
    fn first_low(confidences: &[f32], window: usize, below: f64) -> Option<usize> {
        let means = confidences.windows(window).map(|all| all.iter().map(|&c| f64::from(c)).sum::<f64>());
        means.map(|sum| sum / window as f64).position(|mean| mean < below).map(|first| first + window - 1)
    }

    fn found(confidences: &[f32], window: usize, below: f64) -> Option<usize> {
        let stop = ConfidenceStop { window: NonZeroUsize::new(window).expect("from 1 up"), below };
        let mut window = ConfidenceWindow::new(stop);
        confidences.iter().position(|&confidence| window.push(confidence))
    }

    proptest! {
        #[test]
        fn a_window_finds_the_first_low_mean(
            // Multiples of 1/8: every sum is exact, so no mean lies at the threshold by rounding.
            eighths in prop::collection::vec(0u32..160, 0..200),
            window in 1_usize..40,
            below in 0u32..170,
        ) {
            let confidences: Vec<f32> = eighths.into_iter().map(|eighth| eighth as f32 / 8.0).collect();
            let below = f64::from(below) / 8.0;
            prop_assert_eq!(found(&confidences, window, below), first_low(&confidences, window, below));
        }
    }

    #[test]
    fn a_window_must_be_full_and_its_mean_lower_than_the_threshold() {
        assert_eq!(found(&[1.0, 1.0, 1.0], 4, 9.0), None, "three tokens of four");
        assert_eq!(found(&[1.0, 1.0, 1.0, 1.0], 4, 9.0), Some(3));
        assert_eq!(found(&[2.0, 2.0, 2.0], 2, 2.0), None, "as high as it must be");
        assert_eq!(found(&[9.0, 1.0, 1.0, 0.5], 2, 1.0), Some(3), "the newest two alone count");
        assert_eq!(found(&[2.0, 0.5], 1, 1.0), Some(1), "a window of one token");
    }

    #[test]
    fn a_sum_is_made_anew_within_a_window() {
        // Logits beyond f32 have no finite confidence; what is left of it in a running sum is no number.
        let confidences: Vec<f32> = [f32::INFINITY].into_iter().chain([1.0; 20]).collect();
        assert_eq!(found(&confidences, 4, 2.0), Some(7));
        assert_eq!(found(&[1.0; 8], 4, 1.0), None);
    }
}
