//! Copies of latents in the engine: how much of the memory for keys and values they have, and the plans of steps that
//! read them. Copies are no part of what branches hold: they can be made again, and nothing waits for their pages.

use std::fmt;

use serde::Serialize;

use offshoot_backend::Expansion;
use offshoot_core::figures::{bytes, count};
use offshoot_core::setting::LATENT_COPIES;
use offshoot_kv::CopyStore;
use offshoot_kv::plan::{AttentionPlan, FormPlans, PlanStats};

/// Memory for copies of latents that are expanded to keys and values, of models with latent attention. It is a part of
/// the memory for keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopySize {
    /// An eighth of the memory for keys and values; nothing where results are exact, as they depend on what is read
    /// from copies, by rounding.
    #[default]
    Part,
    /// So many bytes; 0: all is read as latents.
    Bytes(usize),
}

/// The part of the memory for keys and values that copies have by default.
const DEFAULT_PART: usize = 8;

/// The part of the copies' memory that those have which each layer makes again, and the most positions of which they
/// are useful: longer contexts are read as latents.
const AGAIN_PART: usize = 4;
const MOST_AGAIN: usize = 32_768;

/// The memory for copies of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CopyMemory {
    /// Pages of each store, those that are kept first.
    pub pages: [usize; CopyStore::COUNT],
    /// Bytes of one of them.
    pub page_bytes: [usize; CopyStore::COUNT],
    /// Tokens of a page.
    pub page_tokens: usize,
}

impl CopyMemory {
    /// Whether there are copies.
    pub fn is_some(&self) -> bool {
        self.pages != [0; CopyStore::COUNT]
    }

    /// Bytes of all pages.
    pub fn bytes(&self) -> usize {
        self.pages.iter().zip(self.page_bytes).map(|(pages, bytes)| pages * bytes).sum()
    }

    /// Tokens whose copies can be kept.
    pub fn kept_tokens(&self) -> usize {
        self.pages[CopyStore::Kept as usize] * self.page_tokens
    }

    /// Tokens whose copies each layer can make again in a step.
    pub fn tokens_again(&self) -> usize {
        self.pages[CopyStore::Again as usize] * self.page_tokens
    }
}

/// `1.20 GiB for expanded keys and values of 4,096 tokens, and of 32,768 in one layer`.
impl fmt::Display for CopyMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kept, again] = [self.kept_tokens(), self.tokens_again()].map(|tokens| count(tokens as u64));
        let all = bytes(self.bytes() as u64);
        write!(f, "{all} for expanded keys and values of {kept} tokens, and of {again} in one layer ({LATENT_COPIES})")
    }
}

/// Facts of a model and its engine that say how copies divide their memory.
#[derive(Clone, Copy, Debug)]
pub struct CopyFacts {
    /// Bytes of a page of each store; 0: the model has no latent attention.
    pub page_bytes: [usize; CopyStore::COUNT],
    pub page_tokens: usize,
    /// Tokens of the longest sequence.
    pub longest: usize,
    /// Whether results are exact, if nothing is read from copies.
    pub is_exact: bool,
}

impl CopySize {
    /// The memory for copies, of `pool` bytes for keys and values. No page of either store where there is no room for
    /// both.
    pub fn divide(self, pool: usize, facts: &CopyFacts) -> CopyMemory {
        let CopyFacts { page_bytes, page_tokens, .. } = *facts;
        CopyMemory { pages: self.pages(pool, facts), page_bytes, page_tokens }
    }

    fn pages(self, pool: usize, facts: &CopyFacts) -> [usize; CopyStore::COUNT] {
        let [kept_bytes, again_bytes] = facts.page_bytes;
        if kept_bytes == 0 || again_bytes == 0 {
            return [0; CopyStore::COUNT];
        }
        let bytes = match self {
            CopySize::Part if facts.is_exact => 0,
            CopySize::Part => pool / DEFAULT_PART,
            CopySize::Bytes(bytes) => bytes.min(pool),
        };
        let useful = facts.longest.min(MOST_AGAIN).div_ceil(facts.page_tokens);
        let beside_one = bytes.saturating_sub(kept_bytes) / again_bytes;
        let again = (bytes / AGAIN_PART / again_bytes).max(1).min(useful).min(beside_one);
        let kept = (bytes - again * again_bytes) / kept_bytes;
        if again == 0 { [0; CopyStore::COUNT] } else { [kept, again] }
    }
}

/// The plans of one step.
pub(crate) struct StepPlans {
    /// Plans in the order in which the model takes them: one for each kind of attention, then those of copies.
    pub plans: Vec<AttentionPlan>,
    /// Statistics of each kind of attention.
    pub stats: Vec<PlanStats>,
    /// What is expanded to copies; `None`: the model has no latent attention.
    pub expansions: Option<[Vec<Expansion>; CopyStore::COUNT]>,
    /// The plans of latent attention before they got the pages of copies, if plans are checked.
    pub forms: Option<FormPlans>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_a_part_of_the_memory_or_none() {
        let facts = CopyFacts { page_bytes: [100, 10], page_tokens: 16, longest: 1000, is_exact: false };
        assert_eq!(CopySize::Part.pages(80_000, &facts), [93, 63], "63 pages have the longest sequence");
        assert_eq!(CopySize::Bytes(1000).pages(80_000, &facts), [7, 25]);
        assert_eq!(CopySize::Bytes(80_000).pages(1000, &facts), [7, 25], "all of the memory at most");
        assert_eq!(CopySize::Bytes(110).pages(80_000, &facts), [1, 1]);
        assert_eq!(CopySize::Bytes(109).pages(80_000, &facts), [0, 0]);
        let exact = CopyFacts { is_exact: true, ..facts };
        assert_eq!(CopySize::Part.pages(80_000, &exact), [0, 0]);
        assert_eq!(CopySize::Bytes(110).pages(80_000, &exact), [1, 1]);
        assert_eq!(CopySize::Part.pages(80_000, &CopyFacts { page_bytes: [0, 0], ..facts }), [0, 0]);
    }
}
