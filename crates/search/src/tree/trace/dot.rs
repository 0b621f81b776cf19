//! Writes traces for Graphviz: one box per thought, dashed if pruned.

use std::fmt::Write;

use super::Trace;
use crate::tree::NodeState;

/// Longest thought shown in a box, in characters.
const LABEL_CHARS: usize = 60;

impl Trace {
    /// One digraph with a cluster for each trace.
    pub fn to_dot<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> String {
        let mut dot = String::from("digraph offshoot {\n  rankdir=LR;\n  node [shape=box, fontname=\"monospace\"];\n");
        for (number, trace) in traces.into_iter().enumerate() {
            trace.cluster(number, &mut dot).expect("writing to a string cannot fail");
        }
        dot.push_str("}\n");
        dot
    }

    fn cluster(&self, number: usize, dot: &mut String) -> std::fmt::Result {
        writeln!(dot, "  subgraph cluster_{number} {{\n    label=\"{}\";", label(&self.item))?;
        for (node, parts_at) in self.nodes.iter().zip(self.parts_at()) {
            let style = if node.state == NodeState::Pruned { ", style=dashed" } else { "" };
            let score = node.score.map(|score| format!("\\nscore {score:.3}")).unwrap_or_default();
            let visits = node.visits.map(|visits| format!("\\n{visits} visits")).unwrap_or_default();
            let text = format!("{}\\n{} tokens{score}{visits}", label_from(&node.text, parts_at), node.tokens);
            writeln!(dot, "    t{number}n{} [label=\"{text}\"{style}];", node.id)?;
            if let Some(parent) = node.parent {
                writeln!(dot, "    t{number}n{parent} -> t{number}n{};", node.id)?;
            }
        }
        writeln!(dot, "  }}")
    }
}

/// The label of `text` without its first `skipped` characters.
fn label_from(text: &str, skipped: usize) -> String {
    match skipped {
        0 => label(text),
        _ => format!("...{}", label(&text.chars().skip(skipped).collect::<String>())),
    }
}

/// The beginning of `text`, for a quoted label. Graphviz takes neither control characters nor a lone backslash.
fn label(text: &str) -> String {
    let mut label = String::new();
    for c in text.chars().take(LABEL_CHARS) {
        match c {
            '"' => label.push_str("\\\""),
            '\\' => label.push_str("\\\\"),
            '\n' => label.push_str("\\n"),
            '\t' => label.push(' '),
            c if c.is_control() => {}
            c => label.push(c),
        }
    }
    if text.chars().nth(LABEL_CHARS).is_some() {
        label.push_str("...");
    }
    label
}
