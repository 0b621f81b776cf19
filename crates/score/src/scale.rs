//! What the numbers of a scorer mean: probabilities or logits. Votes weigh answers by probabilities, particles by
//! logits; each is made of the other here.

use serde::{Deserialize, Serialize};

/// The numbers nearest to 0 and 1 that count as probabilities where their logit is taken, as its_hub has them.
const NEAREST: f64 = 1e-7;

/// What a score is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A number from 0 to 1.
    Probability,
    /// Any number: its sigmoid is a probability.
    Logit,
}

impl Scale {
    /// The score as a number from 0 to 1.
    pub fn probability(self, score: f64) -> f64 {
        match self {
            Scale::Probability => score,
            Scale::Logit => sigmoid(score),
        }
    }

    /// The score as a logit. A probability is first brought to at least 1e-7 and at most 1 - 1e-7.
    pub fn logit(self, score: f64) -> f64 {
        match self {
            Scale::Probability => {
                let p = score.clamp(NEAREST, 1.0 - NEAREST);
                (p / (1.0 - p)).ln()
            }
            Scale::Logit => score,
        }
    }
}

/// 1 / (1 + e^-x), without overflow.
pub(crate) fn sigmoid(x: f64) -> f64 {
    match x >= 0.0 {
        true => 1.0 / (1.0 + (-x).exp()),
        false => x.exp() / (1.0 + x.exp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_and_logits_are_made_of_each_other() {
        for logit in [-12.0, -0.5, 0.0, 3.0, 15.0] {
            let p = Scale::Logit.probability(logit);
            assert!((0.0..=1.0).contains(&p));
            assert!((Scale::Probability.logit(p) - logit).abs() < 1e-9, "{logit}");
            assert_eq!((Scale::Probability.probability(p), Scale::Logit.logit(logit)), (p, logit));
        }
        assert_eq!((sigmoid(-1000.0), sigmoid(1000.0)), (0.0, 1.0));
        let bound = ((1.0 - 1e-7) / 1e-7f64).ln();
        for (p, logit) in [(0.0, -bound), (1.0, bound)] {
            assert!((Scale::Probability.logit(p) - logit).abs() < 1e-6);
        }
    }
}
