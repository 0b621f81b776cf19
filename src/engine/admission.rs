//! Whether another branch may begin: only while the pages suffice for what it and all that run are expected to grow by.
//! Branches that are let in too freely push each other out again, and each return costs time or computation.

use crate::engine::branch::{Branch, Hold, Work};
use crate::engine::cache::Cache;
use crate::kv::Usage;

/// What share of the tokens that it may draw an extend draws before it ends, as those that ended tell.
pub(super) struct Expectation(f64);

/// The share follows the last few dozens of extends: each moves it by this part of the difference.
const WEIGHT: f64 = 1.0 / 32.0;

impl Default for Expectation {
    /// Before any has ended, all that is allowed is expected.
    fn default() -> Self {
        Expectation(1.0)
    }
}

impl Expectation {
    /// An extend is about to end.
    pub fn note(&mut self, branch: &Branch) {
        if let Work::Draw(drawing) = &branch.work {
            let share = drawing.logprobs.len() as f64 / (drawing.limit - drawing.begin).max(1) as f64;
            self.0 += WEIGHT * (share - self.0);
        }
    }

    /// Pages that `branch` is expected to take beyond those of the tokens that it has: at least one while it draws. Given
    /// tokens get all their pages at once.
    fn growth(&self, branch: &Branch, page_tokens: usize) -> usize {
        let Work::Draw(drawing) = &branch.work else { return 0 };
        let now = branch.tokens.len() + drawing.ahead.tokens;
        let left = (drawing.limit.saturating_sub(now) as f64 * self.0).ceil() as usize;
        // Its own last page has room up to its end; one that has none yet begins with a page of its own.
        let from = match branch.lease() {
            Some(lease) if lease.own => now.div_ceil(page_tokens),
            Some(_) | None => now / page_tokens,
        };
        (now + left).div_ceil(page_tokens).saturating_sub(from).max(1)
    }
}

/// The pages that running branches use, and those that they are expected to grow by.
#[derive(Default)]
pub(super) struct Commitment {
    used: Usage,
    growth: usize,
}

impl Commitment {
    pub fn of<'a>(branches: impl Iterator<Item = &'a Branch>, cache: &Cache, expected: &Expectation) -> Self {
        let mut commitment = Commitment::default();
        for branch in branches {
            if let Some(lease) = branch.lease() {
                cache.prefix.add_path(&mut commitment.used, lease.segment);
            }
            commitment.growth += expected.growth(branch, cache.prefix.page_tokens() as usize);
        }
        commitment
    }

    /// What `branch` would add.
    pub fn cost(&self, branch: &Branch, cache: &Cache, expected: &Expectation) -> Cost {
        let gain = branch.need().map_or(0, |need| {
            let end = u32::try_from(need.end).expect("positions fit u32, as contexts do");
            match branch.hold {
                Hold::Swapped(swapped) => cache.prefix.gain_after(&self.used, swapped.before, end),
                Hold::Nothing | Hold::Path(_) => cache.prefix.gain(&self.used, &branch.tokens[..need.match_upto], end),
            }
        });
        Cost { gain, growth: expected.growth(branch, cache.prefix.page_tokens() as usize) }
    }

    /// Whether the pages suffice for that beside all that was committed to.
    pub fn allows(&self, cost: Cost, cache: &Cache) -> bool {
        self.used.pages() + self.growth + cost.gain + cost.growth <= cache.pages.capacity()
    }

    /// `branch` was let in.
    pub fn add(&mut self, branch: &Branch, cost: Cost, cache: &Cache) {
        if let Some(lease) = branch.lease() {
            cache.prefix.add_new_path(&mut self.used, lease.segment, cost.gain);
        }
        self.growth += cost.growth;
    }
}

/// Pages that one more branch takes at once, and later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    gain: usize,
    growth: usize,
}
