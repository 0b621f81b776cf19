//! How many pages and tokens a set of paths holds, each counted once however many of them share it.

use super::{PrefixTree, Segment, count};
use crate::ids::{SegmentId, TokenId};

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
}

impl PrefixTree {
    /// What leases keep: all but what is only cached.
    pub fn leased(&self) -> Usage {
        let mut usage = Usage::default();
        for (ix, segment) in self.arena.iter().enumerate() {
            if segment.as_ref().is_some_and(|segment| segment.leases > 0) {
                self.add_path(&mut usage, SegmentId::new(ix));
            }
        }
        usage
    }

    /// Adds the path of `segment`, and the pages that nothing in use holds yet.
    pub fn add_path(&self, usage: &mut Usage, segment: SegmentId) {
        let Usage { met, pages, tokens } = usage;
        for id in self.new_to(met, segment) {
            *pages += self.at(id).pages.len() - usize::from(self.begins_in_parents_page(id));
            *tokens += self.at(id).len() as usize;
        }
    }

    /// Whether the first page of `segment` is the last one of its parent, by a split.
    fn begins_in_parents_page(&self, segment: SegmentId) -> bool {
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

    /// Adds what holds the first `upto` positions of a path that was made just now, and is known to gain so many pages: for
    /// that, segments in use may have been split.
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

    /// Pages that a branch of `tokens` would add to those in use, if it were matched with what is there and continued up to
    /// position `end`, no earlier than the tokens end.
    pub fn gain(&self, usage: &Usage, tokens: &[TokenId], end: u32) -> usize {
        let known = self.find(tokens);
        let at = count(known.tokens);
        known.segment.map_or(0, |segment| self.unused_upto(usage, segment, at)) + self.pages_between(at, end)
    }

    /// The same for a branch that continues the path of `segment`.
    pub fn gain_after(&self, usage: &Usage, segment: SegmentId, end: u32) -> usize {
        let at = self.end(segment);
        self.unused_upto(usage, segment, at) + self.pages_between(at, end)
    }

    /// Pages of the path of `segment` up to position `upto` that are there and not in use. Where it was divided inside a page,
    /// they are more than its tokens need.
    fn unused_upto(&self, usage: &Usage, segment: SegmentId, upto: u32) -> usize {
        let is_new = |id: &SegmentId| !usage.met.get(id.ix()).is_some_and(|&met| met);
        let pages = |id: SegmentId| {
            let Segment { first_position, .. } = *self.at(id);
            let pages = self.pages_between(first_position, self.end(id).min(upto));
            pages.saturating_sub(usize::from(self.begins_in_parents_page(id)))
        };
        self.ancestry(segment).take_while(is_new).map(pages).sum()
    }
}
