//! Giving back what a window has passed: keys and values that no row will read again. See the module's head, *Hollow
//! segments*.

use super::{PrefixTree, State};
use crate::ids::SegmentId;
use crate::kv::PagePool;

impl PrefixTree {
    /// Frees the pages of positions below `upto`, a multiple of the page size before the end of `segment`, that nobody
    /// but the one lease on `segment` keeps: its holder promises that no row of its own, nor of what is forked from its
    /// end, will read them. Prompts stay, as others may begin with them, and so does what lies above other branches,
    /// cached ones too. Returns the pages freed.
    pub fn free_behind(&mut self, pool: &mut PagePool, segment: SegmentId, upto: u32) -> usize {
        assert!(upto.is_multiple_of(self.page_tokens), "position {upto} is inside a page");
        assert!(
            upto < self.end(segment) && upto <= self.computed(segment),
            "position {upto} of {segment} is not computed"
        );
        let is_its_own = |&id: &SegmentId| {
            let kept = self.at(id);
            kept.users == 1 && kept.state != State::Prompt && (id == segment || kept.children == 1)
        };
        let is_passed = |&id: &SegmentId| self.at(id).first_position < upto && !self.at(id).hollow;
        let mut behind: Vec<SegmentId> = self.ancestry(segment).take_while(is_its_own).filter(is_passed).collect();
        // From the root on, so that what becomes hollow joins what is.
        behind.reverse();
        let mut freed = 0;
        for id in behind {
            let tokens = (self.end(id).min(upto) - self.first_position(id)) as usize;
            let first_part = if upto < self.end(id) { self.split_behind(pool, id, upto) } else { id };
            let pages = self.hollow_out(pool, first_part);
            self.held.tokens -= tokens;
            self.held.pages -= pages;
            // What is freed here has a lease.
            self.leased.tokens -= tokens;
            self.leased.pages -= pages;
            freed += pages;
        }
        freed
    }

    /// Whether the path of `segment` has positions whose keys and values are gone.
    pub fn is_hollow(&self, segment: SegmentId) -> bool {
        self.hollow > 0 && self.ancestry(segment).any(|id| self.at(id).hollow)
    }

    /// The last segment of the path of `segment` above everything that is gone.
    pub(super) fn whole_beginning(&self, segment: SegmentId) -> Option<SegmentId> {
        if self.hollow == 0 {
            return Some(segment);
        }
        let topmost = self.ancestry(segment).filter(|&id| self.at(id).hollow).last();
        topmost.map_or(Some(segment), |id| self.at(id).parent)
    }

    /// Divides `id` at `upto`, and returns the segment that holds the first part: where that follows a hollow one with
    /// nothing else beneath it, the two become one, so that a path stays as short as it was.
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

    /// Moves all of `upper`, the one child of `above`, to the end of `above`, beneath which `lower` then is.
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

    /// Gives back all pages of `id`, by which nothing can be matched with it any more. Returns how many became free.
    fn hollow_out(&mut self, pool: &mut PagePool, id: SegmentId) -> usize {
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let emptied = self.at_mut(id);
        debug_assert_eq!(emptied.computed, emptied.len(), "what rows passed was computed");
        let pages = std::mem::take(&mut emptied.pages);
        let was_hollow = std::mem::replace(&mut emptied.hollow, true);
        self.hollow += usize::from(!was_hollow);
        pages.into_iter().filter(|&page| pool.give_back(page)).count()
    }
}
