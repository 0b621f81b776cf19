//! Pending tokens: see the module's head. An open segment has at most one, at its end.

use super::PrefixTree;
use crate::PagePool;
use crate::page_pool::OutOfPages;
use offshoot_core::ids::{SegmentId, TokenId};

impl PrefixTree {
    /// Reserves a slot at the end of an open segment for a token that is still being sampled. Panics if the segment is
    /// sealed or has a pending token already.
    pub fn append_pending(&mut self, pool: &mut PagePool, segment: SegmentId) -> Result<(), OutOfPages> {
        self.grow(pool, segment, 1)?;
        self.at_mut(segment).pending = true;
        Ok(())
    }

    /// Whether the last token of `segment` is pending.
    pub fn is_pending(&self, segment: SegmentId) -> bool {
        self.at(segment).pending
    }

    /// Sets the pending token of `segment`; it can be matched from now on. Panics if there is none.
    pub fn settle(&mut self, segment: SegmentId, token: TokenId) {
        let settled = self.at_mut(segment);
        assert!(settled.pending, "segment {segment} has no pending token");
        settled.pending = false;
        self.push_tokens(segment, &[token]);
    }

    /// Removes the pending token of `segment`, if there is one: what was sampled is not part of the branch.
    pub fn take_back(&mut self, pool: &mut PagePool, segment: SegmentId) {
        let shortened = self.at_mut(segment);
        if !std::mem::take(&mut shortened.pending) {
            return;
        }
        shortened.computed = shortened.computed.min(shortened.len());
        self.cut_states(segment);
        let freed = self.cut_pages(pool, segment);
        self.held.tokens -= 1;
        self.held.pages -= freed;
        // An open segment has a lease.
        self.leased.tokens -= 1;
        self.leased.pages -= freed;
        self.review(segment);
    }
}
