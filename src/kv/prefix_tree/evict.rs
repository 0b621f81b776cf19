//! Eviction: the order in which released segments are freed, truncating one at its end, and removing one.

use super::{PrefixTree, count};
use crate::ids::SegmentId;
use crate::kv::PagePool;

/// The order of eviction: false for segments that are of no use to a match, then by last use.
pub(super) type IdleKey = (bool, u64, SegmentId);

impl PrefixTree {
    /// Frees `pages` pages of childless segments without a lease; parents follow as they become childless. First go
    /// segments with nothing computed or beneath a hollow one, then the least recently used. A segment is truncated
    /// from its end if it has more pages than needed. Returns the number of pages freed: fewer than requested if
    /// everything left is in use.
    pub fn evict(&mut self, pool: &mut PagePool, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages
            && let Some(&(.., id)) = self.idle.first()
        {
            let wanted = pages - freed;
            freed += match self.own_pages(id) > wanted {
                true => self.truncate(pool, id, wanted),
                false => self.remove(pool, id),
            };
        }
        freed
    }

    /// Frees the last `pages` pages of an idle segment that has more of its own. Returns `pages`.
    fn truncate(&mut self, pool: &mut PagePool, id: SegmentId, pages: usize) -> usize {
        let page_tokens = self.page_tokens;
        let segment = self.at_mut(id);
        let keep = segment.pages.len() - pages;
        // The remaining pages are full.
        let end = (segment.first_position / page_tokens + count(keep)) * page_tokens;
        let tokens = segment.tokens.len();
        segment.tokens.truncate((end - segment.first_position) as usize);
        segment.scores.truncate(segment.tokens.len());
        segment.computed = segment.computed.min(segment.len());
        let gone = segment.pages.split_off(keep);
        self.held.tokens -= tokens - self.at(id).tokens.len();
        self.held.pages -= gone.len();
        let freed = gone.into_iter().filter(|&page| pool.give_back(page)).count();
        debug_assert_eq!(freed, pages, "a childless segment shares no page but its first");
        freed
    }

    /// Frees the unused end of the path of `segment` at once: the segment, if it has neither a lease nor children, then
    /// its parent on the same condition, and so on. For pruned branches after their lease was released. Returns the
    /// number of pages freed.
    pub fn drop_unused(&mut self, pool: &mut PagePool, segment: SegmentId) -> usize {
        let mut freed = 0;
        let mut at = Some(segment);
        while let Some(id) = at.filter(|&id| self.at(id).idle.is_some()) {
            at = self.at(id).parent;
            freed += self.remove(pool, id);
        }
        freed
    }

    /// Removes an idle segment from the tree. Returns the number of pages that became free.
    fn remove(&mut self, pool: &mut PagePool, id: SegmentId) -> usize {
        if let Some(key) = self.first_key(id) {
            self.by_first.remove(&key);
        }
        let gone = self.arena[id.ix()].take().expect("an idle segment is in the arena");
        let key = gone.idle.expect("only idle segments are removed");
        self.idle.remove(&key);
        self.vacant.push(id);
        if let Some(parent) = gone.parent {
            let above = self.at_mut(parent);
            above.children -= 1;
            above.last_used = above.last_used.max(gone.last_used);
            self.review(parent);
        }
        self.held.tokens -= gone.held();
        self.hollow -= usize::from(gone.hollow);
        let freed = gone.pages.into_iter().filter(|&page| pool.give_back(page)).count();
        self.held.segments -= 1;
        self.held.pages -= freed;
        freed
    }

    /// The key of `id` in the list of idle segments, if it is idle.
    pub(super) fn idle_key(&self, id: SegmentId) -> Option<IdleKey> {
        let segment = self.at(id);
        let is_beneath_hollow = segment.hollow || segment.parent.is_some_and(|parent| self.at(parent).hollow);
        let is_idle = segment.leases == 0 && segment.children == 0;
        is_idle.then_some((segment.computed > 0 && !is_beneath_hollow, segment.last_used, id))
    }

    /// Updates the entry of a segment in the list of idle segments, after anything that decides it has changed.
    pub(super) fn review(&mut self, id: SegmentId) {
        let key = self.idle_key(id);
        let segment = self.at_mut(id);
        let before = std::mem::replace(&mut segment.idle, key);
        if before == key {
            return;
        }
        if let Some(old) = before {
            self.idle.remove(&old);
        }
        self.idle.extend(key);
    }
}
