//! The sampling tree: the append-only record of a search on one problem, and the search's handle on the engine:
//! forking, reading, closing and pruning. Sampling from nodes is left to `extension`, scoring to `probe`.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::{Lease, Nodes, ThoughtNode, TokenRun};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, NodeId, TokenId};
use offshoot_engine::{EngineHandle, Finish, FinishReason, ForkKind, Hear, RootOptions, UniformKey};
use offshoot_form::SampleForm;

/// A prompt as text, and its tokens, with those that a chat template or the tokenizer adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Shown where the tree is; nothing is sampled after it.
    pub text: String,
    /// What is sampled after.
    pub tokens: Vec<TokenId>,
}

/// Tokens alone, shown without text.
impl From<Vec<TokenId>> for Prompt {
    fn from(tokens: Vec<TokenId>) -> Self {
        Prompt { text: String::new(), tokens }
    }
}

/// The nodes of one search: thoughts below a prompt. Each node continues the path from the root to it; what nodes have
/// in common is stored, read and computed once. Dropping the tree releases all of its nodes.
///
/// A search forks nodes, extends the new ones in one batch, scores them, prunes the worst and goes on with the rest:
///
/// | method | what it does |
/// |---|---|
/// | [`fork`](Self::fork), [`fork_all`](Self::fork_all), [`fork_each`](Self::fork_each) | add children, which can be extended |
/// | [`fork_in_form`](Self::fork_in_form) | the same, in whose texts a form is kept |
/// | [`extend`](Self::extend), [`extend_given`](Self::extend_given) | sample from nodes, or append tokens to them |
/// | [`start`](Self::start) | the same as `extend`, with events while nodes grow |
/// | [`score`](Self::score), [`probe`](Self::probe) | log-probabilities of continuations; the tree does not change |
/// | [`ask`](Self::ask) | adds a question about a node, with a prompt of its own |
/// | [`prune`](Self::prune), [`close`](Self::close) | give memory back; the record stays |
/// | [`node`](Self::node), [`path_text`](Self::path_text) | read what was sampled |
pub struct SamplingTree {
    pub(super) engine: EngineHandle,
    pub(super) hear: Hear,
    seed: u64,
    pub(super) name: String,
    pub(super) nodes: Nodes,
    /// The errors of failed nodes.
    pub(super) failures: BTreeMap<NodeId, Error>,
    /// Nodes that go on with another adapter than the root's prompt has, and those below them.
    adapted: BTreeSet<NodeId>,
    /// The forms of nodes that were forked in one, and of those below them.
    pub(super) forms: BTreeMap<NodeId, SampleForm>,
    /// The place of the search's questions in the engine's queue: beside its root.
    pub(super) place: RootOptions,
}

impl SamplingTree {
    /// A tree whose root is `prompt`, with seed 0 and no name. Programs that use the library call `Model::tree`.
    ///
    /// # Errors
    ///
    /// The prompt is empty or longer than the model's context, or has tokens outside its vocabulary.
    #[doc(hidden)]
    pub fn new(engine: EngineHandle, prompt: Prompt) -> Result<Self> {
        Self::placed(engine, prompt, RootOptions::default())
    }

    /// Like `new`, with a place in the engine's queue; the search's questions have the same place.
    #[doc(hidden)]
    pub fn placed(engine: EngineHandle, prompt: Prompt, place: RootOptions) -> Result<Self> {
        let Prompt { text, tokens } = prompt;
        let branch = engine.root_with(tokens.clone(), place)?;
        let root = ThoughtNode::new(ForkKind::Sample, 0, Lease::Open(branch), UniformKey::root(0, ""));
        Ok(Self {
            engine,
            hear: Hear::Finishes,
            seed: 0,
            name: String::new(),
            nodes: Nodes::new(ThoughtNode { text, tokens, ..root }),
            failures: BTreeMap::new(),
            adapted: BTreeSet::new(),
            forms: BTreeMap::new(),
            place: RootOptions { beside: Some(branch), ..place },
        })
    }

    /// Sets the seed of all random numbers of the tree; 0 unless it is set. The same seed, name and prompt give the
    /// same samples, whatever else runs.
    ///
    /// # Panics
    ///
    /// If the tree has been forked: its nodes would follow from two seeds.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self.key_root()
    }

    /// Sets the name of the problem; empty unless it is set. Trees of one seed have different random numbers if their
    /// names differ.
    ///
    /// # Panics
    ///
    /// If the tree has been forked: its nodes would follow from two names.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self.key_root()
    }

    fn key_root(mut self) -> Self {
        assert!(self.nodes.len() == 1, "seed and name are set before the first fork");
        self.nodes[Nodes::ROOT].uniforms = UniformKey::root(self.seed, &self.name);
        self
    }

    /// Sets which events later extends report: by default only how each node ends.
    pub fn hear(&mut self, hear: Hear) {
        self.hear = hear;
    }

    /// The node of the prompt.
    pub fn root(&self) -> NodeId {
        Nodes::ROOT
    }

    /// The name of the problem.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A node: its text, tokens, log-probability, and how it ended.
    ///
    /// # Panics
    ///
    /// If `at` is of another tree that has more nodes; so do all methods that take a node.
    pub fn node(&self, at: NodeId) -> &ThoughtNode {
        &self.nodes[at]
    }

    /// All nodes in the order of their creation, parents before children.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }

    /// The node that `at` was forked from, or asks about; `None` for the root.
    pub fn parent(&self, at: NodeId) -> Option<NodeId> {
        self.nodes.parent(at)
    }

    /// Children in the order of their creation.
    pub fn children(&self, at: NodeId) -> Vec<NodeId> {
        let mut children: Vec<_> = self.nodes.children(at).collect();
        children.reverse();
        children
    }

    /// The nodes from the first child of the root (or of the question above `at`) to `at`, without the prompt.
    pub fn path(&self, at: NodeId) -> Vec<NodeId> {
        let mut path = vec![at];
        while let Some(parent) = self.parent(path[path.len() - 1]).filter(|_| !self.nodes[path[path.len() - 1]].asks) {
            path.push(parent);
        }
        path.pop();
        path.reverse();
        path
    }

    /// The text from the end of the prompt to the end of `at`.
    pub fn path_text(&self, at: NodeId) -> String {
        self.path(at).into_iter().map(|node| self.nodes[node].text.as_str()).collect()
    }

    /// Adds `n` children of `at`, which continue it once they are extended. Nothing is computed yet.
    ///
    /// Any open node can be forked, however it ended: whether a thought goes on is for the search to say, by its
    /// `finish`. One with [`FinishReason::EndOfText`] is whole. Children continue on the node's `tokens`, not on its
    /// `text`: what spelt a stop string is cut from the text alone. The end-of-text or stop token that ended the node
    /// is not among its tokens, unless `Stop::included` keeps it. Children of a node that is being extended fail when
    /// they are.
    ///
    /// # Errors
    ///
    /// `n` is 0, or `at` is closed or pruned.
    pub fn fork(&mut self, at: NodeId, n: usize) -> Result<Vec<NodeId>> {
        self.fork_as(ForkKind::Sample, at, n)
    }

    /// Adds `n` children of each of `nodes`: those of the first node come first. Without nodes there are none.
    ///
    /// # Errors
    ///
    /// As [`fork`](Self::fork) of the first node that cannot be forked. The nodes before it have their children.
    pub fn fork_all(&mut self, nodes: &[NodeId], n: usize) -> Result<Vec<NodeId>> {
        self.fork_all_as(ForkKind::Sample, nodes, n)
    }

    fn fork_all_as(&mut self, kind: ForkKind, nodes: &[NodeId], n: usize) -> Result<Vec<NodeId>> {
        let mut children = Vec::with_capacity(nodes.len() * n);
        for &node in nodes {
            children.extend(self.fork_as(kind, node, n)?);
        }
        Ok(children)
    }

    /// Like [`fork`](Self::fork); the children go on with this adapter, or with none. What they continue is not
    /// computed again, but for its last token.
    ///
    /// # Errors
    ///
    /// As [`fork`](Self::fork), or no adapter had this version. Children of one that is not loaded any more fail when
    /// they are extended.
    pub fn fork_with(&mut self, at: NodeId, n: usize, adapter: Option<AdapterVersion>) -> Result<Vec<NodeId>> {
        let first = self.next_ordinal(ForkKind::Sample, at);
        let branches = self.engine.fork_with(self.open_branch(at)?, n, adapter)?;
        let children = (first..).zip(branches).map(|(ordinal, branch)| self.add(ForkKind::Sample, at, ordinal, branch));
        let children: Vec<NodeId> = children.collect();
        if adapter != self.place.adapter {
            self.adapted.extend(&children);
        }
        Ok(children)
    }

    /// Lets nodes go on with this adapter, or with none, when they are extended next.
    ///
    /// # Errors
    ///
    /// One of them is closed or pruned, no adapter had this version, or the engine has stopped.
    pub fn set_adapter(&mut self, nodes: &[NodeId], adapter: Option<AdapterVersion>) -> Result<()> {
        let branches = nodes.iter().map(|&node| self.open_branch(node)).collect::<Result<Vec<_>>>()?;
        self.engine.set_adapter(&branches, adapter)?;
        if adapter != self.place.adapter {
            self.adapted.extend(nodes);
        }
        Ok(())
    }

    /// Like [`fork`](Self::fork), for a purpose of its own: random numbers are counted per kind, so that judging a node
    /// changes none of its samples.
    pub fn fork_as(&mut self, kind: ForkKind, at: NodeId, n: usize) -> Result<Vec<NodeId>> {
        let first = self.next_ordinal(kind, at);
        let ordinals: Vec<u64> = (first..).take(n).collect();
        self.fork_ordinals(kind, at, &ordinals)
    }

    /// Adds a child of this kind of each of `nodes`, in their order.
    ///
    /// # Errors
    ///
    /// As [`fork`](Self::fork) of the first node that cannot be forked.
    pub fn fork_each(&mut self, kind: ForkKind, nodes: &[NodeId]) -> Result<Vec<NodeId>> {
        self.fork_all_as(kind, nodes, 1)
    }

    /// Adds children of `at` with these ordinals, which determine their random numbers: for resuming an interrupted
    /// search. No child of this kind may have any of them yet.
    pub fn fork_ordinals(&mut self, kind: ForkKind, at: NodeId, ordinals: &[u64]) -> Result<Vec<NodeId>> {
        let branches = self.engine.fork(self.open_branch(at)?, ordinals.len())?;
        Ok(branches.into_iter().zip(ordinals).map(|(branch, &ordinal)| self.add(kind, at, ordinal, branch)).collect())
    }

    /// Adds a closed child of `at` that an earlier process sampled: its text, log-probability and finish reason. Its
    /// tokens are not known.
    pub fn add_known(&mut self, at: NodeId, ordinal: u64, text: &str, logprob: f64, finish: FinishReason) {
        let uniforms = self.nodes[at].uniforms.child(ForkKind::Sample, ordinal);
        let node = ThoughtNode::new(ForkKind::Sample, ordinal, Lease::Closed, uniforms);
        self.nodes.add(at, ThoughtNode { text: text.to_string(), logprob, finish: Some(finish), ..node });
    }

    pub(super) fn next_ordinal(&self, kind: ForkKind, at: NodeId) -> u64 {
        self.nodes.children(at).filter(|&child| self.nodes[child].kind == kind).count() as u64
    }

    pub(super) fn add(&mut self, kind: ForkKind, at: NodeId, ordinal: u64, branch: BranchId) -> NodeId {
        let uniforms = self.nodes[at].uniforms.child(kind, ordinal);
        let child = self.nodes.add(at, ThoughtNode::new(kind, ordinal, Lease::Open(branch), uniforms));
        if self.adapted.contains(&at) {
            self.adapted.insert(child);
        }
        self.inherit_form(at, child);
        child
    }

    /// Splits `at`, which has no children, behind its first `tokens` tokens, to which the first `text` bytes of its
    /// text belong: `at` keeps these, open and as if they had been its limit, and the rest becomes a new child of it,
    /// which is returned and as open as `at` was. Forks of `at` then go on from the middle of what was sampled, and
    /// share what is before. Penalties count its tokens there as given; a form that was begun goes on.
    ///
    /// # Errors
    ///
    /// `at` is the root or a question, has children, or has at most `tokens` tokens, or `tokens` is 0; `text` is not on
    /// the border of two characters of its text; `at` does not have the root's adapter; the engine has stopped.
    pub fn split(&mut self, at: NodeId, tokens: usize, text: usize) -> Result<NodeId> {
        let node = &self.nodes[at];
        let wrong = |what: &str, expected: String, found: String| {
            Err(Error::value(format!("{what} of a split of node {at}"), expected, found))
        };
        if at == self.root() || node.asks || self.nodes.children(at).next().is_some() {
            return wrong("place", "a thought without children".to_owned(), "another node".to_owned());
        }
        if self.adapted.contains(&at) {
            return wrong("place", "a node with the root's adapter".to_owned(), "one with another".to_owned());
        }
        if !(1..node.tokens.len()).contains(&tokens) {
            return wrong("tokens", format!("a number from 1 up, below {}", node.tokens.len()), tokens.to_string());
        }
        if !node.text.is_char_boundary(text) {
            return wrong("text", "the border of two characters".to_owned(), text.to_string());
        }
        let path = self.path(at);
        let start = path.first().and_then(|&first| self.parent(first)).unwrap_or(Nodes::ROOT);
        let above = [start].into_iter().chain(path[..path.len() - 1].iter().copied());
        let mut context: Vec<TokenId> = above.flat_map(|above| self.nodes[above].tokens.clone()).collect();
        context.extend(&self.nodes[at].tokens[..tokens]);
        let branch = match self.sampled_in_form(at, tokens) {
            Some((form, sampled)) => self.engine.root_in_form(context, self.place, &form, sampled)?,
            None => self.engine.root_with(context, self.place)?,
        };
        let uniforms = self.nodes[at].uniforms.child(ForkKind::Sample, 0);
        let rest = self.nodes[at].split_off(tokens, text, Lease::Open(branch), uniforms);
        let rest = self.nodes.add(at, rest);
        self.inherit_form(at, rest);
        Ok(rest)
    }

    /// Sets the value of a node, which the tree only keeps.
    pub fn set_score(&mut self, at: NodeId, score: f64) {
        self.nodes[at].score = Some(score);
    }

    /// Sets the number of simulations that passed through a node, which the tree only keeps.
    pub fn set_visits(&mut self, at: NodeId, visits: u32) {
        self.nodes[at].visits = Some(visits);
    }

    /// Releases `at`, which cannot grow any more but stays part of the result. Its memory is free once nothing else
    /// needs it; its children are not affected.
    pub fn close(&mut self, at: NodeId) {
        if let Some(branch) = self.nodes[at].branch() {
            self.engine.release(&[branch]);
            self.nodes[at].lease = Lease::Closed;
        }
    }

    /// Rejects `at` and its subtree: their memory is free at once, and none of them can grow. The record stays
    /// readable.
    pub fn prune(&mut self, at: NodeId) {
        let mut below = vec![at];
        while let Some(node) = below.pop() {
            if let Some(branch) = self.nodes[node].branch() {
                self.engine.prune(&[branch]);
            }
            self.nodes[node].lease = Lease::Pruned;
            below.extend(self.nodes.children(node));
        }
    }

    /// Records that `at` failed. The engine keeps the branch's tokens but sends no more events of it, so the node
    /// cannot be extended.
    pub(super) fn fail(&mut self, at: NodeId, error: Error) -> Result<()> {
        self.close(at);
        match error {
            Error::EngineStopped { .. } => Err(error),
            error => {
                self.nodes[at].finish = Some(FinishReason::Failed);
                self.failures.insert(at, error);
                Ok(())
            }
        }
    }

    /// Whether `at` failed: the engine could not extend it, and it is closed.
    pub fn has_failed(&self, at: NodeId) -> bool {
        self.nodes[at].finish == Some(FinishReason::Failed)
    }

    /// The error of `at`, if it failed.
    pub fn failure(&self, at: NodeId) -> Option<&Error> {
        self.failures.get(&at)
    }

    /// Takes the errors of failed nodes, in the order of the nodes' creation.
    pub fn take_failures(&mut self) -> BTreeMap<NodeId, Error> {
        std::mem::take(&mut self.failures)
    }

    pub(super) fn open_branch(&self, at: NodeId) -> Result<BranchId> {
        let what = || match self.name.as_str() {
            "" => format!("node {at}"),
            name => format!("node {at} of `{name}`"),
        };
        let found = match self.nodes[at].lease {
            Lease::Open(branch) => return Ok(branch),
            Lease::Closed => "a closed one",
            Lease::Pruned => "a pruned one",
        };
        Err(Error::value(what(), "an open node, which can grow", found))
    }

    /// Writes the end of an extend into `at`; `form`: what it sampled under.
    pub(super) fn grow(&mut self, at: NodeId, finish: Finish, form: Option<SampleForm>) {
        let node = &mut self.nodes[at];
        let Finish { reason, records, form_ended, weights, adapters, .. } = finish;
        let tokens = finish.tokens.len();
        node.runs.push(TokenRun { tokens, records, weights, adapters, form, form_ended, finish: reason.clone() });
        node.text.push_str(&finish.text);
        node.tokens.extend(finish.tokens);
        node.ending = finish.stop_token;
        node.logprob += finish.logprob;
        node.finish = Some(reason);
    }
}

impl Drop for SamplingTree {
    fn drop(&mut self) {
        for at in self.nodes() {
            self.close(at);
        }
    }
}
