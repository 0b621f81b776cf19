//! Counts the pages and tokens of sets of paths; shared ones count once.

use super::{Leased, PrefixTree, count};
use crate::{PathStart, PathTokens, Reach};
use offshoot_core::ids::SegmentId;

/// A growing set of segments, with the number of their pages and tokens.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Whether each segment is in the set.
    included: Vec<bool>,
    pages: usize,
    /// Pages that prompts still take until they are computed.
    to_lay: usize,
    tokens: usize,
}

impl Usage {
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Its pages, and those that its prompts still take until they are computed.
    pub fn committed(&self) -> usize {
        self.pages + self.to_lay
    }

    /// Tokens of the segments added by `add_path`.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn includes(&self, segment: SegmentId) -> bool {
        self.included.get(segment.ix()).is_some_and(|&included| included)
    }
}

impl PrefixTree {
    /// What leases keep; the rest is only cached.
    pub fn leased(&self) -> Leased {
        self.leased
    }

    /// Increments the reference count of `segment`; the first reference also references the parent.
    pub(super) fn add_user(&mut self, segment: SegmentId) {
        let mut at = Some(segment);
        while let Some(id) = at {
            let used = self.at_mut(id);
            used.users += 1;
            at = used.parent.filter(|_| used.users == 1);
            if used.users == 1 {
                self.leased.tokens += self.held(id);
                self.leased.pages += self.own_pages(id);
                self.note_behind(id);
            }
        }
    }

    /// Decrements the reference count of `segment`; with the last reference, that of the parent too.
    pub(super) fn remove_user(&mut self, segment: SegmentId) {
        let mut at = Some(segment);
        while let Some(id) = at {
            let used = self.at_mut(id);
            used.users -= 1;
            at = used.parent.filter(|_| used.users == 0);
            if used.users == 0 {
                self.leased.tokens -= self.held(id);
                self.leased.pages -= self.own_pages(id);
                self.cache_states(id);
            }
        }
    }

    /// The number of pages of the path of `segment`, counted as if it shared none and none were freed.
    pub fn path_pages(&self, segment: SegmentId) -> u32 {
        count(self.pages_between(0, self.end(segment)))
    }

    /// Adds the segments that only the single lease on `segment` keeps; none if it has several leases. Returns the
    /// number of their pages.
    pub fn add_alone(&self, usage: &mut Usage, segment: SegmentId) -> usize {
        usage.included.resize(self.arena.len(), false);
        let before = usage.pages;
        for id in self.ancestry(segment).take_while(|&id| self.at(id).users == 1) {
            usage.included[id.ix()] = true;
            usage.pages += self.own_pages(id);
        }
        usage.pages - before
    }

    /// Adds the path of `segment`.
    pub fn add_path(&self, usage: &mut Usage, segment: SegmentId) {
        let Usage { included, pages, to_lay, tokens } = usage;
        for id in self.include_path(included, segment) {
            *pages += self.own_pages(id);
            *to_lay += self.to_lay(self.at(id));
            *tokens += self.held(id);
        }
    }

    /// Adds the segments that contain the first `upto` positions of the path of `segment`, the last one whole.
    pub fn add_beginning(&self, usage: &mut Usage, segment: SegmentId, upto: u32) {
        if let Some(last) = self.holder(segment, upto) {
            self.add_path(usage, last);
        }
    }

    /// Adds the segments that contain the first `upto` positions of a path admitted just now, counting `gain` pages for
    /// them: admitting may have split segments of the set, so their pages cannot be counted again.
    pub fn add_new_path(&self, usage: &mut Usage, segment: SegmentId, upto: u32, gain: usize) {
        if let Some(last) = self.holder(segment, upto) {
            self.include_path(&mut usage.included, last).for_each(drop);
        }
        usage.pages += gain;
    }

    /// Includes the segments of a path; yields those that were not included before.
    fn include_path(&self, included: &mut Vec<bool>, segment: SegmentId) -> impl Iterator<Item = SegmentId> {
        included.resize(self.arena.len(), false);
        self.ancestry(segment).take_while(|id| !std::mem::replace(&mut included[id.ix()], true))
    }

    /// The number of pages that `path` and `rest` (see `admit_behind`) would add to the set, if admitted and continued
    /// up to position `end`, which is not before the end of its tokens: as many as it has at any time.
    pub fn gain<'a>(&self, usage: &Usage, path: PathStart, rest: impl Into<PathTokens<'a>>, end: u32) -> usize {
        let known = self.find(path, rest.into());
        let at = count(known.tokens);
        known.segment.map_or(0, |segment| self.unused_upto(usage, segment, at)) + self.to_admit(at, end)
    }

    /// The number of pages that `gain` counts, for a branch that continues the path of `segment`.
    pub fn gain_after(&self, usage: &Usage, segment: SegmentId, end: u32) -> usize {
        let at = self.end(segment);
        self.unused_upto(usage, segment, at) + self.pages_between(at, end)
    }

    /// A lower bound of the pages of `alone` (see `add_alone`) that `path` and `rest` (see `admit_behind`) share, and
    /// so would keep in use after that lease has ended.
    pub fn shared_with_one<'a>(&self, alone: &Usage, path: PathStart, rest: impl Into<PathTokens<'a>>) -> usize {
        let known = self.find(path, rest.into());
        let ancestry = known.segment.into_iter().flat_map(|segment| self.ancestry(segment));
        // Segments that got other users since they were added are counted with those.
        let of_one = ancestry.filter(|&id| alone.includes(id) && self.at(id).users == 1);
        of_one.map(|id| self.own_pages_upto(id, count(known.tokens))).sum()
    }

    /// The number of pages of the path of `segment` up to position `upto` that are not in the set, existing ones and
    /// those that its prompts still take. May exceed what the tokens need if the path was split inside a page.
    fn unused_upto(&self, usage: &Usage, segment: SegmentId, upto: u32) -> usize {
        let pages = |id| self.own_pages_upto(id, upto) + self.to_lay(self.at(id));
        self.ancestry(segment).take_while(|id| !usage.includes(*id)).map(pages).sum()
    }

    /// The number of pages of `segment` up to position `upto`, without those shared with its parent.
    fn own_pages_upto(&self, segment: SegmentId, upto: u32) -> usize {
        let pages = |reach| self.pages_below(self.at(segment), reach, upto);
        let pages: usize = Reach::BOTH.into_iter().map(pages).sum();
        pages.saturating_sub(self.parents_pages(segment))
    }
}
