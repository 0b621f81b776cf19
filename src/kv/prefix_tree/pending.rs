//! Slots ahead of their tokens: see the module's head. One slot at most, at the end of an open segment.

use super::PrefixTree;
use crate::ids::{SegmentId, TokenId};
use crate::kv::PagePool;
use crate::kv::page_pool::OutOfPages;

impl PrefixTree {
    /// Reserves a slot at the end of an open segment for a token that is still being sampled. Panics when the segment
    /// is sealed or has such a slot already.
    pub fn append_pending(&mut self, pool: &mut PagePool, segment: SegmentId) -> Result<(), OutOfPages> {
        self.grow(pool, segment, 1)?;
        self.at_mut(segment).pending = true;
        Ok(())
    }

    /// Whether the last slot of `segment` waits for its token.
    pub fn is_pending(&self, segment: SegmentId) -> bool {
        self.at(segment).pending
    }

    /// Tells the token that the last slot of `segment` waits for: from now on it is matched like any other. Panics when
    /// it waits for none.
    pub fn settle(&mut self, segment: SegmentId, token: TokenId) {
        let settled = self.at_mut(segment);
        assert!(settled.pending, "segment {segment} waits for no token");
        settled.pending = false;
        self.name(segment, &[token]);
    }

    /// Gives back the last slot of `segment`, if it waits for its token: what was sampled is no part of the branch.
    pub fn take_back(&mut self, pool: &mut PagePool, segment: SegmentId) {
        let shortened = self.at_mut(segment);
        if !std::mem::take(&mut shortened.pending) {
            return;
        }
        shortened.computed = shortened.computed.min(shortened.len());
        let (first, end) = (shortened.first_position, shortened.end());
        let keep = self.pages_between(first, end);
        let gone = self.at_mut(segment).pages.split_off(keep);
        let freed = gone.into_iter().filter(|&page| pool.give_back(page)).count();
        self.held.tokens -= 1;
        self.held.pages -= freed;
        // What is open has a lease.
        self.leased.tokens -= 1;
        self.leased.pages -= freed;
        self.review(segment);
    }
}
