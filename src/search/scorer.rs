//! What a solution, or the beginning of one, is worth: by the model's own probabilities, by its answer to a question about it,
//! or by its assessment. No word of a verdict is sampled: its probability is read off. What is done with the values is left
//! to the drivers.

use petgraph::graph::NodeIndex;

use super::Job;
use super::evaluate::expected_value;
use crate::error::Result;
use crate::ids::TokenId;
use crate::tree::{After, Probe, SamplingTree};

/// A question about a text, in tokens, and the words that may answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub prompt: Vec<TokenId>,
    pub words: Vec<Vec<TokenId>>,
}

/// Puts texts into questions.
pub type Ask<'a> = &'a (dyn Fn(&str) -> Result<Question> + Sync);

#[derive(Clone)]
pub enum Scorer<'a> {
    /// The model's own probability a token: the exponential of the mean log-probability, in (0, 1].
    MeanLogprob,
    /// The assessment's: 1 where the task's grader accepts the text, else 0, or the score that an assessor gives.
    Grade,
    /// The mean of `worth`, what each word is worth, weighted by the words' probabilities.
    Verdicts { ask: Ask<'a>, worth: Vec<f64> },
}

/// The values of some texts, and what finding them took.
#[derive(Clone, Debug, PartialEq)]
pub struct Values {
    pub values: Vec<f64>,
    /// Tokens given beside the item's prompt.
    pub prompt_tokens: usize,
}

impl Scorer<'_> {
    /// A value for each text, which the path down to its node spells. All questions are asked in one batch.
    pub fn values(&self, tree: &SamplingTree, of: &[(NodeIndex, &str)], job: &mut Job<'_>) -> Result<Values> {
        let free = |values| Values { values, prompt_tokens: 0 };
        match self {
            Scorer::MeanLogprob => Ok(free(of.iter().map(|&(node, _)| mean_probability(tree, node)).collect())),
            Scorer::Grade => {
                let mut value = |text: &str| Ok(job.assess(text)?.value());
                Ok(free(of.iter().map(|&(_, text)| value(text)).collect::<Result<_>>()?))
            }
            Scorer::Verdicts { ask, worth } => {
                let questions = of.iter().map(|&(_, text)| ask(text)).collect::<Result<Vec<Question>>>()?;
                Ok(Values {
                    values: verdicts(tree, &questions, worth)?,
                    prompt_tokens: questions.iter().map(|question| question.prompt.len()).sum(),
                })
            }
        }
    }
}

/// For each question the mean worth of its words, weighted by their probabilities after its prompt.
fn verdicts(tree: &SamplingTree, questions: &[Question], worth: &[f64]) -> Result<Vec<f64>> {
    let mut probes = Vec::new();
    for question in questions {
        let after = After::Prompt(&question.prompt);
        probes.extend(question.words.iter().map(|word| Probe { after, continuation: word }));
    }
    let scored = tree.probe(&probes)?;
    let words = scored.chunks(worth.len()).map(|words| worth.iter().copied().zip(words.iter().map(|word| word.sum)));
    Ok(words.map(expected_value).collect())
}

fn mean_probability(tree: &SamplingTree, node: NodeIndex) -> f64 {
    let path = tree.path(node);
    let tokens: usize = path.iter().map(|&node| tree.node(node).tokens.len()).sum();
    let logprob: f64 = path.iter().map(|&node| tree.node(node).logprob).sum();
    (logprob / tokens.max(1) as f64).exp()
}
