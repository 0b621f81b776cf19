//! What a search asks on its way: questions with prompts of their own that hang below a thought in the record, tokens given to
//! each node apart, uniforms for the search's own draws, and what all of it has cost.

use petgraph::graph::NodeIndex;

use super::{Extension, SamplingTree};
use crate::engine::{Continuation, FinishReason, ForkKind};
use crate::error::{Error, Result};
use crate::ids::TokenId;

/// What the nodes of a tree have cost, the root's prompt left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Tokens drawn.
    pub drawn: usize,
    /// Tokens given: questions, continuations. Each counted in full, however much of it was shared.
    pub given: usize,
}

impl SamplingTree {
    /// A child of `at` that begins anew: its context is `prompt` alone, a question about `at`. Its uniforms follow the path as
    /// those of a fork. What the prompt has in common with others is computed once, as with every branch.
    ///
    /// Errors: `Error::ContextTooLong` where the model's context is too short for it.
    pub fn ask(&mut self, kind: ForkKind, at: NodeIndex, prompt: Vec<TokenId>, text: String) -> Result<NodeIndex> {
        let branch = self.engine.root_beside(self.priority, prompt.clone()).map_err(|error| self.too_long(error))?;
        let question = self.add(kind, at, self.next_ordinal(kind, at), branch);
        let node = &mut self.graph[question];
        (node.tokens, node.text, node.asks) = (prompt, text, true);
        Ok(question)
    }

    fn too_long(&self, error: Error) -> Error {
        match error {
            Error::ContextTooLong { tokens, context, .. } => {
                Error::ContextTooLong { what: format!("a question about item `{}`", self.item), tokens, context }
            }
            other => other,
        }
    }

    /// Appends to each node tokens of its own; with `logprobs` their log-probabilities are computed and kept in the node.
    pub fn start_given(&mut self, given: Vec<(NodeIndex, Vec<TokenId>)>, logprobs: bool) -> Result<Extension<'_>> {
        let (nodes, tokens): (Vec<NodeIndex>, Vec<Vec<TokenId>>) = given.into_iter().unzip();
        self.start_with(&nodes, |ix, _| Continuation::Given { tokens: tokens[ix].clone(), logprobs })
    }

    /// The `draw`-th uniform, in [0, 1), of `at` itself. Tokens drawn on from its forks never use it.
    pub fn uniform(&self, at: NodeIndex, draw: u32) -> f64 {
        self.graph[at].uniforms.uniform(draw)
    }

    /// What the tree has cost so far.
    pub fn spent(&self) -> Spent {
        let mut spent = Spent::default();
        for at in self.nodes().filter(|&at| at != self.root) {
            let node = self.node(at);
            match node.asks || node.finish == Some(FinishReason::Given) {
                true => spent.given += node.tokens.len(),
                false => spent.drawn += node.tokens.len(),
            }
        }
        spent
    }
}
