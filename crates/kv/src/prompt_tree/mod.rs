//! The exact prefix tree of a job's prompts, built before any of them is computed: what they share, on how many levels,
//! in which order to run them, and how to cut them into parts for several processes. It is built from the sorted
//! prompts in one pass and stores no tokens: a node refers to a prompt that has them. `PrefixTree` records what is in
//! KV memory while the job runs.

mod growing;
mod lru;
mod order;
mod parts;
mod prompts;
mod saving;
mod sort;
mod spread;

use std::ops::Range;

pub use growing::{DistinctTokens, tokens_in_batches};
pub use parts::{PromptPart, PromptParts, TokenCosts};
pub use prompts::{PackedPrompts, Prompts};
pub use saving::Saving;
pub use sort::SortedPrompt;

use offshoot_core::ids::TokenId;

/// A run of tokens that the same prompts share: positions `first .. end`, never empty. It ends where these prompts
/// differ or one of them ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptNode {
    /// Index into `PromptTree::nodes`, smaller than the node's own; `None` for a root.
    pub parent: Option<u32>,
    /// First position: the parent's end.
    pub first: u32,
    /// First position after it.
    pub end: u32,
    /// The prompts that contain it, as a range of `PromptTree::sorted`: first those that end with it, then those of its
    /// children.
    pub prompts: Range<u32>,
}

impl PromptNode {
    pub fn tokens(&self) -> u32 {
        self.end - self.first
    }
}

/// The prefix tree of all prompts of a job. Equal prompts end in the same node; an empty prompt has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTree {
    /// Prompts in lexicographic order of tokens, equal ones by arrival.
    sorted: Vec<SortedPrompt>,
    /// Depth-first, children by their first token.
    nodes: Vec<PromptNode>,
    /// Tokens of all prompts.
    logical: u64,
}

impl PromptTree {
    /// Sorts on rayon's threads. Building takes at most about 170 bytes per prompt, beside the prompts.
    pub fn new<P: Prompts + ?Sized>(prompts: &P) -> Self {
        let tokens: Vec<&[TokenId]> = (0..prompts.count()).map(|prompt| prompts.tokens(prompt)).collect();
        Self::of(&tokens)
    }

    /// What `new` does, compiled once for prompts of all types.
    fn of(prompts: &[&[TokenId]]) -> Self {
        let sorted = sort::by_tokens(prompts);
        let nodes = nodes(&sorted, |prompt| length(prompts, prompt));
        let logical = sorted.iter().map(|sorted| u64::from(length(prompts, sorted.prompt))).sum();
        Self { sorted, nodes, logical }
    }

    /// All prompts in lexicographic order of tokens.
    pub fn sorted(&self) -> &[SortedPrompt] {
        &self.sorted
    }

    pub fn nodes(&self) -> &[PromptNode] {
        &self.nodes
    }

    /// The prompts that end with `node`, as a range of `sorted`.
    pub fn own(&self, node: usize) -> Range<usize> {
        let prompts = &self.nodes[node].prompts;
        let end = match self.nodes.get(node + 1) {
            Some(next) if next.prompts.start < prompts.end => next.prompts.start,
            _ => prompts.end,
        };
        prompts.start as usize..end as usize
    }

    /// For each prompt, in order of arrival, the node in which it ends; `None` if it is empty.
    pub fn ends(&self) -> Vec<Option<u32>> {
        let mut ends = vec![None; self.sorted.len()];
        for (node, index) in (0..self.nodes.len()).zip(0u32..) {
            for sorted in &self.sorted[self.own(node)] {
                ends[sorted.prompt as usize] = Some(index);
            }
        }
        ends
    }

    /// The tokens of `node`. `prompts`: those the tree was built from.
    pub fn tokens<'a, P: Prompts + ?Sized>(&self, node: usize, prompts: &'a P) -> &'a [TokenId] {
        let PromptNode { first, end, prompts: range, .. } = &self.nodes[node];
        let holder = self.sorted[range.start as usize].prompt;
        &prompts.tokens(holder as usize)[*first as usize..*end as usize]
    }

    /// For each node the sum of `own` over its subtree.
    pub fn sums_beneath(&self, own: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut sums: Vec<u64> = (0..self.nodes.len()).map(own).collect();
        for (node, parent) in self.nodes.iter().map(|node| node.parent).enumerate().rev() {
            if let Some(parent) = parent {
                sums[parent as usize] += sums[node];
            }
        }
        sums
    }
}

fn length(prompts: &[&[TokenId]], prompt: u32) -> u32 {
    u32::try_from(prompts[prompt as usize].len()).expect("a prompt's tokens are counted in u32")
}

/// A node whose first prompt is not known yet.
struct OpenNode {
    end: u32,
    /// End of its range of prompts.
    prompts_end: u32,
}

/// The nodes of sorted prompts, depth-first. Goes from the last prompt to the first and emits each node after its
/// subtree; reversing that gives depth-first order.
fn nodes(sorted: &[SortedPrompt], length: impl Fn(u32) -> u32) -> Vec<PromptNode> {
    let mut nodes = Vec::new();
    // The path of the current prompt, by rising `end`.
    let mut path: Vec<OpenNode> = Vec::new();
    let mut shared = 0;
    let count = u32::try_from(sorted.len()).expect("prompts are counted in u32");
    for (at, sorted) in (0..count).zip(sorted).rev() {
        let mut prompts_end = at + 1;
        while let Some(open) = path.pop_if(|open| open.end > shared) {
            prompts_end = open.prompts_end;
            nodes.push(open.starting(at + 1));
        }
        let end_of = |path: &[OpenNode]| path.last().map_or(0, |open| open.end);
        if end_of(&path) < shared {
            path.push(OpenNode { end: shared, prompts_end });
        }
        let length = length(sorted.prompt);
        if end_of(&path) < length {
            path.push(OpenNode { end: length, prompts_end: at + 1 });
        }
        shared = sorted.shared;
    }
    nodes.extend(path.into_iter().rev().map(|open| open.starting(0)));
    nodes.reverse();
    set_parents(&mut nodes);
    nodes
}

impl OpenNode {
    fn starting(self, first_prompt: u32) -> PromptNode {
        PromptNode { parent: None, first: 0, end: self.end, prompts: first_prompt..self.prompts_end }
    }
}

/// Sets `parent` and `first`. In depth-first order a node's parent is the last node before it that contains its
/// prompts.
fn set_parents(nodes: &mut [PromptNode]) {
    let mut path: Vec<u32> = Vec::new();
    for index in 0..nodes.len() {
        let prompt = nodes[index].prompts.start;
        while path.pop_if(|above| nodes[*above as usize].prompts.end <= prompt).is_some() {}
        if let Some(&parent) = path.last() {
            nodes[index].parent = Some(parent);
            nodes[index].first = nodes[parent as usize].end;
        }
        path.push(u32::try_from(index).expect("there are fewer than twice as many nodes as prompts"));
    }
}
