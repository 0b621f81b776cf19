//! What a judge is asked about the samples of an item, as data.

use crate::answer::AnswerRule;
use crate::groups::GroupRule;
use crate::pairs::PairRule;
use crate::question::WantedAnswer;
use crate::rubric::RubricRule;
use offshoot_core::error::Result;

/// What a judge is asked about the samples of an item, and how its answers become scores from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// One question about each text.
    Each(AnswerRule),
    /// A question about each text by each criterion.
    Rubric(RubricRule),
    /// Which of two texts is better, for pairs of them.
    Pairs(PairRule),
    /// Which of several texts are the best, for groups of them.
    Groups(GroupRule),
}

impl Verdict {
    /// What the judge may answer to a question, which is about `texts` texts where it is about several.
    ///
    /// # Errors
    ///
    /// The answer has no place for numbers of texts.
    pub fn wanted(&self, texts: usize) -> Result<WantedAnswer> {
        match self {
            Verdict::Each(rule) => Ok(rule.wanted()),
            Verdict::Rubric(rubric) => Ok(rubric.rule().wanted()),
            Verdict::Pairs(rule) => Ok(rule.wanted()),
            Verdict::Groups(rule) => rule.wanted(texts),
        }
    }

    /// Whether texts are compared with each other, so that a text has no score of its own.
    pub fn compares(&self) -> bool {
        match self {
            Verdict::Each(_) | Verdict::Rubric(_) => false,
            Verdict::Pairs(_) | Verdict::Groups(_) => true,
        }
    }

    /// How many questions are asked about `texts` different texts of an item.
    pub fn questions(&self, texts: usize) -> usize {
        match self {
            Verdict::Each(_) => texts,
            Verdict::Rubric(rubric) => texts * rubric.criteria().len(),
            Verdict::Pairs(rule) => rule.questions(texts),
            Verdict::Groups(rule) => rule.questions(texts),
        }
    }
}
