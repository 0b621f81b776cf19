//! What branches hold of the prefix tree and its pages, and how a shortage is met: cached segments go first, then the leases
//! of branches that rest (their segments become cache). Whom to drop when that does not suffice is the scheduler's.

use std::collections::BTreeMap;

use crate::engine::branch::{Branch, Lease, Need};
use crate::ids::{BranchId, SegmentId};
use crate::kv::{OutOfPages, PagePool, PrefixTree};

pub(super) type Branches = BTreeMap<BranchId, Branch>;

pub(super) struct Cache {
    pub prefix: PrefixTree,
    pub pages: PagePool,
}

impl Cache {
    pub fn new(page_tokens: u32, pages: usize) -> Self {
        Cache { prefix: PrefixTree::new(page_tokens), pages: PagePool::new(pages) }
    }

    /// Reserves slots for all that `branch` needs next. A branch that comes (back) to run is matched with what is known: a
    /// fork's siblings that were given the same tokens share them, and a branch that was dropped finds what is left of it.
    /// One that runs already goes on alone, in a segment of its own. What was reserved before a failure stays.
    pub fn reserve(&mut self, branch: &mut Branch, need: Need) -> Result<(), OutOfPages> {
        if !branch.lease.is_some_and(|lease| lease.used) {
            let segment = self.prefix.admit(&mut self.pages, &branch.tokens[..need.match_upto])?;
            self.give_up(branch);
            branch.lease = Some(Lease { segment, own: false, used: true });
        }
        let lease = branch.lease.expect("it was there or was made just now");
        let end = self.prefix.end(lease.segment) as usize;
        if end >= need.end {
            return Ok(());
        }
        let segment = if lease.own { lease.segment } else { self.prefix.fork(lease.segment) };
        if !lease.own {
            self.prefix.release(lease.segment);
        }
        branch.lease = Some(Lease { segment, own: true, used: true });
        self.prefix.append(&mut self.pages, segment, &branch.tokens[end..need.end])
    }

    /// Ends a branch's lease; what it held stays as a cache. Returns the segment.
    pub fn give_up(&mut self, branch: &mut Branch) -> Option<SegmentId> {
        let lease = branch.lease.take()?;
        self.prefix.release(lease.segment);
        Some(lease.segment)
    }

    /// Ends a branch's lease and frees what nobody else needs of it.
    pub fn drop_now(&mut self, branch: &mut Branch) {
        if let Some(segment) = self.give_up(branch) {
            self.prefix.drop_unused(&mut self.pages, segment);
        }
    }

    /// Tries to have `pages` free pages. `idle` are branches that nobody computes at present.
    pub fn make_room<'a>(&mut self, pages: usize, idle: impl Iterator<Item = &'a mut Branch>) -> bool {
        if self.evict_for(pages) {
            return true;
        }
        for branch in idle {
            self.give_up(branch);
        }
        self.evict_for(pages)
    }

    /// Frees everything that no lease keeps.
    pub fn evict_all(&mut self) {
        self.prefix.evict(&mut self.pages, usize::MAX);
    }

    fn evict_for(&mut self, pages: usize) -> bool {
        let short = pages.saturating_sub(self.pages.free());
        self.prefix.evict(&mut self.pages, short) >= short
    }
}
