//! How the scores of an answer's steps become the answer's score.

use serde::{Deserialize, Serialize};

use crate::scale::Scale;

/// How the scores of the steps are combined into the score of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Aggregate {
    /// The last step's.
    #[default]
    Last,
    /// The smallest.
    Min,
    /// Their product.
    Product,
    /// Their mean.
    Mean,
}

impl Aggregate {
    /// Whether it makes one score of scores of this scale: logits have no product, as that of two negative ones is
    /// high.
    pub fn fits(self, scale: Scale) -> bool {
        (self, scale) != (Aggregate::Product, Scale::Logit)
    }

    /// The answer's score; `None`: no step has one.
    pub fn of(self, scores: &[f64]) -> Option<f64> {
        let last = *scores.last()?;
        Some(match self {
            Aggregate::Last => last,
            Aggregate::Min => scores.iter().copied().fold(last, f64::min),
            Aggregate::Product => scores.iter().product(),
            Aggregate::Mean => scores.iter().sum::<f64>() / scores.len() as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_not_multiplied() {
        assert!(!Aggregate::Product.fits(Scale::Logit));
        assert!(Aggregate::Product.fits(Scale::Probability) && Aggregate::Min.fits(Scale::Logit));
    }

    #[test]
    fn four_ways_and_no_scores() {
        let scores = [0.5, 0.25, 0.75];
        let of = |aggregate: Aggregate| aggregate.of(&scores).unwrap();
        assert_eq!(of(Aggregate::Last), 0.75);
        assert_eq!(of(Aggregate::Min), 0.25);
        assert_eq!(of(Aggregate::Product), 0.5 * 0.25 * 0.75);
        assert_eq!(of(Aggregate::Mean), 0.5);
        let all = [Aggregate::Last, Aggregate::Min, Aggregate::Product, Aggregate::Mean];
        assert!(all.iter().all(|aggregate| aggregate.of(&[]).is_none()));
    }
}
