//! The nodes of a sampling tree: what one holds, and where it is. Nodes are only added, so an id stays valid as long as
//! the tree; how nodes change is left to the tree.

use std::ops::{Index, IndexMut};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use serde::{Deserialize, Serialize};

use crate::rollout::DrawnToken;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{BranchId, NodeId, TokenId, WeightVersion};
use offshoot_engine::{
    AdapterSpan, FinishReason, ForkKind, LogprobsMode, SampledToken, TokenRecord, TokenRecords, UniformKey, WeightSpan,
    split_versions, version_of_token,
};
use offshoot_form::SampleForm;

/// A node of the sampling tree: one thought (the text between two forks) and how it came about.
#[derive(Clone, Debug)]
pub struct ThoughtNode {
    /// Why the node was forked. Children of different kinds have separate ordinals.
    pub kind: ForkKind,
    /// Its index among its parent's children of the same kind.
    pub ordinal: u64,
    /// The thought as text, cut at a stop string unless `Stop::included` keeps it.
    pub text: String,
    /// The thought's tokens; for the root, the prompt's. Forks and later extends continue on them. Those that spelt a
    /// stop string are among them; an end-of-text or stop token is only with `Stop::included`.
    pub tokens: Vec<TokenId>,
    /// The extends that appended `tokens`, in their order, with what they recorded of them.
    pub runs: Vec<TokenRun>,
    /// The end-of-text or stop token that ended the last extend and is not among `tokens`.
    pub ending: Option<SampledToken>,
    /// Natural-log probability of the thought: the sum over those of `tokens` that were sampled or scored, and over the
    /// end-of-text or stop token that ended it, also where `tokens` does not have it.
    pub logprob: f64,
    /// Why the thought ended, at its last extend; `None` until one has ended.
    pub finish: Option<FinishReason>,
    /// The scorer's value.
    pub score: Option<f64>,
    /// Simulations that passed through it, in searches that simulate.
    pub visits: Option<u32>,
    /// Whether the node is a question: its tokens are a separate prompt, and its context excludes the nodes above.
    pub asks: bool,
    pub(super) lease: Lease,
    pub(super) uniforms: UniformKey,
}

/// The tokens that one extend appended to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenRun {
    /// How many.
    pub tokens: usize,
    /// What is recorded of each of them; nothing of given tokens that were not scored.
    pub records: TokenRecords,
    /// The weights that they were sampled or scored under, and the token that ended the extend: as [`Finish::weights`].
    ///
    /// [`Finish::weights`]: offshoot_engine::Finish::weights
    pub weights: Vec<WeightSpan>,
    /// The adapters that they were sampled or scored under: as [`Finish::adapters`].
    ///
    /// [`Finish::adapters`]: offshoot_engine::Finish::adapters
    pub adapters: Vec<AdapterSpan>,
    /// The form that they were sampled under; `None`: any text was allowed, or the tokens were given.
    pub form: Option<SampleForm>,
    /// Whether the text of the form was complete with them: as [`Finish::form_ended`].
    ///
    /// [`Finish::form_ended`]: offshoot_engine::Finish::form_ended
    pub form_ended: bool,
    /// Why the extend ended; [`FinishReason::Given`]: the tokens were given.
    pub finish: FinishReason,
}

/// Whether a node can grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// It can be extended and forked.
    Open,
    /// Released; part of the result.
    Closed,
    /// Rejected by the search.
    Pruned,
}

/// A node's hold on the engine.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lease {
    Open(BranchId),
    Closed,
    Pruned,
}

impl ThoughtNode {
    pub(super) fn new(kind: ForkKind, ordinal: u64, lease: Lease, uniforms: UniformKey) -> ThoughtNode {
        ThoughtNode {
            kind,
            ordinal,
            text: String::new(),
            tokens: Vec::new(),
            runs: Vec::new(),
            ending: None,
            logprob: 0.0,
            finish: None,
            score: None,
            visits: None,
            asks: false,
            lease,
            uniforms,
        }
    }

    /// Whether the node can grow.
    pub fn state(&self) -> NodeState {
        match self.lease {
            Lease::Open(_) => NodeState::Open,
            Lease::Closed => NodeState::Closed,
            Lease::Pruned => NodeState::Pruned,
        }
    }

    /// `logprob` divided by the number of `tokens`, or by 1 without tokens. An end-of-text or stop token that is not
    /// among `tokens` is in the sum, and not counted.
    pub fn mean_logprob(&self) -> f64 {
        self.logprob / self.tokens.len().max(1) as f64
    }

    /// Takes all but the first `tokens` tokens, and all but the first `text` bytes, as a node of its own with this
    /// node's lease; this node has `lease` then.
    pub(super) fn split_off(&mut self, tokens: usize, text: usize, lease: Lease, uniforms: UniformKey) -> ThoughtNode {
        let mut rest = ThoughtNode::new(ForkKind::Sample, 0, std::mem::replace(&mut self.lease, lease), uniforms);
        rest.text = self.text.split_off(text);
        rest.tokens = self.tokens.split_off(tokens);
        rest.ending = self.ending.take();
        rest.score = self.score.take();
        let reason = if self.runs.iter().all(|run| run.finish == FinishReason::Given) {
            FinishReason::Given
        } else {
            FinishReason::Length
        };
        rest.finish = self.finish.replace(reason.clone());
        let mut left = tokens;
        for mut run in std::mem::take(&mut self.runs) {
            let own = run.tokens.min(left);
            left -= own;
            if own == run.tokens {
                self.runs.push(run);
                continue;
            }
            let records = run.records.split_off(own);
            let weights = split_versions(&mut run.weights, own);
            let (adapters, finish) = (split_versions(&mut run.adapters, own), run.finish.clone());
            let (tokens, form, form_ended) = (run.tokens - own, run.form.clone(), run.form_ended);
            rest.runs.push(TokenRun { tokens, records, weights, adapters, form, form_ended, finish });
            if own > 0 {
                let finish = if run.finish == FinishReason::Given { FinishReason::Given } else { FinishReason::Length };
                self.runs.push(TokenRun { tokens: own, form_ended: false, finish, ..run });
            }
        }
        let sum = self.records().flatten().map(|record| f64::from(record.logprob)).sum();
        rest.logprob = std::mem::replace(&mut self.logprob, sum) - sum;
        rest
    }

    /// Whether sampling was cut and went on later, as of a straggler that was kept.
    pub fn is_continued(&self) -> bool {
        let mut sampled = self.runs.iter().filter(|run| run.finish != FinishReason::Given);
        sampled.any(|run| run.finish.is_cut()) && sampled.next().is_some()
    }

    /// How many of `tokens` no extend appended: the prompt of the root or of a question.
    pub(crate) fn given_at_start(&self) -> usize {
        self.tokens.len() - self.runs.iter().map(|run| run.tokens).sum::<usize>()
    }

    /// What is recorded of each of `tokens`, in their order; `None` of those that were neither sampled nor scored.
    pub fn records(&self) -> impl Iterator<Item = Option<TokenRecord<'_>>> {
        self.each().map(|(_, record)| record)
    }

    /// Natural-log probability of each of `tokens`: of sampled ones under the distribution that `mode` names
    /// ([`TokenRecord::logprob_by`]), of given ones, which were not drawn, under the model itself. `None` where it is
    /// not recorded, as of given tokens that were not scored.
    pub fn logprobs(&self, mode: LogprobsMode) -> impl Iterator<Item = Option<f32>> {
        self.each().map(move |(sampled, record)| match sampled {
            true => record?.logprob_by(mode),
            false => Some(record?.logprob),
        })
    }

    /// Whether each of `tokens` was sampled, and what is recorded of it.
    fn each(&self) -> impl Iterator<Item = (bool, Option<TokenRecord<'_>>)> {
        let first = self.given_at_start();
        let mut begin = first;
        let runs = self.runs.iter().flat_map(move |run| {
            let tokens = &self.tokens[begin..begin + run.tokens];
            begin += run.tokens;
            let sampled = run.finish != FinishReason::Given;
            (0..).zip(tokens).map(move |(at, &token)| (sampled, run.records.get(at, token)))
        });
        std::iter::repeat_n((false, None), first).chain(runs)
    }

    /// The node's tokens for a trainer: how each was sampled, with log-probabilities by `mode`, or `None` if it was
    /// given.
    pub(crate) fn drawn_tokens(&self, mode: LogprobsMode) -> Result<Vec<(TokenId, Option<DrawnToken>)>> {
        let mut tokens = Vec::with_capacity(self.tokens.len());
        for (at, (&token, (sampled, record))) in self.tokens.iter().zip(self.each()).enumerate() {
            tokens.push((token, if sampled { Some(self.drawn_token(at, record, mode)?) } else { None }));
        }
        Ok(tokens)
    }

    /// The end-of-text or stop token that ended the last extend and is not among `tokens`, for a trainer.
    pub(crate) fn drawn_ending(&self, mode: LogprobsMode) -> Result<Option<(TokenId, DrawnToken)>> {
        let Some(ending) = &self.ending else { return Ok(None) };
        Ok(Some((ending.token, self.drawn_token(self.tokens.len(), Some(TokenRecord::of(ending)), mode)?)))
    }

    /// Sampled token `at` of the node, the ending one with `at` equal to their number. Where the log-probability that
    /// `mode` names is not recorded it is an error: another one in its place would be taken for it.
    fn drawn_token(&self, at: usize, record: Option<TokenRecord<'_>>, mode: LogprobsMode) -> Result<DrawnToken> {
        let record =
            record.ok_or_else(|| Error::Internal(format!("sampled token {at} of a node has no log-probability")))?;
        let logprob = record.logprob_by(mode).ok_or_else(|| {
            let expected = "a log-probability under the distribution that the token was drawn from (sample with the \
                            log-probabilities mode processed_logprobs)";
            Error::value(format!("sampled token {at} of a node of a rollout"), expected, "only the model's own")
        })?;
        Ok(DrawnToken { logprob, weights: self.weights_of(at)? })
    }

    /// The weights that token `at` of the node was sampled under, the ending one's with `at` equal to their number.
    fn weights_of(&self, at: usize) -> Result<WeightVersion> {
        let (mut begin, mut version) = (self.given_at_start(), None);
        // Of the last run that begins there or before.
        for run in &self.runs {
            if begin <= at {
                version = version_of_token(&run.weights, at - begin);
            }
            begin += run.tokens;
        }
        version.ok_or_else(|| Error::Internal(format!("sampled token {at} of a node has no version of weights")))
    }

    /// The engine's branch, as long as the node can grow.
    pub(super) fn branch(&self) -> Option<BranchId> {
        match self.lease {
            Lease::Open(branch) => Some(branch),
            Lease::Closed | Lease::Pruned => None,
        }
    }
}

/// Nodes, parents before children, each with an edge from its parent; the first is the root.
pub(super) struct Nodes(DiGraph<ThoughtNode, ()>);

impl Nodes {
    pub const ROOT: NodeId = NodeId(0);

    pub fn new(root: ThoughtNode) -> Self {
        let mut graph = DiGraph::new();
        graph.add_node(root);
        Nodes(graph)
    }

    /// Adds a child of `parent`.
    pub fn add(&mut self, parent: NodeId, node: ThoughtNode) -> NodeId {
        let child = self.0.add_node(node);
        self.0.add_edge(index(parent), child, ());
        id(child)
    }

    pub fn len(&self) -> usize {
        self.0.node_count()
    }

    /// `None` for the root.
    pub fn parent(&self, at: NodeId) -> Option<NodeId> {
        self.0.neighbors_directed(index(at), Direction::Incoming).next().map(id)
    }

    /// The youngest first.
    pub fn children(&self, at: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.0.neighbors(index(at)).map(id)
    }
}

impl Index<NodeId> for Nodes {
    type Output = ThoughtNode;

    fn index(&self, at: NodeId) -> &ThoughtNode {
        &self.0[index(at)]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, at: NodeId) -> &mut ThoughtNode {
        &mut self.0[index(at)]
    }
}

fn index(id: NodeId) -> NodeIndex {
    NodeIndex::from(id.0)
}

fn id(index: NodeIndex) -> NodeId {
    NodeId::new(index.index())
}
