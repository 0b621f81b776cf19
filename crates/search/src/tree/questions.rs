//! Questions of a search (nodes with separate prompts, recorded below the thought that they are about), random numbers
//! for the search's own choices, and the cost of all nodes.

use super::sampling_tree::{Prompt, SamplingTree};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_engine::{FinishReason, ForkKind};

/// Cost of the nodes of a tree, without the root's prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCost {
    /// Sampled tokens.
    pub drawn: usize,
    /// Given tokens: questions, continuations. Each is counted in full, even if it was shared.
    pub given: usize,
}

impl SamplingTree {
    /// Adds a question about `at`: a child whose context is `prompt` alone, not the nodes above. Answers are forks of
    /// it; the form of `at` is not theirs. Its random numbers follow the path, as for forks. What prompts begin with
    /// alike is computed once.
    ///
    /// # Errors
    ///
    /// `Error::ContextTooLong` if the prompt exceeds the model's context.
    pub fn ask(&mut self, kind: ForkKind, at: NodeId, prompt: Prompt) -> Result<NodeId> {
        let Prompt { text, tokens } = prompt;
        let named = |error| match error {
            Error::ContextTooLong { tokens, context, .. } => {
                Error::ContextTooLong { what: format!("a question about item `{}`", self.name), tokens, context }
            }
            other => other,
        };
        let branch = self.engine.root_with(tokens.clone(), self.place).map_err(named)?;
        let question = self.add(kind, at, self.next_ordinal(kind, at), branch);
        // A question's answers are no part of the thought that it is about.
        self.forms.remove(&question);
        let node = &mut self.nodes[question];
        (node.tokens, node.text, node.asks) = (tokens, text, true);
        Ok(question)
    }

    /// The `draw`-th random number of `at` itself, in [0, 1). Tokens sampled from its forks never use it.
    pub fn uniform(&self, at: NodeId, draw: u32) -> f64 {
        self.nodes[at].uniforms.uniform(draw)
    }

    /// The cost of the tree so far.
    pub fn spent(&self) -> TreeCost {
        let mut spent = TreeCost::default();
        for at in self.nodes().filter(|&at| at != self.root()) {
            let node = self.node(at);
            match node.asks || node.finish == Some(FinishReason::Given) {
                true => spent.given += node.tokens.len(),
                false => spent.drawn += node.tokens.len(),
            }
        }
        spent
    }
}
