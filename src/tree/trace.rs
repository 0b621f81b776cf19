//! The tree as files: JSON for programs, DOT for Graphviz. Reads the record only.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{SamplingTree, State};
use crate::ids::TokenId;

/// Longest thought shown on a node of the drawing, in characters.
const LABEL_CHARS: usize = 60;

impl SamplingTree {
    /// `{"item", "nodes": [{"id", "parent", "kind", "ordinal", "state", "finish", "score", "tokens", "logprob", "text"}]}`,
    /// parents before children; a question has `"asks": true` too. The root's text and tokens are the prompt. Where top log-probabilities were asked for, a node
    /// has `"top"` too: for each token a list of [token, log-probability].
    pub fn to_json(&self) -> Value {
        let nodes: Vec<Value> = self
            .nodes()
            .map(|at| {
                let node = self.node(at);
                let mut entry = json!({
                    "id": at.index(),
                    "parent": self.parent(at).map(|parent| parent.index()),
                    "kind": node.kind,
                    "ordinal": node.ordinal,
                    "state": node.state.name(),
                    "finish": node.finish,
                    "score": node.score,
                    "tokens": node.tokens.iter().map(|&TokenId(token)| token).collect::<Vec<_>>(),
                    "logprob": node.logprob,
                    "text": node.text,
                });
                if node.asks {
                    entry["asks"] = json!(true);
                }
                if !node.top.is_empty() {
                    entry["top"] = json!(node.top);
                }
                entry
            })
            .collect();
        json!({ "item": self.item(), "nodes": nodes })
    }

    /// A Graphviz digraph: one box a thought, dashed where pruned.
    pub fn to_dot(&self) -> String {
        let mut dot = String::from("digraph offshoot {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n");
        for at in self.nodes() {
            let node = self.node(at);
            let style = if node.state == State::Pruned { ", style=dashed" } else { "" };
            let score = node.score.map(|score| format!("\\nscore {score:.3}")).unwrap_or_default();
            let label = format!("{}\\n{} tokens{score}", escape(&shorten(&node.text)), node.tokens.len());
            writeln!(dot, "  n{} [label=\"{label}\"{style}];", at.index()).expect("writing to a string cannot fail");
            if let Some(parent) = self.parent(at) {
                writeln!(dot, "  n{} -> n{};", parent.index(), at.index()).expect("writing to a string cannot fail");
            }
        }
        dot.push_str("}\n");
        dot
    }
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Open(_) => "open",
            State::Closed => "closed",
            State::Pruned => "pruned",
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(LABEL_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

/// For a quoted DOT label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\r', "")
}
