//! Frees keys and values that sliding windows have passed. See *Hollow segments* in the module's head.

use super::{PrefixTree, SegmentState};
use crate::ids::SegmentId;
use crate::kv::PagePool;

impl PrefixTree {
    /// Frees the pages of positions below `upto` that only the single lease on `segment` keeps. `upto` is a multiple of
    /// the page size before the end of `segment`. The caller promises that no row of this branch or of its forks will
    /// read these positions. Prompts are kept, because others may begin with them, and so are segments above other
    /// branches, cached ones included. Returns the number of pages freed.
    pub fn free_behind(&mut self, pool: &mut PagePool, segment: SegmentId, upto: u32) -> usize {
        assert!(upto.is_multiple_of(self.page_tokens), "position {upto} is inside a page");
        assert!(
            upto < self.end(segment) && upto <= self.computed(segment),
            "position {upto} of {segment} is not computed"
        );
        let is_unshared = |&id: &SegmentId| {
            let kept = self.at(id);
            kept.users == 1 && kept.state != SegmentState::Prompt && (id == segment || kept.children == 1)
        };
        let is_passed = |&id: &SegmentId| self.at(id).first_position < upto && !self.at(id).hollow;
        let mut behind: Vec<SegmentId> = self.ancestry(segment).take_while(is_unshared).filter(is_passed).collect();
        // From the root down, so that newly hollow segments can be joined to hollow ones above.
        behind.reverse();
        let mut freed = 0;
        for id in behind {
            let tokens = (self.end(id).min(upto) - self.first_position(id)) as usize;
            let first_part = if upto < self.end(id) { self.split_behind(pool, id, upto) } else { id };
            let pages = self.hollow_out(pool, first_part);
            self.held.tokens -= tokens;
            self.held.pages -= pages;
            // A lease keeps what is freed here.
            self.leased.tokens -= tokens;
            self.leased.pages -= pages;
            freed += pages;
        }
        freed
    }

    /// Whether the path of `segment` has a hollow segment.
    pub fn is_hollow(&self, segment: SegmentId) -> bool {
        self.hollow > 0 && self.ancestry(segment).any(|id| self.at(id).hollow)
    }

    /// The last segment on the path of `segment` above every hollow one.
    pub(super) fn above_hollow(&self, segment: SegmentId) -> Option<SegmentId> {
        if self.hollow == 0 {
            return Some(segment);
        }
        let topmost = self.ancestry(segment).filter(|&id| self.at(id).hollow).last();
        topmost.map_or(Some(segment), |id| self.at(id).parent)
    }

    /// Splits `id` at `upto` and returns the segment of the first part. If its parent is hollow and has no other child
    /// or lease, the first part is joined to the parent, so that the path does not get longer.
    fn split_behind(&mut self, pool: &mut PagePool, id: SegmentId, upto: u32) -> SegmentId {
        let upper = self.split(pool, id, upto);
        let is_end_of = |above: SegmentId| {
            let above = self.at(above);
            above.hollow && above.children == 1 && above.leases == 0
        };
        match self.at(upper).parent.filter(|&above| is_end_of(above)) {
            None => upper,
            Some(above) => {
                self.join(above, upper, id);
                above
            }
        }
    }

    /// Appends `upper`, the only child of `above`, to `above`, and makes `lower` its child.
    fn join(&mut self, above: SegmentId, upper: SegmentId, lower: SegmentId) {
        for id in [upper, lower] {
            if let Some(key) = self.first_key(id) {
                self.by_first.remove(&key);
            }
        }
        let gone = self.arena[upper.ix()].take().expect("it was split off just now");
        self.vacant.push(upper);
        self.held.segments -= 1;
        let joined = self.at_mut(above);
        joined.computed += gone.computed;
        joined.tokens.extend(gone.tokens);
        joined.pages = gone.pages;
        self.at_mut(lower).parent = Some(above);
        self.by_first.extend(self.first_key(lower));
    }

    /// Frees the pages of `id` and makes it hollow, so that nothing can match it. Returns how many pages became free.
    fn hollow_out(&mut self, pool: &mut PagePool, id: SegmentId) -> usize {
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let emptied = self.at_mut(id);
        debug_assert_eq!(emptied.computed, emptied.len(), "only computed positions are freed");
        emptied.scores = Vec::new();
        let pages = std::mem::take(&mut emptied.pages);
        let was_hollow = std::mem::replace(&mut emptied.hollow, true);
        self.hollow += usize::from(!was_hollow);
        pages.into_iter().filter(|&page| pool.give_back(page)).count()
    }
}
