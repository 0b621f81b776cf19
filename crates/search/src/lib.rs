//! Search drivers: blocking programs over `SamplingTree`, one per file. This file defines what they share:
//! [`SearchJob`] (how to sample, how to assess a text, where finished samples go) and the [`Outcome`] that they return.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

#![warn(missing_docs)]

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
pub mod tree;
pub mod tree_of_thought;
pub mod vote;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tree::{Extension, SamplingTree, ThoughtNode, TreeEvent};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{NodeId, TokenId};
use offshoot_engine::{FinishReason, First, ForkKind, SamplingParams, Stop, finish_fields};

pub use assess::{Assess, Assessment, AssessmentRequest, Assessor};
pub use best_of_n::{best_by_scorer, best_of_n, sample};
pub use choose::choose;
pub use dvts::dvts;
pub use mcts::mcts;
pub use scorer::Scorer;
pub use self_consistency::self_consistency;
pub use step_beam::step_beam;
pub use tree_of_thought::tree_of_thought;

use vote::VoteTally;

/// Longest wait for an event before the interrupt flag is read again.
const PATIENCE: Duration = Duration::from_millis(100);

/// How a search on one problem samples candidates, assesses their texts and hands over finished samples.
pub struct SearchJob<'a> {
    /// How candidates are sampled.
    pub params: &'a SamplingParams,
    /// When a candidate ends.
    pub stop: &'a Stop,
    /// Assesses finished candidates.
    pub assessor: Assessor<'a>,
    /// Samples of this problem recorded by an earlier process, for drivers that resume with [`SearchJob::candidates`].
    pub earlier: Vec<Sample>,
    /// Called with each sample that counts, before it is counted: as it finishes, or by index in drivers that stop
    /// early. Also called with failed samples (`Sample::error`), which do not count. Its error ends the search.
    pub record: Record<'a>,
    /// Set from outside to make the driver end with `Error::Interrupted`.
    pub interrupted: &'a AtomicBool,
}

/// What is called with finished samples.
pub type Record<'a> = Box<dyn FnMut(&Sample) -> Result<()> + 'a>;

/// The interrupt flag of jobs that nobody interrupts.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<'a> SearchJob<'a> {
    /// A job whose candidates have no answers and no grades, until [`assessed_by`](Self::assessed_by) says how to find
    /// them.
    pub fn new(params: &'a SamplingParams, stop: &'a Stop) -> Self {
        let assessor = Assessor::new(|_: &str| Assessment::default());
        SearchJob { params, stop, assessor, earlier: Vec::new(), record: Box::new(|_| Ok(())), interrupted: &NEVER }
    }

    /// Assesses finished candidates: a function from a text to its [`Assessment`], or anything else that implements
    /// [`Assess`].
    pub fn assessed_by(self, assess: impl Assess + 'a) -> Self {
        SearchJob { assessor: Assessor::new(assess), ..self }
    }

    /// Begins with these samples of the problem, which an earlier process recorded.
    pub fn resuming(self, earlier: Vec<Sample>) -> Self {
        SearchJob { earlier, ..self }
    }

    /// Calls `record` with each finished sample; its error ends the search.
    pub fn recorded_by(self, record: impl FnMut(&Sample) -> Result<()> + 'a) -> Self {
        SearchJob { record: Box::new(record), ..self }
    }

    /// Ends the search with `Error::Interrupted` once this flag is set, which other threads may do.
    pub fn interrupted_by(self, interrupted: &'a AtomicBool) -> Self {
        SearchJob { interrupted, ..self }
    }
}

/// One finished candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Index among the problem's samples; with the seed it determines all random numbers of the sample.
    pub index: u64,
    /// Its text after the prompt.
    pub text: String,
    /// Number of sampled tokens.
    pub tokens: usize,
    /// Why it ended.
    #[serde(flatten, with = "finish_fields")]
    pub finish: FinishReason,
    /// Natural-log probability of its tokens under the model.
    pub logprob: f64,
    /// Its answer in the form that votes compare.
    pub answer: Option<String>,
    /// Whether it is right; `None`: unknown.
    pub correct: Option<bool>,
    /// [`Assessment::detail`]; named `judged` in results, after the judges' verdicts.
    #[serde(rename = "judged", default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
    /// One for each token, where `SamplingParams::top_logprobs` asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Why sampling failed. A failed sample is only recorded; it is not part of an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A token of a sample and its most likely alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural-log probability.
    pub logprob: f32,
    /// The most likely tokens with their log-probabilities, most likely first.
    pub top: Vec<(TokenId, f32)>,
}

/// The result of a search on one problem.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Outcome {
    /// Finished samples by index.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The answer chosen.
    pub prediction: Option<String>,
    /// Whether the chosen answer is right; `None` if the task has no grader.
    pub correct: Option<bool>,
    /// Answers with their votes, most votes first; empty for methods without a vote.
    pub votes: Vec<(String, u32)>,
    /// The sample chosen.
    pub chosen: Option<u64>,
    /// Candidates that the outcome does not use: never started, stopped, or finished after the decision.
    pub cancelled: usize,
    /// Tokens sampled by those candidates.
    pub cancelled_tokens: usize,
    /// Sampled tokens that are not part of `samples`: intermediate thoughts, lists of proposals, judgements.
    pub search_tokens: usize,
    /// Tokens given in addition to the item's prompt: questions about thoughts, adopted proposals. Each is counted in
    /// full, even if it was shared.
    pub search_prompt_tokens: usize,
    /// Branches that failed and are missing from the outcome.
    pub failed: Option<FailedBranches>,
    /// Results that only this method has.
    #[serde(flatten)]
    pub details: Option<Details>,
}

/// Branches that failed while others of the same search continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedBranches {
    /// How many.
    pub branches: usize,
    /// The error of the first failed branch.
    pub first: String,
}

/// Results of an item that only some methods have.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Details {
    /// The scores of the choices that were offered.
    Choices {
        /// In the order in which they were offered.
        choices: Vec<choose::ChoiceScore>,
    },
    /// In search-and-learn's format: the solutions, and the values of each solution's steps.
    Solutions {
        /// The solutions' texts.
        completions: Vec<String>,
        /// For each solution, the value after each step.
        scores: Vec<Vec<f64>>,
        /// The answer chosen.
        pred: Option<String>,
    },
    /// The scorer's value of each sample, by index. This variant is tried last when reading, because `Solutions` also
    /// has a field `scores`.
    Scores {
        /// By the sample's index.
        scores: Vec<f64>,
    },
}

/// The votes of `samples`.
pub fn tally(samples: &[Sample]) -> VoteTally {
    let mut tally = VoteTally::default();
    for sample in samples {
        tally.add(sample.index as usize, sample.answer.as_deref());
    }
    tally
}

/// Whether `answer` is right: the verdict on the sample with the smallest index that gave it. A grader reads whole
/// texts, so samples with the same answer may have different verdicts; every vote (maj@k too) uses this function.
pub fn verdict_on(answer: &str, samples: &[Sample]) -> Option<bool> {
    first_with(answer, samples)?.correct
}

fn first_with<'a>(answer: &str, samples: &'a [Sample]) -> Option<&'a Sample> {
    samples.iter().filter(|sample| sample.answer.as_deref() == Some(answer)).min_by_key(|sample| sample.index)
}

impl SearchJob<'_> {
    /// The first `n` candidates below `at`: the samples recorded by an earlier process, by index, and forks for the
    /// others, by ordinal. Random numbers depend on the ordinal alone, so a resumed search samples what an
    /// uninterrupted one would have sampled.
    pub fn candidates(&mut self, tree: &mut SamplingTree, at: NodeId, n: usize) -> Result<(Vec<Sample>, Vec<NodeId>)> {
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

    /// The next candidate that is finished and assessed, after recording it; `None` when all are done. Cancelled
    /// candidates are skipped; failed ones are recorded and skipped. Texts are assessed while the other candidates
    /// continue; the branch of a finished candidate is released before its assessment.
    pub fn next_sample(&mut self, growing: &mut Extension<'_>) -> Result<Option<Sample>> {
        loop {
            if let Some((node, assessment)) = self.assessor.take() {
                let sample = self.sample(growing.tree(), node, growing.tree().node(node).ordinal, assessment)?;
                (self.record)(&sample)?;
                return Ok(Some(sample));
            }
            self.check_interrupted()?;
            match growing.poll_beside(&self.assessor.replies(), PATIENCE)? {
                Poll::Ready(First::Message(reply)) => self.assessor.receive(reply)?,
                Poll::Ready(First::Event(Some(TreeEvent::Finished { id, .. }))) => self.finished(growing, id),
                Poll::Ready(First::Event(Some(TreeEvent::Failed { id, .. }))) => {
                    self.record_failed(growing.tree(), id)?
                }
                Poll::Ready(First::Event(Some(TreeEvent::Tokens { .. }))) | Poll::Pending => {}
                Poll::Ready(First::Event(None)) if self.assessor.is_awaited() => self.assessor.wait()?,
                Poll::Ready(First::Event(None)) => return Ok(None),
            }
        }
    }

    /// Cancels every running candidate and forgets those that wait for their assessment: the search no longer needs
    /// them.
    pub fn cancel_remaining(&mut self, growing: &Extension<'_>) {
        growing.cancel_all();
        self.assessor.forget();
    }

    /// The next candidate that finishes, cancelled or not, or fails; it is not assessed. `None` when all have ended.
    fn next_finished(&self, growing: &mut Extension<'_>) -> Result<Option<NodeId>> {
        loop {
            self.check_interrupted()?;
            match growing.poll_event(PATIENCE)? {
                Poll::Ready(Some(TreeEvent::Finished { id, .. } | TreeEvent::Failed { id, .. })) => {
                    return Ok(Some(id));
                }
                Poll::Ready(Some(TreeEvent::Tokens { .. })) | Poll::Pending => {}
                Poll::Ready(None) => return Ok(None),
            }
        }
    }

    /// Releases a finished candidate, assesses it (the driver waits) and records it; `index`: the sample's number.
    fn close(&mut self, tree: &mut SamplingTree, node: NodeId, index: u64) -> Result<Sample> {
        tree.close(node);
        let text = tree.path_text(node);
        let assessment = self.assess(&text)?;
        let sample = self.sample(tree, node, index, assessment)?;
        (self.record)(&sample)?;
        Ok(sample)
    }

    /// Assesses a text; the driver waits for the result.
    fn assess(&mut self, text: &str) -> Result<Assessment> {
        let interrupted = self.interrupted;
        self.assessor.assess(text, || check_interrupted(interrupted))
    }

    /// The verdict if no sample has an answer: wrong if the task has a grader, else `None`.
    fn no_answer(&self) -> Option<bool> {
        self.assessor.grades().then_some(false)
    }

    /// Returns `Error::Interrupted` if the interrupt flag is set.
    fn check_interrupted(&self) -> Result<()> {
        check_interrupted(self.interrupted)
    }

    fn finished(&mut self, growing: &mut Extension<'_>, node: NodeId) {
        growing.tree_mut().close(node);
        if growing.tree().node(node).finish != Some(FinishReason::Cancelled) {
            self.assessor.begin(node, &growing.tree().path_text(node));
        }
    }

    /// Builds the sample of a finished node. Tokens that were given to the node do not count as sampled.
    fn sample(&self, tree: &SamplingTree, node: NodeId, index: u64, assessment: Assessment) -> Result<Sample> {
        let thought = tree.node(node);
        let Some(finish) = thought.finish.clone() else {
            return Err(Error::Internal(format!("node {node} finished without a reason")));
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
            error: None,
        })
    }

    /// Records a failed candidate; only its error is known.
    fn record_failed(&mut self, tree: &SamplingTree, node: NodeId) -> Result<()> {
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
            error: tree.failure(node).map(ToString::to_string),
        })
    }
}

/// How many of `nodes` failed.
fn failed(tree: &SamplingTree, nodes: &[NodeId]) -> usize {
    nodes.iter().filter(|&&node| tree.has_failed(node)).count()
}

/// Returns `Error::Interrupted` if the interrupt flag is set.
fn check_interrupted(interrupted: &AtomicBool) -> Result<()> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// Log-probabilities and alternatives of every token of a sampled thought.
fn token_logprobs(thought: &ThoughtNode) -> Vec<TokenLogprob> {
    let drawn = thought.tokens.iter().zip(&thought.logprobs).zip(&thought.top);
    drawn.map(|((&token, &logprob), top)| TokenLogprob { token, logprob, top: top.clone() }).collect()
}
