//! Giving memory back: which released segments go first, and how one loses pages from its end or leaves the tree.

use super::{PrefixTree, count};
use crate::ids::SegmentId;
use crate::kv::PagePool;

/// The order of eviction: segments of which nothing is there to be matched, then the least recently used.
pub(super) type IdleKey = (bool, u64, SegmentId);

impl PrefixTree {
    /// Frees `pages` pages of childless segments without a lease (their parents follow as they become childless), least
    /// recently used first and those of which nothing was computed, or that are beneath a hollow one, before all
    /// others. Of each the last tokens go first: where fewer pages are wanted than it has, the rest of it stays.
    /// Returns the pages freed: fewer than asked when everything left is in use.
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

    /// Takes the last `pages` pages from an idle segment that has more of its own; returns how many became free, which
    /// is all.
    fn truncate(&mut self, pool: &mut PagePool, id: SegmentId, pages: usize) -> usize {
        let page_tokens = self.page_tokens;
        let segment = self.at_mut(id);
        let keep = segment.pages.len() - pages;
        // The pages that stay are full.
        let end = (segment.first_position / page_tokens + count(keep)) * page_tokens;
        let tokens = segment.tokens.len();
        segment.tokens.truncate((end - segment.first_position) as usize);
        segment.computed = segment.computed.min(segment.len());
        let gone = segment.pages.split_off(keep);
        self.held.tokens -= tokens - self.at(id).tokens.len();
        self.held.pages -= gone.len();
        let freed = gone.into_iter().filter(|&page| pool.give_back(page)).count();
        debug_assert_eq!(freed, pages, "only the first page of a segment without children is another's, too");
        freed
    }

    /// Gives back at once what no one needs any more of the path of `segment`: the segment, if it has neither a lease
    /// nor children, then its parent on the same condition, and so on. For pruned thoughts, after their lease was
    /// released; returns the pages freed.
    pub fn drop_unused(&mut self, pool: &mut PagePool, segment: SegmentId) -> usize {
        let mut freed = 0;
        let mut at = Some(segment);
        while let Some(id) = at.filter(|&id| self.at(id).idle.is_some()) {
            at = self.at(id).parent;
            freed += self.remove(pool, id);
        }
        freed
    }

    /// Takes an idle segment out of the tree; returns the pages that became free.
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

    /// By which `id` is to be listed as idle, if it is.
    pub(super) fn idle_key(&self, id: SegmentId) -> Option<IdleKey> {
        let segment = self.at(id);
        let is_beneath_hollow = segment.hollow || segment.parent.is_some_and(|parent| self.at(parent).hollow);
        let is_idle = segment.leases == 0 && segment.children == 0;
        is_idle.then_some((segment.computed > 0 && !is_beneath_hollow, segment.last_used, id))
    }

    /// Enters or withdraws a segment from the candidates for eviction, after anything that decides it has changed.
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
