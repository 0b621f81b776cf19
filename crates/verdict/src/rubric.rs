//! Rubrics: criteria with points, each a question of its own about a text.

use serde_json::Value;

use crate::answer::AnswerRule;
use crate::question::JudgeAnswer;
use offshoot_core::error::{Error, Result};

/// A criterion of a rubric.
#[derive(Clone, Debug, PartialEq)]
pub struct Criterion {
    /// What is asked about.
    pub criterion: String,
    /// What it counts, above 0.
    pub points: f64,
}

/// A criterion's points as prompts have them: a template writes a whole number as it was written.
pub fn points_in_prompts(points: f64) -> Value {
    /// Whole numbers up to here are exact.
    const MOST: f64 = (1_u64 << 53) as f64;
    match points.fract() == 0.0 && points.abs() <= MOST {
        true => (points as i64).into(),
        false => points.into(),
    }
}

/// The criteria by which a text is judged, and what is answered about each.
#[derive(Clone, Debug, PartialEq)]
pub struct RubricRule {
    criteria: Vec<Criterion>,
    rule: AnswerRule,
}

impl RubricRule {
    /// A rubric of these criteria.
    ///
    /// # Errors
    ///
    /// There is none, or one whose points are not above 0.
    pub fn new(criteria: Vec<Criterion>, rule: AnswerRule) -> Result<RubricRule> {
        if criteria.is_empty() {
            return Err(Error::value("criteria of a rubric", "at least one", "none"));
        }
        match criteria.iter().find(|criterion| !(criterion.points.is_finite() && criterion.points > 0.0)) {
            Some(Criterion { criterion, points }) => {
                Err(Error::value(format!("points of {criterion:?}"), "a number above 0", points.to_string()))
            }
            None => Ok(RubricRule { criteria, rule }),
        }
    }

    /// The criteria, in the order in which they are asked about.
    pub fn criteria(&self) -> &[Criterion] {
        &self.criteria
    }

    /// What is answered about each criterion.
    pub fn rule(&self) -> &AnswerRule {
        &self.rule
    }

    /// The score of a text, from 0 to 1: the mean of its criteria's scores, weighted by their points. `answers`: one
    /// for each criterion.
    pub(crate) fn score(&self, answers: &[JudgeAnswer]) -> Result<f64> {
        let all: f64 = self.criteria.iter().map(|criterion| criterion.points).sum();
        let points = self.criteria.iter().zip(answers);
        let won =
            points.map(|(criterion, answer)| Ok(criterion.points * self.rule.score(answer)?)).sum::<Result<f64>>();
        Ok((won? / all).clamp(0.0, 1.0))
    }

    /// The answers as records have them: a list in the order of the criteria.
    pub(crate) fn recorded(&self, answers: &[JudgeAnswer]) -> Value {
        answers.iter().map(|answer| self.rule.recorded(answer)).collect::<Vec<_>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::WordValues;

    fn rubric(points: &[f64]) -> Result<RubricRule> {
        let words = WordValues::new([("yes".to_owned(), 1.0), ("no".to_owned(), 0.0)]).unwrap();
        let criteria = points.iter().map(|&points| Criterion { criterion: "It is short.".to_owned(), points });
        RubricRule::new(criteria.collect(), AnswerRule::Words(words))
    }

    #[test]
    fn points_are_won_by_shares() {
        let answers = [0.5, 1.0, 0.0].map(|yes| JudgeAnswer::Words(vec![yes, 1.0 - yes]));
        // 3 · 0.5 + 1 · 1 + 4 · 0 of 8.
        assert_eq!(rubric(&[3.0, 1.0, 4.0]).unwrap().score(&answers).unwrap(), 2.5 / 8.0);
        let all = [1.0; 3].map(|yes| JudgeAnswer::Words(vec![yes, 0.0]));
        assert_eq!(rubric(&[0.1, 0.2, 0.7]).unwrap().score(&all).unwrap(), 1.0);
    }

    #[test]
    fn criteria_without_points_are_refused() {
        for (points, named) in
            [(vec![], "at least one"), (vec![1.0, 0.0], "points of \"It is short.\""), (vec![f64::NAN], "points")]
        {
            let error = rubric(&points).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
