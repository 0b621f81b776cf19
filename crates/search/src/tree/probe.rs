//! Log-probabilities of given continuations; all of one call run in one batch. Prefixes that the continuations share
//! with each other or with the tree are computed once; the tree does not change.

use super::sampling_tree::SamplingTree;
use offshoot_core::error::Result;
use offshoot_core::ids::{BranchId, NodeId, TokenId};
use offshoot_engine::Extend;

/// The natural-log probability of a continuation, and of each of its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProb {
    /// The log-probability of all tokens together.
    pub sum: f64,
    /// The log-probability of each token after those before it.
    pub tokens: Vec<f32>,
}

/// A continuation to be scored, and what it follows.
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// What it follows.
    pub after: After<'a>,
    /// Its tokens.
    pub continuation: &'a [TokenId],
}

/// What a scored continuation follows.
#[derive(Clone, Copy, Debug)]
pub enum After<'a> {
    /// The path to an open node.
    Node(NodeId),
    /// A prompt outside the tree, for example a question about it.
    Prompt(&'a [TokenId]),
}

impl SamplingTree {
    /// The log-probability of `continuation` after each of `nodes`, in their order and all in one batch. The tree does
    /// not change. A continuation follows a node's `tokens`, however the node ended. One without tokens has 0; without
    /// nodes nothing is scored.
    ///
    /// # Errors
    ///
    /// A node is closed or pruned; a token is outside the vocabulary; the path is longer than the model's context; the
    /// engine has stopped.
    pub fn score(&self, nodes: &[NodeId], continuation: &[TokenId]) -> Result<Vec<LogProb>> {
        let probes: Vec<_> = nodes.iter().map(|&node| Probe { after: After::Node(node), continuation }).collect();
        self.probe(&probes)
    }

    /// The log-probability of each continuation after its context, all in one batch; errors as those of
    /// [`score`](Self::score).
    pub fn probe(&self, probes: &[Probe<'_>]) -> Result<Vec<LogProb>> {
        let mut branches = Vec::with_capacity(probes.len());
        let scored = self.branches(probes, &mut branches).and_then(|()| self.log_probs(probes, &branches));
        self.engine.release(&branches);
        scored
    }

    /// Creates a branch for each probe and appends it to `made`, so that the caller can release them after an error.
    fn branches(&self, probes: &[Probe<'_>], made: &mut Vec<BranchId>) -> Result<()> {
        for probe in probes {
            match probe.after {
                After::Node(node) => made.extend(self.engine.fork(self.open_branch(node)?, 1)?),
                After::Prompt(prompt) => made.push(self.engine.root_with(prompt.to_vec(), self.place)?),
            }
        }
        Ok(())
    }

    fn log_probs(&self, probes: &[Probe<'_>], branches: &[BranchId]) -> Result<Vec<LogProb>> {
        let given =
            |(&branch, probe): (&BranchId, &Probe<'_>)| Extend::given(branch, probe.continuation.to_vec(), Some(0));
        let finishes = self.engine.finish(branches.iter().zip(probes).map(given).collect())?;
        Ok(finishes
            .into_iter()
            .map(|finish| LogProb { sum: finish.logprob, tokens: finish.logprobs().to_vec() })
            .collect())
    }
}
