//! What every search is given: how to sample candidates, how to assess their texts, where finished samples go. Drivers
//! take candidates and finished samples from it.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use crate::assess::{Assess, Assessment, Assessor, PATIENCE};
use crate::confidence::SampleConfidence;
use crate::outcome::{Sample, SampleScore, Straggler};
use crate::rollout::TreeLeaf;
use crate::tree::{Extension, SamplingTree, ThoughtNode, TreeEvent};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::{FinishReason, First, ForkKind, GroupEnd, SampledToken, SamplingParams, Stop, Stragglers};

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
    /// early. Also called with failed samples (`Sample::error`), which do not count, and before its assessment with a
    /// sample that is to be recorded at once ([`Assess::before_reply`]). Its error ends the search.
    pub record: Record<'a>,
    /// When a group of candidates ends before all have finished, in [`sample`](crate::sample),
    /// [`best_of_n`](crate::best_of_n()) and [`self_consistency`](crate::self_consistency()); `None`: never.
    pub group_end: Option<GroupEnd>,
    /// Tokens of the windows by which the confidence of finished samples is measured ([`Sample::confidence`]); their
    /// parameters then record confidences. `None`: it is not measured.
    pub window: Option<NonZeroUsize>,
    /// The node, index and value of each sample that counts, added by the search in the order in which they are taken:
    /// the leaves of [`TrieBuilder::tree`](crate::rollout::TrieBuilder::tree).
    pub leaves: Vec<TreeLeaf>,
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
        SearchJob {
            params,
            stop,
            assessor,
            earlier: Vec::new(),
            record: Box::new(|_| Ok(())),
            group_end: None,
            window: None,
            leaves: Vec::new(),
            interrupted: &NEVER,
        }
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

    /// Ends the group of candidates early; the others are [`Outcome::stragglers`](crate::Outcome::stragglers).
    pub fn ending_group(self, end: GroupEnd) -> Self {
        SearchJob { group_end: Some(end), ..self }
    }

    /// Ends the search with `Error::Interrupted` once this flag is set, which other threads may do.
    pub fn interrupted_by(self, interrupted: &'a AtomicBool) -> Self {
        SearchJob { interrupted, ..self }
    }
}

impl SearchJob<'_> {
    /// The first `n` candidates below `at`: the samples recorded by an earlier process, by index, and forks for the
    /// others, by ordinal. Random numbers depend on the ordinal alone, so a resumed search samples what an
    /// uninterrupted one would have sampled.
    pub fn candidates(&mut self, tree: &mut SamplingTree, at: NodeId, n: usize) -> Result<(Vec<Sample>, Vec<NodeId>)> {
        let mut already = std::mem::take(&mut self.earlier);
        already.retain(|sample| sample.index < n as u64);
        sort_by_number(&mut already, |sample| sample.index);
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
                Poll::Ready(First::Event(Some(TreeEvent::Finished { id, .. }))) => self.finished(growing, id)?,
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

    /// Takes the samples of running candidates and adds them to `samples`, until all have ended or the group has; then
    /// the others are cancelled. Those that finish nevertheless are taken, too.
    pub(crate) fn take_group(&mut self, growing: &mut Extension<'_>, samples: &mut Vec<Sample>) -> Result<()> {
        while let Some(sample) = self.next_sample(growing)? {
            samples.push(sample);
            if self.group_is_over(samples) {
                growing.cancel_all();
            }
        }
        Ok(())
    }

    /// Whether enough candidates have finished.
    pub(crate) fn group_is_over(&self, samples: &[Sample]) -> bool {
        self.group_end.is_some_and(|end| end.is_over(samples.len()))
    }

    /// Ends a candidate that no sample was taken of: it is pruned, or kept if it is a straggler that the job keeps.
    pub(crate) fn set_aside(&self, tree: &mut SamplingTree, node: NodeId) -> Straggler {
        let kept = self.keeps_stragglers();
        if !kept {
            tree.prune(node);
        }
        Straggler { index: tree.node(node).ordinal, node, tokens: tree.node(node).tokens.len(), kept }
    }

    fn keeps_stragglers(&self) -> bool {
        self.group_end.is_some_and(|end| end.stragglers == Stragglers::Keep)
    }

    /// Waits until all candidates have finished, cancelled or not, or failed; none is assessed.
    pub(crate) fn finish(&self, mut growing: Extension<'_>) -> Result<()> {
        loop {
            self.check_interrupted()?;
            if let Poll::Ready(None) = growing.poll_event(PATIENCE)? {
                return Ok(());
            }
        }
    }

    /// Releases a finished candidate, assesses it (the driver waits) and records it; `index`: the sample's number,
    /// `scored`: what the search's scorer made of it.
    pub(crate) fn close(
        &mut self,
        tree: &mut SamplingTree,
        node: NodeId,
        index: u64,
        scored: Option<SampleScore>,
    ) -> Result<Sample> {
        tree.close(node);
        let text = tree.path_text(node);
        let assessment = self.assess(&text)?;
        let sample = Sample { scored, ..self.sample(tree, node, index, assessment)? };
        (self.record)(&sample)?;
        Ok(sample)
    }

    /// Assesses a text; the driver waits for the result.
    pub(crate) fn assess(&mut self, text: &str) -> Result<Assessment> {
        let interrupted = self.interrupted;
        self.assessor.assess(text, || check_interrupted(interrupted))
    }

    /// The verdict if no sample has an answer: wrong if the task has a grader, else `None`.
    pub(crate) fn no_answer(&self) -> Option<bool> {
        self.assessor.grades().then_some(false)
    }

    /// Returns `Error::Interrupted` if the interrupt flag is set.
    pub(crate) fn check_interrupted(&self) -> Result<()> {
        check_interrupted(self.interrupted)
    }

    fn finished(&mut self, growing: &mut Extension<'_>, node: NodeId) -> Result<()> {
        let is_cut = growing.tree().node(node).finish.as_ref().is_some_and(FinishReason::is_cut);
        if !(is_cut && self.keeps_stragglers()) {
            growing.tree_mut().close(node);
        }
        let is_low = growing.tree().node(node).finish == Some(FinishReason::LowConfidence);
        match (is_cut, is_low) {
            (true, _) => Ok(()),
            // What it would have answered is not known.
            (false, true) => {
                self.assessor.pass(node);
                Ok(())
            }
            (false, false) => match self.assessor.begin(node, &growing.tree().path_text(node)) {
                Some(known) => {
                    let sample = self.sample_of(growing.tree(), node, growing.tree().node(node).ordinal, known)?;
                    (self.record)(&sample)
                }
                None => Ok(()),
            },
        }
    }

    /// Builds the sample of a finished node, which counts as a leaf.
    fn sample(&mut self, tree: &SamplingTree, node: NodeId, index: u64, assessment: Assessment) -> Result<Sample> {
        let reward = Some(assessment.value());
        let sample = self.sample_of(tree, node, index, assessment)?;
        self.leaves.push(TreeLeaf { node, sample: index, reward });
        Ok(sample)
    }

    /// Builds the sample of a finished node. Tokens that were given to the node do not count as sampled.
    fn sample_of(&self, tree: &SamplingTree, node: NodeId, index: u64, assessment: Assessment) -> Result<Sample> {
        let thought = tree.node(node);
        let Some(finish) = thought.finish.clone() else {
            return Err(Error::Internal(format!("node {node} finished without a reason")));
        };
        Ok(Sample {
            tokens: if finish == FinishReason::Given { 0 } else { thought.tokens.len() },
            logprob: thought.logprob,
            logprobs: self.params.records_tokens().then(|| token_records(thought)),
            ending: thought.ending.clone().filter(|_| self.params.records_tokens()),
            confidence: self.window.and_then(|window| SampleConfidence::of_thought(thought, window)),
            ..Sample::new(index, tree.path_text(node), finish, assessment)
        })
    }

    /// Records a failed candidate; only its error is known.
    fn record_failed(&mut self, tree: &SamplingTree, node: NodeId) -> Result<()> {
        let index = tree.node(node).ordinal;
        (self.record)(&Sample {
            error: tree.failure(node).map(ToString::to_string),
            ..Sample::new(index, String::new(), FinishReason::Failed, Assessment::default())
        })
    }
}

/// How many of `nodes` failed.
pub(crate) fn failed(tree: &SamplingTree, nodes: &[NodeId]) -> usize {
    nodes.iter().filter(|&&node| tree.has_failed(node)).count()
}

/// Returns `Error::Interrupted` if the interrupt flag is set.
fn check_interrupted(interrupted: &AtomicBool) -> Result<()> {
    match interrupted.load(Ordering::Relaxed) {
        true => Err(Error::Interrupted),
        false => Ok(()),
    }
}

/// What is recorded of every token of a thought that was sampled or scored.
pub(crate) fn token_records(thought: &ThoughtNode) -> Vec<SampledToken> {
    thought.records().flatten().map(SampledToken::from).collect()
}
