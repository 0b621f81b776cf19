//! A question and an answer as tokens, with the places at which values are read, and the scores that these give.

use crate::aggregate::Aggregate;
use offshoot_core::ids::TokenId;

/// The tokens of a question and an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The tokens up to the last one at which a value is read.
    pub tokens: Vec<TokenId>,
    /// Number of tokens up to the answer's end, at least one. What a template writes behind it stands behind these, and
    /// a longer answer has none of that there.
    pub trunk: usize,
    /// Where values are read, in the order of the tokens; at least one.
    pub reads: Vec<ReadPlace>,
}

/// A token at which values are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlace {
    /// The index of the token: the values are those of its own row.
    pub at: usize,
    /// The number of the step that they value, from 0.
    pub step: usize,
}

/// The scores of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct StepScores {
    /// One for each place at which values are read, in the order of the tokens.
    pub scores: Vec<StepScore>,
}

/// The score of a step, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScore {
    /// The number of the step, from 0.
    pub step: usize,
    /// The score.
    pub score: f64,
}

impl StepScores {
    /// The score of each of `steps` steps: that of its last part. `None`: the step has no value of its own, as it has
    /// no text or as the form values whole answers.
    pub fn by_step(&self, steps: usize) -> Vec<Option<f64>> {
        let mut by_step = vec![None; steps];
        for scored in &self.scores {
            if let Some(score) = by_step.get_mut(scored.step) {
                *score = Some(scored.score);
            }
        }
        by_step
    }

    /// The answer's score, from the scores of all parts; `None`: there are none.
    pub fn aggregated(&self, aggregate: Aggregate) -> Option<f64> {
        let scores: Vec<f64> = self.scores.iter().map(|scored| scored.score).collect();
        aggregate.of(&scores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_the_score_of_its_last_part() {
        let scored = |step, score| StepScore { step, score };
        let scores = StepScores { scores: vec![scored(0, 0.25), scored(0, 0.5), scored(2, 0.75)] };
        assert_eq!(scores.by_step(4), [Some(0.5), None, Some(0.75), None]);
        assert_eq!(scores.aggregated(Aggregate::Mean), Some(0.5));
        assert_eq!(StepScores { scores: Vec::new() }.aggregated(Aggregate::Last), None);
    }
}
