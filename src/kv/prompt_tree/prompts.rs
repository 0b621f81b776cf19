//! The forms in which a job's prompts come to the tree: slices, vectors, or one long list for millions of them.

use crate::ids::TokenId;

/// Prompts by their index of arrival, from 0.
pub trait Prompts: Sync {
    /// At most 2^32 - 1.
    fn count(&self) -> usize;

    /// The tokens of one prompt, at most 2^32 - 1.
    fn tokens(&self, prompt: usize) -> &[TokenId];
}

impl<T: AsRef<[TokenId]> + Sync> Prompts for [T] {
    fn count(&self) -> usize {
        self.len()
    }

    fn tokens(&self, prompt: usize) -> &[TokenId] {
        self[prompt].as_ref()
    }
}

/// Prompts back to back: 8 bytes each beside their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedPrompts {
    tokens: Vec<TokenId>,
    /// For each prompt the end of its tokens.
    ends: Vec<usize>,
}

impl PackedPrompts {
    /// Room for so many prompts of so many tokens in all.
    pub fn with_capacity(prompts: usize, tokens: usize) -> Self {
        Self { tokens: Vec::with_capacity(tokens), ends: Vec::with_capacity(prompts) }
    }

    pub fn push(&mut self, tokens: impl IntoIterator<Item = TokenId>) {
        self.tokens.extend(tokens);
        self.ends.push(self.tokens.len());
    }
}

impl Prompts for PackedPrompts {
    fn count(&self) -> usize {
        self.ends.len()
    }

    fn tokens(&self, prompt: usize) -> &[TokenId] {
        let start = prompt.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.tokens[start..self.ends[prompt]]
    }
}
