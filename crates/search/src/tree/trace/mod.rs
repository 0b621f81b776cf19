//! A sampling tree as data: the record of a search without the engine's branches. It is written next to a run's results
//! and read back by the commands that show the search; `dot` writes it for Graphviz.

mod dot;
mod parting;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::nodes::NodeState;
use super::sampling_tree::SamplingTree;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::TokenId;
use offshoot_core::input;
use offshoot_engine::{FinishReason, ForkKind, TokenRecord, finish_fields};

/// A sampling tree as a file: `{"item", "kv_bytes_per_token", "level_ends", "nodes": [...]}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// The problem's id.
    pub item: String,
    /// Bytes of keys and values per token, over all layers; `None`: unknown.
    pub kv_bytes_per_token: Option<usize>,
    /// End of each level of the prompt in tokens, root first; the last is the prompt's length. `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level_ends: Option<Vec<usize>>,
    /// Parents before children; the first is the root, whose text and tokens are the prompt.
    pub nodes: Vec<TraceNode>,
}

/// A node of a [`Trace`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceNode {
    /// Its index in `nodes`.
    pub id: usize,
    /// `None` for the root.
    pub parent: Option<usize>,
    /// Why it was forked.
    pub kind: ForkKind,
    /// Its index among its parent's children of the same kind. Kinds and ordinals from the root down, with the run's
    /// seed, determine all random numbers.
    pub ordinal: u64,
    /// Whether it could grow when the tree was written.
    pub state: NodeState,
    /// Whether the node is a question about its parent: its text and tokens are a separate prompt, and its context
    /// excludes the nodes above.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
    /// `None`: the thought was never extended.
    #[serde(flatten, with = "finish_fields::optional")]
    pub finish: Option<FinishReason>,
    /// The search's value of it.
    pub score: Option<f64>,
    /// Simulations that passed through it, in searches that simulate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visits: Option<u32>,
    /// Number of its tokens.
    pub tokens: usize,
    /// Natural-log probability of the thought; `None`: it was given instead of sampled, or the value is not finite.
    pub logprob: Option<f64>,
    /// Its text.
    pub text: String,
    /// `None`: the tree was rebuilt from samples, which do not contain token ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<TokenId>>,
    /// For each token, the most likely tokens in its place with their log-probabilities, if they were requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Vec<(TokenId, f32)>>,
}

impl SamplingTree {
    /// The current record.
    pub fn trace(&self) -> Trace {
        let facts = self.engine.facts();
        let node = |at| {
            let node = self.node(at);
            let is_recorded = node.records().any(|record| record.is_some());
            let given = node.finish.is_none() || (node.finish == Some(FinishReason::Given) && !is_recorded);
            let has_top = node.runs.iter().any(|run| !run.records.tops().is_empty());
            let top = |record: Option<TokenRecord<'_>>| record.map_or_else(Vec::new, |record| record.top.to_vec());
            TraceNode {
                id: at.ix(),
                parent: self.parent(at).map(|parent| parent.ix()),
                kind: node.kind,
                ordinal: node.ordinal,
                state: node.state(),
                asks: node.asks,
                finish: node.finish.clone(),
                score: node.score.filter(|score| score.is_finite()),
                visits: node.visits,
                tokens: node.tokens.len(),
                logprob: Some(node.logprob).filter(|logprob| !given && logprob.is_finite()),
                text: node.text.clone(),
                token_ids: Some(node.tokens.clone()),
                top: if has_top { node.records().map(top).collect() } else { Vec::new() },
            }
        };
        Trace {
            item: self.name().to_string(),
            kv_bytes_per_token: Some(facts.kv_bytes_per_token).filter(|&bytes| bytes > 0),
            level_ends: None,
            nodes: self.nodes().map(node).collect(),
        }
    }
}

impl Trace {
    /// Reads a trace from JSON.
    pub fn read(path: &Path) -> Result<Self> {
        let text = input::bytes(path)?;
        let trace: Trace = serde_json::from_slice(&text)
            .map_err(|error| Error::format(path, format!("not a sampling tree as this version writes it: {error}")))?;
        trace.check(path)?;
        Ok(trace)
    }

    /// Checks that the nodes form one tree, parents before children.
    fn check(&self, path: &Path) -> Result<()> {
        if self.nodes.is_empty() {
            return Err(Error::field(path, "nodes", "at least the root", "none"));
        }
        for (place, node) in self.nodes.iter().enumerate() {
            if node.id != place {
                return Err(Error::field(path, format!("nodes[{place}].id"), place.to_string(), node.id.to_string()));
            }
            let fits = node.parent.map_or(place == 0, |parent| parent < place);
            if !fits {
                let expected = if place == 0 { "null, because it is the root" } else { "the id of a node before it" };
                let found = node.parent.map_or("null".to_string(), |parent| parent.to_string());
                return Err(Error::field(path, format!("nodes[{place}].parent"), expected, found));
            }
        }
        Ok(())
    }

    /// For each node, the number of branches that hold its tokens: the leaves below it, or 1 for a leaf. A question
    /// starts a new context, which excludes the nodes above.
    pub fn branches(&self) -> Vec<usize> {
        let mut branches = vec![0; self.nodes.len()];
        for node in self.nodes.iter().rev() {
            // A leaf has no children that added to its count.
            branches[node.id] = branches[node.id].max(1);
            if let Some(parent) = node.parent.filter(|_| !node.asks) {
                branches[parent] += branches[node.id];
            }
        }
        branches
    }

    /// For each node, the text from the child of the root (or of the question above it) to the node, without the
    /// prompt.
    pub fn path_texts(&self) -> Vec<String> {
        let mut texts: Vec<String> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let parent = node.parent.filter(|_| !node.asks);
            texts.push(parent.map_or_else(String::new, |parent| format!("{}{}", texts[parent], node.text)));
        }
        texts
    }
}
