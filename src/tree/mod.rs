//! The sampling tree: what a search did, append-only, one tree a problem, and the search's handle on the engine. `fork`,
//! `extend`, `score` and `prune` are all a driver needs; `start` is `extend` with its events, for drivers that stream, judge
//! or stop siblings while others grow. Where keys and values lie is the engine's business: pruning drops a lease, never the
//! record.

mod extension;
mod probe;
mod questions;
mod trace;

use std::collections::{BTreeMap, HashMap};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use crate::engine::{
    UniformKey, Continuation, EngineHandle, Extend, Finish, FinishReason, ForkKind, Hear, SamplingParams, Stop,
};
use crate::error::{Error, Result};
use crate::ids::{BranchId, TokenId};

pub use extension::{Event, Extension};
pub use probe::{After, LogProb, Probe};
pub use questions::Spent;
pub use trace::{Trace, TraceNode, TraceState};

/// A node of the sampling tree: one thought (the text between two forks) and how it came about.
#[derive(Clone, Debug)]
pub struct Node {
    /// Why the node was forked; children of different kinds count their ordinals apart.
    pub kind: ForkKind,
    /// Which child of its parent this is, among those of its kind.
    pub ordinal: u64,
    /// The thought as text, cut at a stop string.
    pub text: String,
    /// The thought's tokens; for the root, the prompt's.
    pub tokens: Vec<TokenId>,
    /// Natural-log probability of each of `tokens` where it was asked for (sampled tokens: always).
    pub logprobs: Vec<f32>,
    /// For each of `tokens` the likeliest tokens in its place, likeliest first; empty for tokens that were given, and empty
    /// as a whole where nobody asked.
    pub top: Vec<Vec<(TokenId, f32)>>,
    /// Natural-log probability of the thought: of `tokens` and of the stop token that ended it.
    pub logprob: f64,
    /// Why the thought ended; `None` while it grows or was never extended.
    pub finish: Option<FinishReason>,
    /// What a scorer gave it.
    pub score: Option<f64>,
    /// Simulations that went through it, where there were any.
    pub visits: Option<u32>,
    pub state: State,
    /// A question: its tokens are a prompt of their own, and what lies above it is no part of its context.
    pub asks: bool,
    uniforms: UniformKey,
}

impl Node {
    fn new(kind: ForkKind, ordinal: u64, state: State, uniforms: UniformKey) -> Node {
        Node {
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

/// What the engine still keeps of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Can be extended and forked.
    Open(BranchId),
    /// Finished with and given back; part of the result.
    Closed,
    /// Rejected by the search.
    Pruned,
}

pub struct SamplingTree {
    engine: EngineHandle,
    hear: Hear,
    item: String,
    graph: DiGraph<Node, ()>,
    root: NodeIndex,
    /// Why nodes could not go on.
    failures: BTreeMap<NodeIndex, Error>,
    /// The root's branch: what the search asks on its way stands in its place in the engine's line.
    priority: BranchId,
}

impl SamplingTree {
    /// A tree whose root is `prompt`. Uniforms are keyed by `seed`, `item` and the path of forks.
    pub fn new(engine: EngineHandle, item: &str, seed: u64, prompt: Vec<TokenId>, text: String) -> Result<Self> {
        let branch = engine.root(prompt.clone())?;
        let mut graph = DiGraph::new();
        let node = Node::new(ForkKind::Sample, 0, State::Open(branch), UniformKey::root(seed, item));
        let root = graph.add_node(Node { text, tokens: prompt, ..node });
        let failures = BTreeMap::new();
        Ok(Self { engine, hear: Hear::Finishes, item: item.to_string(), graph, root, failures, priority: branch })
    }

    /// What the events of extends tell from now on: at first only how each node ends.
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

    pub fn node(&self, at: NodeIndex) -> &Node {
        &self.graph[at]
    }

    /// All nodes in the order of their making.
    pub fn nodes(&self) -> impl Iterator<Item = NodeIndex> + use<> {
        self.graph.node_indices()
    }

    pub fn parent(&self, at: NodeIndex) -> Option<NodeIndex> {
        self.graph.neighbors_directed(at, Direction::Incoming).next()
    }

    /// Children in the order of their making.
    pub fn children(&self, at: NodeIndex) -> Vec<NodeIndex> {
        let mut children: Vec<_> = self.graph.neighbors(at).collect();
        children.sort();
        children
    }

    /// The thoughts from the first child of the root (or of the question above `at`) down to `at`, the prompt left out.
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

    /// `n` children of `at` whose ordinals (and so uniforms) count among those of `kind`.
    pub fn fork_as(&mut self, kind: ForkKind, at: NodeIndex, n: usize) -> Result<Vec<NodeIndex>> {
        let first = self.next_ordinal(kind, at);
        let ordinals: Vec<u64> = (first..).take(n).collect();
        self.fork_ordinals(kind, at, &ordinals)
    }

    /// Children of `at` with these ordinals, which decide their uniforms: what an interrupted search has yet to sample. No child of
    /// this kind has any of them yet.
    pub fn fork_ordinals(&mut self, kind: ForkKind, at: NodeIndex, ordinals: &[u64]) -> Result<Vec<NodeIndex>> {
        let branches = self.engine.fork(self.open_branch(at)?, ordinals.len())?;
        Ok(branches.into_iter().zip(ordinals).map(|(branch, &ordinal)| self.add(kind, at, ordinal, branch)).collect())
    }

    /// A child of `at` that an earlier process sampled, closed: its text, log-probability and end. Its tokens nobody kept.
    pub fn add_known(&mut self, at: NodeIndex, ordinal: u64, text: &str, logprob: f64, finish: FinishReason) {
        let uniforms = self.graph[at].uniforms.child(ForkKind::Sample, ordinal);
        let node = Node::new(ForkKind::Sample, ordinal, State::Closed, uniforms);
        let child = self.graph.add_node(Node { text: text.to_string(), logprob, finish: Some(finish), ..node });
        self.graph.add_edge(at, child, ());
    }

    fn next_ordinal(&self, kind: ForkKind, at: NodeIndex) -> u64 {
        self.graph.neighbors(at).filter(|&child| self.graph[child].kind == kind).count() as u64
    }

    fn add(&mut self, kind: ForkKind, at: NodeIndex, ordinal: u64, branch: BranchId) -> NodeIndex {
        let uniforms = self.graph[at].uniforms.child(kind, ordinal);
        let child = self.graph.add_node(Node::new(kind, ordinal, State::Open(branch), uniforms));
        self.graph.add_edge(at, child, ());
        child
    }

    /// Samples on from each of `nodes` until its stop, all in one batch; blocks until the last has finished or failed.
    /// A node that fails does not disturb the others; see [`SamplingTree::failure`].
    ///
    /// Errors: the first node's failure where all of them fail; the engine's end.
    pub fn extend(&mut self, nodes: &[NodeIndex], how: &SamplingParams, stop: &Stop) -> Result<()> {
        let mut growing = self.start(nodes, how, stop)?;
        while growing.next_event()?.is_some() {}
        drop(growing);
        self.unless_all_failed(nodes)
    }

    /// Appends given tokens to each of `nodes`; errors as those of `extend`.
    pub fn extend_given(&mut self, nodes: &[NodeIndex], tokens: &[TokenId]) -> Result<()> {
        let given = |_: usize, _: &Node| Continuation::Given { tokens: tokens.to_vec(), logprobs: false };
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

    /// `extend`, handed over event by event.
    pub fn start(&mut self, nodes: &[NodeIndex], how: &SamplingParams, stop: &Stop) -> Result<Extension<'_>> {
        self.start_until(nodes, how, |_, _| stop.clone())
    }

    /// `start` with a stop for each of `nodes`, by its place among them.
    pub fn start_until(
        &mut self,
        nodes: &[NodeIndex],
        how: &SamplingParams,
        stop: impl Fn(usize, &Node) -> Stop,
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
        continuation: impl Fn(usize, &Node) -> Continuation,
    ) -> Result<Extension<'_>> {
        let mut by_branch = HashMap::new();
        let mut extends = Vec::with_capacity(nodes.len());
        for (ix, &node) in nodes.iter().enumerate() {
            let branch = self.open_branch(node)?;
            by_branch.insert(branch, node);
            extends.push(Extend { branch, continuation: continuation(ix, &self.graph[node]) });
        }
        let mut inner = self.engine.receiver(self.hear);
        inner.start(extends)?;
        Ok(Extension::new(self, inner, by_branch))
    }

    pub fn set_score(&mut self, at: NodeIndex, score: f64) {
        self.graph[at].score = Some(score);
    }

    pub fn set_visits(&mut self, at: NodeIndex, visits: u32) {
        self.graph[at].visits = Some(visits);
    }

    /// Gives back what the engine keeps of `at`: it is finished with, and stays part of the result.
    pub fn close(&mut self, at: NodeIndex) {
        if let State::Open(branch) = self.graph[at].state {
            self.engine.release(&[branch]);
            self.graph[at].state = State::Closed;
        }
    }

    /// Rejects `at` and everything beneath it, and has the engine forget it at once. The record stays readable.
    pub fn prune(&mut self, at: NodeIndex) {
        let mut below = vec![at];
        while let Some(node) = below.pop() {
            if let State::Open(branch) = self.graph[node].state {
                self.engine.discard(&[branch]);
            }
            self.graph[node].state = State::Pruned;
            below.extend(self.graph.neighbors(node));
        }
    }

    /// Notes that `at` could not go on. The engine keeps what its branch drew and tells no more of it: nobody may go on
    /// from there.
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

    /// Why `at` could not go on, if it could not.
    pub fn failure(&self, at: NodeIndex) -> Option<&Error> {
        self.failures.get(&at)
    }

    /// Hands over why nodes could not go on, in the order of their making.
    pub fn take_failures(&mut self) -> BTreeMap<NodeIndex, Error> {
        std::mem::take(&mut self.failures)
    }

    fn open_branch(&self, at: NodeIndex) -> Result<BranchId> {
        match self.graph[at].state {
            State::Open(branch) => Ok(branch),
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
