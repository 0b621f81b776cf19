//! A job as it is known before it runs: its prompts in tokens, and what is drawn from each.

use crate::kv::{PackedPrompts, PromptTree};

/// What is drawn from one prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    pub samples: u32,
    /// Tokens that each sample is expected to have.
    pub tokens: u32,
}

/// Prompts in order of arrival, each of at least one token, and what is drawn from each: at least one sample of one token.
#[derive(Debug)]
pub struct Job {
    pub prompts: PackedPrompts,
    pub asks: Vec<Ask>,
    /// What the figures leave out, a sentence each.
    pub notes: Vec<String>,
}

impl Job {
    /// Tokens expected to be drawn from each prompt.
    pub fn draws(&self) -> Vec<u64> {
        self.asks.iter().map(|ask| u64::from(ask.samples) * u64::from(ask.tokens)).collect()
    }

    pub fn samples(&self) -> u64 {
        self.asks.iter().map(|ask| u64::from(ask.samples)).sum()
    }

    pub fn tree(&self) -> PromptTree {
        PromptTree::new(&self.prompts)
    }
}
