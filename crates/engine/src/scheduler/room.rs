//! Frees pages when they are short, in this order: cached pages without a lease, least recently used first; pages held
//! by resting branches; pages of prompts behind the windows of all rows to come; by waiting branches, last in the queue
//! first, except for a prefix hold that is promised and not less urgent; by less urgent branches that were admitted
//! (`urgent`); the own tokens of the last running branch, then the next to last, until one runs alone. Only if the pool
//! barely holds one path follow that branch's own tokens, laid out anew; the holds of preempted branches; and the
//! prefix hold. Of pins only pages behind the windows of layers are freed.
//!
//! # Preemption
//! A preempted branch is *swapped* to host memory if that is expected to be faster than recomputing its own tokens and
//! there is room, else *dropped*. Either way it keeps its tokens, its uniforms, its place in the queue, and its
//! submitted samples; and the lease on its given tokens, which only more urgent branches can take.

use std::ops::Bound;

use super::single::put_away;
use super::{PrefixHold, Ready, Scheduler};
use crate::admission::Commitment;
use crate::branch::{Branch, Stage};
use crate::cache::{Branches, KvCache};
use crate::place::{Priority, QueueKey};
use crate::prefix_store::ReadState;
use offshoot_core::ids::BranchId;
use offshoot_kv::OutOfPages;

/// When pages behind windows are freed, and where states are kept, the prefixes of so many waiting branches are looked
/// up and spared, and those of the first waiting branch of so many roots.
const SPARED: usize = 64;

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
            let branch = &branches[&first];
            let promised = self.commitment(branch.priority, branches, cache).affords(branch, cache);
            self.prefix_hold = Some(PrefixHold { branch: first, promised });
        }
    }

    /// Frees the pages of running branches that their windows have passed. The loaded step then reads freed pages and
    /// must not be advanced.
    pub fn free_behind(&self, branches: &Branches, cache: &mut KvCache) {
        if cache.prefix.groups().window().is_some() {
            self.running.iter().for_each(|place| cache.free_behind(&branches[&place.branch]));
        }
    }

    /// Frees the pages of prompts that the windows of all rows to come have passed: those of running branches, and of
    /// `taker`, for which pages are short. The first waiting branches, and the first ones of the first roots among
    /// them, will still find the windows before the ends of the prefixes that they share with these prompts. Returns
    /// the number of pages freed.
    pub(crate) fn free_behind_prompts(
        &mut self,
        taker: BranchId,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> usize {
        if cache.prefix.groups().window().is_none() {
            return 0;
        }
        let computing = self.running.iter().map(|place| place.branch).chain([taker]);
        let again: Vec<_> = computing.filter_map(|id| cache.first_row_again(branches.get(&id)?)).collect();
        if !cache.prefix.is_behind_prompts(&again) {
            return 0;
        }
        self.spare_waiting(branches, cache);
        let freed = cache.prefix.free_behind_prompts(&mut cache.pages, &again);
        self.pins_changed |= freed > 0;
        freed
    }

    /// Splits prompts where the first waiting branches, and the first ones of the first roots among them, part from
    /// them: the window before the end of a segment is spared when pages are freed, and the state there is kept when it
    /// is computed.
    pub(super) fn spare_waiting(&self, branches: &mut Branches, cache: &mut KvCache) {
        let first_of_next_root = |place: &QueueKey| {
            let last_of_root = QueueKey { branch: BranchId(u64::MAX), ..*place };
            self.waiting.range((Bound::Excluded(last_of_root), Bound::Unbounded)).next().copied()
        };
        let of_roots = std::iter::successors(self.waiting.first().copied(), first_of_next_root).take(SPARED);
        for place in self.waiting.iter().copied().take(SPARED).chain(of_roots) {
            cache.spare(branches.get_mut(&place.branch).expect("only branches wait"));
        }
    }

    /// Whether `id` waits for a prefix that is being read from disk; begins to read its own if it is there.
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
            self.waiting_keep.insert(branch.key());
        }
    }

    /// Whether the waiting branch `id` holds a prefix that running branches must not take.
    fn has_promised(&self, id: BranchId) -> bool {
        self.prefix_hold.is_some_and(|hold| hold.promised && hold.branch == id)
    }

    /// The commitment to all branches that run, are preempted, or hold the promised prefix, and to pins, for a branch
    /// of `priority`.
    pub(super) fn commitment(&self, priority: Priority, branches: &Branches, cache: &KvCache) -> Commitment {
        self.commitment_without(priority, branches, cache, |_| false)
    }

    /// The commitment as if admitted branches at the places `without` had given way.
    pub(super) fn commitment_without(
        &self,
        priority: Priority,
        branches: &Branches,
        cache: &KvCache,
        without: impl Fn(QueueKey) -> bool,
    ) -> Commitment {
        let admitted = self.running.iter().chain(&self.preempted).filter(|place| !without(**place));
        let first_waiting = self.prefix_hold.filter(|hold| hold.promised).map(|hold| hold.branch);
        let keeping = admitted.map(|place| place.branch).chain(first_waiting).chain(self.pins());
        Commitment::of(priority, keeping.filter_map(|id| branches.get(&id)), cache, &self.expected)
    }

    /// Preempts the last running branch, which keeps its given tokens.
    pub(super) fn preempt_last(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        let last = self.take_last_running();
        let branch = branches.get_mut(&last.branch).expect("only branches run");
        branch.stage = Stage::Preempted;
        self.preempted.insert(last);
        put_away(branch, cache);
    }

    /// Removes the last running branch, of which there is one, from those that run.
    pub(super) fn take_last_running(&mut self) -> QueueKey {
        self.preemptions += 1;
        self.running.pop().expect("the caller knows that a branch runs")
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

    /// Tries to free `pages` pages without taking any from running branches or the promised prefix. Visits only
    /// branches that hold a path.
    fn make_room(&mut self, pages: usize, id: BranchId, branches: &mut Branches, cache: &mut KvCache) -> bool {
        if cache.evict_for(pages) {
            return true;
        }
        for resting in std::mem::take(&mut self.resting_keep) {
            if let Some(branch) = branches.get_mut(&resting).filter(|branch| branch.stage == Stage::Resting) {
                cache.release(branch); // It becomes cache, what was made first the first to go.
            }
        }
        self.free_behind_prompts(id, branches, cache);
        if cache.evict_for(pages) {
            return true;
        }
        let taker = branches[&id].key();
        // A branch that was skipped because another one extends its path is tried again once that one has given up
        // its pages.
        let mut gave_up = true;
        while std::mem::take(&mut gave_up) {
            let mut before = None;
            while let Some(place) = self.last_keeping(before) {
                before = Some(place);
                let is_promised = self.has_promised(place.branch) && !taker.is_more_urgent_than(place);
                if place.branch == id || is_promised {
                    continue;
                }
                let other = branches.get_mut(&place.branch).expect("only branches wait");
                let gives_up = cache.keeps_pages(other);
                if gives_up {
                    cache.release(other);
                    self.prefix_hold = self.prefix_hold.filter(|hold| hold.branch != place.branch);
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

    /// Last resort for a branch that runs alone: lays out its own tokens anew, because segments split inside a page
    /// take more pages than their tokens need; then all of its tokens, in an otherwise empty pool. So whether a branch
    /// fits does not depend on history.
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
        cache.release(branch);
        cache.hold_prefix(branch);
        cache.evict_all();
        if self.reserve(id, branches, cache).is_ok() {
            return Ok(Ready::Now);
        }
        for branch in branches.values_mut().filter(|branch| !self.pinned.contains(&branch.id)) {
            cache.release(branch);
        }
        self.prefix_hold = None;
        cache.evict_all();
        self.reserve(id, branches, cache).map(|()| Ready::Now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::{KvHold, Lease, NeededPositions};
    use crate::cache::RestoreCost;
    use offshoot_core::ids::TokenId;
    use offshoot_kv::{PathStart, PrefixTree};

    const RESTING: u64 = 1000;

    /// Resting branches with one page each, and one branch to run that has none.
    fn resting() -> (Scheduler, Branches, KvCache, BranchId) {
        let restore_cost = RestoreCost { page_bytes: 1, state_bytes: 0, swapped_byte: 1.0, computed_row: 1.0 };
        let mut cache = KvCache::new(PrefixTree::new(4), RESTING as usize, 0, restore_cost);
        let (mut scheduler, mut branches) = (Scheduler::default(), Branches::default());
        for id in (0..RESTING).map(BranchId) {
            let mut branch = Branch::root(id, (0..4).map(|n| TokenId::new(4 * id.ix() + n)).collect());
            cache
                .reserve(&mut branch, NeededPositions { match_upto: 4, logits_from: 3, end: 4 })
                .expect("there is a page for each");
            scheduler.note_rest(&branch);
            branches.insert(id, branch);
        }
        let new = BranchId(RESTING);
        branches.insert(new, Branch::root(new, vec![TokenId(0); 4]));
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
        let known = |id: u32| cache.prefix.known(PathStart::FIRST, &[TokenId(4 * id)]).0;
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
            let place = branch.key();
            scheduler.waiting.insert(place);
            scheduler.hold_prefix_of(branch, &mut cache);
        }
        assert!(scheduler.make_room(2, new, &mut branches, &mut cache));
        let keep = |id: u64| branches[&BranchId(id)].kept().is_some();
        assert_eq!([0, 997, 998, 999].map(keep), [true, true, false, false]);
        assert_eq!(scheduler.waiting_keep.len(), 998);
    }
}
