//! The pages of a segment: a list for the groups that hold all positions and one for those with a window. See
//! *Windows* in the module's head.

use std::ops::Range;

use super::page_lists::PageLists;
use super::{PrefixTree, Segment};
use crate::page_counts::numbers_between;
use crate::page_pool::OutOfPages;
use crate::{PageCounts, PagePool, Reach, Window};
use offshoot_core::ids::{PageId, SegmentId};

impl Segment {
    /// The first position of which it has pages of this reach; its end if it has none.
    pub fn held_from(&self, reach: Reach) -> u32 {
        match reach {
            Reach::All => self.first_position,
            Reach::Window => self.passed,
        }
    }

    /// The position from which on it has no pages of this reach yet; its end if it has all.
    pub fn laid_upto(&self, reach: Reach) -> u32 {
        match reach {
            Reach::All => self.end(),
            Reach::Window => self.end() - self.unlaid,
        }
    }

    /// Whether pages behind the window were freed.
    pub fn lacks_pages(&self) -> bool {
        self.passed > self.first_position
    }
}

impl PrefixTree {
    /// The number of page numbers that positions `first .. end` touch.
    pub(super) fn numbers_between(&self, first: u32, end: u32) -> usize {
        numbers_between(self.page_tokens, first, end)
    }

    /// The number of pages of all groups for new tokens at positions `first .. end`.
    pub(super) fn pages_between(&self, first: u32, end: u32) -> usize {
        self.groups.count() * self.numbers_between(first, end)
    }

    /// The number of pages of this reach that a segment has of its positions below `upto`.
    pub(super) fn pages_below(&self, segment: &Segment, reach: Reach, upto: u32) -> usize {
        let upto = segment.laid_upto(reach).min(upto);
        self.groups.with(reach) * self.numbers_between(segment.held_from(reach), upto)
    }

    /// Takes pages for positions of a new segment, or of one without pages there, beneath `above`: for each reach the
    /// positions of which its groups get pages. If `above` ends where they begin, inside pages in which no child
    /// continues, these are shared. Returns the lists, and how many of the pages are new.
    pub(super) fn lay_out(
        &self,
        pool: &mut PagePool,
        above: Option<SegmentId>,
        positions: [Range<u32>; 2],
    ) -> Result<(PageLists, usize), OutOfPages> {
        let mut lists = PageLists::default();
        let mut missing = [0; 2];
        for ((reach, missing), positions) in Reach::BOTH.into_iter().zip(&mut missing).zip(positions) {
            *missing = self.groups.with(reach) * self.numbers_between(positions.start, positions.end);
            let above = above.filter(|&above| *missing > 0 && positions.start == self.end(above));
            if let Some(open) = above.and_then(|above| self.open_pages(pool, above, reach)) {
                *missing -= open.len();
                lists[reach].extend_from_slice(open);
            }
        }
        let new = missing.iter().sum();
        let mut taken = pool.take_exactly(new)?.into_iter();
        lists.iter().for_each(|page| {
            pool.share(page);
            // A child that is gone may have written the slots that are unused now.
            pool.restamp(page);
        });
        for (reach, missing) in Reach::BOTH.into_iter().zip(missing) {
            lists[reach].extend(taken.by_ref().take(missing));
        }
        Ok((lists, new))
    }

    /// Gives the prompts of the path of `segment` slots in the groups with a window for as many tokens as a step may
    /// compute next (`laying_ahead`), and for the one after them, which their last row may score. Slots reserved before
    /// a failure stay reserved.
    pub fn lay_ahead(&mut self, pool: &mut PagePool, segment: SegmentId) -> Result<(), OutOfPages> {
        match self.groups.window() {
            Some(_) => {
                let next = self.computed(segment).saturating_add(self.ahead);
                self.lay_upto(pool, segment, next.saturating_add(1))
            }
            None => Ok(()),
        }
    }

    /// Gives the prompts of the path of `segment` slots as `lay_ahead` does, for all tokens below position `upto`.
    pub fn lay_upto(&mut self, pool: &mut PagePool, segment: SegmentId, upto: u32) -> Result<(), OutOfPages> {
        let mut unlaid = Vec::new();
        for id in self.ancestry(segment) {
            let above = self.at(id);
            if above.unlaid > 0 && above.laid_upto(Reach::Window) < upto {
                unlaid.push(id);
            }
            if above.computed > 0 {
                break; // All above it is computed, and so has slots.
            }
        }
        unlaid.into_iter().rev().try_for_each(|id| self.lay(pool, id, upto))
    }

    fn lay(&mut self, pool: &mut PagePool, id: SegmentId, upto: u32) -> Result<(), OutOfPages> {
        let (held, segment) = (self.held(id), self.at(id));
        let (first, end) = (segment.laid_upto(Reach::Window), segment.end());
        let upto = upto.checked_next_multiple_of(self.page_tokens).map_or(end, |upto| upto.min(end));
        let (pages, new) = self.lay_out(pool, segment.parent, [0..0, first..upto])?;
        let segment = self.at_mut(id);
        segment.unlaid = end - upto;
        segment.pages[Reach::Window].extend_from_slice(&pages[Reach::Window]);
        let is_leased = segment.users > 0;
        let tokens = self.held(id) - held;
        self.held.pages += new;
        self.held.tokens += tokens;
        if is_leased {
            self.leased.pages += new;
            self.leased.tokens += tokens;
        }
        Ok(())
    }

    /// How many pages texts will take. A branch has in each group with a window those of its prompt, and those of what
    /// it has sampled.
    pub fn page_counts(&self) -> PageCounts {
        let sampled = |window: Window| window.most_kept().div_ceil(self.page_tokens as usize) + 1;
        let window_pages = self.groups.window().map(|window| self.most_numbers(window) + sampled(window));
        PageCounts { page_tokens: self.page_tokens, groups: self.groups, window_pages }
    }

    /// Most page numbers of a prompt of which a group with this window needs pages while it is computed.
    fn most_numbers(&self, window: Window) -> usize {
        window.most_of_prompt(self.ahead).div_ceil(self.page_tokens) as usize + 1
    }

    /// Most pages of all groups that a prompt's new tokens at positions `first .. end` take at any time.
    pub fn to_admit(&self, first: u32, end: u32) -> usize {
        let numbers = self.numbers_between(first, end);
        let windowed = self.groups.window().map_or(numbers, |window| numbers.min(self.most_numbers(window)));
        self.groups.with(Reach::All) * numbers + self.groups.with(Reach::Window) * windowed
    }

    /// The number of pages that a segment still takes until it is computed, if what is behind the window is freed.
    pub(super) fn to_lay(&self, segment: &Segment) -> usize {
        let Some(window) = self.groups.window().filter(|_| segment.unlaid > 0) else { return 0 };
        let has = self.numbers_between(segment.passed, segment.laid_upto(Reach::Window));
        let lacks = self.numbers_between(segment.laid_upto(Reach::Window), segment.end());
        self.groups.with(Reach::Window) * lacks.min(self.most_numbers(window).saturating_sub(has))
    }

    /// The last pages of `segment` of this reach, one for each group, if they have unused slots: the segment ends
    /// inside them, and no child continues in them.
    fn open_pages(&self, pool: &PagePool, segment: SegmentId, reach: Reach) -> Option<&[PageId]> {
        let groups = self.groups.with(reach);
        let last = self.last_pages(segment, reach).filter(|_| !self.end(segment).is_multiple_of(self.page_tokens))?;
        let goes_further_up =
            |id: &SegmentId| self.at(*id).pages[reach].len() == groups && self.begins_in_parents_pages(*id, reach);
        let above = self.ancestry(segment).take_while(goes_further_up).count();
        (pool.holders(last[0]) as usize == 1 + above).then_some(last)
    }

    /// The pages of the last position of `segment`, one for each group of this reach.
    fn last_pages(&self, segment: SegmentId, reach: Reach) -> Option<&[PageId]> {
        let segment = self.at(segment);
        let pages = &segment.pages[reach];
        let has_last = !pages.is_empty() && segment.laid_upto(reach) == segment.end();
        let first = pages.len().checked_sub(self.groups.with(reach)).filter(|_| has_last)?;
        Some(&pages[first..])
    }

    /// Whether `segment` continues in the last pages of its parent.
    pub(super) fn begins_in_parents_pages(&self, segment: SegmentId, reach: Reach) -> bool {
        let segment = self.at(segment);
        let above = segment.parent.and_then(|parent| self.last_pages(parent, reach));
        above.is_some_and(|above| segment.pages[reach].first() == above.first())
    }

    /// The number of pages of `segment` that it shares with its parent.
    pub(super) fn parents_pages(&self, segment: SegmentId) -> usize {
        let shared = |reach| if self.begins_in_parents_pages(segment, reach) { self.groups.with(reach) } else { 0 };
        Reach::BOTH.into_iter().map(shared).sum()
    }

    /// The number of pages of `segment`, without those shared with its parent.
    pub(super) fn own_pages(&self, segment: SegmentId) -> usize {
        self.at(segment).pages.len() - self.parents_pages(segment)
    }

    /// Removes the pages of `segment` of positions from `end` on, which the segment no longer has, and gives them back.
    /// Returns how many became free.
    pub(super) fn cut_pages(&mut self, pool: &mut PagePool, segment: SegmentId) -> usize {
        let mut freed = 0;
        for reach in Reach::BOTH {
            let keep = self.pages_below(self.at(segment), reach, u32::MAX);
            let gone = self.at_mut(segment).pages[reach].split_off(keep);
            freed += gone.into_iter().filter(|&page| pool.give_back(page)).count();
        }
        freed
    }
}
