//! A run's trees as text for a terminal: one line per item, below it one line per node; long lists of children are cut.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::shown::{ShownItem, ShownNode, ShownRun};
use super::totals::RunTotals;
use offshoot_core::figures::{bytes, count, times};
use offshoot_core::setting::{HTML, ITEM};
use offshoot_engine::ForkKind;
use offshoot_search::tree::NodeState;

/// Limits: items shown if none is requested, children shown per node, and characters of a text.
const ITEMS: usize = 5;
const CHILDREN: usize = 12;
const TEXT_CHARS: usize = 72;

/// All items of `run` if `whole`, else the first ones.
pub fn text(run: &ShownRun, whole: bool) -> String {
    let mut text = String::new();
    let shown = if whole { run.items.len() } else { run.items.len().min(ITEMS) };
    for item in &run.items[..shown] {
        write_item(item, &mut text).expect("writing to a string cannot fail");
    }
    let rest = run.items.len() - shown;
    if rest > 0 {
        text += &format!("{rest} more items: {ITEM} ID shows one of them, {HTML} FILE all in a page\n");
    }
    if let ([_, _, ..], RunTotals { tokens: Some(tokens), tokens_unshared, .. }) = (&run.items[..], run.totals) {
        let (all, ratio) = (count(tokens_unshared), times(tokens, tokens_unshared));
        text += &format!("all items: {} distinct tokens, {all} without sharing ({ratio} x)\n", count(tokens));
    }
    text
}

fn write_item(item: &ShownItem, text: &mut String) -> std::fmt::Result {
    let RunTotals { tokens, tokens_unshared, kv_bytes } = item.totals();
    write!(text, "{}", one_line(item.id()))?;
    if let Some(Value::String(prediction)) = item.facts.get("prediction") {
        write!(text, "  -> {}", one_line(prediction))?;
    }
    match item.facts.get("correct") {
        Some(Value::Bool(true)) => text.push_str(" (right)"),
        Some(Value::Bool(false)) => text.push_str(" (wrong)"),
        _ => {}
    }
    write!(text, "  {} nodes", count(item.trace.nodes.len() as u64))?;
    if let Some(tokens) = tokens {
        write!(text, ", {} distinct tokens", count(tokens))?;
    }
    if let Some(kv_bytes) = kv_bytes {
        write!(text, " ({})", bytes(kv_bytes))?;
    }
    writeln!(text, ", {} without sharing", count(tokens_unshared))?;
    for note in &item.notes {
        writeln!(text, "  note: {note}")?;
    }
    let nodes = item.nodes();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for node in &nodes {
        if let Some(parent) = node.node.parent {
            children[parent].push(node.node.id);
        }
    }
    // Depth-first without recursion: a path may have thousands of thoughts.
    let mut below = vec![OutlineRow { indent: String::new(), kind: RowKind::Node(0), last: true }];
    while let Some(row) = below.pop() {
        let (arm, stem) = if row.last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        match row.kind {
            RowKind::More(more) => writeln!(text, "  {}{arm}{more} more", row.indent)?,
            RowKind::Node(at) => {
                let root = at == 0;
                writeln!(text, "  {}{}{}", row.indent, if root { "" } else { arm }, describe(&nodes[at]))?;
                let indent = if root { String::new() } else { format!("{}{stem}", row.indent) };
                below.extend(beneath(&children[at], &nodes, &indent).into_iter().rev());
            }
        }
    }
    text.push('\n');
    Ok(())
}

struct OutlineRow {
    indent: String,
    kind: RowKind,
    last: bool,
}

enum RowKind {
    Node(usize),
    /// Number of children that are not shown.
    More(usize),
}

/// The first children, and the one on the answer's path even if it is not among them.
fn beneath(children: &[usize], nodes: &[ShownNode<'_>], indent: &str) -> Vec<OutlineRow> {
    let shown = |(place, &at): (usize, &usize)| (place < CHILDREN || nodes[at].chosen).then_some(RowKind::Node(at));
    let mut kinds: Vec<RowKind> = children.iter().enumerate().filter_map(shown).collect();
    if kinds.len() < children.len() {
        kinds.push(RowKind::More(children.len() - kinds.len()));
    }
    let count = kinds.len();
    let row = |(place, kind)| OutlineRow { indent: indent.to_string(), kind, last: place + 1 == count };
    kinds.into_iter().enumerate().map(row).collect()
}

fn describe(shown: &ShownNode<'_>) -> String {
    let node = shown.node;
    let mut line = String::new();
    if shown.chosen && node.parent.is_some() {
        line.push_str("* ");
    }
    let kind = match node.kind {
        ForkKind::Sample => "",
        ForkKind::Value => "value ",
        ForkKind::Vote => "vote ",
        ForkKind::Propose => "propose ",
    };
    match node.parent {
        None => line += &format!("prompt [{} tokens x {}]", node.tokens, shown.branches),
        Some(_) => line += &format!("{kind}{} [{} tokens", node.ordinal, node.tokens),
    }
    if node.parent.is_some() {
        if shown.branches > 1 {
            line += &format!(" x {}", shown.branches);
        }
        if let Some(score) = node.score {
            line += &format!(", score {score:.3}");
        }
        if let Some(visits) = node.visits {
            line += &format!(", {visits} visits");
        }
        if node.state == NodeState::Pruned {
            line += ", pruned";
        }
        if let Some(verdict) = shown.sample.and_then(verdict) {
            line += &format!(", {verdict}");
        }
        if let Some(parts) = shown.sample.and_then(attention) {
            line += &format!(", attention {parts}");
        }
        line.push(']');
    }
    // Siblings are shown from where they part.
    let own: String = node.text.chars().skip(shown.parts_at).collect();
    let text = if shown.parts_at > 0 { format!("… {}", one_line(&own)) } else { one_line(&node.text) };
    format!("{line} {text}").trim_end().to_string()
}

/// What the judge, or else the grader, says of a sample.
fn verdict(sample: &Map<String, Value>) -> Option<&str> {
    let judged = sample.get("judged").and_then(|judged| judged.get("verdict")).and_then(Value::as_str);
    judged.or_else(|| sample.get("correct")?.as_bool().map(|correct| if correct { "right" } else { "wrong" }))
}

/// Where a sample's attention fell, if the run recorded it: on each level of the prompt and, last, on its own text.
fn attention(sample: &Map<String, Value>) -> Option<String> {
    let parts = sample.get("attention")?.as_array()?.iter();
    let parts = parts.map(|part| Some(format!("{:.0}", 100.0 * part.as_f64()?))).collect::<Option<Vec<_>>>()?;
    Some(format!("{} %", parts.join(" + ")))
}

/// The beginning of `text` on one line; control characters, which could speak to the terminal, as escapes.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut chars = text.trim().chars();
    for c in chars.by_ref().take(TEXT_CHARS) {
        match c {
            '\n' | '\t' | '\r' => line.push(' '),
            c if c.is_control() || is_direction(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    if chars.next().is_some() {
        line.push('…');
    }
    line
}

/// Whether `c` turns the direction of what follows (Unicode's embeddings, overrides and isolates).
fn is_direction(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
