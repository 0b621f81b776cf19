//! How many pages and tokens a set of paths holds, each counted once however many of them share it.

use super::{PrefixTree, Segment, count};
use crate::ids::{SegmentId, TokenId};

/// Pages and tokens that leases keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    pub pages: usize,
    pub tokens: usize,
}

/// A set of paths that only grows, and how many pages and tokens they hold.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    met: Vec<bool>,
    pages: usize,
    tokens: usize,
}

impl Usage {
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Of paths that were added by `add_path`.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn has_met(&self, segment: SegmentId) -> bool {
        self.met.get(segment.ix()).is_some_and(|&met| met)
    }
}

impl PrefixTree {
    /// What leases keep: all but what is only cached.
    pub fn leased(&self) -> Leased {
        self.leased
    }

    /// `segment` has one user more; the first one makes it, too, a user of its parent.
    pub(super) fn add_user(&mut self, segment: SegmentId) {
        let mut at = Some(segment);
        while let Some(id) = at {
            let used = self.at_mut(id);
            used.users += 1;
            at = used.parent.filter(|_| used.users == 1);
            if used.users == 1 {
                self.leased.tokens += self.at(id).held();
                self.leased.pages += self.own_pages(id);
            }
        }
    }

    /// `segment` has one user less; with the last one it is no user of its parent any more.
    pub(super) fn remove_user(&mut self, segment: SegmentId) {
        let mut at = Some(segment);
        while let Some(id) = at {
            let used = self.at_mut(id);
            used.users -= 1;
            at = used.parent.filter(|_| used.users == 0);
            if used.users == 0 {
                self.leased.tokens -= self.at(id).held();
                self.leased.pages -= self.own_pages(id);
            }
        }
    }

    /// Pages of `segment`, but for one that is its parent's too.
    pub(super) fn own_pages(&self, segment: SegmentId) -> usize {
        self.at(segment).pages.len() - usize::from(self.begins_in_parents_page(segment))
    }

    /// Adds what no lease would hold any more without the one lease on `segment`, and returns how many pages that is;
    /// none where it has several.
    pub fn add_alone(&self, usage: &mut Usage, segment: SegmentId) -> usize {
        usage.met.resize(self.arena.len(), false);
        let before = usage.pages;
        for id in self.ancestry(segment).take_while(|&id| self.at(id).users == 1) {
            usage.met[id.ix()] = true;
            usage.pages += self.own_pages(id);
        }
        usage.pages - before
    }

    /// Adds the path of `segment`, and the pages that nothing in use holds yet.
    pub fn add_path(&self, usage: &mut Usage, segment: SegmentId) {
        let Usage { met, pages, tokens } = usage;
        for id in self.new_to(met, segment) {
            *pages += self.own_pages(id);
            *tokens += self.at(id).held();
        }
    }

    /// Whether `segment` goes on in the last page of its parent.
    pub(super) fn begins_in_parents_page(&self, segment: SegmentId) -> bool {
        let segment = self.at(segment);
        let above = segment.parent.and_then(|parent| self.at(parent).pages.last());
        above.is_some() && above == segment.pages.first()
    }

    /// Adds what holds the first `upto` positions of the path of `segment`, the last segment of it whole.
    pub fn add_beginning(&self, usage: &mut Usage, segment: SegmentId, upto: u32) {
        if let Some(last) = self.holder(segment, upto) {
            self.add_path(usage, last);
        }
    }

    /// Adds what holds the first `upto` positions of a path that was made just now, and is known to gain so many pages:
    /// for that, segments in use may have been split.
    pub fn add_new_path(&self, usage: &mut Usage, segment: SegmentId, upto: u32, gain: usize) {
        if let Some(last) = self.holder(segment, upto) {
            self.new_to(&mut usage.met, last).for_each(drop);
        }
        usage.pages += gain;
    }

    /// The segments of a path that were not met yet, and are with this.
    fn new_to(&self, met: &mut Vec<bool>, segment: SegmentId) -> impl Iterator<Item = SegmentId> {
        met.resize(self.arena.len(), false);
        self.ancestry(segment).take_while(|id| !std::mem::replace(&mut met[id.ix()], true))
    }

    /// Pages that the path of `path` and then `rest` (as in `admit_behind`) would add to those in use, if it were
    /// matched with what is there and continued up to position `end`, no earlier than its tokens end.
    pub fn gain(&self, usage: &Usage, path: Option<SegmentId>, rest: &[TokenId], end: u32) -> usize {
        let known = self.find(path, rest);
        let at = count(known.tokens);
        known.segment.map_or(0, |segment| self.unused_upto(usage, segment, at)) + self.pages_between(at, end)
    }

    /// The same for a branch that continues the path of `segment`.
    pub fn gain_after(&self, usage: &Usage, segment: SegmentId, end: u32) -> usize {
        let at = self.end(segment);
        self.unused_upto(usage, segment, at) + self.pages_between(at, end)
    }

    /// Of pages that one lease holds alone (`add_alone`) at least as many as the path of `path` and then `rest` (as in
    /// `admit_behind`) would keep in use beyond its end.
    pub fn shared_with_one(&self, alone: &Usage, path: Option<SegmentId>, rest: &[TokenId]) -> usize {
        let known = self.find(path, rest);
        let ancestry = known.segment.into_iter().flat_map(|segment| self.ancestry(segment));
        // Since it was added others may have come to share it, and have counted it.
        let of_one = ancestry.filter(|&id| alone.has_met(id) && self.at(id).users == 1);
        of_one.map(|id| self.own_pages_upto(id, count(known.tokens))).sum()
    }

    /// Pages of the path of `segment` up to position `upto` that are there and not in use. Where it was divided inside
    /// a page, they are more than its tokens need.
    fn unused_upto(&self, usage: &Usage, segment: SegmentId, upto: u32) -> usize {
        self.ancestry(segment).take_while(|id| !usage.has_met(*id)).map(|id| self.own_pages_upto(id, upto)).sum()
    }

    /// Pages of `segment` up to position `upto`, but for one that is its parent's too.
    fn own_pages_upto(&self, segment: SegmentId, upto: u32) -> usize {
        let Segment { first_position, hollow, .. } = *self.at(segment);
        if hollow {
            return 0;
        }
        let pages = self.pages_between(first_position, self.end(segment).min(upto));
        pages.saturating_sub(usize::from(self.begins_in_parents_page(segment)))
    }
}
