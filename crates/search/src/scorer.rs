//! Values whole and partial solutions: by the model's own probabilities, by the model's answer to a question about the
//! text, or by its assessment. Verdict words are not sampled: their probabilities are read from the model. The drivers
//! decide what to do with the values.

use super::evaluate::expected_value;
use crate::job::SearchJob;
use crate::tree::{After, Probe, SamplingTree};
use offshoot_core::error::Result;
use offshoot_core::ids::{NodeId, TokenId};

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
#[derive(Clone)]
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
}

/// The values of some texts, and the cost of finding them.
#[derive(Clone, Debug, PartialEq)]
pub struct ScorerValues {
    /// One for each text.
    pub values: Vec<f64>,
    /// Tokens given in addition to the item's prompt.
    pub prompt_tokens: usize,
}

impl Scorer<'_> {
    /// A value for each text, which must be the text of the path to its node. All questions run in one batch.
    pub fn values(&self, tree: &SamplingTree, of: &[(NodeId, &str)], job: &mut SearchJob<'_>) -> Result<ScorerValues> {
        let free = |values| ScorerValues { values, prompt_tokens: 0 };
        match self {
            Scorer::MeanLogprob => Ok(free(of.iter().map(|&(node, _)| mean_probability(tree, node)).collect())),
            Scorer::Grade => {
                let mut value = |text: &str| Ok(job.assess(text)?.value());
                Ok(free(of.iter().map(|&(_, text)| value(text)).collect::<Result<_>>()?))
            }
            Scorer::Verdicts { ask, worth } => {
                let questions = of.iter().map(|&(_, text)| ask(text)).collect::<Result<Vec<ScoreQuestion>>>()?;
                Ok(ScorerValues {
                    values: verdicts(tree, &questions, worth)?,
                    prompt_tokens: questions.iter().map(|question| question.prompt.len()).sum(),
                })
            }
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
