//! The sampling tree: the append-only record of a search on one problem, and the search's handle on the engine. `fork`,
//! `extend`, `score` and `prune` are all that a driver needs; `start` is `extend` with events, for drivers that stream,
//! judge or cancel siblings while others continue. The engine manages keys and values: pruning releases a branch but
//! never changes the record.

mod extension;
mod probe;
mod questions;
mod trace;

use std::collections::{BTreeMap, HashMap};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Continuation, EngineHandle, Extend, Finish, FinishReason, ForkKind, Hear, RootOptions, SamplingParams, Stop,
    UniformKey,
};

pub use extension::{Extension, Growth, TreeEvent, UnappliedEvent};
pub use probe::{After, LogProb, Probe};
pub use questions::TreeCost;
pub use trace::{Trace, TraceNode, TraceState};

/// A node of the sampling tree: one thought (the text between two forks) and how it came about.
#[derive(Clone, Debug)]
pub struct ThoughtNode {
    /// Why the node was forked. Children of different kinds have separate ordinals.
    pub kind: ForkKind,
    /// Its index among its parent's children of the same kind.
    pub ordinal: u64,
    /// The thought as text, cut at a stop string.
    pub text: String,
    /// The thought's tokens; for the root, the prompt's.
    pub tokens: Vec<TokenId>,
    /// Natural-log probability of each of `tokens` if it was requested (sampled tokens: always).
    pub logprobs: Vec<f32>,
    /// For each of `tokens`, the most likely tokens in its place, most likely first; empty for given tokens, and an
    /// empty list if alternatives were not requested.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Natural-log probability of the thought: of `tokens` and of the stop token that ended it.
    pub logprob: f64,
    /// Why the thought ended; `None` while it runs, or if it was never extended.
    pub finish: Option<FinishReason>,
    /// The scorer's value.
    pub score: Option<f64>,
    /// Simulations that passed through it, in searches that simulate.
    pub visits: Option<u32>,
    pub state: NodeState,
    /// Whether the node is a question: its tokens are a separate prompt, and its context excludes the nodes above.
    pub asks: bool,
    uniforms: UniformKey,
}

impl ThoughtNode {
    fn new(kind: ForkKind, ordinal: u64, state: NodeState, uniforms: UniformKey) -> ThoughtNode {
        ThoughtNode {
            kind,
            ordinal,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            top: Vec::new(),
            logprob: 0.0,
            finish: None,
            score: None,
            visits: None,
            state,
            asks: false,
            uniforms,
        }
    }
}

/// Whether the engine holds a branch for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Can be extended and forked.
    Open(BranchId),
    /// Released; part of the result.
    Closed,
    /// Rejected by the search.
    Pruned,
}

pub struct SamplingTree {
    engine: EngineHandle,
    hear: Hear,
    item: String,
    graph: DiGraph<ThoughtNode, ()>,
    root: NodeIndex,
    /// The errors of failed nodes.
    failures: BTreeMap<NodeIndex, Error>,
    /// The place of the search's questions in the engine's queue: beside its root.
    place: RootOptions,
}

impl SamplingTree {
    /// A tree whose root is `prompt`. Uniforms are keyed by `seed`, `item` and the path of forks.
    pub fn new(engine: EngineHandle, item: &str, seed: u64, prompt: Vec<TokenId>, text: String) -> Result<Self> {
        Self::placed(engine, item, seed, prompt, text, RootOptions::default())
    }

    /// The same with a place of its own; so are the search's questions.
    pub fn placed(
        engine: EngineHandle,
        item: &str,
        seed: u64,
        prompt: Vec<TokenId>,
        text: String,
        place: RootOptions,
    ) -> Result<Self> {
        let branch = engine.root_with(prompt.clone(), place)?;
        let mut graph = DiGraph::new();
        let node = ThoughtNode::new(ForkKind::Sample, 0, NodeState::Open(branch), UniformKey::root(seed, item));
        let root = graph.add_node(ThoughtNode { text, tokens: prompt, ..node });
        let failures = BTreeMap::new();
        let place = RootOptions { beside: Some(branch), ..place };
        Ok(Self { engine, hear: Hear::Finishes, item: item.to_string(), graph, root, failures, place })
    }

    /// Sets what the events of later extends report; by default only how each node ends.
    pub fn hear(&mut self, hear: Hear) {
        self.hear = hear;
    }

    pub fn root(&self) -> NodeIndex {
        self.root
    }

    /// The problem's id.
    pub fn item(&self) -> &str {
        &self.item
    }

    pub fn node(&self, at: NodeIndex) -> &ThoughtNode {
        &self.graph[at]
    }

    /// All nodes in the order of their creation.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        self.graph.node_indices()
    }

    pub fn parent(&self, at: NodeIndex) -> Option<NodeIndex> {
        self.graph.neighbors_directed(at, Direction::Incoming).next()
    }

    /// Children in the order of their creation.
    pub fn children(&self, at: NodeIndex) -> Vec<NodeIndex> {
        let mut children: Vec<_> = self.graph.neighbors(at).collect();
        children.sort();
        children
    }

    /// The nodes from the first child of the root (or of the question above `at`) to `at`, without the prompt.
    pub fn path(&self, at: NodeIndex) -> Vec<NodeIndex> {
        let mut path = vec![at];
        while let Some(parent) = self.parent(path[path.len() - 1]).filter(|_| !self.graph[path[path.len() - 1]].asks) {
            path.push(parent);
        }
        path.pop();
        path.reverse();
        path
    }

    /// The text of [`SamplingTree::path`].
    pub fn path_text(&self, at: NodeIndex) -> String {
        self.path(at).into_iter().map(|node| self.graph[node].text.as_str()).collect()
    }

    /// `n` children of `at`, to be sampled.
    pub fn fork(&mut self, at: NodeIndex, n: usize) -> Result<Vec<NodeIndex>> {
        self.fork_as(ForkKind::Sample, at, n)
    }

    /// `n` children of `at` of this kind. Ordinals, and with them the random numbers, are counted per kind.
    pub fn fork_as(&mut self, kind: ForkKind, at: NodeIndex, n: usize) -> Result<Vec<NodeIndex>> {
        let first = self.next_ordinal(kind, at);
        let ordinals: Vec<u64> = (first..).take(n).collect();
        self.fork_ordinals(kind, at, &ordinals)
    }

    /// Children of `at` with these ordinals, which determine their random numbers: used to resume an interrupted
    /// search. No child of this kind may have any of them yet.
    pub fn fork_ordinals(&mut self, kind: ForkKind, at: NodeIndex, ordinals: &[u64]) -> Result<Vec<NodeIndex>> {
        let branches = self.engine.fork(self.open_branch(at)?, ordinals.len())?;
        Ok(branches.into_iter().zip(ordinals).map(|(branch, &ordinal)| self.add(kind, at, ordinal, branch)).collect())
    }

    /// Adds a closed child of `at` that an earlier process sampled: its text, log-probability and finish reason. Its
    /// tokens are not known.
    pub fn add_known(&mut self, at: NodeIndex, ordinal: u64, text: &str, logprob: f64, finish: FinishReason) {
        let uniforms = self.graph[at].uniforms.child(ForkKind::Sample, ordinal);
        let node = ThoughtNode::new(ForkKind::Sample, ordinal, NodeState::Closed, uniforms);
        let child = self.graph.add_node(ThoughtNode { text: text.to_string(), logprob, finish: Some(finish), ..node });
        self.graph.add_edge(at, child, ());
    }

    fn next_ordinal(&self, kind: ForkKind, at: NodeIndex) -> u64 {
        self.graph.neighbors(at).filter(|&child| self.graph[child].kind == kind).count() as u64
    }

    fn add(&mut self, kind: ForkKind, at: NodeIndex, ordinal: u64, branch: BranchId) -> NodeIndex {
        let uniforms = self.graph[at].uniforms.child(kind, ordinal);
        let child = self.graph.add_node(ThoughtNode::new(kind, ordinal, NodeState::Open(branch), uniforms));
        self.graph.add_edge(at, child, ());
        child
    }

    /// Samples from each of `nodes` until its stop, all in one batch; blocks until the last has finished or failed. A
    /// failed node does not affect the others; see [`SamplingTree::failure`].
    ///
    /// # Errors
    ///
    /// The first node's error if all nodes fail; that the engine stopped.
    pub fn extend(&mut self, nodes: &[NodeIndex], how: &SamplingParams, stop: &Stop) -> Result<()> {
        let mut growing = self.start(nodes, how, stop)?;
        while growing.next_event()?.is_some() {}
        drop(growing);
        self.unless_all_failed(nodes)
    }

    /// Appends given tokens to each of `nodes`; errors as those of `extend`.
    pub fn extend_given(&mut self, nodes: &[NodeIndex], tokens: &[TokenId]) -> Result<()> {
        let given = |_: usize, _: &ThoughtNode| Continuation::Given { tokens: tokens.to_vec(), logprobs: None };
        let mut growing = self.start_with(nodes, given)?;
        while growing.next_event()?.is_some() {}
        drop(growing);
        self.unless_all_failed(nodes)
    }

    fn unless_all_failed(&mut self, nodes: &[NodeIndex]) -> Result<()> {
        match nodes.iter().all(|&node| self.has_failed(node)) {
            true => nodes.first().and_then(|node| self.failures.remove(node)).map_or(Ok(()), Err),
            false => Ok(()),
        }
    }

    /// Like `extend`, but returns the events.
    pub fn start(&mut self, nodes: &[NodeIndex], how: &SamplingParams, stop: &Stop) -> Result<Extension<'_>> {
        self.start_until(nodes, how, |_, _| stop.clone())
    }

    /// Like `start`, with a stop for each of `nodes`, by its index.
    pub fn start_until(
        &mut self,
        nodes: &[NodeIndex],
        how: &SamplingParams,
        stop: impl Fn(usize, &ThoughtNode) -> Stop,
    ) -> Result<Extension<'_>> {
        self.start_with(nodes, |ix, node| Continuation::Sampled {
            params: how.clone(),
            stop: stop(ix, node),
            uniforms: node.uniforms,
        })
    }

    fn start_with(
        &mut self,
        nodes: &[NodeIndex],
        continuation: impl Fn(usize, &ThoughtNode) -> Continuation,
    ) -> Result<Extension<'_>> {
        let growth = self.growth_with(nodes, continuation)?;
        Ok(Extension::new(self, growth))
    }

    /// Starts to sample from each of `nodes`, and returns what receives the events without borrowing the tree.
    pub fn growth(&self, nodes: &[NodeIndex], how: &SamplingParams, stop: &Stop) -> Result<Growth> {
        self.growth_with(nodes, |_, node| Continuation::Sampled {
            params: how.clone(),
            stop: stop.clone(),
            uniforms: node.uniforms,
        })
    }

    /// Starts to append given tokens to each node, scored if `logprobs`; see [`SamplingTree::growth`].
    pub fn growth_given(&self, given: &[(NodeIndex, Vec<TokenId>)], logprobs: bool) -> Result<Growth> {
        let nodes: Vec<NodeIndex> = given.iter().map(|&(node, _)| node).collect();
        let logprobs = logprobs.then_some(0);
        self.growth_with(&nodes, |ix, _| Continuation::Given { tokens: given[ix].1.clone(), logprobs })
    }

    fn growth_with(
        &self,
        nodes: &[NodeIndex],
        continuation: impl Fn(usize, &ThoughtNode) -> Continuation,
    ) -> Result<Growth> {
        let mut by_branch = HashMap::new();
        let mut extends = Vec::with_capacity(nodes.len());
        for (ix, &node) in nodes.iter().enumerate() {
            let branch = self.open_branch(node)?;
            by_branch.insert(branch, node);
            extends.push(Extend { branch, continuation: continuation(ix, &self.graph[node]) });
        }
        let mut inner = self.engine.receiver(self.hear);
        inner.start(extends)?;
        Ok(Growth::new(inner, by_branch))
    }

    pub fn set_score(&mut self, at: NodeIndex, score: f64) {
        self.graph[at].score = Some(score);
    }

    pub fn set_visits(&mut self, at: NodeIndex, visits: u32) {
        self.graph[at].visits = Some(visits);
    }

    /// Releases the branch of `at`; the node stays part of the result.
    pub fn close(&mut self, at: NodeIndex) {
        if let NodeState::Open(branch) = self.graph[at].state {
            self.engine.release(&[branch]);
            self.graph[at].state = NodeState::Closed;
        }
    }

    /// Rejects `at` and its subtree; the engine prunes their branches at once. The record stays readable.
    pub fn prune(&mut self, at: NodeIndex) {
        let mut below = vec![at];
        while let Some(node) = below.pop() {
            if let NodeState::Open(branch) = self.graph[node].state {
                self.engine.prune(&[branch]);
            }
            self.graph[node].state = NodeState::Pruned;
            below.extend(self.graph.neighbors(node));
        }
    }

    /// Records that `at` failed. The engine keeps the branch's tokens but sends no more events of it, so the node
    /// cannot be extended.
    fn fail(&mut self, at: NodeIndex, error: Error) -> Result<()> {
        self.close(at);
        match error {
            Error::EngineStopped { .. } => Err(error),
            error => {
                self.graph[at].finish = Some(FinishReason::Failed);
                self.failures.insert(at, error);
                Ok(())
            }
        }
    }

    pub fn has_failed(&self, at: NodeIndex) -> bool {
        self.graph[at].finish == Some(FinishReason::Failed)
    }

    /// The error of `at`, if it failed.
    pub fn failure(&self, at: NodeIndex) -> Option<&Error> {
        self.failures.get(&at)
    }

    /// Takes the errors of failed nodes, in the order of the nodes' creation.
    pub fn take_failures(&mut self) -> BTreeMap<NodeIndex, Error> {
        std::mem::take(&mut self.failures)
    }

    fn open_branch(&self, at: NodeIndex) -> Result<BranchId> {
        match self.graph[at].state {
            NodeState::Open(branch) => Ok(branch),
            state => {
                Err(Error::Internal(format!("node {} of `{}` is {state:?}: it cannot grow", at.index(), self.item)))
            }
        }
    }

    fn grow(&mut self, at: NodeIndex, finish: Finish) {
        let node = &mut self.graph[at];
        if !(node.top.is_empty() && finish.top.is_empty()) {
            node.top.resize(node.tokens.len(), Vec::new());
            node.top.extend(finish.top);
            node.top.resize(node.tokens.len() + finish.tokens.len(), Vec::new());
        }
        node.text.push_str(&finish.text);
        node.tokens.extend(finish.tokens);
        node.logprobs.extend(finish.logprobs);
        node.logprob += finish.logprob;
        node.finish = Some(finish.reason);
    }
}

impl Drop for SamplingTree {
    fn drop(&mut self) {
        for at in self.graph.node_indices() {
            self.close(at);
        }
    }
}
