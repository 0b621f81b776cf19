//! A running `extend`: events as branches grow and finish, and cancelling while others go on. The tree is updated as events
//! are taken; between two events it can be read.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::Receiver;
use petgraph::graph::NodeIndex;

use super::{SamplingTree, State};
use crate::engine::{self, EventReceiver, First, SampledToken};
use crate::error::{Error, Result};
use crate::ids::BranchId;

/// What happened to one of the nodes being extended.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The node grew by these tokens; `text` is what may now be shown (never half a character, never part of a stop string).
    Tokens { node: NodeIndex, tokens: Vec<SampledToken>, text: String },
    /// The node's thought ended; `SamplingTree::node` has it whole.
    Finished { node: NodeIndex },
    /// The node could not go on, and is closed; `SamplingTree::failure` says why. The others go on.
    Failed { node: NodeIndex },
}

/// Dropping it stops the nodes that still grow and waits until they have (a step at most), so that the tree says what the
/// engine has of them.
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
    /// Errors: `Error::EngineStopped`, after which no node can go on.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        self.inner.next().map(|event| self.take(event)).transpose()
    }

    /// `next_event` that waits no longer than `patience`; `Poll::Pending` if nothing happened until then.
    pub fn poll_event(&mut self, patience: Duration) -> Result<Poll<Option<Event>>> {
        Ok(match self.inner.poll(patience) {
            Poll::Ready(event) => Poll::Ready(event.map(|event| self.take(event)).transpose()?),
            Poll::Pending => Poll::Pending,
        })
    }

    /// `poll_event` that is woken by a message on `others` too; of two that are there, the message comes first. Once all nodes have
    /// finished, it waits for nothing.
    pub fn poll_beside<M>(
        &mut self,
        others: &Receiver<M>,
        patience: Duration,
    ) -> Result<Poll<First<Option<Event>, M>>> {
        Ok(match self.inner.poll_beside(others, patience) {
            Poll::Ready(First::Event(event)) => {
                Poll::Ready(First::Event(event.map(|event| self.take(event)).transpose()?))
            }
            Poll::Ready(First::Message(message)) => Poll::Ready(First::Message(message)),
            Poll::Pending => Poll::Pending,
        })
    }

    /// Writes an event into the tree.
    fn take(&mut self, event: engine::Event) -> Result<Event> {
        match event {
            engine::Event::Tokens { branch, tokens, text } => {
                Ok(Event::Tokens { node: self.node_of(branch)?, tokens, text })
            }
            engine::Event::Finished { branch, finish } => {
                let node = self.node_of(branch)?;
                self.tree.grow(node, finish);
                Ok(Event::Finished { node })
            }
            engine::Event::Failed { branch, error } => {
                let node = self.node_of(branch)?;
                self.tree.fail(node, error)?;
                Ok(Event::Failed { node })
            }
        }
    }

    /// Stops these nodes within one step; each still finishes, as cancelled, with what it has.
    pub fn cancel(&self, nodes: &[NodeIndex]) {
        let branch = |&node: &NodeIndex| match self.tree.node(node).state {
            State::Open(branch) => Some(branch),
            State::Closed | State::Pruned => None,
        };
        let branches: Vec<BranchId> = nodes.iter().filter_map(branch).collect();
        self.inner.cancel(&branches);
    }

    /// Stops all nodes that still grow.
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
            // A node that failed is closed; whoever drops an extension has asked for no more than that.
            drop(self.take(event));
        }
    }
}
