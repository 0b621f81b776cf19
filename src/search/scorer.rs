//! What a solution, or the beginning of one, is worth: by the model's own probabilities, by its answer to a question about it,
//! or by the task's grader. No word of a verdict is sampled: its probability is read off. What is done with the values is left
//! to the drivers.

use petgraph::graph::NodeIndex;

use super::Job;
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
    /// 1 where the task's grader accepts the text, else 0.
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
    pub fn values(&self, tree: &SamplingTree, of: &[(NodeIndex, &str)], job: &Job<'_>) -> Result<Values> {
        let free = |values| Values { values, prompt_tokens: 0 };
        match self {
            Scorer::MeanLogprob => Ok(free(of.iter().map(|&(node, _)| mean_probability(tree, node)).collect())),
            Scorer::Grade => {
                let right = |text: &str| f64::from((job.assess)(text).correct == Some(true));
                Ok(free(of.iter().map(|&(_, text)| right(text)).collect()))
            }
            Scorer::Verdicts { ask, worth } => {
                let questions = of.iter().map(|&(_, text)| ask(text)).collect::<Result<Vec<Question>>>()?;
                let likely = verdicts(tree, &questions)?;
                let value = |likely: &Vec<f64>| likely.iter().zip(worth).map(|(p, worth)| p * worth).sum();
                Ok(Values {
                    values: likely.iter().map(value).collect(),
                    prompt_tokens: questions.iter().map(|question| question.prompt.len()).sum(),
                })
            }
        }
    }
}

/// For each question the probabilities of its words, normalised over them.
pub fn verdicts(tree: &SamplingTree, questions: &[Question]) -> Result<Vec<Vec<f64>>> {
    let mut probes = Vec::new();
    for question in questions {
        let after = After::Prompt(&question.prompt);
        probes.extend(question.words.iter().map(|word| Probe { after, continuation: word }));
    }
    let mut scored = tree.probe(&probes)?.into_iter();
    let of = |question: &Question| {
        let logprobs: Vec<f64> = scored.by_ref().take(question.words.len()).map(|word| word.sum).collect();
        normalised(&logprobs)
    };
    Ok(questions.iter().map(of).collect())
}

/// Probabilities in the ratio of `exp(logprobs)`, however small those are.
fn normalised(logprobs: &[f64]) -> Vec<f64> {
    let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return vec![1.0 / logprobs.len().max(1) as f64; logprobs.len()]; // None of them can follow: nothing is said.
    }
    let likely: Vec<f64> = logprobs.iter().map(|logprob| (logprob - most).exp()).collect();
    let sum: f64 = likely.iter().sum();
    likely.iter().map(|p| p / sum).collect()
}

fn mean_probability(tree: &SamplingTree, node: NodeIndex) -> f64 {
    let path = tree.path(node);
    let tokens: usize = path.iter().map(|&node| tree.node(node).tokens.len()).sum();
    let logprob: f64 = path.iter().map(|&node| tree.node(node).logprob).sum();
    (logprob / tokens.max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_normalised_whatever_their_size() {
        let even = normalised(&[-2000.0, -2000.0]);
        assert_eq!(even, [0.5, 0.5]);
        let three_to_one = normalised(&[3f64.ln() - 9.0, -9.0]);
        assert!((three_to_one[0] - 0.75).abs() < 1e-12 && (three_to_one[1] - 0.25).abs() < 1e-12, "{three_to_one:?}");
        assert_eq!(normalised(&[f64::NEG_INFINITY, -1.0]), [0.0, 1.0]);
        assert_eq!(normalised(&[f64::NEG_INFINITY; 2]), [0.5, 0.5]);
    }
}
