//! Reserves slots for the tokens of a segment.

use super::page_lists::PageLists;
use super::{PrefixTree, SegmentState, count};
use crate::page_pool::OutOfPages;
use crate::{PagePool, Reach};
use offshoot_core::ids::{SegmentId, TokenId};

impl PrefixTree {
    /// Appends `tokens` to an open segment and reserves their slots, all or none. They are registered but not computed.
    /// Panics if the segment is sealed.
    pub fn append(&mut self, pool: &mut PagePool, segment: SegmentId, tokens: &[TokenId]) -> Result<(), OutOfPages> {
        self.grow(pool, segment, tokens.len())?;
        self.push_tokens(segment, tokens);
        Ok(())
    }

    /// Appends `tokens` to a segment without tokens, in new pages only: for callers that copy whole pages into it. The
    /// groups with a window get pages from position `passed` on.
    pub fn append_apart(
        &mut self,
        pool: &mut PagePool,
        segment: SegmentId,
        tokens: &[TokenId],
        passed: u32,
    ) -> Result<(), OutOfPages> {
        let first = self.end(segment);
        assert!(self.at(segment).len() == 0, "segment {segment} has tokens already");
        let (pages, new) = self.lay_out(pool, None, [first, passed].map(|from| from..first + count(tokens.len())))?;
        self.at_mut(segment).passed = passed;
        self.lacking += usize::from(passed > first);
        let without_slot = tokens.len() - self.held_of_new(segment, tokens.len());
        self.grow_by(segment, tokens.len() - without_slot, pages, new);
        self.push_tokens(segment, tokens);
        Ok(())
    }

    /// Tokens that will have slots once the empty `segment` has `tokens` tokens.
    fn held_of_new(&self, segment: SegmentId, tokens: usize) -> usize {
        let segment = self.at(segment);
        match self.groups.with(Reach::All) {
            0 => tokens - (segment.passed - segment.first_position) as usize,
            _ => tokens,
        }
    }

    /// Reserves `slots` more slots at the end of an open segment.
    pub(super) fn grow(&mut self, pool: &mut PagePool, segment: SegmentId, slots: usize) -> Result<(), OutOfPages> {
        let grown = self.at(segment);
        let end = grown.end() + count(slots);
        let (pages, new) = match grown.len() {
            0 => {
                let first = grown.first_position;
                self.lay_out(pool, grown.parent, [first, first].map(|first| first..end))?
            }
            // It goes on in its last pages, or behind them.
            _ => match grown.end().next_multiple_of(self.page_tokens) {
                next if end <= next => (PageLists::default(), 0),
                next => self.lay_out(pool, None, [next, next].map(|next| next..end))?,
            },
        };
        self.grow_by(segment, slots, pages, new);
        Ok(())
    }

    /// Adds `slots` slots, and `pages` for them, of which so many are `new`, to an open segment without a pending
    /// token.
    fn grow_by(&mut self, segment: SegmentId, slots: usize, pages: PageLists, new: usize) {
        self.held.pages += new;
        self.held.tokens += slots;
        // An open segment has a lease.
        self.leased.pages += new;
        self.leased.tokens += slots;
        let grown = self.at_mut(segment);
        assert!(grown.state == SegmentState::Open, "segment {segment} is sealed, so nothing can be appended to it");
        assert!(!grown.pending, "segment {segment} ends in a pending token, so nothing can be appended to it");
        for reach in Reach::BOTH {
            grown.pages[reach].extend_from_slice(&pages[reach]);
        }
    }
}
