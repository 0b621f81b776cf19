//! Values whole and partial solutions: by the model's own probabilities, by the model's answer to a question about the
//! text, by its assessment, or by a scorer such as a reward model. Verdict words are not sampled: their probabilities
//! are read from the model. The drivers decide what to do with the values.

use crate::assess::PATIENCE;
use crate::job::SearchJob;
use crate::model_scores::{ModelScores, ScorerWork};
use crate::outcome::SampleScore;
use crate::particles::log_odds;
use crate::tree::{After, Probe, SamplingTree};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_score::{Aggregate, Scale, expected_value};

/// A question about a text, in tokens, and its possible one-word answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoreQuestion {
    /// The question.
    pub prompt: Vec<TokenId>,
    /// Each of the answers.
    pub words: Vec<Vec<TokenId>>,
}

/// Turns a text into a question about it.
pub type QuestionFor<'a> = &'a (dyn Fn(&str) -> Result<ScoreQuestion> + Sync);

/// What values a whole or partial solution.
pub enum Scorer<'a> {
    /// Mean probability per token: the exponential of the mean log-probability, in (0, 1].
    MeanLogprob,
    /// The assessment's value: 1 if the task's grader accepts the text, else 0, or the assessor's score.
    Grade,
    /// The mean of `worth`, the value of each word, weighted by the words' probabilities.
    Verdicts {
        /// Makes the question about a text.
        ask: QuestionFor<'a>,
        /// The value of each word, in the order of [`ScoreQuestion::words`].
        worth: Vec<f64>,
    },
    /// The scores of another model, which come while the search goes on.
    Model(Box<ModelScores>),
}

/// A text of the tree, whole or partial.
#[derive(Clone, Copy, Debug)]
pub struct NodeText<'a> {
    /// The node at which it ends.
    pub node: NodeId,
    /// The text of the path to that node.
    pub text: &'a str,
    /// Where each of its steps ends, in bytes, rising; the last one at the end of the text.
    pub ends: &'a [usize],
}

impl NodeText<'_> {
    /// The text, cut into its steps.
    pub(crate) fn steps(&self) -> Vec<String> {
        let begins = [0].iter().chain(self.ends);
        begins.zip(self.ends).map(|(&begin, &end)| self.text[begin..end].to_owned()).collect()
    }
}

/// Where the steps of `text` end that `delimiter` ends; what is behind the last one is a step, too.
pub fn step_ends(text: &str, delimiter: &str) -> Vec<usize> {
    let mut ends: Vec<usize> = text.match_indices(delimiter).map(|(at, found)| at + found.len()).collect();
    if ends.last() != Some(&text.len()) {
        ends.push(text.len());
    }
    ends
}

/// The values of some texts, and the cost of finding them.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerValues {
    /// One for each text.
    pub values: Vec<SampleScore>,
    /// Tokens given to the sampling model in addition to the item's prompt.
    pub prompt_tokens: usize,
}

impl Scorer<'_> {
    /// A value for each text. All questions run in one batch, and so do the texts of a scorer that has not been given
    /// them before. `aggregate`: how the scores of a text's steps become its value, where the scorer has any.
    ///
    /// # Errors
    ///
    /// The engine has stopped or the search is interrupted; a text cannot be scored, and that is to end the search.
    pub fn values(
        &mut self,
        tree: &SamplingTree,
        of: &[NodeText<'_>],
        aggregate: Aggregate,
        job: &mut SearchJob<'_>,
    ) -> Result<ScorerValues> {
        let free = |values| ScorerValues { values, prompt_tokens: 0 };
        match self {
            Scorer::MeanLogprob => {
                Ok(free(of.iter().map(|text| value_of(mean_probability(tree, text.node))).collect()))
            }
            Scorer::Grade => {
                let mut value = |text: &str| Ok(value_of(job.assess(text)?.value()));
                Ok(free(of.iter().map(|text| value(text.text)).collect::<Result<_>>()?))
            }
            Scorer::Verdicts { ask, worth } => {
                let questions = of.iter().map(|text| ask(text.text)).collect::<Result<Vec<ScoreQuestion>>>()?;
                Ok(ScorerValues {
                    values: verdicts(tree, &questions, worth)?.into_iter().map(value_of).collect(),
                    prompt_tokens: questions.iter().map(|question| question.prompt.len()).sum(),
                })
            }
            Scorer::Model(scores) => scores.scores(tree, of, aggregate, PATIENCE, || job.check_interrupted()).map(free),
        }
    }

    /// Refuses an aggregate that the scorer's scores have no meaning under: a product of logits.
    ///
    /// # Errors
    ///
    /// It is one.
    pub fn check(&self, aggregate: Aggregate) -> Result<()> {
        match self {
            Scorer::Model(scores) if !aggregate.fits(scores.scale()) => {
                let expected = "another than product, or a form with the activation sigmoid: the scores are logits";
                Err(Error::value("the aggregate of a scorer's scores", expected, "product"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a text's value depends on the texts that are valued with it.
    pub(crate) fn compares(&self) -> bool {
        match self {
            Scorer::Model(scores) => scores.compares(),
            Scorer::MeanLogprob | Scorer::Grade | Scorer::Verdicts { .. } => false,
        }
    }

    /// Hands a text to a scorer that works beside the search.
    pub(crate) fn begin(&mut self, tree: &SamplingTree, text: &NodeText<'_>) -> Result<()> {
        match self {
            Scorer::Model(scores) => scores.begin(tree, text),
            Scorer::MeanLogprob | Scorer::Grade | Scorer::Verdicts { .. } => Ok(()),
        }
    }

    /// Takes what a scorer beside the search has found, and gives up what `tree` holds no more. Returns whether it
    /// works on something.
    pub(crate) fn attend(&mut self, tree: &SamplingTree) -> Result<bool> {
        let Scorer::Model(scores) = self else { return Ok(false) };
        scores.receive(std::time::Duration::ZERO)?;
        scores.release(tree);
        Ok(scores.waiting() > 0)
    }

    /// A value as a weight of a vote: from 0 to 1 if it is a scorer's, else the value itself.
    pub(crate) fn weight(&self, value: Option<f64>) -> f64 {
        match (self, value) {
            (_, None) => 0.0,
            (Scorer::Model(scores), Some(value)) => scores.scale().probability(value),
            (_, Some(value)) => value,
        }
    }

    /// A value as the weight of a particle, in nats: its log-odds. `None`: minus infinity.
    ///
    /// # Errors
    ///
    /// It is to be a probability, and is not in [0, 1].
    pub(crate) fn log_odds(&self, value: Option<f64>) -> Result<f64> {
        match (self, value) {
            (_, None) => Ok(f64::NEG_INFINITY),
            (Scorer::Model(scores), Some(value)) if scores.scale() == Scale::Logit => Ok(value),
            (_, Some(value)) if (0.0..=1.0).contains(&value) => Ok(log_odds(value)),
            (_, Some(value)) => {
                let what = "the value of a step, by which particles are drawn";
                Err(Error::value(what, "a number from 0 to 1", value.to_string()))
            }
        }
    }

    /// What a scorer beside the search has done; `None`: there is none.
    pub(crate) fn work(&self) -> Option<&ScorerWork> {
        match self {
            Scorer::Model(scores) => Some(scores.work()),
            Scorer::MeanLogprob | Scorer::Grade | Scorer::Verdicts { .. } => None,
        }
    }
}

/// The value of a text by one number.
fn value_of(score: f64) -> SampleScore {
    match score.is_nan() {
        true => SampleScore::Unscored { score_error: "its value is not a number".to_owned() },
        false => {
            let (step_scores, part_scores) = (Vec::new(), Vec::new());
            let (score_tokens, verdict, score_error) = (None, None, None);
            SampleScore::Scored { score, step_scores, part_scores, score_tokens, verdict, score_error }
        }
    }
}

/// For each question, the mean value of its words, weighted by their probabilities after its prompt.
fn verdicts(tree: &SamplingTree, questions: &[ScoreQuestion], worth: &[f64]) -> Result<Vec<f64>> {
    let mut probes = Vec::new();
    for question in questions {
        let after = After::Prompt(&question.prompt);
        probes.extend(question.words.iter().map(|word| Probe { after, continuation: word }));
    }
    let scored = tree.probe(&probes)?;
    let words = scored.chunks(worth.len()).map(|words| worth.iter().copied().zip(words.iter().map(|word| word.sum)));
    Ok(words.map(expected_value).collect())
}

fn mean_probability(tree: &SamplingTree, node: NodeId) -> f64 {
    let path = tree.path(node);
    let tokens: usize = path.iter().map(|&node| tree.node(node).tokens.len()).sum();
    let logprob: f64 = path.iter().map(|&node| tree.node(node).logprob).sum();
    (logprob / tokens.max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_behind_delimiters_and_at_the_end() {
        let steps = |text: &str| {
            let ends = step_ends(text, "\n\n");
            NodeText { node: NodeId(0), text, ends: &ends }.steps()
        };
        assert_eq!(steps("a\n\nb\n\nc"), ["a\n\n", "b\n\n", "c"]);
        assert_eq!(steps("a\n\n"), ["a\n\n"]);
        assert_eq!(steps("a\nb"), ["a\nb"]);
        assert_eq!(steps(""), [""]);
    }
}
