//! How a job's prompts are passed to the tree: as slices or vectors, or packed in one list if there are millions.

use offshoot_core::ids::TokenId;

/// Prompts by index in order of arrival, from 0.
pub trait Prompts: Sync {
    /// The number of prompts, at most 2^32 - 1.
    fn count(&self) -> usize;

    /// The tokens of one prompt, at most 2^32 - 1 of them.
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

/// Prompts stored back to back, with 8 bytes each beside their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedPrompts {
    tokens: Vec<TokenId>,
    /// The end of each prompt in `tokens`.
    ends: Vec<usize>,
}

impl PackedPrompts {
    /// Room for this many prompts with this many tokens in total.
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
