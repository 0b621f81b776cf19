//! How a segment gets slots: in which pages its tokens lie.

use super::{PrefixTree, Segment, State, count};
use crate::ids::{PageId, SegmentId, TokenId};
use crate::kv::PagePool;
use crate::kv::page_pool::OutOfPages;

impl PrefixTree {
    /// Reserves slots for `tokens` at the end of an open segment: registered, not yet computed. All or nothing. Panics
    /// when the segment is sealed.
    pub fn append(&mut self, pool: &mut PagePool, segment: SegmentId, tokens: &[TokenId]) -> Result<(), OutOfPages> {
        self.grow(pool, segment, tokens.len())?;
        self.name(segment, tokens);
        Ok(())
    }

    /// The same for a segment without tokens, in pages that are all its own: for whoever copies whole pages there.
    pub fn append_apart(
        &mut self,
        pool: &mut PagePool,
        segment: SegmentId,
        tokens: &[TokenId],
    ) -> Result<(), OutOfPages> {
        assert!(self.at(segment).pages.is_empty(), "segment {segment} has begun in a page already");
        let first = self.end(segment);
        let taken = pool.take_exactly(self.pages_between(first, first + count(tokens.len())))?;
        self.grow_by(segment, tokens.len(), taken);
        self.name(segment, tokens);
        Ok(())
    }

    /// Pages for `slots` more at the end of an open segment.
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

    /// `slots` more at the end of an open segment whose tokens are all known; `taken` were taken for them.
    fn grow_by(&mut self, segment: SegmentId, slots: usize, taken: Vec<PageId>) {
        self.held.pages += taken.len();
        self.held.tokens += slots;
        // What is open has a lease.
        self.leased.pages += taken.len();
        self.leased.tokens += slots;
        let grown = self.at_mut(segment);
        assert!(grown.state == State::Open, "segment {segment} is sealed, so nothing can be appended to it");
        assert!(
            !grown.pending,
            "segment {segment} ends in a token that is not known, so nothing can be appended to it"
        );
        grown.pages.extend(taken);
    }

    /// The last page of `segment`, if there are slots behind its end and they are nobody's: only the path of `segment`
    /// lists it.
    pub(super) fn open_page(&self, pool: &PagePool, segment: SegmentId) -> Option<PageId> {
        let page = *self.at(segment).pages.last().filter(|_| !self.end(segment).is_multiple_of(self.page_tokens))?;
        let goes_further_up = |id: &SegmentId| self.at(*id).pages.len() == 1 && self.begins_in_parents_page(*id);
        let above = self.ancestry(segment).take_while(goes_further_up).count();
        (pool.holders(page) as usize == 1 + above).then_some(page)
    }
}
