//! A running `extend`: events as branches grow and finish, and cancelling single branches. The tree is updated when an
//! event is taken; it can be read between events.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::Receiver;
use petgraph::graph::NodeIndex;

use super::{NodeState, SamplingTree};
use crate::engine::{self, EventReceiver, First, SampledToken};
use crate::error::{Error, Result};
use crate::ids::BranchId;

/// An event of one of the nodes being extended.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeEvent {
    /// The node grew by these tokens; `text`: text that can be shown now (never half a character, never part of a stop
    /// string).
    Tokens { node: NodeIndex, tokens: Vec<SampledToken>, text: String },
    /// The node's thought ended; `SamplingTree::node` returns the whole thought.
    Finished { node: NodeIndex },
    /// The node failed and is closed; `SamplingTree::failure` returns the error. The others continue.
    Failed { node: NodeIndex },
}

/// A running extend. Dropping it cancels the running nodes and waits for them (at most one step), so that the tree
/// matches the engine.
pub struct Extension<'tree> {
    tree: &'tree mut SamplingTree,
    inner: EventReceiver,
    by_branch: HashMap<BranchId, NodeIndex>,
}

impl<'tree> Extension<'tree> {
    pub(super) fn new(
        tree: &'tree mut SamplingTree,
        inner: EventReceiver,
        by_branch: HashMap<BranchId, NodeIndex>,
    ) -> Self {
        Self { tree, inner, by_branch }
    }

    pub fn tree(&self) -> &SamplingTree {
        self.tree
    }

    pub fn tree_mut(&mut self) -> &mut SamplingTree {
        self.tree
    }

    /// The next event; `None` once all nodes have finished or failed. Blocks.
    ///
    /// # Errors
    ///
    /// `Error::EngineStopped`: no node can continue.
    pub fn next_event(&mut self) -> Result<Option<TreeEvent>> {
        self.inner.next().map(|event| self.take(event)).transpose()
    }

    /// Like `next_event`, but waits at most `patience`; `Poll::Pending` if nothing happened.
    pub fn poll_event(&mut self, patience: Duration) -> Result<Poll<Option<TreeEvent>>> {
        Ok(match self.inner.poll(patience) {
            Poll::Ready(event) => Poll::Ready(event.map(|event| self.take(event)).transpose()?),
            Poll::Pending => Poll::Pending,
        })
    }

    /// Like `poll_event`, but a message on `others` wakes it too; if both are available, the message comes first. Once
    /// all nodes have finished, it does not wait.
    pub fn poll_beside<M>(
        &mut self,
        others: &Receiver<M>,
        patience: Duration,
    ) -> Result<Poll<First<Option<TreeEvent>, M>>> {
        Ok(match self.inner.poll_beside(others, patience) {
            Poll::Ready(First::Event(event)) => {
                Poll::Ready(First::Event(event.map(|event| self.take(event)).transpose()?))
            }
            Poll::Ready(First::Message(message)) => Poll::Ready(First::Message(message)),
            Poll::Pending => Poll::Pending,
        })
    }

    /// Writes an event into the tree.
    fn take(&mut self, event: engine::Event) -> Result<TreeEvent> {
        match event {
            engine::Event::Tokens { branch, tokens, text } => {
                Ok(TreeEvent::Tokens { node: self.node_of(branch)?, tokens, text })
            }
            engine::Event::Finished { branch, finish } => {
                let node = self.node_of(branch)?;
                self.tree.grow(node, finish);
                Ok(TreeEvent::Finished { node })
            }
            engine::Event::Failed { branch, error } => {
                let node = self.node_of(branch)?;
                self.tree.fail(node, error)?;
                Ok(TreeEvent::Failed { node })
            }
        }
    }

    /// Cancels these nodes within one step; each still finishes, as cancelled, with its tokens so far.
    pub fn cancel(&self, nodes: &[NodeIndex]) {
        let branch = |&node: &NodeIndex| match self.tree.node(node).state {
            NodeState::Open(branch) => Some(branch),
            NodeState::Closed | NodeState::Pruned => None,
        };
        let branches: Vec<BranchId> = nodes.iter().filter_map(branch).collect();
        self.inner.cancel(&branches);
    }

    /// Cancels all running nodes.
    pub fn cancel_all(&self) {
        self.inner.cancel_all();
    }

    fn node_of(&self, branch: BranchId) -> Result<NodeIndex> {
        let node = self.by_branch.get(&branch).copied();
        node.ok_or_else(|| Error::Internal(format!("an event names branch {branch}, which was not extended here")))
    }
}

impl Drop for Extension<'_> {
    fn drop(&mut self) {
        self.cancel_all();
        while let Some(event) = self.inner.next() {
            // Errors of single nodes are recorded in the tree.
            drop(self.take(event));
        }
    }
}
