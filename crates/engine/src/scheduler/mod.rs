//! The scheduler decides which branches get rows in the next step: decoding branches first, then prompts and given
//! tokens, in chunks that fill the step. While pages are short, branches wait (`admission`), and the last one in the
//! queue is preempted so that earlier ones can continue. `room` decides whose pages are freed, `urgent` admits branches
//! of higher priority than those that run. The scheduler moves no data and knows no model.
//!
//! # Last logits
//! The first token after a prompt, or after the end of a branch that is forked, is sampled from the logits of the *last
//! row* of what they share. No logits are stored for that: a branch that needs logits and has nothing to compute
//! requests the last row of its path again. The row writes the same keys and values into the same slot, so nothing has
//! to be undone, and forks that request it in the same step share one row. A prompt whose forks wait for it costs no
//! extra row. This needs no memory and no eviction rule, and a dropped branch resumes in the same way.
//!
//! # Order and fairness
//! All branches with work are in one queue: by priority, then by the order of their roots, then by the order in which
//! they were made. A client that makes roots depth-first over the tree of its prompts thus runs groups with a common
//! prefix together, and finishes what has begun before more begins. There is no overtaking: only the first waiting
//! branch is admitted, and only the last running one is preempted. The first in the queue is never preempted for
//! another, so every branch of the highest priority finishes. A branch of a lower priority waits, or is preempted
//! again, as long as more urgent ones keep coming: priorities do not age here. A client that wants nobody to starve
//! raises the priority of the requests that have waited, before it makes their roots.
//!
//! # Prefixes on disk
//! If the prefix store has more of the next branch's tokens than the tree, slots for them are registered, the branch
//! holds them, and nothing is admitted until they are read (`prefix_store`). Running branches go on.
//!
//! # No prefix is computed twice
//! This holds among branches of one priority while no more urgent ones come: these take whatever room they need, also
//! that of the prefixes that less urgent branches hold, which are then computed again.
//!
//! *Lemma.* In depth-first order of the prompts' prefix tree, the prefix that a later prompt shares with an earlier one
//! is also shared by all prompts between them. So the longest cached prefix of the *first waiting* prompt covers every
//! prefix that any waiting prompt could find. *Prefix hold:* the first waiting branch leases that prefix
//! ([`PrefixHold`]); all other pages without a lease can be evicted. A preempted branch keeps the lease on its given
//! tokens, too. Both fit beside the running branches, because a branch is admitted only while every branch could still
//! finish alone beside all given tokens (`admission`). So prompts cost exactly as many rows as their prefix tree has
//! tokens, whatever the sampled lengths, if prompts come depth-first and the pool holds any one path with each of its
//! levels on pages of its own.
//!
//! # No token is scored twice
//! Given tokens that are scored are registered like a prompt, so that other branches match them at once. A step
//! requests the logits of each of their rows for one branch ([`ScoreClaims`](super::claims)). Branches behind it on the
//! same path leave those rows out, request what comes after in the same step, and take the scores over when they are
//! committed. Nobody waits for another: if a score does not come, because its branch was cancelled or preempted, they
//! request it themselves. So all choices of a question run in one step, and thousands of prompts with one beginning in
//! full steps.

mod room;
mod single;
mod urgent;

use std::collections::BTreeSet;
use std::ops::Bound;

use crate::admission::{AdmissionCost, Commitment, LengthEstimator};
use crate::branch::{Branch, BranchWork, KvHold, NeededPositions, Stage};
use crate::cache::{Branches, KvCache};
use crate::place::{Priority, QueueKey};
use crate::schedule::{Schedule, StepRoom, first_row};
use offshoot_core::ids::BranchId;

/// The lease of the first waiting branch on its longest cached prefix.
#[derive(Clone, Copy, Debug)]
struct PrefixHold {
    branch: BranchId,
    /// Whether it fits beside all running branches, which is so if prompts come depth-first. It is then among the last
    /// to be given up.
    promised: bool,
}

#[derive(Default)]
pub(super) struct Scheduler {
    /// Running branches, in queue order.
    running: Vec<QueueKey>,
    /// Admitted before, then preempted.
    preempted: BTreeSet<QueueKey>,
    /// Never admitted, or gave way to more urgent ones.
    waiting: BTreeSet<QueueKey>,
    /// Branches that got work while the engine was paused. They count as resting until it is resumed.
    held: BTreeSet<QueueKey>,
    /// Branches of `waiting` that may hold a path; some may have given it up since.
    waiting_keep: BTreeSet<QueueKey>,
    /// Resting branches that may hold a path; some may have given it up since.
    resting_keep: BTreeSet<BranchId>,
    /// Pins at rest.
    pinned: BTreeSet<BranchId>,
    /// Whether pins came or went since their pages were counted.
    pub pins_changed: bool,
    prefix_hold: Option<PrefixHold>,
    expected: LengthEstimator,
    /// Whether branches came or went since the last schedule.
    pub changed: bool,
    pub preemptions: u64,
}

/// Upper bounds of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBudget {
    /// Branches that run at once.
    pub max_branches: usize,
    /// Rows in all, except that decoding branches always get theirs.
    pub rows: usize,
    /// Rows that prompts and given tokens always get.
    pub prompt_rows: usize,
    /// Logits requests; at least `max_branches`, so that every branch can have one.
    pub max_logit_rows: usize,
}

/// What came of trying to admit a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Runs,
    /// It cannot fit even alone.
    Failed,
    NoRoom,
    /// Its prefix is being read from disk. Others need not wait for that.
    Reads,
    AfterCollecting,
}

/// Whether a schedule can be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Now,
    /// A branch no longer fits. It may have ended with the token in flight, so that is awaited first.
    AfterCollecting,
}

impl Scheduler {
    /// Whether no branch has work, but for those that are held.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting() == 0
    }

    /// Number of running branches.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// The running branches, in queue order.
    pub fn running_branches(&self) -> impl Iterator<Item = BranchId> {
        self.running.iter().map(|place| place.branch)
    }

    /// Number of branches that have work and do not run, but for those that are held.
    pub fn waiting(&self) -> usize {
        self.preempted.len() + self.waiting.len()
    }

    /// Number of branches that got work during a pause.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Keeps a branch that has got work from running until `release_held`.
    pub fn hold(&mut self, branch: &Branch) {
        self.held.insert(branch.key());
    }

    pub fn is_held(&self, branch: &Branch) -> bool {
        self.held.contains(&branch.key())
    }

    /// Queues the branches that are held.
    pub fn release_held(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        for place in std::mem::take(&mut self.held) {
            self.add(place.branch, branches, cache);
        }
    }

    /// Prepares for the end of all holds on keys and values: branches that run are queued as preempted ones. Returns
    /// the pins at rest, which are to be computed again.
    pub fn forget_holds(&mut self, branches: &mut Branches) -> Vec<BranchId> {
        for place in std::mem::take(&mut self.running) {
            branches.get_mut(&place.branch).expect("only branches run").stage = Stage::Preempted;
            self.preempted.insert(place);
        }
        self.waiting_keep.clear();
        self.resting_keep.clear();
        self.prefix_hold = None;
        self.pins_changed = true;
        self.changed = true;
        std::mem::take(&mut self.pinned).into_iter().collect()
    }

    /// Prepares for the end of the holds of these branches: those of them that run are queued as preempted ones. None
    /// is a pin.
    pub fn forget_holds_of(&mut self, ids: &BTreeSet<BranchId>, branches: &mut Branches) {
        let of_these = |place: &QueueKey| ids.contains(&place.branch);
        let (these, others) = std::mem::take(&mut self.running).into_iter().partition(of_these);
        self.running = others;
        for place in these {
            branches.get_mut(&place.branch).expect("only branches run").stage = Stage::Preempted;
            self.preempted.insert(place);
        }
        self.prefix_hold = self.prefix_hold.filter(|hold| !ids.contains(&hold.branch));
        self.changed = true;
    }

    /// Queues a branch that has got work.
    pub fn add(&mut self, id: BranchId, branches: &mut Branches, cache: &mut KvCache) {
        let branch = branches.get_mut(&id).expect("only a branch gets work");
        branch.stage = Stage::Waiting;
        let place = branch.key();
        self.resting_keep.remove(&id);
        if branch.kept().is_some() {
            self.waiting_keep.insert(place);
        }
        self.waiting.insert(place);
        self.changed = true;
        if self.waiting.first() == Some(&place) {
            self.hold_first_prefix(branches, cache);
        }
    }

    /// Records that a branch's extend is about to end, `cut` short or not. The caller then calls `remove`.
    pub fn note_end(&mut self, branch: &mut Branch, cut: bool) {
        self.expected.note(branch, cut);
        branch.stage = Stage::Resting;
        self.note_rest(branch);
    }

    /// Records a resting branch that may hold a path.
    pub fn note_rest(&mut self, branch: &Branch) {
        if branch.is_pin && branch.kept().is_some() {
            self.pins_changed |= self.pinned.insert(branch.id);
        } else if branch.kept().is_some() {
            self.resting_keep.insert(branch.id);
        }
    }

    /// Forgets a resting branch.
    pub fn forget(&mut self, id: BranchId) {
        self.resting_keep.remove(&id);
        self.pins_changed |= self.pinned.remove(&id);
    }

    /// Pins whose prefixes are computed.
    pub fn pins(&self) -> impl Iterator<Item = BranchId> {
        self.pinned.iter().copied()
    }

    /// Removes branches whose work has ended, in rising order.
    pub fn remove(&mut self, gone: &[BranchId], branches: &Branches) {
        self.running.retain(|place| gone.binary_search(&place.branch).is_err());
        // It may return without the path it held.
        self.prefix_hold = self.prefix_hold.filter(|hold| gone.binary_search(&hold.branch).is_err());
        for branch in gone.iter().filter_map(|id| branches.get(id)) {
            self.leave(branch.key());
        }
        self.changed = true;
    }

    /// Checks that running branches are in queue order, that pins have their paths, and that every branch that holds a
    /// path, and neither runs nor was preempted, is recorded. `Err` names one that is not.
    pub fn check(&self, branches: &Branches) -> Result<(), String> {
        if !self.running.is_sorted() {
            return Err(format!("running branches are not in queue order: {:?}", self.running));
        }
        let keeps = |id: &BranchId| branches.get(id).is_some_and(|branch| branch.is_pin && branch.kept().is_some());
        if let Some(id) = self.pinned.iter().find(|id| !keeps(id)) {
            return Err(format!("pin {id} has lost its path"));
        }
        let is_known = |branch: &Branch| match branch.stage {
            Stage::Resting => match branch.is_pin {
                true => self.pinned.contains(&branch.id),
                false => self.resting_keep.contains(&branch.id),
            },
            Stage::Waiting => self.waiting_keep.contains(&branch.key()),
            Stage::Running | Stage::Preempted => true,
        };
        match branches.values().find(|branch| branch.kept().is_some() && !is_known(branch)) {
            Some(branch) => Err(format!("branch {} is {:?} and keeps a path unnoticed", branch.id, branch.stage)),
            None => Ok(()),
        }
    }

    /// The first branch in the queue, after the place `passed`, that does not run.
    fn next_queued(&self, passed: Option<QueueKey>) -> Option<QueueKey> {
        let after = (passed.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let preempted = self.preempted.range(after).next();
        preempted.into_iter().chain(self.waiting.range(after).next()).min().copied()
    }

    /// Removes `place` from the branches that do not run.
    fn leave(&mut self, place: QueueKey) {
        let _ = self.preempted.remove(&place) || self.waiting.remove(&place) || self.held.remove(&place);
        self.waiting_keep.remove(&place);
    }

    /// The rows of the next step, each with a slot, and the logits requests. Fails branches that cannot fit even alone.
    pub fn next_rows(&mut self, branches: &mut Branches, cache: &mut KvCache, budget: StepBudget) -> Schedule {
        self.changed = false;
        if self.keep_running(branches, cache) == Ready::AfterCollecting
            || self.admit_urgent(branches, cache, budget) == Ready::AfterCollecting
        {
            return Schedule::default();
        }
        for place in &self.running {
            cache.take_over_known(branches.get_mut(&place.branch).expect("only branches run"));
        }
        let (mut schedule, mut left) = self.rows_of_running(branches, cache, budget);
        if self.admit(branches, cache, budget, &mut schedule, &mut left) == Ready::AfterCollecting {
            return Schedule::default();
        }
        self.hold_first_prefix(branches, cache);
        if cache.prefix.has_states() {
            self.spare_waiting(branches, cache);
        }
        cache.prefix.depth_first_by(&mut schedule.rows, |row| row.at);
        schedule
    }

    /// Reserves slots for running branches in queue order; while slots are short, less urgent branches give way, then
    /// the last one is preempted.
    fn keep_running(&mut self, branches: &mut Branches, cache: &mut KvCache) -> Ready {
        let mut at = 0;
        while let Some(&place) = self.running.get(at) {
            let id = place.branch;
            match self.reserve(id, branches, cache) {
                Ok(()) => at += 1,
                Err(_) if self.give_way(place, branches, cache) => {}
                Err(_) if self.awaits_scores(branches, cache) => return Ready::AfterCollecting,
                Err(_) if self.running.len() > 1 => self.preempt_last(branches, cache),
                Err(_) => match self.reserve_alone(id, branches, cache) {
                    Ok(Ready::Now) => at += 1,
                    Ok(Ready::AfterCollecting) => return Ready::AfterCollecting,
                    Err(short) => {
                        self.running.clear();
                        single::fail_alone(id, branches, cache, short);
                    }
                },
            }
        }
        Ready::Now
    }

    /// Whether pages behind windows will be free once the scores or values in flight are collected: until then a branch
    /// may have to compute their rows itself.
    fn awaits_scores(&self, branches: &Branches, cache: &KvCache) -> bool {
        let is_scored = |branch: &Branch| matches!(branch.work, BranchWork::Score(_) | BranchWork::Values(_));
        let awaits = |branch: &Branch| is_scored(branch) && branch.in_flight() > 0;
        cache.prefix.groups().window().is_some() && self.running.iter().any(|place| awaits(&branches[&place.branch]))
    }

    /// The rows of decoding branches, then those of prompts and given tokens as far as the step has room; and the room
    /// that is left.
    fn rows_of_running(&self, branches: &Branches, cache: &KvCache, budget: StepBudget) -> (Schedule, StepRoom) {
        let (mut decodes, mut chunks) = (Vec::with_capacity(self.running.len()), Vec::new());
        for branch in self.running.iter().map(|place| &branches[&place.branch]) {
            let Some(need) = branch.need() else { continue };
            let (first, next) = (first_row(branch, &need, cache), need.logits_from + 1);
            if first + 1 >= need.end {
                decodes.push((branch, need));
            } else if first == need.logits_from && matches!(branch.work, BranchWork::Sample(_)) {
                // The first of several forced tokens is decoded in any case, so that the branch goes on.
                decodes.push((branch, NeededPositions { end: next, ..need }));
                chunks.push((branch, NeededPositions { logits_from: next, ..need }));
            } else {
                chunks.push((branch, need));
            }
        }
        let mut schedule = Schedule::for_rows(self.running.len());
        for place in &self.running {
            schedule.note_in_flight(&branches[&place.branch], cache);
        }
        let mut left = StepRoom { rows: usize::MAX, logit_rows: budget.max_logit_rows };
        for (branch, need) in decodes {
            schedule.take_rows(branch, need, cache, &mut left);
        }
        left.rows = budget.rows.saturating_sub(schedule.rows.len()).max(budget.prompt_rows);
        for (branch, need) in chunks {
            schedule.take_rows(branch, need, cache, &mut left);
        }
        (schedule, left)
    }

    /// Admits branches in queue order while the step has rows for them and pages are expected to suffice; a branch that
    /// would run alone is always admitted. A branch for which the step has no rows is not admitted, so it holds no
    /// pages. A branch whose prefix is being read from disk stays in the queue; the branches behind it are tried.
    fn admit(
        &mut self,
        branches: &mut Branches,
        cache: &mut KvCache,
        budget: StepBudget,
        schedule: &mut Schedule,
        left: &mut StepRoom,
    ) -> Ready {
        if self.waiting() == 0 || self.running.len() >= budget.max_branches {
            return Ready::Now;
        }
        let mut committed: Option<(Priority, Commitment)> = None;
        let mut passed = None;
        while self.running.len() < budget.max_branches
            && let Some(place) = self.next_queued(passed)
        {
            let commitment = match &mut committed {
                Some((priority, commitment)) if *priority == place.priority => commitment,
                _ => &mut committed.insert((place.priority, self.commitment(place.priority, branches, cache))).1,
            };
            let has_rows = left.rows > 0 || single::new_rows(&branches[&place.branch], cache) == 0;
            if !(has_rows || self.running.is_empty()) {
                return Ready::Now;
            }
            match self.enter(place, commitment, branches, cache) {
                Entry::Runs => {
                    let branch = branches.get_mut(&place.branch).expect("it was admitted just now");
                    cache.take_over_known(branch);
                    schedule.note_in_flight(branch, cache);
                    if let Some(need) = branch.need() {
                        schedule.take_rows(branch, need, cache, left);
                    }
                }
                Entry::Failed => {}
                Entry::NoRoom => return Ready::Now,
                Entry::Reads => passed = Some(place),
                Entry::AfterCollecting => return Ready::AfterCollecting,
            }
        }
        Ready::Now
    }

    /// The cost of the queued branch at `place`, and whether pages are expected to suffice for it, after those behind
    /// the windows of prompts were freed if need be.
    fn fit(
        &mut self,
        place: QueueKey,
        commitment: &mut Commitment,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> (AdmissionCost, bool) {
        let cost = commitment.cost(&branches[&place.branch], cache, &self.expected);
        if commitment.allows(cost, cache) {
            return (cost, true);
        }
        if self.free_behind_prompts(place.branch, branches, cache) == 0 {
            return (cost, false);
        }
        *commitment = self.commitment(place.priority, branches, cache);
        let cost = commitment.cost(&branches[&place.branch], cache, &self.expected);
        (cost, commitment.allows(cost, cache))
    }

    /// Admits the branch at `place` of the queue if pages are expected to suffice, or if it would run alone.
    fn enter(
        &mut self,
        place: QueueKey,
        commitment: &mut Commitment,
        branches: &mut Branches,
        cache: &mut KvCache,
    ) -> Entry {
        let (id, alone) = (place.branch, self.running.is_empty());
        if let Some(needed) = single::never_fits(&branches[&id], cache) {
            self.leave(place);
            single::fail(id, branches, cache, needed);
            return Entry::Failed;
        }
        let (cost, fits) = self.fit(place, commitment, branches, cache);
        if !(alone || fits) {
            return Entry::NoRoom;
        }
        if self.is_read(id, branches, cache) {
            return Entry::Reads;
        }
        let entered = match self.reserve(id, branches, cache) {
            Err(_) if alone => self.reserve_alone(id, branches, cache),
            reserved => reserved.map(|()| Ready::Now),
        };
        let branch = branches.get_mut(&id).expect("only branches wait");
        match entered {
            Ok(Ready::Now) => {
                self.leave(place);
                branch.stage = Stage::Running;
                commitment.add(branch, cost, cache);
                self.running.insert(self.running.partition_point(|&other| other < place), place);
                Entry::Runs
            }
            Ok(Ready::AfterCollecting) => Entry::AfterCollecting,
            Err(short) if alone => {
                self.leave(place);
                single::fail_alone(id, branches, cache, short);
                Entry::Failed
            }
            Err(_) => {
                if !matches!(branch.hold, KvHold::Swapped(_)) {
                    cache.release(branch);
                    self.hold_prefix_of(branch, cache);
                }
                Entry::NoRoom
            }
        }
    }
}
