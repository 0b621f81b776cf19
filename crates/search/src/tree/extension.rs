//! Sampling from nodes: a running `extend`, events as branches grow and finish, and cancelling single branches. The
//! tree is updated when an event is taken; it can be read between events. [`Extension`] borrows its tree; [`Growth`]
//! does not, for callers that read and change the tree, or extend other nodes, while it runs.

use std::collections::HashMap;
use std::task::Poll;
use std::time::Duration;

use crossbeam_channel::Receiver;

use super::nodes::ThoughtNode;
use super::sampling_tree::SamplingTree;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, NodeId, TokenId};
use offshoot_engine::{Continuation, Event, EventReceiver, Extend, First, SamplingParams, Scoring, Stop};
use offshoot_form::SampleForm;

/// An event of one of the nodes being extended; tokens only after `SamplingTree::hear(Hear::Tokens)`.
/// `SamplingTree::node` returns the thought of a node that finished, `SamplingTree::failure` the error of one that
/// failed and is closed.
pub type TreeEvent = Event<NodeId, (), ()>;

/// A running extend of a tree that it does not borrow. Its events change the tree only when they are applied. Dropping
/// it cancels the running nodes; their last events are lost to the tree.
pub struct Growth {
    inner: EventReceiver,
    by_branch: HashMap<BranchId, GrowingNode>,
}

/// A node that is being extended.
struct GrowingNode {
    id: NodeId,
    /// The form of what is sampled.
    form: Option<SampleForm>,
}

/// An event that the tree does not know yet.
#[derive(Debug)]
#[must_use = "the tree learns of it by `Growth::apply`"]
pub struct UnappliedEvent(Event);

impl Growth {
    /// Waits at most `patience` for the next event; `None` once all nodes have finished or failed.
    pub fn poll(&mut self, patience: Duration) -> Poll<Option<UnappliedEvent>> {
        self.inner.poll(patience).map(|event| event.map(UnappliedEvent))
    }

    /// Writes an event into `tree`, of which the nodes are.
    ///
    /// # Errors
    ///
    /// `Error::EngineStopped`: no node can continue.
    pub fn apply(&self, tree: &mut SamplingTree, event: UnappliedEvent) -> Result<TreeEvent> {
        let GrowingNode { id, form } = self.node_of(event.0.id())?;
        let id = *id;
        match event.0 {
            Event::Tokens { tokens, text, weights, adapter, .. } => {
                Ok(Event::Tokens { id, tokens, text, weights, adapter })
            }
            Event::Finished { finish, .. } => {
                tree.grow(id, finish, form.clone());
                Ok(Event::Finished { id, finish: () })
            }
            Event::Failed { error, .. } => {
                tree.fail(id, error)?;
                Ok(Event::Failed { id, error: () })
            }
        }
    }

    /// Cancels these nodes of `tree` within one step; each still finishes, as cancelled, with its tokens so far.
    pub fn cancel(&self, tree: &SamplingTree, nodes: &[NodeId]) {
        let branches: Vec<BranchId> = nodes.iter().filter_map(|&node| tree.node(node).branch()).collect();
        self.inner.cancel(&branches);
    }

    /// Cancels all running nodes.
    pub fn cancel_all(&self) {
        self.inner.cancel_all();
    }

    fn node_of(&self, branch: BranchId) -> Result<&GrowingNode> {
        let node = self.by_branch.get(&branch);
        node.ok_or_else(|| Error::Internal(format!("an event names branch {branch}, which was not extended here")))
    }
}

/// A running extend. Dropping it cancels the running nodes and waits for them (at most one step), so that the tree
/// matches the engine.
pub struct Extension<'tree> {
    tree: &'tree mut SamplingTree,
    growth: Growth,
}

impl Extension<'_> {
    /// The tree, in which all events taken so far are written.
    pub fn tree(&self) -> &SamplingTree {
        self.tree
    }

    /// The tree, to be changed while its nodes grow: scored, pruned, closed.
    pub fn tree_mut(&mut self) -> &mut SamplingTree {
        self.tree
    }

    /// The next event; `None` once all nodes have finished or failed. Blocks.
    ///
    /// # Errors
    ///
    /// `Error::EngineStopped`: no node can continue.
    pub fn next_event(&mut self) -> Result<Option<TreeEvent>> {
        self.growth.inner.next().map(|event| self.take(event)).transpose()
    }

    /// Takes all events up to the last.
    pub(crate) fn finish(mut self) -> Result<()> {
        while self.next_event()?.is_some() {}
        Ok(())
    }

    /// Like `next_event`, but waits at most `patience`; `Poll::Pending` if nothing happened.
    pub fn poll_event(&mut self, patience: Duration) -> Result<Poll<Option<TreeEvent>>> {
        Ok(self.growth.inner.poll(patience).map(|event| event.map(|event| self.take(event)).transpose())?)
    }

    /// Like `poll_event`, but a message on `others` wakes it too; if both are available, the message comes first. Once
    /// all nodes have finished, it does not wait.
    pub(crate) fn poll_beside<M>(
        &mut self,
        others: &Receiver<M>,
        patience: Duration,
    ) -> Result<Poll<First<Option<TreeEvent>, M>>> {
        Ok(match self.growth.inner.poll_beside(others, patience) {
            Poll::Ready(First::Event(event)) => {
                Poll::Ready(First::Event(event.map(|event| self.take(event)).transpose()?))
            }
            Poll::Ready(First::Message(message)) => Poll::Ready(First::Message(message)),
            Poll::Pending => Poll::Pending,
        })
    }

    /// Writes an event into the tree.
    fn take(&mut self, event: Event) -> Result<TreeEvent> {
        self.growth.apply(self.tree, UnappliedEvent(event))
    }

    /// Cancels these nodes within one step; each still finishes, as cancelled, with its tokens so far.
    pub fn cancel(&self, nodes: &[NodeId]) {
        self.growth.cancel(self.tree, nodes);
    }

    /// Cancels all running nodes.
    pub fn cancel_all(&self) {
        self.growth.cancel_all();
    }
}

impl Drop for Extension<'_> {
    fn drop(&mut self) {
        self.cancel_all();
        while let Some(event) = self.growth.inner.next() {
            // Errors of single nodes are recorded in the tree.
            drop(self.take(event));
        }
    }
}

impl SamplingTree {
    /// Samples from each of `nodes` until its stop, all in one batch; blocks until the last has finished or failed. A
    /// failed node does not affect the others: see [`has_failed`](Self::has_failed). Without nodes nothing happens.
    ///
    /// Any open node can be extended, also again and however it ended: it goes on behind its `tokens`, as forks do (see
    /// [`fork`](Self::fork)), and has the `finish` of the last time. Behind an end of text it goes on as if the model
    /// had not ended there; where the context is full, it gets no token. A failed node is closed, and one that is being
    /// extended already fails.
    ///
    /// # Errors
    ///
    /// A parameter is out of range; a node is closed, pruned or named twice; all nodes fail (the first one's error);
    /// the engine has stopped.
    pub fn extend(&mut self, nodes: &[NodeId], how: &SamplingParams, stop: &Stop) -> Result<()> {
        self.start(nodes, how, stop)?.finish()?;
        self.unless_all_failed(nodes)
    }

    /// Appends given tokens to each of `nodes`. What may be extended, and where it goes on: [`extend`](Self::extend).
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend).
    pub fn extend_given(&mut self, nodes: &[NodeId], tokens: &[TokenId]) -> Result<()> {
        self.start_given(nodes.iter().map(|&node| (node, tokens.to_vec())).collect(), false)?.finish()?;
        self.unless_all_failed(nodes)
    }

    fn unless_all_failed(&mut self, nodes: &[NodeId]) -> Result<()> {
        match nodes.iter().all(|&node| self.has_failed(node)) {
            true => nodes.first().and_then(|node| self.failures.remove(node)).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Starts to sample from each of `nodes` and returns the events: for searches that stream, cancel or judge nodes
    /// while others grow.
    ///
    /// # Errors
    ///
    /// A parameter is out of range; a node is closed, pruned or named twice; the engine has stopped.
    pub fn start(&mut self, nodes: &[NodeId], how: &SamplingParams, stop: &Stop) -> Result<Extension<'_>> {
        self.start_until(nodes, how, |_, _| stop.clone())
    }

    /// Like [`start`](Self::start), with a stop for each of `nodes`, by its index in them.
    pub fn start_until(
        &mut self,
        nodes: &[NodeId],
        how: &SamplingParams,
        stop: impl Fn(usize, &ThoughtNode) -> Stop,
    ) -> Result<Extension<'_>> {
        let growth = self.growth_until(nodes, how, stop)?;
        Ok(Extension { tree: self, growth })
    }

    /// Appends the given tokens to each node; with `logprobs`, their log-probabilities are computed and stored in the
    /// node.
    pub fn start_given(&mut self, given: Vec<(NodeId, Vec<TokenId>)>, logprobs: bool) -> Result<Extension<'_>> {
        let growth = self.growth_given(&given, logprobs)?;
        Ok(Extension { tree: self, growth })
    }

    /// Starts to sample from each of `nodes`, and returns what receives the events without borrowing the tree. Errors
    /// are those of [`start`](Self::start).
    pub fn growth(&self, nodes: &[NodeId], how: &SamplingParams, stop: &Stop) -> Result<Growth> {
        self.growth_until(nodes, how, |_, _| stop.clone())
    }

    fn growth_until(
        &self,
        nodes: &[NodeId],
        how: &SamplingParams,
        stop: impl Fn(usize, &ThoughtNode) -> Stop,
    ) -> Result<Growth> {
        self.growth_sampled(nodes, |_| how.clone(), stop)
    }

    /// Starts to sample from each of `nodes`, each by its own parameters; where these have no form, in the node's.
    fn growth_sampled(
        &self,
        nodes: &[NodeId],
        how: impl Fn(NodeId) -> SamplingParams,
        stop: impl Fn(usize, &ThoughtNode) -> Stop,
    ) -> Result<Growth> {
        self.growth_with(nodes, |ix| {
            let (at, node) = (nodes[ix], &self.nodes[nodes[ix]]);
            let mut params = how(at);
            params.form = params.form.or_else(|| self.form(at).cloned());
            Continuation::Sampled { params, stop: stop(ix, node), uniforms: node.uniforms }
        })
    }

    /// Like [`growth`](Self::growth), with parameters for each node.
    pub fn growth_each(&self, nodes: &[NodeId], how: impl Fn(NodeId) -> SamplingParams, stop: &Stop) -> Result<Growth> {
        self.growth_sampled(nodes, how, |_, _| stop.clone())
    }

    /// Starts to append given tokens to each node, scored if `logprobs`; see [`SamplingTree::growth`].
    pub fn growth_given(&self, given: &[(NodeId, Vec<TokenId>)], logprobs: bool) -> Result<Growth> {
        let nodes: Vec<NodeId> = given.iter().map(|&(node, _)| node).collect();
        let scoring = logprobs.then_some(Scoring::Model { top: 0 });
        self.growth_with(&nodes, |ix| Continuation::Given { tokens: given[ix].1.clone(), scoring: scoring.clone() })
    }

    /// `continuation`: of the node with this index in `nodes`.
    fn growth_with(&self, nodes: &[NodeId], continuation: impl Fn(usize) -> Continuation) -> Result<Growth> {
        let mut by_branch = HashMap::new();
        let mut extends = Vec::with_capacity(nodes.len());
        for (ix, &node) in nodes.iter().enumerate() {
            let branch = self.open_branch(node)?;
            let continuation = continuation(ix);
            let form = match &continuation {
                Continuation::Sampled { params, .. } => params.form.clone(),
                Continuation::Given { .. } => None,
            };
            by_branch.insert(branch, GrowingNode { id: node, form });
            extends.push(Extend { branch, continuation });
        }
        let mut inner = self.engine.receiver(self.hear);
        inner.start(extends)?;
        Ok(Growth { inner, by_branch })
    }
}
