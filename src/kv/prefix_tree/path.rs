//! Queries of a segment and its path: the tokens from the root to its end, and their slots.

use std::ops::Range;

use super::PrefixTree;
use crate::ids::{PageId, SegmentId, TokenId};
use crate::kv::KvSlot;

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

    /// The segment's pages that hold its positions below `upto`.
    pub fn pages_upto(&self, segment: SegmentId, upto: u32) -> &[PageId] {
        let segment = self.at(segment);
        &segment.pages[..self.pages_between(segment.first_position, upto.clamp(segment.first_position, segment.end()))]
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

    /// Whether the token at `position` of the path of `segment` has a slot: false if `free_behind` freed it. Panics
    /// past the end.
    pub fn has_slot(&self, segment: SegmentId, position: u32) -> bool {
        !self.at(self.owner(segment, position)).hollow
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

    /// The same by pages, which all still have their slots.
    pub fn page_parts(
        &self,
        segment: SegmentId,
        positions: Range<u32>,
    ) -> impl Iterator<Item = (SegmentId, PageId, Range<u32>)> {
        let by_page = move |(id, part): (SegmentId, Range<u32>)| {
            (part.start / self.page_tokens..part.end.div_ceil(self.page_tokens)).map(move |number| {
                let begin = (number * self.page_tokens).max(part.start);
                let end = ((number + 1) * self.page_tokens).min(part.end);
                (id, self.slot(id, begin).page, begin..end)
            })
        };
        self.parts(segment, positions).into_iter().flat_map(by_page)
    }

    /// The slot of the token at `position` of the path of `segment`. Panics past the end or if the slot was freed.
    pub fn slot(&self, segment: SegmentId, position: u32) -> KvSlot {
        let owner = self.at(self.owner(segment, position));
        let page = position / self.page_tokens - owner.first_position / self.page_tokens;
        KvSlot { page: owner.pages[page as usize], slot: position % self.page_tokens }
    }

    /// The segment on the path of `segment` that contains `position`. Panics past the end.
    pub(super) fn owner(&self, segment: SegmentId, position: u32) -> SegmentId {
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
