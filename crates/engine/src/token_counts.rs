//! How often tokens occur in a branch, which penalties need. Runs of tokens that branches share are counted once.

use std::collections::BTreeMap;
use std::sync::Arc;

use offshoot_backend::SeenToken;
use offshoot_core::ids::TokenId;

/// How often tokens occur.
#[derive(Clone, Debug, Default)]
pub(super) struct RunCounts(BTreeMap<TokenId, TokenCount>);

#[derive(Clone, Copy, Debug, Default)]
struct TokenCount {
    sampled: u32,
    given: bool,
}

impl RunCounts {
    pub fn add(&mut self, token: TokenId, sampled: bool) {
        let count = self.0.entry(token).or_default();
        count.sampled += u32::from(sampled);
        count.given |= !sampled;
    }
}

/// The tokens of one branch, for its penalties.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenCounts {
    /// Counts of the runs that it shares with others.
    shared: Vec<Arc<RunCounts>>,
    own: RunCounts,
}

impl TokenCounts {
    pub fn new(shared: Vec<Arc<RunCounts>>, own: RunCounts) -> Self {
        TokenCounts { shared, own }
    }

    pub fn add(&mut self, token: TokenId, sampled: bool) {
        self.own.add(token, sampled);
    }

    /// In rising order of tokens.
    pub fn seen(&self) -> Vec<SeenToken> {
        let seen = |(&token, count): (&TokenId, &TokenCount)| SeenToken {
            token,
            sampled: count.sampled,
            in_prompt: count.given,
        };
        let each = self.shared.iter().map(|shared| &**shared).chain([&self.own]);
        let mut all: Vec<SeenToken> = each.flat_map(|counts| counts.0.iter().map(seen)).collect();
        if !self.shared.is_empty() {
            // A few sorted runs, which a stable sort merges.
            all.sort_by_key(|seen| seen.token);
            all.dedup_by(|next, first| {
                let is_same = next.token == first.token;
                if is_same {
                    first.sampled += next.sampled;
                    first.in_prompt |= next.in_prompt;
                }
                is_same
            });
        }
        all
    }

    #[cfg(test)]
    pub fn shares_with(&self, other: &Self) -> bool {
        matches!((&self.shared[..], &other.shared[..]), ([first, ..], [second, ..]) if Arc::ptr_eq(first, second))
    }
}
