//! `--explain`: for each node of the prompts' tree what the attention plan of a decode step makes of it and what was weighed. What
//! became of a step's segments is `plan::explain`'s to say; here they are brought back to nodes, over all layers.

use std::fmt;

use serde::Serialize;

use super::decode_step::DecodeStep;
use crate::figures::{bytes, count, counted, seconds};
use crate::kv::PromptTree;
use crate::plan::{self, PlanHints, Treatment, Weighed};

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
    /// No window reaches it.
    Unseen,
}

/// A node and its fate.
#[derive(Clone, Debug, Serialize)]
pub struct Explained {
    /// From 0, the roots.
    pub depth: usize,
    pub first_position: u32,
    pub tokens: u32,
    /// Prompts that hold it, and which of them stands first in the input, from 1.
    pub prompts: usize,
    pub first_prompt: usize,
    /// Rows of the step at and beneath it.
    pub rows: u32,
    pub fate: Fate,
    /// What the planner expects one layer to take for it (with what is folded into it), where it had a choice.
    pub shared_ns: Option<f64>,
    pub folded_ns: Option<f64>,
    /// Bytes of its keys and values that the step reads, all layers, and that it would read without sharing.
    pub bytes_read: u64,
    pub bytes_flat: u64,
}

/// Every node, depth-first. Where layers have several kinds of windows, fate and times are those of the first kind; bytes are of all.
pub fn explain(tree: &PromptTree, step: &DecodeStep, hints: &[(PlanHints, u64)]) -> Vec<Explained> {
    let mut explained: Vec<Explained> = Vec::with_capacity(tree.nodes().len());
    for (node, first_prompt) in tree.nodes().iter().zip(first_prompts(tree)) {
        explained.push(Explained {
            depth: node.parent.map_or(0, |parent| explained[parent as usize].depth + 1),
            first_position: node.first,
            tokens: node.tokens(),
            prompts: node.prompts.len(),
            first_prompt,
            rows: 0,
            fate: Fate::NotInStep,
            shared_ns: None,
            folded_ns: None,
            bytes_read: 0,
            bytes_flat: 0,
        });
    }
    for (kind, (hints, layers)) in hints.iter().enumerate() {
        let (_, segments) = plan::explain(&step.forest, hints);
        for (node, segment) in step.nodes.iter().zip(segments) {
            let Some(node) = node else { continue };
            let explained = &mut explained[*node as usize];
            explained.rows = u32::try_from(segment.rows).expect("rows are counted in u32");
            explained.bytes_read += segment.read_bytes * layers;
            explained.bytes_flat += segment.flat_bytes * layers;
            if kind == 0 {
                explained.fate = match segment.treatment {
                    Treatment::Shared { items: 1, .. } => Fate::Shared,
                    Treatment::Shared { .. } => Fate::Split,
                    Treatment::Unseen => Fate::Unseen,
                    Treatment::Folded => Fate::Folded,
                    Treatment::Own { .. } => unreachable!("a node of the step has samples beneath it"),
                };
                explained.shared_ns = segment.weighed.map(|Weighed { shared_ns, .. }| shared_ns);
                explained.folded_ns = segment.weighed.map(|Weighed { folded_ns, .. }| folded_ns);
            }
        }
    }
    explained
}

/// Of each node, which of the prompts that hold it stands first in the input, from 1.
fn first_prompts(tree: &PromptTree) -> Vec<usize> {
    let mut first = vec![usize::MAX; tree.nodes().len()];
    for (index, node) in tree.nodes().iter().enumerate().rev() {
        for sorted in &tree.sorted()[tree.own(index)] {
            first[index] = first[index].min(sorted.prompt as usize + 1);
        }
        if let Some(parent) = node.parent {
            first[parent as usize] = first[parent as usize].min(first[index]);
        }
    }
    first
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:indent$}", "", indent = 2 * self.depth.min(20))?;
        let (from, end) = (self.first_position, self.first_position + self.tokens);
        write!(f, "{}..{}: {}, ", count(from.into()), count(end.into()), counted(self.tokens.into(), "token"))?;
        let first = count(self.first_prompt as u64);
        match self.prompts {
            1 => write!(f, "prompt {first}; ")?,
            prompts => write!(f, "{} prompts from {first} on; ", count(prompts as u64))?,
        }
        let rows = counted(self.rows.into(), "row");
        let saved = self.bytes_flat.saturating_sub(self.bytes_read);
        match self.fate {
            Fate::NotInStep => write!(f, "no row of the step is beneath it"),
            Fate::Unseen => write!(f, "out of every row's window"),
            Fate::Shared => write!(f, "read once for {rows}: saves {} of {}", bytes(saved), bytes(self.bytes_flat)),
            Fate::Split => {
                write!(f, "read once for {rows}, in parts: saves {} of {}", bytes(saved), bytes(self.bytes_flat))
            }
            Fate::Folded => match self.rows {
                1 => write!(f, "read by its one row"),
                _ => {
                    write!(f, "folded into what is beneath it ({rows}), which is faster than to read it by itself: ")?;
                    match saved {
                        0 => write!(f, "read for each of them, {}", bytes(self.bytes_flat)),
                        _ => write!(f, "saves {} of {}", bytes(saved), bytes(self.bytes_flat)),
                    }
                }
            },
        }?;
        match (self.shared_ns, self.folded_ns) {
            (Some(shared), Some(folded)) if self.rows > 1 => {
                write!(f, "; a layer takes {} shared, {} folded", seconds(1e-9 * shared), seconds(1e-9 * folded))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::TokenId;

    proptest! {
        /// Of few short prompts over two tokens many are equal, empty, or the beginnings of others.
        #[test]
        fn first_prompts_are_the_least_of_those_that_hold_a_node(
            prompts in prop::collection::vec(prop::collection::vec(0u32..2, 0..5), 0..12),
        ) {
            let prompts: Vec<Vec<TokenId>> =
                prompts.iter().map(|prompt| prompt.iter().copied().map(TokenId).collect()).collect();
            let tree = PromptTree::new(prompts.as_slice());
            let least = |node: &crate::kv::PromptNode| {
                let sorted = &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize];
                sorted.iter().map(|sorted| sorted.prompt as usize + 1).min()
            };
            let expected: Option<Vec<usize>> = tree.nodes().iter().map(least).collect();
            prop_assert_eq!(Some(first_prompts(&tree)), expected);
        }
    }
}
