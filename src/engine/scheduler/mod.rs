//! Who gets rows in the next step: branches that decode first, then prompts and given tokens, in chunks that fill the
//! step. It also decides who runs at all while pages are short: branches wait to start (`admission`), and the last in
//! line yields so that those before it can go on. Whose pages are taken is `room`'s. It moves no data and knows no
//! model.
//!
//! # Last logits
//! The first token after a prompt, or after the end of a branch that is forked, is sampled from the logits of the *last
//! row* of what they share. No logits are kept for that: a branch that wants logits and has nothing to compute asks for
//! the last row of its path again. The row writes the same keys and values into the same slot, so nothing has to be
//! undone, and the forks that ask in the same step share it: one row, read by as many samples as there are forks. A
//! prompt whose forks wait for it spends no row more than its length. Nothing of this needs memory or a rule for
//! eviction, and a branch that was dropped comes back by the same way.
//!
//! # Order and fairness
//! All branches with work stand in one line: those of the root that came first go first, and of one root the branches
//! that were made first. So whoever names roots depth-first over the tree of their prompts has groups that share a
//! prefix run together, and what has begun is ended before more is begun. Nobody overtakes: only the first of those
//! that wait is let in, and only the last of those that run yields. The first in line never yields to another, so every
//! branch finishes.
//!
//! # No prefix is computed twice
//! *Lemma.* Prompts in depth-first order of their prefix tree: what a later prompt has in common with an earlier one is
//! a prefix of what the prompts between have in common with it. So the longest beginning of the *first waiting* prompt
//! that is there covers all that anybody who waits could find there. *PrefixHold:* the first branch that waits keeps a
//! lease on it; everything else without a lease is dead and goes first. Whoever yields keeps what it was given, too.
//! Both fit beside whatever runs, because a branch is let in only while every branch could still be brought to its end
//! alone beside all that was given (`admission`). So prompts cost as many rows as their prefix tree has tokens,
//! exactly, whatever the lengths turn out to be, where prompts come depth-first and the pool holds any one path (each
//! level of it from a page of its own on).

mod room;

use std::collections::BTreeSet;

use crate::engine::admission::LengthEstimator;
use crate::engine::branch::{Branch, KvHold, Stage};
use crate::engine::cache::{Branches, KvCache};
use crate::engine::schedule::{Schedule, StepRoom, first_row};
use crate::ids::BranchId;

/// Orders branches in the queue: lower keys are admitted first and preempted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct QueueKey {
    /// Its root, or the one in whose place that stands.
    priority: BranchId,
    branch: BranchId,
}

/// The lease of the first waiting branch on its longest cached prefix.
#[derive(Clone, Copy, Debug)]
struct PrefixHold {
    branch: BranchId,
    /// Whether it fits beside all that runs, which it does wherever prompts come depth-first. It is then among the last
    /// things to be given up.
    promised: bool,
}

#[derive(Default)]
pub(super) struct Scheduler {
    /// In queue order.
    running: Vec<QueueKey>,
    /// Admitted before, then preempted.
    preempted: BTreeSet<QueueKey>,
    /// Never admitted.
    waiting: BTreeSet<QueueKey>,
    /// Of the branches that wait and were never let in, all that keep a path; some may have given it up since.
    waiting_keep: BTreeSet<QueueKey>,
    /// Of the branches at rest, all that keep a path; some may have given it up since.
    resting_keep: BTreeSet<BranchId>,
    prefix_hold: Option<PrefixHold>,
    expected: LengthEstimator,
    /// Whether branches came or went since the last schedule.
    pub changed: bool,
    pub preemptions: u64,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepBudget {
    /// Branches that grow at once.
    pub max_branches: usize,
    /// Rows in all; branches that decode have theirs in any case.
    pub rows: usize,
    /// Rows that prompts and given tokens have in any case.
    pub prompt_rows: usize,
    /// Logits requests; at least `max_branches`, so that every branch can have one.
    pub max_logit_rows: usize,
}

/// Whether a schedule can be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Now,
    /// A branch fits no more; it may have ended with the token that is being sampled, so its fate waits for that.
    AfterCollecting,
}

impl Scheduler {
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting() == 0
    }

    /// Branches that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Branches that have work and do not run.
    pub fn waiting(&self) -> usize {
        self.preempted.len() + self.waiting.len()
    }

    /// This branch has got work.
    pub fn add(&mut self, id: BranchId, branches: &mut Branches, cache: &mut KvCache) {
        let branch = branches.get_mut(&id).expect("what has got work is a branch");
        branch.stage = Stage::Waiting;
        let place = QueueKey { priority: branch.priority, branch: id };
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

    /// A branch's extend is about to end, or to be `cut` short; the caller names it to `remove` afterwards.
    pub fn note_end(&mut self, branch: &mut Branch, cut: bool) {
        self.expected.note(branch, cut);
        branch.stage = Stage::Resting;
        self.note_rest(branch);
    }

    /// `branch` rests, and may keep a path.
    pub fn note_rest(&mut self, branch: &Branch) {
        if branch.kept().is_some() {
            self.resting_keep.insert(branch.id);
        }
    }

    /// The branch, which rests, is no more.
    pub fn forget(&mut self, id: BranchId) {
        self.resting_keep.remove(&id);
    }

    /// These branches, in rising order, have no work any more.
    pub fn remove(&mut self, gone: &[BranchId], branches: &Branches) {
        self.running.retain(|place| gone.binary_search(&place.branch).is_err());
        // It may come back without what it kept.
        self.prefix_hold = self.prefix_hold.filter(|hold| gone.binary_search(&hold.branch).is_err());
        for branch in gone.iter().filter_map(|id| branches.get(id)) {
            self.leave(QueueKey { priority: branch.priority, branch: branch.id });
        }
        self.changed = true;
    }

    /// Whether every branch that neither runs nor preempted and keeps a path is known to do so. `Err` names one that is
    /// not.
    pub fn check(&self, branches: &Branches) -> Result<(), String> {
        let is_known = |branch: &Branch| match branch.stage {
            Stage::Resting => self.resting_keep.contains(&branch.id),
            Stage::Waiting => self.waiting_keep.contains(&QueueKey { priority: branch.priority, branch: branch.id }),
            Stage::Running | Stage::Preempted => true,
        };
        match branches.values().find(|branch| branch.kept().is_some() && !is_known(branch)) {
            Some(branch) => Err(format!("branch {} is {:?} and keeps a path unnoticed", branch.id, branch.stage)),
            None => Ok(()),
        }
    }

    /// The first in the queue of the branches that do not run.
    fn next_queued(&self) -> Option<QueueKey> {
        self.preempted.first().into_iter().chain(self.waiting.first()).min().copied()
    }

    /// `place` is none of those that do not run.
    fn leave(&mut self, place: QueueKey) {
        let _ = self.preempted.remove(&place) || self.waiting.remove(&place);
        self.waiting_keep.remove(&place);
    }

    /// The rows of the next step, each with a slot, and who wants logits of them. Branches that cannot fit even alone
    /// fail.
    pub fn next_rows(&mut self, branches: &mut Branches, cache: &mut KvCache, budget: StepBudget) -> Schedule {
        self.changed = false;
        if self.keep_running(branches, cache) == Ready::AfterCollecting {
            return Schedule::default();
        }
        let (mut schedule, mut left) = self.rows_of_running(branches, cache, budget);
        if self.admit(branches, cache, budget, &mut schedule, &mut left) == Ready::AfterCollecting {
            return Schedule::default();
        }
        self.hold_first_prefix(branches, cache);
        cache.prefix.depth_first_by(&mut schedule.rows, |row| row.at);
        schedule
    }

    /// Slots for what running branches have to compute, in the order of the line; while there are none, the last
    /// yields.
    fn keep_running(&mut self, branches: &mut Branches, cache: &mut KvCache) -> Ready {
        let mut at = 0;
        while let Some(&QueueKey { branch: id, .. }) = self.running.get(at) {
            match self.reserve(id, branches, cache) {
                Ok(()) => at += 1,
                Err(_) if self.running.len() > 1 => self.preempt_last(branches, cache),
                Err(_) => match self.reserve_alone(id, branches, cache) {
                    Ok(Ready::Now) => at += 1,
                    Ok(Ready::AfterCollecting) => return Ready::AfterCollecting,
                    Err(short) => {
                        self.running.clear();
                        room::fail(id, branches, cache, short);
                    }
                },
            }
        }
        Ready::Now
    }

    /// Rows of all that decode, then those of prompts and given tokens as far as the step has room; and what room it
    /// has left.
    fn rows_of_running(&self, branches: &Branches, cache: &KvCache, budget: StepBudget) -> (Schedule, StepRoom) {
        let (decodes, chunks): (Vec<_>, Vec<_>) = self
            .running
            .iter()
            .map(|place| &branches[&place.branch])
            .filter_map(|branch| branch.need().map(|need| (branch, need)))
            .partition(|(branch, need)| first_row(branch, need, cache) + 1 >= need.end);
        let mut schedule = Schedule::for_rows(self.running.len());
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

    /// Starts branches in the order of the line, as long as the step has rows for them and pages are expected to
    /// suffice; one that is alone starts in any case. What would have to wait for its rows holds no pages meanwhile.
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
        let mut commitment = self.commitment(branches, cache);
        while self.running.len() < budget.max_branches
            && let Some(place) = self.next_queued()
        {
            let (id, alone) = (place.branch, self.running.is_empty());
            let cost = commitment.cost(&branches[&id], cache, &self.expected);
            let mut may_start =
                || (left.rows > 0 || !room::brings_rows(&branches[&id], cache)) && commitment.allows(cost, cache);
            if !(alone || may_start()) {
                return Ready::Now;
            }
            let entered = match self.reserve(id, branches, cache) {
                Err(_) if alone => self.reserve_alone(id, branches, cache),
                reserved => reserved.map(|()| Ready::Now),
            };
            let branch = branches.get_mut(&id).expect("what waits is a branch");
            match entered {
                Ok(Ready::Now) => {
                    self.leave(place);
                    branch.stage = Stage::Running;
                    commitment.add(branch, cost, cache);
                    self.running.insert(self.running.partition_point(|&other| other < place), place);
                    if let Some(need) = branch.need() {
                        schedule.take_rows(branch, need, cache, left);
                    }
                }
                Ok(Ready::AfterCollecting) => return Ready::AfterCollecting,
                Err(short) if alone => {
                    self.leave(place);
                    room::fail(id, branches, cache, short);
                }
                Err(_) => {
                    if !matches!(branch.hold, KvHold::Swapped(_)) {
                        cache.give_up(branch);
                        self.hold_prefix_of(branch, cache);
                    }
                    return Ready::Now;
                }
            }
        }
        Ready::Now
    }
}
