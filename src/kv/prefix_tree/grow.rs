//! Reserves slots for the tokens of a segment.

use super::{PrefixTree, Segment, SegmentState, count};
use crate::ids::{PageId, SegmentId, TokenId};
use crate::kv::PagePool;
use crate::kv::page_pool::OutOfPages;

impl PrefixTree {
    /// Appends `tokens` to an open segment and reserves their slots, all or none. They are registered but not computed.
    /// Panics if the segment is sealed.
    pub fn append(&mut self, pool: &mut PagePool, segment: SegmentId, tokens: &[TokenId]) -> Result<(), OutOfPages> {
        self.grow(pool, segment, tokens.len())?;
        self.push_tokens(segment, tokens);
        Ok(())
    }

    /// The same for a segment without tokens, in new pages only: for callers that copy whole pages into it.
    pub fn append_apart(
        &mut self,
        pool: &mut PagePool,
        segment: SegmentId,
        tokens: &[TokenId],
    ) -> Result<(), OutOfPages> {
        assert!(self.at(segment).pages.is_empty(), "segment {segment} has pages already");
        let first = self.end(segment);
        let taken = pool.take_exactly(self.pages_between(first, first + count(tokens.len())))?;
        self.grow_by(segment, tokens.len(), taken);
        self.push_tokens(segment, tokens);
        Ok(())
    }

    /// Reserves `slots` more slots at the end of an open segment.
    pub(super) fn grow(&mut self, pool: &mut PagePool, segment: SegmentId, slots: usize) -> Result<(), OutOfPages> {
        let Segment { first_position, parent, ref pages, .. } = *self.at(segment);
        let missing = self.pages_between(first_position, self.end(segment) + count(slots)) - pages.len();
        let above = parent.filter(|_| pages.is_empty() && slots > 0);
        let open = above.and_then(|parent| self.open_page(pool, parent));
        let taken = pool.take_exactly(missing - usize::from(open.is_some()))?;
        if let Some(page) = open {
            pool.share(page);
            self.at_mut(segment).pages.push(page);
        }
        self.grow_by(segment, slots, taken);
        Ok(())
    }

    /// Adds `slots` slots, and the pages `taken` for them, to an open segment without a pending token.
    fn grow_by(&mut self, segment: SegmentId, slots: usize, taken: Vec<PageId>) {
        self.held.pages += taken.len();
        self.held.tokens += slots;
        // An open segment has a lease.
        self.leased.pages += taken.len();
        self.leased.tokens += slots;
        let grown = self.at_mut(segment);
        assert!(grown.state == SegmentState::Open, "segment {segment} is sealed, so nothing can be appended to it");
        assert!(!grown.pending, "segment {segment} ends in a pending token, so nothing can be appended to it");
        grown.pages.extend(taken);
    }

    /// The last page of `segment`, if it has unused slots: the segment ends inside it, and no child continues in it.
    pub(super) fn open_page(&self, pool: &PagePool, segment: SegmentId) -> Option<PageId> {
        let page = *self.at(segment).pages.last().filter(|_| !self.end(segment).is_multiple_of(self.page_tokens))?;
        let goes_further_up = |id: &SegmentId| self.at(*id).pages.len() == 1 && self.begins_in_parents_page(*id);
        let above = self.ancestry(segment).take_while(goes_further_up).count();
        (pool.holders(page) as usize == 1 + above).then_some(page)
    }
}
