//! Where pages come from when there are too few. In this order: what is only cached, least recently used first; what
//! branches at rest hold; what branches hold that wait, the last in line first, but for the promised prefix hold;
//! the own tokens of the last branch that runs, and of the next to last, and so on until one runs alone. Only then,
//! which happens where a pool holds one path barely or not at all: its own tokens, laid out anew; what those keep that
//! preempted; and the prefix hold.
//!
//! # Preemption
//! A preempted branch is *swapped* where that is expected to take less time than to compute its own tokens again and
//! host memory has room, else *dropped*. In either case it keeps a lease on what it was given, its tokens, its place
//! among the uniforms and in the line, and the samples that were submitted.

use super::{PrefixHold, QueueKey, Ready, Scheduler};
use crate::engine::admission::Commitment;
use crate::engine::branch::{Branch, KvHold, Stage};
use crate::engine::cache::{Branches, KvCache};
use crate::error::Error;
use crate::ids::BranchId;
use crate::kv::OutOfPages;

impl Scheduler {
    /// Lets the first waiting branch hold its longest cached prefix. When another branch becomes the first, its prefix
    /// is looked up anew.
    pub(super) fn hold_first_prefix(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        let Some(first) = self.waiting.first().map(|place| place.branch) else {
            self.prefix_hold = None;
            return;
        };
        if !self.has_promised(first) {
            self.prefix_hold = None;
            self.hold_prefix_of(branches.get_mut(&first).expect("what waits is a branch"), cache);
            let promised = self.commitment(branches, cache).affords(&branches[&first], cache);
            self.prefix_hold = Some(PrefixHold { branch: first, promised });
        }
    }

    /// Has all that run give back the pages that their windows have passed. What is loaded then reads freed pages, and
    /// is not to be advanced.
    pub fn free_behind(&self, branches: &Branches, cache: &mut KvCache) {
        if cache.window.is_some() {
            self.running.iter().for_each(|place| cache.free_behind(&branches[&place.branch]));
        }
    }

    /// Has `branch`, which does not run, keep what is there of its path.
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
        let branch = branches.get_mut(&place.branch).expect("what runs is a branch");
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

    /// Reserves what `id` needs, at the cost of what is cached and of branches that neither run nor were promised
    /// anything.
    pub(super) fn reserve(
        &mut self,
        id: BranchId,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> Result<(), OutOfPages> {
        loop {
            let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
            let Some(need) = branch.need() else { return Ok(()) };
            let Err(short) = cache.reserve(branch, need) else { return Ok(()) };
            if !self.make_room(short.needed, id, branches, cache) {
                return Err(short);
            }
        }
    }

    /// Tries to have `pages` free pages without taking any that runs or was promised. Looks at branches that keep a
    /// path alone.
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
        // A branch that was skipped because another extends its path is tried again when that one has given up its
        // pages.
        let mut gave_up = true;
        while std::mem::take(&mut gave_up) {
            let mut before = None;
            while let Some(place) = self.last_keeping(before) {
                before = Some(place);
                if place.branch == id || self.has_promised(place.branch) {
                    continue;
                }
                let other = branches.get_mut(&place.branch).expect("what waits is a branch");
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

    /// Of those that wait and may keep a path, the last in line, or the last that stands before another.
    fn last_keeping(&self, before: Option<QueueKey>) -> Option<QueueKey> {
        match before {
            Some(before) => self.waiting_keep.range(..before).next_back().copied(),
            None => self.waiting_keep.last().copied(),
        }
    }

    /// The last resort of a branch that runs alone: its own tokens are laid out anew, for segments that were split
    /// inside a page take more pages than their tokens need; then, in a pool that holds nothing else, all of it.
    /// Whether a branch fits must depend on neither.
    pub(super) fn reserve_alone(
        &mut self,
        id: BranchId,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> Result<Ready, OutOfPages> {
        let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
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
        branches.get_mut(&id).expect("what runs or waits is a branch").start_over();
        self.reserve(id, branches, cache).map(|()| Ready::Now)
    }
}

/// Whether `branch`, which waits, would bring rows of its own to a step: not if all that it was given is there or on
/// its way.
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

/// Tells `id`, which runs alone, that even so there are too few pages for it.
pub(super) fn fail(id: BranchId, branches: &mut Branches, cache: &mut KvCache, short: OutOfPages) {
    let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
    // Whatever is not free now is its own.
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

    /// Branches at rest, each on a page of its own, and one that is to run and has none.
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
    fn branches_at_rest_are_looked_at_once_however_often_room_is_made() {
        let (mut scheduler, mut branches, mut cache, new) = resting();
        assert!(scheduler.make_room(1, new, &mut branches, &mut cache));
        assert!(branches.values().all(|branch| branch.kept().is_none()), "all of them are cache now");
        assert!(scheduler.resting_keep.is_empty(), "nobody is left to be looked at");
        assert_eq!(cache.pages.free(), 1, "and no more than one page was freed");
        // What was made first is the first to go.
        let known = |id: u32| cache.prefix.known(None, &[TokenId(4 * id)]).0;
        assert_eq!([0, 1, 2, 999].map(known), [0, 1, 1, 1]);
    }

    #[test]
    fn of_those_that_wait_the_last_in_line_gives_up_first() {
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
