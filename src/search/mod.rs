//! Search drivers: ordinary blocking programs over `SamplingTree`, one a file. This file holds what they share: the job they
//! are given (how to sample, how to assess a text, where finished samples go) and the outcome they return.

mod assess;
pub mod best_of_n;
pub mod choose;
pub mod decide;
pub mod dvts;
pub mod evaluate;
pub mod mcts;
pub mod scorer;
pub mod select;
pub mod self_consistency;
pub mod settings;
pub mod step_beam;
pub mod steps;
pub mod tree_of_thought;
pub mod vote;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use petgraph::graph::NodeIndex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::{FinishReason, First, ForkKind, SamplingParams, Stop};
use crate::error::{Error, Result};
use crate::ids::TokenId;
use crate::tree::{Event, Extension, Node, SamplingTree};

pub use assess::{Assess, Assessment, Assessor, Reply, Request};
pub use best_of_n::{best_by_scorer, best_of_n, sample};
pub use choose::choose;
pub use dvts::dvts;
pub use mcts::mcts;
pub use scorer::Scorer;
pub use self_consistency::self_consistency;
pub use step_beam::step_beam;
pub use tree_of_thought::tree_of_thought;

use vote::Tally;

/// How long an interrupt may wait while nothing happens.
const PATIENCE: Duration = Duration::from_millis(100);

/// One problem's work order.
pub struct Job<'a> {
    pub params: &'a SamplingParams,
    pub stop: &'a Stop,
    /// What candidates are worth.
    pub assessor: Assessor<'a>,
    /// Samples of this problem that an earlier process recorded, for drivers that take them up by [`Job::candidates`].
    pub earlier: Vec<Sample>,
    /// Called with each sample that counts, before it is counted: as it finishes, or by index where the driver stops
    /// early. Also with those that failed (`Sample::error`), which count nowhere.
    pub record: &'a mut dyn FnMut(&Sample) -> Result<()>,
    /// Set from outside to make the driver end with `Error::Interrupted`.
    pub interrupted: &'a AtomicBool,
}

/// One finished candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its number among the problem's samples; with the seed it decides all of its uniforms.
    pub index: u64,
    pub text: String,
    pub tokens: usize,
    pub finish: FinishReason,
    /// Natural-log probability of its tokens under the model.
    pub logprob: f64,
    pub answer: Option<String>,
    pub correct: Option<bool>,
    /// [`Assessment::detail`]; results call it by what judges say.
    #[serde(rename = "judged", default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
    /// One for each token, where `SamplingParams::top_logprobs` asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// The share of its attention on each level of the prompt and, last, on its own text, where an earlier version recorded it
    /// (`run --attention-levels`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<Vec<f32>>,
    /// Why it could not be drawn to its end. Such a sample is recorded and nothing else: it is no part of an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A token of a sample and what else could have stood there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub token: TokenId,
    /// Natural-log probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, likeliest first.
    pub top: Vec<(TokenId, f32)>,
}

/// What a driver found out about one problem.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
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
    /// Candidates the outcome does without: never begun, stopped, or finished when it was decided already.
    pub cancelled: usize,
    /// Tokens that those had drawn.
    pub cancelled_tokens: usize,
    /// Tokens drawn that are no part of `samples`: thoughts on the way, lists of proposals, judgements.
    pub search_tokens: usize,
    /// Tokens given beside the item's prompt: questions about thoughts, proposals taken up. Each counted in full, however much
    /// of it was shared.
    pub search_prompt_tokens: usize,
    /// Branches that the outcome does without because they failed.
    pub failed: Option<FailedBranches>,
    /// What the method found beyond that.
    #[serde(flatten)]
    pub details: Option<Details>,
}

/// Branches that could not go on, though others of the same search could.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedBranches {
    pub branches: usize,
    /// Why the first of them could not.
    pub first: String,
}

/// What is told of an item by its method alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Details {
    Choices {
        choices: Vec<choose::ChoiceScore>,
    },
    /// As search-and-learn writes them: the solutions, and the values of each one's steps.
    Solutions {
        completions: Vec<String>,
        scores: Vec<Vec<f64>>,
        pred: Option<String>,
    },
    /// What a scorer gave each sample, by index. Read last, for solutions have a field of the same name.
    Scores {
        scores: Vec<f64>,
    },
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
    /// The first `n` candidates below `at`: those already sampled, by index, and forks for the others, by ordinal. Uniforms depend
    /// on the ordinal alone, so that a search taken up draws what it would have drawn at one go.
    pub fn candidates(
        &mut self,
        tree: &mut SamplingTree,
        at: NodeIndex,
        n: usize,
    ) -> Result<(Vec<Sample>, Vec<NodeIndex>)> {
        let mut already = std::mem::take(&mut self.earlier);
        already.retain(|sample| sample.index < n as u64);
        already.sort_by_key(|sample| sample.index);
        for sample in &already {
            tree.add_known(at, sample.index, &sample.text, sample.logprob, sample.finish.clone());
        }
        let is_missing = |ordinal: &u64| already.binary_search_by_key(ordinal, |sample| sample.index).is_err();
        let missing: Vec<u64> = (0..n as u64).filter(is_missing).collect();
        let nodes = match missing.is_empty() {
            true => Vec::new(),
            false => tree.fork_ordinals(ForkKind::Sample, at, &missing)?,
        };
        Ok((already, nodes))
    }

    /// The next candidate to be finished and assessed, recorded and given back; `None` when all are. Cancelled ones are passed
    /// over, and so are those that failed, once they are recorded. Texts are assessed while the other candidates grow;
    /// what a finished one held is given back before that.
    pub fn next_sample(&mut self, growing: &mut Extension<'_>) -> Result<Option<Sample>> {
        loop {
            if let Some((node, assessment)) = self.assessor.take() {
                let sample = self.sample(growing.tree(), node, growing.tree().node(node).ordinal, assessment)?;
                (self.record)(&sample)?;
                return Ok(Some(sample));
            }
            self.go_on()?;
            match growing.poll_beside(&self.assessor.replies(), PATIENCE)? {
                Poll::Ready(First::Message(reply)) => self.assessor.receive(reply)?,
                Poll::Ready(First::Event(Some(Event::Finished { node }))) => self.finished(growing, node),
                Poll::Ready(First::Event(Some(Event::Failed { node }))) => self.record_failed(growing.tree(), node)?,
                Poll::Ready(First::Event(Some(Event::Tokens { .. }))) | Poll::Pending => {}
                Poll::Ready(First::Event(None)) if self.assessor.is_awaited() => self.assessor.wait()?,
                Poll::Ready(First::Event(None)) => return Ok(None),
            }
        }
    }

    /// Stops every candidate that still grows and forgets those that wait for their assessment: the search is decided without
    /// them.
    pub fn stop_the_rest(&mut self, growing: &Extension<'_>) {
        growing.cancel_all();
        self.assessor.forget();
    }

    /// The next candidate to finish, cancelled or not, or to fail, and nothing done with it; `None` when all have.
    fn next_finished(&self, growing: &mut Extension<'_>) -> Result<Option<NodeIndex>> {
        loop {
            self.go_on()?;
            match growing.poll_event(PATIENCE)? {
                Poll::Ready(Some(Event::Finished { node } | Event::Failed { node })) => return Ok(Some(node)),
                Poll::Ready(Some(Event::Tokens { .. })) | Poll::Pending => {}
                Poll::Ready(None) => return Ok(None),
            }
        }
    }

    /// A finished candidate, given back, assessed (the driver waits for it) and recorded; `index` is the sample's number.
    fn close(&mut self, tree: &mut SamplingTree, node: NodeIndex, index: u64) -> Result<Sample> {
        tree.close(node);
        let text = tree.path_text(node);
        let assessment = self.assess(&text)?;
        let sample = self.sample(tree, node, index, assessment)?;
        (self.record)(&sample)?;
        Ok(sample)
    }

    /// What is made of a text; the driver waits for it.
    fn assess(&mut self, text: &str) -> Result<Assessment> {
        let interrupted = self.interrupted;
        self.assessor.assess(text, || go_on(interrupted))
    }

    /// The verdict where nobody answered: wrong, where the task has a grader.
    fn no_answer(&self) -> Option<bool> {
        self.assessor.grades().then_some(false)
    }

    /// An error once somebody has asked to stop.
    fn go_on(&self) -> Result<()> {
        go_on(self.interrupted)
    }

    fn finished(&mut self, growing: &mut Extension<'_>, node: NodeIndex) {
        growing.tree_mut().close(node);
        if growing.tree().node(node).finish != Some(FinishReason::Cancelled) {
            self.assessor.begin(node, &growing.tree().path_text(node));
        }
    }

    /// What was given to a node is none of its sample's tokens.
    fn sample(&self, tree: &SamplingTree, node: NodeIndex, index: u64, assessment: Assessment) -> Result<Sample> {
        let thought = tree.node(node);
        let Some(finish) = thought.finish.clone() else {
            return Err(Error::Internal(format!("node {} finished without a reason", node.index())));
        };
        let Assessment { answer, correct, detail, .. } = assessment;
        Ok(Sample {
            index,
            text: tree.path_text(node),
            tokens: if finish == FinishReason::Given { 0 } else { thought.tokens.len() },
            finish,
            logprob: thought.logprob,
            answer,
            correct,
            detail,
            logprobs: self.params.top_logprobs.map(|_| token_logprobs(thought)),
            attention: None,
            error: None,
        })
    }

    /// Of a candidate that failed nothing is known but why.
    fn record_failed(&mut self, tree: &SamplingTree, node: NodeIndex) -> Result<()> {
        (self.record)(&Sample {
            index: tree.node(node).ordinal,
            text: String::new(),
            tokens: 0,
            finish: FinishReason::Failed,
            logprob: 0.0,
            answer: None,
            correct: None,
            detail: None,
            logprobs: None,
            attention: None,
            error: tree.failure(node).map(ToString::to_string),
        })
    }
}

/// How many of `nodes` could not go on.
fn failed(tree: &SamplingTree, nodes: &[NodeIndex]) -> usize {
    nodes.iter().filter(|&&node| tree.has_failed(node)).count()
}

/// An error once somebody has asked to stop.
fn go_on(interrupted: &AtomicBool) -> Result<()> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Of a sampled thought: every token has both its log-probability and its rivals.
fn token_logprobs(thought: &Node) -> Vec<TokenLogprob> {
    let drawn = thought.tokens.iter().zip(&thought.logprobs).zip(&thought.top);
    drawn.map(|((&token, &logprob), top)| TokenLogprob { token, logprob, top: top.clone() }).collect()
}
