//! The pages of a segment: a list for the groups that hold all positions and one for those with a window. See
//! *Windows* in the module's head.

use std::ops::{Index, IndexMut};

use super::{PrefixTree, Segment};
use crate::ids::{PageId, SegmentId};
use crate::kv::page_pool::OutOfPages;
use crate::kv::{PagePool, Reach};

/// For each reach the pages of its groups: by page number, and of one page number by group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PageLists {
    all: Vec<PageId>,
    window: Vec<PageId>,
}

impl PageLists {
    pub fn iter(&self) -> impl Iterator<Item = PageId> {
        self.all.iter().chain(&self.window).copied()
    }

    pub fn len(&self) -> usize {
        self.all.len() + self.window.len()
    }
}

impl Index<Reach> for PageLists {
    type Output = Vec<PageId>;

    fn index(&self, reach: Reach) -> &Vec<PageId> {
        match reach {
            Reach::All => &self.all,
            Reach::Window => &self.window,
        }
    }
}

impl IndexMut<Reach> for PageLists {
    fn index_mut(&mut self, reach: Reach) -> &mut Vec<PageId> {
        match reach {
            Reach::All => &mut self.all,
            Reach::Window => &mut self.window,
        }
    }
}

impl Segment {
    /// The first position of which it has pages of this reach; its end if it has none.
    pub fn held_from(&self, reach: Reach) -> u32 {
        match reach {
            Reach::All => self.first_position,
            Reach::Window => self.passed,
        }
    }

    /// Whether pages behind the window were freed.
    pub fn lacks_pages(&self) -> bool {
        self.passed > self.first_position
    }
}

/// The number of page numbers that positions `first .. end` touch; 0 if there are none.
pub(super) fn numbers_between(page_tokens: u32, first: u32, end: u32) -> usize {
    if first >= end { 0 } else { ((end - 1) / page_tokens - first / page_tokens + 1) as usize }
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
        self.groups.with(reach) * self.numbers_between(segment.held_from(reach), segment.end().min(upto))
    }

    /// Takes pages for positions `first .. end` of a new segment, or of one without tokens, beneath `above`; those of
    /// the groups with a window from `passed` on. If `above` ends inside pages in which no child continues, these are
    /// shared. Returns the lists, and how many of the pages are new.
    pub(super) fn lay_out(
        &self,
        pool: &mut PagePool,
        above: Option<SegmentId>,
        (first, passed, end): (u32, u32, u32),
    ) -> Result<(PageLists, usize), OutOfPages> {
        let mut lists = PageLists::default();
        let mut missing = [0; 2];
        for (reach, missing) in Reach::BOTH.into_iter().zip(&mut missing) {
            let from = if reach == Reach::All { first } else { passed };
            *missing = self.groups.with(reach) * self.numbers_between(from, end);
            let above = above.filter(|_| *missing > 0 && from == first);
            if let Some(open) = above.and_then(|above| self.open_pages(pool, above, reach)) {
                *missing -= open.len();
                lists[reach].extend_from_slice(open);
            }
        }
        let new = missing.iter().sum();
        let mut taken = pool.take_exactly(new)?.into_iter();
        lists.iter().for_each(|page| pool.share(page));
        for (reach, missing) in Reach::BOTH.into_iter().zip(missing) {
            lists[reach].extend(taken.by_ref().take(missing));
        }
        Ok((lists, new))
    }

    /// The last pages of `segment` of this reach, one for each group, if they have unused slots: the segment ends inside
    /// them, and no child continues in them.
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
        let pages = &self.at(segment).pages[reach];
        let first = pages.len().checked_sub(self.groups.with(reach)).filter(|_| !pages.is_empty())?;
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
