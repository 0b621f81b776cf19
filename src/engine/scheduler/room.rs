//! Frees pages when they are short, in this order: cached pages without a lease, least recently used first; pages held by
//! resting branches; by waiting branches, last in the queue first, except for the promised prefix hold; the own tokens
//! of the last running branch, then the next to last, until one runs alone. Only if the pool barely holds one path
//! follow that branch's own tokens, laid out anew; the holds of preempted branches; and the prefix hold.
//!
//! # Preemption
//! A preempted branch is *swapped* to host memory if that is expected to be faster than recomputing its own tokens and
//! there is room, else *dropped*. Either way it keeps the lease on its given tokens, its tokens, its uniforms, its
//! place in the queue, and its submitted samples.

use super::{PrefixHold, QueueKey, Ready, Scheduler};
use crate::engine::admission::Commitment;
use crate::engine::branch::{Branch, KvHold, Stage};
use crate::engine::cache::{Branches, KvCache};
use crate::engine::prefix_store::ReadState;
use crate::error::Error;
use crate::ids::BranchId;
use crate::kv::OutOfPages;

impl Scheduler {
    /// Leases the longest cached prefix for the first waiting branch. Looks it up again when another branch becomes the
    /// first.
    pub(super) fn hold_first_prefix(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        let Some(first) = self.waiting.first().map(|place| place.branch) else {
            self.prefix_hold = None;
            return;
        };
        if !self.has_promised(first) {
            self.prefix_hold = None;
            self.hold_prefix_of(branches.get_mut(&first).expect("only branches wait"), cache);
            let promised = self.commitment(branches, cache).affords(&branches[&first], cache);
            self.prefix_hold = Some(PrefixHold { branch: first, promised });
        }
    }

    /// Frees the pages of running branches that their windows have passed. The loaded step then reads freed pages and
    /// must not be advanced.
    pub fn free_behind(&self, branches: &Branches, cache: &mut KvCache) {
        if cache.window.is_some() {
            self.running.iter().for_each(|place| cache.free_behind(&branches[&place.branch]));
        }
    }

    /// Whether a prefix is being read from disk, for which admission waits; begins to read that of `id` if it is there.
    pub(super) fn is_read(&mut self, id: BranchId, branches: &mut Branches, cache: &mut KvCache) -> bool {
        let branch = branches.get_mut(&id).expect("only branches wait");
        let begun = cache.begin_read(branch);
        if begun == ReadState::Begun {
            self.hold_prefix_of(branch, cache);
            cache.release_read();
        }
        begun != ReadState::Nothing
    }

    /// Leases the cached prefix of `branch`, which does not run.
    pub(super) fn hold_prefix_of(&mut self, branch: &mut Branch, cache: &mut KvCache) {
        cache.hold_prefix(branch);
        if branch.stage == Stage::Waiting && branch.kept().is_some() {
            self.waiting_keep.insert(QueueKey { priority: branch.priority, branch: branch.id });
        }
    }

    /// Whether the waiting branch `id` holds a prefix that running branches must not take.
    fn has_promised(&self, id: BranchId) -> bool {
        self.prefix_hold.is_some_and(|hold| hold.promised && hold.branch == id)
    }

    /// The commitment to all branches that run, are preempted, or hold the promised prefix.
    pub(super) fn commitment(&self, branches: &Branches, cache: &KvCache) -> Commitment {
        let first_waiting = self.prefix_hold.filter(|hold| hold.promised).map(|hold| hold.branch);
        let keeping = self.running.iter().chain(&self.preempted).map(|place| place.branch).chain(first_waiting);
        Commitment::of(keeping.filter_map(|id| branches.get(&id)), cache, &self.expected)
    }

    pub(super) fn preempt_last(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        let Some(place) = self.running.pop() else { return };
        let branch = branches.get_mut(&place.branch).expect("only branches run");
        branch.stage = Stage::Preempted;
        self.preempted.insert(place);
        self.preemptions += 1;
        if branch.need().is_none() {
            cache.give_up(branch); // It ends with what was submitted.
        } else if !cache.swap_out(branch) {
            branch.start_over();
            cache.give_up(branch);
            cache.hold_prefix(branch);
        }
    }

    /// Reserves the slots that `id` needs, evicting cached pages and the holds of branches that neither run nor have a
    /// promised prefix.
    pub(super) fn reserve(
        &mut self,
        id: BranchId,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> Result<(), OutOfPages> {
        loop {
            let branch = branches.get_mut(&id).expect("only branches run or wait");
            let Some(need) = branch.need() else { return Ok(()) };
            let Err(short) = cache.reserve(branch, need) else { return Ok(()) };
            if !self.make_room(short.needed, id, branches, cache) {
                return Err(short);
            }
        }
    }

    /// Tries to free `pages` pages without taking any from running branches or the promised prefix. Visits only branches
    /// that hold a path.
    fn make_room(&mut self, pages: usize, id: BranchId, branches: &mut Branches, cache: &mut KvCache) -> bool {
        if cache.evict_for(pages) {
            return true;
        }
        for resting in std::mem::take(&mut self.resting_keep) {
            if let Some(branch) = branches.get_mut(&resting).filter(|branch| branch.stage == Stage::Resting) {
                cache.give_up(branch); // It becomes cache, what was made first the first to go.
            }
        }
        if cache.evict_for(pages) {
            return true;
        }
        // A branch that was skipped because another one extends its path is tried again once that one has given up
        // its pages.
        let mut gave_up = true;
        while std::mem::take(&mut gave_up) {
            let mut before = None;
            while let Some(place) = self.last_keeping(before) {
                before = Some(place);
                if place.branch == id || self.has_promised(place.branch) {
                    continue;
                }
                let other = branches.get_mut(&place.branch).expect("only branches wait");
                let gives_up = cache.keeps_pages(other);
                if gives_up {
                    cache.give_up(other);
                }
                if other.kept().is_none() {
                    self.waiting_keep.remove(&place);
                }
                if gives_up && cache.evict_for(pages) {
                    return true;
                }
                gave_up |= gives_up;
            }
        }
        false
    }

    /// The last waiting branch in the queue (`before`: before that place) that may hold a path.
    fn last_keeping(&self, before: Option<QueueKey>) -> Option<QueueKey> {
        match before {
            Some(before) => self.waiting_keep.range(..before).next_back().copied(),
            None => self.waiting_keep.last().copied(),
        }
    }

    /// Last resort for a branch that runs alone: lays out its own tokens anew, because segments split inside a page take
    /// more pages than their tokens need; then all of its tokens, in an otherwise empty pool. So whether a branch fits
    /// does not depend on history.
    pub(super) fn reserve_alone(
        &mut self,
        id: BranchId,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> Result<Ready, OutOfPages> {
        let branch = branches.get_mut(&id).expect("only branches run or wait");
        if branch.in_flight() > 0 {
            return Ok(Ready::AfterCollecting);
        }
        branch.start_over();
        cache.give_up(branch);
        cache.hold_prefix(branch);
        cache.evict_all();
        if self.reserve(id, branches, cache).is_ok() {
            return Ok(Ready::Now);
        }
        for branch in branches.values_mut() {
            cache.give_up(branch);
        }
        self.prefix_hold = None;
        cache.evict_all();
        branches.get_mut(&id).expect("only branches run or wait").start_over();
        self.reserve(id, branches, cache).map(|()| Ready::Now)
    }
}

/// Whether the waiting `branch` would add rows to a step: false if all its given tokens are computed or scheduled.
pub(super) fn brings_rows(branch: &Branch, cache: &KvCache) -> bool {
    let known = |upto: usize| {
        let (path, rest) = cache.look_up(branch, upto);
        cache.prefix.known(path, &rest).0 as usize
    };
    match branch.hold {
        KvHold::Swapped(_) => true,
        KvHold::Nothing | KvHold::Path(_) => {
            branch.need().is_some_and(|need| need.end > need.match_upto || known(need.match_upto) < need.match_upto)
        }
    }
}

/// Fails `id`, which runs alone and for which the pool has too few pages.
pub(super) fn fail(id: BranchId, branches: &mut Branches, cache: &mut KvCache, short: OutOfPages) {
    let branch = branches.get_mut(&id).expect("only branches run or wait");
    // All pages that are not free are its own.
    let (free, capacity) = (cache.pages.free(), cache.pages.capacity());
    cache.give_up(branch);
    branch.stage = Stage::Resting;
    branch.fail(Error::OutOfPages {
        needed: capacity - free + short.needed,
        capacity,
        hint: "give the engine more memory for keys and values, or shorten the prompt",
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::branch::{Lease, NeededPositions};
    use crate::engine::cache::RestoreCost;
    use crate::ids::TokenId;

    const RESTING: u64 = 1000;

    /// Resting branches with one page each, and one branch to run that has none.
    fn resting() -> (Scheduler, Branches, KvCache, BranchId) {
        let restore_cost = RestoreCost { swapped_page: 1.0, computed_row: 1.0 };
        let mut cache = KvCache::new(4, RESTING as usize, 0, restore_cost);
        let (mut scheduler, mut branches) = (Scheduler::default(), Branches::default());
        for id in (0..RESTING).map(BranchId) {
            let mut branch = Branch::root(id, id, (0..4).map(|n| TokenId::new(4 * id.ix() + n)).collect());
            cache
                .reserve(&mut branch, NeededPositions { match_upto: 4, logits_from: 3, end: 4 })
                .expect("there is a page for each");
            scheduler.note_rest(&branch);
            branches.insert(id, branch);
        }
        let new = BranchId(RESTING);
        branches.insert(new, Branch::root(new, new, vec![TokenId(0); 4]));
        (scheduler, branches, cache, new)
    }

    #[test]
    fn making_room_visits_each_resting_branch_once() {
        let (mut scheduler, mut branches, mut cache, new) = resting();
        assert!(scheduler.make_room(1, new, &mut branches, &mut cache));
        assert!(branches.values().all(|branch| branch.kept().is_none()), "all of them are cache now");
        assert!(scheduler.resting_keep.is_empty(), "nobody is left to be looked at");
        assert_eq!(cache.pages.free(), 1, "and no more than one page was freed");
        // The oldest goes first.
        let known = |id: u32| cache.prefix.known(None, &[TokenId(4 * id)]).0;
        assert_eq!([0, 1, 2, 999].map(known), [0, 1, 1, 1]);
    }

    #[test]
    fn the_last_waiting_branch_gives_up_first() {
        let (mut scheduler, mut branches, mut cache, new) = resting();
        scheduler.resting_keep.clear();
        for id in (0..RESTING).map(BranchId) {
            let branch = branches.get_mut(&id).unwrap();
            branch.stage = Stage::Waiting;
            let lease = branch.lease().unwrap();
            branch.hold = KvHold::Path(Lease { used: false, ..lease });
            let place = QueueKey { priority: id, branch: id };
            scheduler.waiting.insert(place);
            scheduler.hold_prefix_of(branch, &mut cache);
        }
        assert!(scheduler.make_room(2, new, &mut branches, &mut cache));
        let keep = |id: u64| branches[&BranchId(id)].kept().is_some();
        assert_eq!([0, 997, 998, 999].map(keep), [true, true, false, false]);
        assert_eq!(scheduler.waiting_keep.len(), 998);
    }
}
