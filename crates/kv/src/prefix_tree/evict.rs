//! Eviction: the order in which released segments are freed, truncating one at its end, and removing one.

use super::{IdleKey, PrefixTree};
use crate::{PagePool, Reach};
use offshoot_core::ids::SegmentId;

impl PrefixTree {
    /// Frees `pages` pages of childless segments without a lease; parents follow as they become childless. First go
    /// segments with nothing computed or of which a branch cannot continue the end, then the least recently used. A
    /// segment is truncated from its end if it has more pages than needed. Returns the number of pages freed: fewer
    /// than requested if everything left is in use; more if a token has pages in several groups.
    pub fn evict(&mut self, pool: &mut PagePool, pages: usize) -> usize {
        let mut freed = 0;
        while freed < pages
            && let Some(&(.., id)) = self.idle.first()
        {
            freed += match self.truncated_end(id, pages - freed) {
                Some(end) => self.truncate(pool, id, end),
                None => self.remove(pool, id),
            };
        }
        freed
    }

    /// Where an idle segment ends once enough of its last page numbers are freed that these are `pages` pages or more;
    /// `None` if that is all of it.
    fn truncated_end(&self, id: SegmentId, pages: usize) -> Option<u32> {
        let segment = self.at(id);
        let own = self.own_pages(id);
        if own <= pages {
            return None;
        }
        let have = |end| Reach::BOTH.into_iter().map(|reach| self.pages_below(segment, reach, end)).sum::<usize>();
        let (all, least) = (segment.pages.len(), self.groups.count());
        // At most so many pages belong to a page number.
        let numbers = u32::try_from(pages.div_ceil(least)).expect("fewer than the segment has");
        let mut end = ((segment.end() - 1) / self.page_tokens + 1).saturating_sub(numbers) * self.page_tokens;
        while all - have(end) < pages {
            end = end.saturating_sub(self.page_tokens);
        }
        (end > segment.first_position && all - have(end) < own + self.parents_pages(id)).then_some(end)
    }

    /// Shortens an idle segment to `end`, where a page ends. Returns the number of pages that became free.
    fn truncate(&mut self, pool: &mut PagePool, id: SegmentId, end: u32) -> usize {
        let (held, lacked) = (self.held(id), self.at(id).lacks_pages());
        let segment = self.at_mut(id);
        segment.unlaid = segment.unlaid.saturating_sub(segment.end() - end);
        segment.tokens.truncate((end - segment.first_position) as usize);
        segment.scores.truncate(segment.tokens.len());
        segment.values.truncate(segment.tokens.len());
        segment.computed = segment.computed.min(segment.len());
        segment.passed = segment.passed.min(end);
        self.lacking -= usize::from(lacked && !self.at(id).lacks_pages());
        self.cut_states(id);
        let freed = self.cut_pages(pool, id);
        self.held.tokens -= held - self.held(id);
        self.held.pages -= freed;
        self.review(id);
        freed
    }

    /// Frees the unused end of the path of `segment` at once: the segment, if it has neither a lease nor children, then
    /// its parent on the same condition, and so on. For pruned branches after their lease was released. Returns the
    /// number of pages freed.
    pub fn prune(&mut self, pool: &mut PagePool, segment: SegmentId) -> usize {
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
        let tokens = self.held(id);
        let mut gone = self.arena[id.ix()].take().expect("an idle segment is in the arena");
        self.release_states(std::mem::take(&mut gone.states));
        let key = gone.idle.expect("only idle segments are removed");
        self.idle.remove(&key);
        self.vacant.push(id);
        self.prompts_behind.remove(&id);
        if let Some(parent) = gone.parent {
            let above = self.at_mut(parent);
            above.children -= 1;
            above.last_used = above.last_used.max(gone.last_used);
            self.review(parent);
        }
        self.held.tokens -= tokens;
        self.lacking -= usize::from(gone.lacks_pages());
        let freed = gone.pages.iter().filter(|&page| pool.give_back(page)).count();
        self.held.segments -= 1;
        self.held.pages -= freed;
        freed
    }

    /// The key of `id` in the list of idle segments, if it is idle.
    pub(super) fn idle_key(&self, id: SegmentId) -> Option<IdleKey> {
        let segment = self.at(id);
        let is_idle = segment.leases == 0 && segment.children == 0;
        is_idle.then(|| (segment.computed > 0 && self.is_readable(id), segment.last_used, id))
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
