//! Search drivers: ordinary blocking programs over `SamplingTree`, one a file. This file holds what they share: the job they
//! are given (how to sample, how to assess a text, where finished samples go) and the outcome they return.

pub mod best_of_n;
pub mod evaluate;
pub mod select;
pub mod self_consistency;
pub mod tree_of_thought;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use petgraph::graph::NodeIndex;
use serde::Serialize;

use crate::engine::{FinishReason, SamplingParams, Stop};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::task::stats::Tally;
use crate::tree::{Event, Extension, Node, SamplingTree};

pub use best_of_n::{best_of_n, sample};
pub use self_consistency::self_consistency;
pub use tree_of_thought::tree_of_thought;

/// How long an interrupt may wait while nothing happens.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a grader and an answer pattern make of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assessment {
    /// The answer in the form that is voted on.
    pub answer: Option<String>,
    /// Whether it is right; `None` where the task has no grader.
    pub correct: Option<bool>,
}

/// One problem's work order.
pub struct Job<'a> {
    pub params: &'a SamplingParams,
    pub stop: &'a Stop,
    /// Pure: the same text always gets the same assessment.
    pub assess: &'a (dyn Fn(&str) -> Assessment + Sync),
    /// Called with each sample that counts, before it is counted: as it finishes, or by index where the driver stops early.
    pub record: &'a mut dyn FnMut(&Sample) -> Result<()>,
    /// Set from outside to make the driver end with `Error::Interrupted`.
    pub interrupted: &'a AtomicBool,
}

/// One finished candidate.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Its number among the problem's samples; with the seed it decides all of its coins.
    pub index: u64,
    pub text: String,
    pub tokens: usize,
    pub finish: FinishReason,
    /// Natural-log probability of its tokens under the model.
    pub logprob: f64,
    pub answer: Option<String>,
    pub correct: Option<bool>,
    /// One for each token, where `SamplingParams::top_logprobs` asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
}

/// A token of a sample and what else could have stood there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub token: TokenId,
    /// Natural-log probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// What a driver found out about one problem.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Outcome {
    /// Finished samples by index.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The answer chosen.
    pub prediction: Option<String>,
    /// Whether the chosen answer is right; `None` where the task has no grader.
    pub correct: Option<bool>,
    /// Answers with their votes, most first; empty where nothing was voted on.
    pub votes: Vec<(String, u32)>,
    /// The sample chosen.
    pub chosen: Option<u64>,
    /// Candidates the outcome does without: stopped, or finished when it was decided already.
    pub cancelled: usize,
    /// Tokens drawn that are no part of `samples`: thoughts on the way, lists of proposals, judgements.
    pub search_tokens: usize,
    /// Tokens given beside the item's prompt: questions about thoughts, proposals taken up. Each counted in full, however much
    /// of it was shared.
    pub search_prompt_tokens: usize,
}

/// The votes of `samples`.
pub fn tally(samples: &[Sample]) -> Tally {
    let mut tally = Tally::default();
    for sample in samples {
        tally.add(sample.index as usize, sample.answer.as_deref());
    }
    tally
}

/// Whether `answer` is right: the verdict on the first of `samples` that gave it. A grader looks at whole texts, so that samples
/// with the same answer may differ in it; whoever asks about an answer (a vote, maj@k) asks here.
pub fn verdict_on(answer: &str, samples: &[Sample]) -> Option<bool> {
    first_with(answer, samples)?.correct
}

fn first_with<'a>(answer: &str, samples: &'a [Sample]) -> Option<&'a Sample> {
    samples.iter().filter(|sample| sample.answer.as_deref() == Some(answer)).min_by_key(|sample| sample.index)
}

impl Job<'_> {
    /// The next candidate to finish, assessed, recorded and given back; `None` when all have. Cancelled ones are passed over.
    pub fn next_sample(&mut self, growing: &mut Extension<'_>) -> Result<Option<Sample>> {
        while let Some(node) = self.next_finished(growing)? {
            match growing.tree().node(node).finish {
                Some(FinishReason::Cancelled) => growing.tree_mut().close(node),
                _ => return self.take(growing, node).map(Some),
            }
        }
        Ok(None)
    }

    /// The next candidate to finish, cancelled or not, and nothing done with it; `None` when all have.
    fn next_finished(&self, growing: &mut Extension<'_>) -> Result<Option<NodeIndex>> {
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match growing.poll_event(PATIENCE)? {
                Poll::Ready(Some(Event::Finished { node })) => return Ok(Some(node)),
                Poll::Ready(Some(Event::Token { .. })) | Poll::Pending => {}
                Poll::Ready(None) => return Ok(None),
            }
        }
    }

    /// A finished candidate, assessed, recorded and given back.
    fn take(&mut self, growing: &mut Extension<'_>, node: NodeIndex) -> Result<Sample> {
        let index = growing.tree().node(node).ordinal;
        self.close(growing.tree_mut(), node, index)
    }

    /// As `take`, for a node that need not be a child of the root: `index` is the sample's number. What was given to it is none of
    /// its tokens.
    fn close(&mut self, tree: &mut SamplingTree, node: NodeIndex, index: u64) -> Result<Sample> {
        tree.close(node);
        let thought = tree.node(node);
        let Some(finish) = thought.finish.clone() else {
            return Err(Error::Internal(format!("node {} finished without a reason", node.index())));
        };
        let text = tree.path_text(node);
        let Assessment { answer, correct } = (self.assess)(&text);
        let sample = Sample {
            index,
            text,
            tokens: if finish == FinishReason::Given { 0 } else { thought.tokens.len() },
            finish,
            logprob: thought.logprob,
            answer,
            correct,
            logprobs: self.params.top_logprobs.map(|_| token_logprobs(thought)),
        };
        (self.record)(&sample)?;
        Ok(sample)
    }

    /// The verdict where nobody answered: wrong, where the task has a grader.
    fn no_answer(&self) -> Option<bool> {
        (self.assess)("").correct.map(|_| false)
    }
}

/// Of a sampled thought: every token has both its log-probability and its rivals.
fn token_logprobs(thought: &Node) -> Vec<TokenLogprob> {
    let drawn = thought.tokens.iter().zip(&thought.logprobs).zip(&thought.top);
    drawn.map(|((&token, &logprob), top)| TokenLogprob { token, logprob, top: top.clone() }).collect()
}
