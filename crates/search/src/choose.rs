//! K-choice: picks the most likely of the answers offered for an item. The prompt is computed once and all choices are
//! scored in one batch; nothing is sampled.

use super::select::argmax;
use super::settings::ChooseBy;
use crate::job::SearchJob;
use crate::outcome::{ChoiceScore, Details, Outcome, Sample};
use crate::tree::{After, Probe, SamplingTree};
use offshoot_core::error::Result;
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::FinishReason;

/// An answer that is offered, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedChoice {
    /// Its label in answers and grades.
    pub label: String,
    /// Length of its text in bytes, for `ChooseBy::PerByte`.
    pub bytes: usize,
    /// Tokens after the item's prompt.
    pub tokens: Vec<TokenId>,
    /// The answer after a prompt without information; its log-probability is subtracted.
    pub neutral: Option<Neutral>,
}

/// The answer of a choice after a prompt without information about the item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neutral {
    /// Tokens of the prompt.
    pub prompt: Vec<TokenId>,
    /// Tokens of the answer after it.
    pub tokens: Vec<TokenId>,
}

/// Scores `choices` as continuations of `at` and chooses the one with the largest score by `by`; of equal ones, the
/// first.
///
/// # Errors
///
/// A choice fails: it may have been the likeliest one.
pub fn choose(
    tree: &mut SamplingTree,
    at: NodeId,
    choices: &[OfferedChoice],
    by: ChooseBy,
    job: &mut SearchJob<'_>,
) -> Result<Outcome> {
    job.check_interrupted()?;
    let nodes = tree.fork(at, choices.len())?;
    let given = nodes.iter().zip(choices).map(|(&node, choice)| (node, choice.tokens.clone())).collect();
    tree.start_given(given, true)?.finish()?;
    // A failed choice may have been the most likely one, so the whole comparison fails.
    if let Some((_, error)) = tree.take_failures().pop_first() {
        return Err(error);
    }
    let neutral = neutral_logprobs(tree, choices)?;
    let scores: Vec<ChoiceScore> = nodes
        .iter()
        .zip(choices)
        .zip(neutral)
        .map(|((&node, choice), neutral)| scored(choice, tree.node(node).logprob, neutral, by))
        .collect();
    let best = argmax(scores.iter().map(|score| score.score)).unwrap_or(0);
    for (ix, (&node, choice)) in nodes.iter().zip(&scores).enumerate() {
        tree.set_score(node, choice.score);
        if ix == best { tree.close(node) } else { tree.prune(node) }
    }
    let chosen = &scores[best];
    let mut sample = Sample::new(0, chosen.choice.clone(), FinishReason::Given, job.assess(&chosen.choice)?);
    sample.logprob = chosen.logprob;
    sample.answer.get_or_insert_with(|| chosen.choice.clone());
    (job.record)(&sample)?;
    let beside = choices.iter().filter_map(|choice| choice.neutral.as_ref());
    let beside = beside.map(|neutral| neutral.prompt.len() + neutral.tokens.len());
    Ok(Outcome {
        prediction: sample.answer.clone(),
        correct: sample.correct,
        chosen: Some(sample.index),
        samples: vec![sample],
        search_prompt_tokens: tree.spent().given + beside.sum::<usize>(),
        details: Some(Details::Choices { choices: scores }),
        ..Outcome::default()
    })
}

/// The log-probability of each choice after its neutral prompt, computed in one batch; `None` without one.
fn neutral_logprobs(tree: &SamplingTree, choices: &[OfferedChoice]) -> Result<Vec<Option<f64>>> {
    let neutral = choices.iter().filter_map(|choice| choice.neutral.as_ref());
    let probes: Vec<Probe<'_>> =
        neutral.map(|neutral| Probe { after: After::Prompt(&neutral.prompt), continuation: &neutral.tokens }).collect();
    let mut scored = match probes.is_empty() {
        true => Vec::new().into_iter(),
        false => tree.probe(&probes)?.into_iter(),
    };
    Ok(choices
        .iter()
        .map(|choice| choice.neutral.as_ref().and_then(|_| scored.next()).map(|found| found.sum))
        .collect())
}

fn scored(choice: &OfferedChoice, logprob: f64, neutral: Option<f64>, by: ChooseBy) -> ChoiceScore {
    let gain = logprob - neutral.unwrap_or(0.0);
    let score = match by {
        ChooseBy::Logprob => gain,
        ChooseBy::MeanLogprob => gain / choice.tokens.len() as f64,
        ChooseBy::PerByte => gain / choice.bytes as f64,
    };
    ChoiceScore { choice: choice.label.clone(), logprob, neutral, tokens: choice.tokens.len(), score }
}
