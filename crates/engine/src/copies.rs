//! Copies of latents in the engine: how much of the memory for keys and values they have, and the plans of steps that
//! read them. Copies are no part of what branches hold: they can be made again, and nothing waits for their pages.

use std::fmt;

use serde::Serialize;

use offshoot_backend::Expansion;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{bytes, count};
use offshoot_core::setting::LATENT_COPIES;
use offshoot_kv::CopyStore;
use offshoot_kv::plan::{AttentionPlan, FormPlans, PlanStats};

use crate::pool::PoolParts;

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

/// The part of the copies' memory that those have which each layer makes again, at most: what has no room of a longer
/// context is read as latents.
const AGAIN_PART: usize = 4;

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

    /// Whether the model has latent attention, so that there may be copies.
    pub fn is_of_latents(&self) -> bool {
        self.page_bytes != [0; CopyStore::COUNT]
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

/// `1.20 GiB for expanded keys and values of 4,096 tokens, and of 16,384 in one layer`.
impl fmt::Display for CopyMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_some() {
            return write!(f, "none: all is read as latents ({LATENT_COPIES})");
        }
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
    /// Bytes of a page of latents. A kept page of copies belongs to one, so that more of them are of no use.
    pub latent_page_bytes: usize,
    /// Whether results are exact, if nothing is read from copies.
    pub is_exact: bool,
}

impl CopySize {
    /// The memory for copies, of a pool that is divided like this. No page of either store where there is no room for
    /// both.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if bytes are set in which there is no page of each store, or beside which there is none of
    /// latents.
    pub fn divide(self, pool: &PoolParts, facts: &CopyFacts) -> Result<CopyMemory> {
        let CopyFacts { page_bytes, page_tokens, .. } = *facts;
        let least: usize = page_bytes.iter().sum();
        let most = (pool.pages + pool.unused).saturating_sub(facts.latent_page_bytes);
        let pages = self.pages(pool, facts);
        match self {
            CopySize::Bytes(found) if least > 0 && found > most => {
                let expected = format!("at most {} MiB, which leaves a page of latents", most >> 20);
                Err(Error::value(LATENT_COPIES, expected, bytes(found as u64)))
            }
            CopySize::Bytes(found) if found > 0 && least > 0 && pages == [0; CopyStore::COUNT] => {
                let expected = format!("0, or at least {}: a page of each kind of copies", bytes(least as u64));
                Err(Error::value(LATENT_COPIES, expected, bytes(found as u64)))
            }
            _ => Ok(CopyMemory { pages, page_bytes, page_tokens }),
        }
    }

    fn pages(self, pool: &PoolParts, facts: &CopyFacts) -> [usize; CopyStore::COUNT] {
        let [kept_bytes, again_bytes] = facts.page_bytes;
        if kept_bytes == 0 || again_bytes == 0 {
            return [0; CopyStore::COUNT];
        }
        let all = pool.pages + pool.unused;
        let bytes = match self {
            CopySize::Part if facts.is_exact => 0,
            CopySize::Part => all / DEFAULT_PART,
            CopySize::Bytes(bytes) => bytes,
        };
        let useful = facts.longest.div_ceil(facts.page_tokens);
        let beside_one = bytes.saturating_sub(kept_bytes) / again_bytes;
        let again = (bytes / AGAIN_PART / again_bytes).max(1).min(useful).min(beside_one);
        let of_latents = (pool.pages / facts.latent_page_bytes).max(1);
        let kept = ((bytes - again * again_bytes) / kept_bytes).min(of_latents);
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

    const FACTS: CopyFacts =
        CopyFacts { page_bytes: [100, 10], page_tokens: 16, longest: 1000, latent_page_bytes: 10, is_exact: false };

    /// The pages of a pool of so many bytes, all of them for keys and values.
    fn pages(size: CopySize, bytes: usize, facts: &CopyFacts) -> [usize; CopyStore::COUNT] {
        size.divide(&parts(bytes, 0), facts).unwrap().pages
    }

    fn parts(pages: usize, unused: usize) -> PoolParts {
        PoolParts { pages, states: 0, branches: 1, unused }
    }

    #[test]
    fn copies_have_a_part_of_the_memory_or_none() {
        assert_eq!(pages(CopySize::Part, 80_000, &FACTS), [93, 63], "63 pages have the longest sequence");
        assert_eq!(pages(CopySize::Bytes(1000), 80_000, &FACTS), [7, 25]);
        assert_eq!(pages(CopySize::Bytes(110), 80_000, &FACTS), [1, 1]);
        assert_eq!(pages(CopySize::Bytes(0), 80_000, &FACTS), [0, 0]);
        let exact = CopyFacts { is_exact: true, ..FACTS };
        assert_eq!(pages(CopySize::Part, 80_000, &exact), [0, 0]);
        assert_eq!(pages(CopySize::Bytes(110), 80_000, &exact), [1, 1]);
        let others = CopyFacts { page_bytes: [0, 0], ..FACTS };
        assert_eq!(pages(CopySize::Part, 80_000, &others), [0, 0]);
        assert_eq!(pages(CopySize::Bytes(5), 80_000, &others), [0, 0], "a model without latents has no copies");
    }

    #[test]
    fn no_more_pages_are_kept_than_there_are_of_latents() {
        let [kept, _] = CopySize::Part.divide(&parts(50, 79_950), &FACTS).unwrap().pages;
        assert_eq!(kept, 5, "the job uses 50 bytes of latents, in pages of 10");
    }

    #[test]
    fn memory_for_less_than_a_page_of_each_kind_is_named() {
        let error = CopySize::Bytes(109).divide(&parts(80_000, 0), &FACTS).unwrap_err().to_string();
        assert!(error.contains("latent_copies") && error.contains("110 B") && error.contains("109 B"), "{error}");
    }

    #[test]
    fn memory_beside_which_no_page_of_latents_is_left_is_named() {
        let pool = parts(5 << 20, 1 << 20);
        assert!(CopySize::Bytes((6 << 20) - 10).divide(&pool, &FACTS).is_ok());
        let error = CopySize::Bytes(6 << 20).divide(&pool, &FACTS).unwrap_err().to_string();
        assert!(error.contains("latent_copies") && error.contains("at most 5 MiB"), "{error}");
    }
}
