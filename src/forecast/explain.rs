//! `--explain`: for each node of the prompts' tree what the attention plan of a decode step makes of it, read off the plan.

use std::fmt;

use serde::Serialize;

use super::decode_step::DecodeStep;
use crate::figures::{bytes, count, counted};
use crate::kv::PromptTree;
use crate::plan::{AttentionPlan, PlanHints, Planner};

/// What becomes of a node's keys and values in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// No row of the step is beneath it.
    NotInStep,
    /// Some of it is read once for all rows beneath it.
    Shared,
    /// The same, by several items one after another.
    Split,
    /// All of it is read in the items of those beneath it, for an item of its own would cost more than it spares.
    Folded,
}

/// A node and its fate.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// From 0, the roots.
    pub depth: usize,
    pub first_position: u32,
    pub tokens: u32,
    /// Prompts that hold it.
    pub prompts: usize,
    /// Rows of the step at and beneath it.
    pub rows: u32,
    pub fate: Fate,
    /// Bytes of its keys and values that the step reads, all layers, and that it would read without sharing.
    pub bytes_read: u64,
    pub bytes_flat: u64,
}

/// Every node, depth-first. Where layers have several kinds of windows, the fate is that of the first kind; bytes are of all.
pub fn explain(tree: &PromptTree, step: &DecodeStep, hints: &[(PlanHints, u64)]) -> Vec<Explained> {
    let mut explained: Vec<Explained> = Vec::with_capacity(tree.nodes().len());
    for node in tree.nodes() {
        explained.push(Explained {
            depth: node.parent.map_or(0, |parent| explained[parent as usize].depth + 1),
            first_position: node.first,
            tokens: node.tokens(),
            prompts: node.prompts.len(),
            rows: 0,
            fate: Fate::NotInStep,
            bytes_read: 0,
            bytes_flat: 0,
        });
    }
    for (kind, (hints, layers)) in hints.iter().enumerate() {
        let plans = [Planner::Balanced, Planner::Flat].map(|planner| planner.plan(&step.forest, hints));
        let [(read, whole), (flat, _)] = plans.map(|plan| reads_of_segments(step, &plan));
        let token_bytes = hints.token_bytes() * layers;
        for (segment, node) in step.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let explained = &mut explained[*node as usize];
            explained.rows = u32::try_from(step.forest.segments[segment].rows.len()).expect("rows are counted in u32");
            explained.bytes_read += read[segment] * token_bytes;
            explained.bytes_flat += flat[segment] * token_bytes;
            if kind == 0 {
                explained.fate = match whole[segment] {
                    0 => Fate::Folded,
                    1 => Fate::Shared,
                    _ => Fate::Split,
                };
            }
        }
    }
    explained
}

/// For each segment the tokens of it that the items of `plan` read, and the items that read it for all rows beneath it.
fn reads_of_segments(step: &DecodeStep, plan: &AttentionPlan) -> (Vec<u64>, Vec<usize>) {
    let segments = &step.forest.segments;
    let (mut tokens, mut whole) = (vec![0; segments.len()], vec![0; segments.len()]);
    for item in &plan.items {
        // The spans of an item lie on the path of its first row.
        let mut at = Some(step.forest.row_segments[item.rows.start as usize]);
        let spans = &plan.spans[item.spans.start as usize..item.spans.end as usize];
        let (from, to) = match (spans.first(), spans.last()) {
            (Some(first), Some(last)) => (first.first_position, last.first_position + last.tokens),
            _ => continue,
        };
        while let Some(index) = at {
            let segment = &segments[index as usize];
            let read = to.min(segment.end()).saturating_sub(from.max(segment.first_position));
            tokens[index as usize] += u64::from(read);
            whole[index as usize] += usize::from(read > 0 && item.rows == segment.rows);
            at = segment.parent;
        }
    }
    (tokens, whole)
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:indent$}", "", indent = 2 * self.depth.min(20))?;
        let (from, end) = (self.first_position, self.first_position + self.tokens);
        let (tokens, prompts) = (counted(self.tokens.into(), "token"), counted(self.prompts as u64, "prompt"));
        write!(f, "{}..{}: {tokens}, {prompts}; ", count(from.into()), count(end.into()))?;
        let rows = counted(self.rows.into(), "row");
        let saved = self.bytes_flat.saturating_sub(self.bytes_read);
        match self.fate {
            Fate::NotInStep => write!(f, "not in the step"),
            Fate::Shared => write!(f, "read once for {rows}: saves {} of {}", bytes(saved), bytes(self.bytes_flat)),
            Fate::Split => {
                write!(f, "read once for {rows}, in parts: saves {} of {}", bytes(saved), bytes(self.bytes_flat))
            }
            Fate::Folded => match self.rows {
                1 => write!(f, "read by its one row"),
                _ => write!(
                    f,
                    "folded into what is beneath it ({rows}), for an item of its own would cost more: saves {} of {}",
                    bytes(saved),
                    bytes(self.bytes_flat)
                ),
            },
        }
    }
}
