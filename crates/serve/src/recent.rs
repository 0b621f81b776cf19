//! What one client has sent lately, so that answers can say how many tokens of a prompt were there before: no client is
//! told how much of a prompt another one has sent.

use offshoot_core::ids::TokenId;
use offshoot_kv::{DistinctTokens, Origin};

/// The prompts of one client begun lately: what of a new one is in the cache, at most. Forgotten together from time to
/// time, so that they do not grow.
#[derive(Default)]
pub struct RecentPrompts {
    tokens: DistinctTokens,
}

impl RecentPrompts {
    /// The number of tokens at the beginning of `prompt` that begin a recent prompt of the same origin, too. Remembers
    /// about `most` tokens.
    pub fn add(&mut self, origin: Origin, prompt: &[TokenId], most: usize) -> usize {
        if self.tokens.count() > most {
            self.tokens = DistinctTokens::default();
        }
        self.tokens.insert_apart(origin, prompt)
    }
}
