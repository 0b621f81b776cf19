//! `--explain`: reports for each node of the prompt tree how the attention plan of a decode step treats it, and the
//! costs compared. `plan::explain` reports on a step's segments; here they are mapped back to nodes and summed over all
//! layers.

use std::fmt;

use serde::Serialize;

use super::decode_step::DecodeStep;
use offshoot_core::figures::{bytes, count, counted, seconds};
use offshoot_kv::PromptTree;
use offshoot_kv::plan::{self, CopyRoom, ExplainedForm, LatentForm, PlanHints, Treatment, Weighed, WhySlower};

/// How a step reads a node's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// No row of the step is at or below it.
    NotInStep,
    /// At least part of it is read once for all rows below it.
    Shared,
    /// Shared, and split into several work items.
    Split,
    /// All of it is read together with the segments below it, because a work item of its own would cost more than it
    /// saves.
    Folded,
    /// It is outside the attention window of every row.
    Unseen,
}

/// A node and its fate.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedNode {
    /// Depth in the tree; roots have 0.
    pub depth: usize,
    pub first_position: u32,
    pub tokens: u32,
    /// Number of prompts that contain it, and the number of the first of these in the input, from 1.
    pub prompts: usize,
    pub first_prompt: usize,
    /// Rows of the step at and below it.
    pub rows: u32,
    pub fate: Fate,
    /// Expected time of one layer for it (with what is folded into it), shared and folded, if the planner had a choice.
    pub shared_ns: Option<f64>,
    pub folded_ns: Option<f64>,
    /// The form in which latents are read that are shared, and the expected time of one layer in each, where copies
    /// could be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<NodeForm>,
    /// Bytes of its keys and values that the step reads over all layers, and that it would read without sharing.
    pub bytes_read: u64,
    pub bytes_flat: u64,
}

/// How a node's latents are read, and what each form costs: of all its items, in one layer.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NodeForm {
    /// That of the copies that are read, else absorbed.
    pub form: LatentForm,
    /// Tokens, those folded into the node included, and those of them that are read from copies.
    pub tokens: u64,
    pub tokens_copied: u64,
    pub absorbed_ns: f64,
    /// Read from copies.
    pub copied_ns: f64,
    /// To make the copies, once.
    pub expanded_ns: f64,
    /// Why a slower form is taken for some tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_slower: Option<WhySlower>,
}

impl From<ExplainedForm> for NodeForm {
    fn from(read: ExplainedForm) -> Self {
        let ExplainedForm { form, tokens, copied, absorbed_ns, copied_ns, expanded_ns, why_slower } = read;
        Self { form, tokens, tokens_copied: copied, absorbed_ns, copied_ns, expanded_ns, why_slower }
    }
}

/// Explains every node, depth-first. If layers have several kinds of windows, fate and times are those of the first
/// kind; bytes are summed over all kinds.
pub fn explain(
    tree: &PromptTree,
    step: &DecodeStep,
    hints: &[(PlanHints, u64)],
    room: &CopyRoom<'_>,
) -> Vec<ExplainedNode> {
    let mut explained: Vec<ExplainedNode> = Vec::with_capacity(tree.nodes().len());
    for (node, first_prompt) in tree.nodes().iter().zip(first_prompts(tree)) {
        explained.push(ExplainedNode {
            depth: node.parent.map_or(0, |parent| explained[parent as usize].depth + 1),
            first_position: node.first,
            tokens: node.tokens(),
            prompts: node.prompts.len(),
            first_prompt,
            rows: 0,
            fate: Fate::NotInStep,
            shared_ns: None,
            folded_ns: None,
            form: None,
            bytes_read: 0,
            bytes_flat: 0,
        });
    }
    for (kind, (hints, layers)) in hints.iter().enumerate() {
        let (_, segments) = plan::explain(&step.forest, hints, room);
        for (node, segment) in step.nodes.iter().zip(segments) {
            let Some(node) = node else { continue };
            let explained = &mut explained[*node as usize];
            explained.rows = u32::try_from(segment.rows).expect("rows are counted in u32");
            explained.bytes_read += segment.read_bytes * layers;
            explained.bytes_flat += segment.flat_bytes * layers;
            if kind == 0 {
                explained.fate = match segment.treatment {
                    Treatment::Shared { items: 1 } => Fate::Shared,
                    Treatment::Shared { .. } => Fate::Split,
                    Treatment::Unseen => Fate::Unseen,
                    Treatment::Folded => Fate::Folded,
                    Treatment::Own { .. } => unreachable!("a node of the step has samples beneath it"),
                };
                explained.shared_ns = segment.weighed.map(|Weighed { shared_ns, .. }| shared_ns);
                explained.folded_ns = segment.weighed.map(|Weighed { folded_ns, .. }| folded_ns);
                explained.form = segment.form.map(NodeForm::from);
            }
        }
    }
    explained
}

/// For each node, the number of the first prompt in the input that contains it, from 1.
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

/// `read from kept copies; a layer takes 1.2 ms, absorbed 3.4 ms, and 5.6 ms once to make them`.
impl fmt::Display for NodeForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [absorbed, copied, expanded] =
            [self.absorbed_ns, self.copied_ns, self.expanded_ns].map(|ns| seconds(1e-9 * ns));
        let kind = match self.form {
            LatentForm::Absorbed => {
                write!(f, "absorbed: a layer takes {absorbed}, from copies {copied}")?;
                return match self.why_slower {
                    None => Ok(()),
                    Some(WhySlower::Making) => {
                        write!(f, ", but {expanded} to make them, which is more than they save")
                    }
                    Some(WhySlower::Pages) => write!(f, ", but there are too few pages for them"),
                    Some(WhySlower::Start) => {
                        write!(f, ", but all copies of the step save less than it takes to read any")
                    }
                };
            }
            LatentForm::Kept => "kept copies",
            LatentForm::Again if self.why_slower.is_some() => "copies of the step, as no pages are left to keep them",
            LatentForm::Again => "copies of the step",
        };
        write!(f, "read from {kind}")?;
        if self.tokens_copied < self.tokens {
            let [some, all] = [self.tokens_copied, self.tokens].map(count);
            write!(f, ", {some} of {all} tokens: there are no pages for more")?;
        }
        match self.form {
            LatentForm::Again => write!(f, "; a layer takes {copied} and {expanded} to make them, absorbed {absorbed}"),
            _ => write!(f, "; a layer takes {copied}, absorbed {absorbed}, and {expanded} once to make them"),
        }
    }
}

impl fmt::Display for ExplainedNode {
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
                write!(f, "read once for {rows}, split: saves {} of {}", bytes(saved), bytes(self.bytes_flat))
            }
            Fate::Folded => match self.rows {
                1 => write!(f, "read by its one row"),
                _ => {
                    write!(f, "folded into the nodes below ({rows}), which is faster than reading it separately: ")?;
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
        }?;
        match &self.form {
            None => Ok(()),
            Some(form) => write!(f, "; {form}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use offshoot_core::ids::TokenId;

    proptest! {
        /// Few short prompts over two tokens: many are equal, empty, or the beginnings of others.
        #[test]
        fn first_prompts_are_the_least_of_those_that_hold_a_node(
            prompts in prop::collection::vec(prop::collection::vec(0u32..2, 0..5), 0..12),
        ) {
            let prompts: Vec<Vec<TokenId>> =
                prompts.iter().map(|prompt| prompt.iter().copied().map(TokenId).collect()).collect();
            let tree = PromptTree::new(prompts.as_slice());
            let least = |node: &offshoot_kv::PromptNode| {
                let sorted = &tree.sorted()[node.prompts.start as usize..node.prompts.end as usize];
                sorted.iter().map(|sorted| sorted.prompt as usize + 1).min()
            };
            let expected: Option<Vec<usize>> = tree.nodes().iter().map(least).collect();
            prop_assert_eq!(Some(first_prompts(&tree)), expected);
        }
    }

    #[test]
    fn a_form_says_why_it_is_slower() {
        let said = |form, tokens_copied, why_slower| {
            let (absorbed_ns, copied_ns, expanded_ns) = (3e6, 1e6, 2e6);
            NodeForm { form, tokens: 2048, tokens_copied, absorbed_ns, copied_ns, expanded_ns, why_slower }.to_string()
        };
        let absorbed = |why| said(LatentForm::Absorbed, 0, why);
        assert_eq!(absorbed(None), "absorbed: a layer takes 3.00 ms, from copies 1.00 ms");
        for (why, words) in [
            (WhySlower::Making, ", but 2.00 ms to make them, which is more than they save"),
            (WhySlower::Pages, ", but there are too few pages for them"),
            (WhySlower::Start, ", but all copies of the step save less than it takes to read any"),
        ] {
            assert_eq!(absorbed(Some(why)), absorbed(None) + words);
        }
        let kept = "; a layer takes 1.00 ms, absorbed 3.00 ms, and 2.00 ms once to make them";
        assert_eq!(said(LatentForm::Kept, 2048, None), format!("read from kept copies{kept}"));
        let part = ", 1,024 of 2,048 tokens: there are no pages for more";
        assert_eq!(said(LatentForm::Kept, 1024, Some(WhySlower::Pages)), format!("read from kept copies{part}{kept}"));
        let again = "; a layer takes 1.00 ms and 2.00 ms to make them, absorbed 3.00 ms";
        assert_eq!(said(LatentForm::Again, 2048, None), format!("read from copies of the step{again}"));
        let no_pages = "read from copies of the step, as no pages are left to keep them";
        assert_eq!(said(LatentForm::Again, 2048, Some(WhySlower::Pages)), format!("{no_pages}{again}"));
    }
}
