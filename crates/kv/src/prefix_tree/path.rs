//! Queries of a segment and its path: the tokens from the root to its end, and their slots.

use std::ops::Range;

use super::PrefixTree;
use crate::{KvSlot, Reach};
use offshoot_core::ids::{GroupIx, PageId, SegmentId, TokenId};

impl PrefixTree {
    /// First position after the path of `segment`: the length of its context.
    pub fn end(&self, segment: SegmentId) -> u32 {
        self.at(segment).end()
    }

    /// First position of the segment itself, equal to its parent's end.
    pub fn first_position(&self, segment: SegmentId) -> u32 {
        self.at(segment).first_position
    }

    /// The parent segment, which ends where this one begins.
    pub fn parent(&self, segment: SegmentId) -> Option<SegmentId> {
        self.at(segment).parent
    }

    /// The segment's pages that hold its positions below `upto`: those of the groups that hold all positions, then
    /// those of the groups with a window.
    pub fn pages_upto(&self, segment: SegmentId, upto: u32) -> Vec<PageId> {
        let segment = self.at(segment);
        let of = |reach| &segment.pages[reach][..self.pages_below(segment, reach, upto)];
        Reach::BOTH.into_iter().flat_map(of).copied().collect()
    }

    /// The position from which the segment has pages in groups with a window: its first one, unless `free_behind` freed
    /// some.
    pub fn passed(&self, segment: SegmentId) -> u32 {
        self.at(segment).passed
    }

    pub fn has_children(&self, segment: SegmentId) -> bool {
        self.at(segment).children > 0
    }

    /// The segment's own tokens, without a pending one.
    pub fn tokens_of(&self, segment: SegmentId) -> &[TokenId] {
        &self.at(segment).tokens
    }

    /// The token at `position` of the path of `segment`. Panics if it is pending or past the end.
    pub fn token_at(&self, segment: SegmentId, position: u32) -> TokenId {
        let owner = self.at(self.owner(segment, position));
        owner.tokens[(position - owner.first_position) as usize]
    }

    /// All tokens of the path of `segment`, without a pending one.
    pub fn context(&self, segment: SegmentId) -> Vec<TokenId> {
        self.path(segment).into_iter().flat_map(|id| self.tokens_of(id)).copied().collect()
    }

    /// The segments from the root to `segment`.
    pub fn path(&self, segment: SegmentId) -> Vec<SegmentId> {
        let mut path: Vec<_> = self.ancestry(segment).collect();
        path.reverse();
        path
    }

    /// Whether the token at `position` of the path of `segment` has a slot in every group: false if some were freed, or
    /// do not exist yet. Panics past the end.
    pub fn has_slots(&self, segment: SegmentId, position: u32) -> bool {
        let owner = self.at(self.owner(segment, position));
        (owner.passed..owner.laid_upto(Reach::Window)).contains(&position)
    }

    /// The position from which on the tokens of `segment` have no slots yet in groups with a window (`lay_ahead`).
    pub fn laid_upto(&self, segment: SegmentId) -> u32 {
        self.at(segment).laid_upto(Reach::Window)
    }

    /// The parts of `positions` that the segments of the path of `segment` have, from the root down. Positions past the
    /// end are left out.
    pub fn parts(&self, segment: SegmentId, positions: Range<u32>) -> Vec<(SegmentId, Range<u32>)> {
        let mut parts = Vec::new();
        for id in self.ancestry(segment) {
            let (first, end) = (self.first_position(id), self.end(id));
            let part = first.max(positions.start)..end.min(positions.end);
            if !part.is_empty() {
                parts.push((id, part));
            }
            if first <= positions.start {
                break;
            }
        }
        parts.reverse();
        parts
    }

    /// The position from which on tokens of the path of `segment` have no slots yet in groups with a window; its end if
    /// all have.
    pub fn path_laid_upto(&self, segment: SegmentId) -> u32 {
        // What is above a computed token is computed, and so has slots.
        let mut laid = self.end(segment);
        for above in self.ancestry(segment).map(|id| self.at(id)) {
            if above.unlaid > 0 {
                laid = above.laid_upto(Reach::Window);
            }
            if above.computed > 0 {
                break;
            }
        }
        laid
    }

    /// What `parts` returns, divided by the pages of the first group; positions without a slot there are left out.
    pub fn page_parts(
        &self,
        segment: SegmentId,
        positions: Range<u32>,
    ) -> impl Iterator<Item = (SegmentId, PageId, Range<u32>)> {
        let (reach, _) = self.groups.place(GroupIx(0));
        let by_page = move |(id, part): (SegmentId, Range<u32>)| {
            let owner = self.at(id);
            let held = part.start.max(owner.held_from(reach))..part.end.min(owner.laid_upto(reach));
            let numbers = match held.is_empty() {
                true => 0..0,
                false => held.start / self.page_tokens..held.end.div_ceil(self.page_tokens),
            };
            numbers.map(move |number| {
                let begin = (number * self.page_tokens).max(held.start);
                let end = ((number + 1) * self.page_tokens).min(held.end);
                (id, self.slot(id, begin).page, begin..end)
            })
        };
        self.parts(segment, positions).into_iter().flat_map(by_page)
    }

    /// The slot of the token at `position` of the path of `segment` in the first group. Panics past the end or if the
    /// slot was freed.
    pub fn slot(&self, segment: SegmentId, position: u32) -> KvSlot {
        self.slot_in(GroupIx(0), segment, position)
    }

    /// The slot of the token at `position` of the path of `segment` in any group. Panics as `slot` does.
    pub fn slot_in(&self, group: GroupIx, segment: SegmentId, position: u32) -> KvSlot {
        let owner = self.at(self.owner(segment, position));
        let (reach, number) = self.groups.place(group);
        let page = (position / self.page_tokens)
            .checked_sub(owner.held_from(reach) / self.page_tokens)
            .expect("the page of the position was not freed");
        let page = page as usize * self.groups.with(reach) + number;
        KvSlot { page: owner.pages[reach][page], slot: position % self.page_tokens }
    }

    /// The segment on the path of `segment` that contains `position`. Panics past the end.
    pub fn owner(&self, segment: SegmentId, position: u32) -> SegmentId {
        let last = self.at(segment);
        let end = last.end();
        assert!(position < end, "segment {segment} ends at {end}, so it has no token at {position}");
        if last.first_position <= position {
            return segment;
        }
        self.holder(segment, position + 1).expect("a path that ends after a position has a token there")
    }

    /// The segment on the path of `segment` that contains position `position - 1`; `None` for position 0.
    pub(super) fn holder(&self, segment: SegmentId, position: u32) -> Option<SegmentId> {
        self.ancestry(segment).find(|&id| self.at(id).first_position < position)
    }

    /// `segment`, its parent, and so on to the root.
    pub(super) fn ancestry(&self, segment: SegmentId) -> impl Iterator<Item = SegmentId> {
        std::iter::successors(Some(segment), |&id| self.at(id).parent)
    }
}
