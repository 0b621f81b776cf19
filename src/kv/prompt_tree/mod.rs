//! The prompts of a job as one exact prefix tree, known before the first of them is computed: what they share, on how
//! many levels, and in which order that is best used. It is built at once from the sorted prompts and holds no tokens:
//! a node names a prompt that has them. What the device keeps while the job runs is `PrefixTree`'s.

mod growing;
mod lru;
mod order;
mod prompts;
mod saving;
mod sort;

use std::ops::Range;

pub use growing::DistinctTokens;
pub use prompts::{PackedPrompts, Prompts};
pub use saving::Saving;
pub use sort::Sorted;

use crate::ids::TokenId;

/// A run of tokens that prompts share until they part or one of them ends: positions `first .. end`, never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptNode {
    /// Index into `PromptTree::nodes`, smaller than the node's own; `None`: the prompts begin here.
    pub parent: Option<u32>,
    /// First position: the parent's end.
    pub first: u32,
    /// First position after it.
    pub end: u32,
    /// The prompts that hold it, as a range of `PromptTree::sorted`: first those that end with it, then those of its
    /// children.
    pub prompts: Range<u32>,
}

impl PromptNode {
    pub fn tokens(&self) -> u32 {
        self.end - self.first
    }
}

/// The prefix tree of all prompts of a job. Equal prompts end in one node, an empty prompt in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromptTree {
    /// Prompts by tokens: empty ones first, a prompt before those that it begins, equal ones as they arrived.
    sorted: Vec<Sorted>,
    /// Depth-first, children by their first token.
    nodes: Vec<PromptNode>,
    logical: u64,
}

impl PromptTree {
    /// Sorts on rayon's threads. While it is built it takes some 150 bytes a prompt at most, beside the prompts.
    pub fn new<P: Prompts + ?Sized>(prompts: &P) -> Self {
        let sorted = sort::by_tokens(prompts);
        let nodes = nodes(&sorted, |prompt| length(prompts, prompt));
        let logical = sorted.iter().map(|sorted| u64::from(length(prompts, sorted.prompt))).sum();
        Self { sorted, nodes, logical }
    }

    /// All prompts in the order of their tokens.
    pub fn sorted(&self) -> &[Sorted] {
        &self.sorted
    }

    pub fn nodes(&self) -> &[PromptNode] {
        &self.nodes
    }

    /// The prompts that end with `node`.
    pub fn own(&self, node: usize) -> Range<usize> {
        let prompts = &self.nodes[node].prompts;
        let end = match self.nodes.get(node + 1) {
            Some(next) if next.prompts.start < prompts.end => next.prompts.start,
            _ => prompts.end,
        };
        prompts.start as usize..end as usize
    }

    /// For each prompt, as it arrived, the node in which it ends; `None` for an empty one.
    pub fn ends(&self) -> Vec<Option<u32>> {
        let mut ends = vec![None; self.sorted.len()];
        for (node, index) in (0..self.nodes.len()).zip(0u32..) {
            for sorted in &self.sorted[self.own(node)] {
                ends[sorted.prompt as usize] = Some(index);
            }
        }
        ends
    }

    /// The tokens of `node`, out of the prompts that the tree was made of.
    pub fn tokens<'a, P: Prompts + ?Sized>(&self, node: usize, prompts: &'a P) -> &'a [TokenId] {
        let PromptNode { first, end, prompts: range, .. } = &self.nodes[node];
        let holder = self.sorted[range.start as usize].prompt;
        &prompts.tokens(holder as usize)[*first as usize..*end as usize]
    }

    /// For each node the sum of `own` over it and all nodes beneath it.
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

fn length<P: Prompts + ?Sized>(prompts: &P, prompt: u32) -> u32 {
    u32::try_from(prompts.tokens(prompt as usize).len()).expect("a prompt's tokens are counted in u32")
}

/// A node whose first prompt is not known yet.
struct Open {
    end: u32,
    /// End of its range of prompts.
    until: u32,
}

/// The nodes of sorted prompts, depth-first. From the last prompt to the first, each node is put out behind all that is
/// beneath it: backwards that is before it.
fn nodes(sorted: &[Sorted], length: impl Fn(u32) -> u32) -> Vec<PromptNode> {
    let mut nodes = Vec::new();
    // The path of the prompt at hand, each end behind the one before.
    let mut path: Vec<Open> = Vec::new();
    let mut shared = 0;
    let count = u32::try_from(sorted.len()).expect("prompts are counted in u32");
    for (at, sorted) in (0..count).zip(sorted).rev() {
        let mut until = at + 1;
        while let Some(open) = path.pop_if(|open| open.end > shared) {
            until = open.until;
            nodes.push(open.starting(at + 1));
        }
        let end_of = |path: &[Open]| path.last().map_or(0, |open| open.end);
        if end_of(&path) < shared {
            path.push(Open { end: shared, until });
        }
        let length = length(sorted.prompt);
        if end_of(&path) < length {
            path.push(Open { end: length, until: at + 1 });
        }
        shared = sorted.shared;
    }
    nodes.extend(path.into_iter().rev().map(|open| open.starting(0)));
    nodes.reverse();
    tell_parents(&mut nodes);
    nodes
}

impl Open {
    fn starting(self, first_prompt: u32) -> PromptNode {
        PromptNode { parent: None, first: 0, end: self.end, prompts: first_prompt..self.until }
    }
}

/// In depth-first order a node's parent is the last before it that has its prompts.
fn tell_parents(nodes: &mut [PromptNode]) {
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
