//! The distinct tokens of prompts that arrive one by one: a radix tree that keeps each token once after what its prompt
//! shares with earlier ones. `PromptTree` does the same for prompts that are all in memory, and knows more of them.

use std::ops::Range;

use offshoot_core::ids::TokenId;
use offshoot_core::mix::IdMap;

use super::Prompts;
use crate::Origin;

/// Prompts that have arrived, in 4 bytes for each distinct token.
#[derive(Clone, Debug, Default)]
pub struct DistinctTokens {
    /// The nodes' tokens, back to back.
    tokens: Vec<TokenId>,
    /// For each node the place of its tokens; never empty.
    nodes: Vec<Range<usize>>,
    /// A node by its parent and its first token.
    children: IdMap<(u32, u32), u32>,
}

/// The parent of nodes at the root.
const ROOT: u32 = u32::MAX;

impl DistinctTokens {
    /// Adds a prompt. Returns how many tokens at its beginning are also the beginning of an earlier prompt.
    pub fn insert(&mut self, prompt: &[TokenId]) -> usize {
        let (mut at, mut shared) = (ROOT, 0);
        while let Some(first) = prompt.get(shared) {
            let Some(&child) = self.children.get(&(at, first.0)) else { break };
            let own = &self.tokens[self.nodes[child as usize].clone()];
            let common = own.iter().zip(&prompt[shared..]).take_while(|(a, b)| a == b).count();
            shared += common;
            if common < own.len() {
                at = self.split(at, child, common);
                break;
            }
            at = child;
        }
        if let Some(first) = prompt.get(shared) {
            let start = self.tokens.len();
            self.tokens.extend_from_slice(&prompt[shared..]);
            let node = self.push(start..self.tokens.len());
            self.children.insert((at, first.0), node);
        }
        shared
    }

    /// Adds a prompt that shares nothing with those of other origins. Returns what `insert` does.
    pub fn insert_apart(&mut self, origin: Origin, prompt: &[TokenId]) -> usize {
        let before = origin.tokens();
        if before.is_empty() {
            return self.insert(prompt);
        }
        self.insert(&[&before, prompt].concat()).saturating_sub(before.len())
    }

    /// Number of distinct tokens.
    pub fn count(&self) -> usize {
        self.tokens.len()
    }

    fn push(&mut self, tokens: Range<usize>) -> u32 {
        self.nodes.push(tokens);
        u32::try_from(self.nodes.len() - 1).expect("nodes are counted in u32")
    }

    /// Gives the first `common` tokens of `child`, below `parent`, a node of their own above it. Returns that node.
    fn split(&mut self, parent: u32, child: u32, common: usize) -> u32 {
        let Range { start, end } = self.nodes[child as usize];
        let upper = self.push(start..start + common);
        self.nodes[child as usize] = start + common..end;
        self.children.insert((parent, self.tokens[start].0), upper);
        self.children.insert((upper, self.tokens[start + common].0), child);
        upper
    }
}

/// Prompt tokens that are computed in batches of `size` prompts in order of arrival, each batch by itself: the distinct
/// tokens of each.
pub fn tokens_in_batches<P: Prompts + ?Sized>(prompts: &P, size: usize) -> u64 {
    let count = prompts.count();
    let of_batch = |first: usize| {
        let mut distinct = DistinctTokens::default();
        for prompt in first..(first + size).min(count) {
            distinct.insert(prompts.tokens(prompt));
        }
        distinct.count() as u64
    };
    (0..count).step_by(size).map(of_batch).sum()
}
