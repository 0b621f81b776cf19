//! Who gets rows in the next step: branches that decode first, then prompts and given tokens in chunks, oldest branch first.
//! It also decides who runs at all while pages are short: branches wait to start, and the youngest is dropped so that older
//! ones can go on. It moves no data and knows no model.
//!
//! # Last logits
//! The first token after a prompt, or after the end of a branch that is forked, is drawn from the logits of the *last row*
//! of what they share. No logits are kept for that: a branch that wants logits and has nothing to compute asks for the last
//! row of its path again. The row writes the same keys and values into the same slot, so nothing has to be undone, and the
//! forks that ask in the same step share it: one row, read by as many draws as there are forks. A prompt whose forks wait
//! for it spends no row more than its length. Nothing of this needs memory or a rule for eviction, and a branch that was
//! dropped comes back by the same way.
//!
//! # Fairness
//! `running` and `waiting` are one queue cut in two: the oldest run. Whoever is dropped goes back to the front of those that
//! wait, so the oldest branch is never dropped for another and every branch finishes.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::engine::branch::{Branch, Need};
use crate::engine::cache::{Branches, Cache};
use crate::error::Error;
use crate::ids::{BranchId, PageId};
use crate::kv::{KvSlot, OutOfPages, StepRow};

#[derive(Default)]
pub(super) struct Scheduler {
    running: VecDeque<BranchId>,
    waiting: VecDeque<BranchId>,
    pub preemptions: u64,
}

/// One query token of the step.
pub(super) struct Row {
    pub at: StepRow,
    pub slot: KvSlot,
    /// The branch that asked for it first, and that knows its token.
    pub branch: BranchId,
}

/// A branch that wants the logits of the row in `slot`, which is its position `position`.
pub(super) struct Ask {
    pub branch: BranchId,
    pub position: usize,
    pub slot: KvSlot,
}

#[derive(Default)]
pub(super) struct Schedule {
    /// Depth-first.
    pub rows: Vec<Row>,
    pub asks: Vec<Ask>,
    slots: HashSet<(PageId, u32)>,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Branches that grow at once.
    pub max_branches: usize,
    /// Rows of prompts and given tokens.
    pub chunk: usize,
}

impl Scheduler {
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// A branch has got work.
    pub fn add(&mut self, branch: BranchId) {
        self.waiting.push_back(branch);
    }

    /// A branch has no work any more.
    pub fn remove(&mut self, branch: BranchId) {
        self.running.retain(|&other| other != branch);
        self.waiting.retain(|&other| other != branch);
    }

    /// The rows of the next step, each with a slot, and who wants logits of them. Branches that cannot fit even alone fail.
    pub fn next_rows(&mut self, branches: &mut Branches, cache: &mut Cache, budget: Budget) -> Schedule {
        self.keep_running(branches, cache);
        self.let_in(branches, cache, budget);
        let (decodes, chunks): (Vec<_>, Vec<_>) = self
            .running
            .iter()
            .map(|id| &branches[id])
            .filter_map(|branch| branch.need().map(|need| (branch, need)))
            .partition(|(branch, need)| first_row(branch, need, cache) + 1 >= need.end);
        let mut schedule = Schedule::default();
        let mut unlimited = usize::MAX;
        for (branch, need) in decodes {
            schedule.take_rows(branch, need, cache, &mut unlimited);
        }
        let mut left = budget.chunk;
        for (branch, need) in chunks {
            schedule.take_rows(branch, need, cache, &mut left);
        }
        cache.prefix.depth_first_by(&mut schedule.rows, |row| row.at);
        schedule
    }

    /// Slots for what running branches have to compute, oldest first; while there are none, the youngest is dropped.
    fn keep_running(&mut self, branches: &mut Branches, cache: &mut Cache) {
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            match self.reserve(id, branches, cache) {
                Ok(()) => at += 1,
                Err(_) if self.running.len() == 1 => {
                    if let Err(short) = self.reserve_from_scratch(id, branches, cache) {
                        self.running.pop_front();
                        fail(id, branches, cache, short);
                    }
                }
                Err(_) => self.drop_youngest(branches, cache),
            }
        }
    }

    fn drop_youngest(&mut self, branches: &mut Branches, cache: &mut Cache) {
        let Some(id) = self.running.pop_back() else { return };
        let branch = branches.get_mut(&id).expect("what runs is a branch");
        branch.start_over();
        cache.give_up(branch);
        self.waiting.push_front(id);
        self.preemptions += 1;
    }

    /// Starts branches in their order, as long as each running one could get another page.
    fn let_in(&mut self, branches: &mut Branches, cache: &mut Cache, budget: Budget) {
        while self.running.len() < budget.max_branches
            && let Some(&id) = self.waiting.front()
        {
            let reserve = self.running.len();
            let entered = self.reserve(id, branches, cache).and_then(|()| {
                let others = branches.values_mut().filter(|other| other.id != id && !self.running.contains(&other.id));
                match cache.make_room(reserve, others) {
                    true => Ok(()),
                    false => Err(OutOfPages { needed: reserve }),
                }
            });
            match entered {
                Ok(()) => self.running.extend(self.waiting.pop_front()),
                Err(_) if self.running.is_empty() => {
                    self.waiting.pop_front();
                    match self.reserve_from_scratch(id, branches, cache) {
                        Ok(()) => self.running.push_back(id),
                        Err(short) => fail(id, branches, cache, short),
                    }
                }
                Err(_) => {
                    cache.give_up(branches.get_mut(&id).expect("what waits is a branch"));
                    return;
                }
            }
        }
    }

    /// Reserves what `id` needs, taking pages from the cache and from branches that do not run.
    fn reserve(&self, id: BranchId, branches: &mut Branches, cache: &mut Cache) -> Result<(), OutOfPages> {
        loop {
            let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
            let Some(need) = branch.need() else { return Ok(()) };
            let Err(short) = cache.reserve(branch, need) else { return Ok(()) };
            let idle = branches.values_mut().filter(|other| other.id != id && !self.running.contains(&other.id));
            if !cache.make_room(short.needed, idle) {
                return Err(short);
            }
        }
    }

    /// The last resort of a branch that is alone: all pages are freed and its tokens laid out anew. Where segments were split
    /// inside a page they take more pages than their tokens need; whether a branch fits must not depend on that.
    fn reserve_from_scratch(&self, id: BranchId, branches: &mut Branches, cache: &mut Cache) -> Result<(), OutOfPages> {
        for branch in branches.values_mut() {
            cache.give_up(branch);
        }
        cache.evict_all();
        branches.get_mut(&id).expect("what runs or waits is a branch").start_over();
        self.reserve(id, branches, cache)
    }
}

/// The first position that `branch` must compute: what is missing, or once more the row whose logits it wants.
fn first_row(branch: &Branch, need: &Need, cache: &Cache) -> usize {
    let lease = branch.lease.expect("a running branch has a lease");
    (cache.prefix.computed(lease.segment) as usize).min(need.logits_from)
}

fn fail(id: BranchId, branches: &mut Branches, cache: &mut Cache, short: OutOfPages) {
    let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
    // It is alone: whatever is not free now is its own.
    let (free, capacity) = (cache.pages.free(), cache.pages.capacity());
    cache.give_up(branch);
    branch.fail(Error::OutOfPages {
        needed: capacity - free + short.needed,
        capacity,
        hint: "give the engine more memory for keys and values, or shorten the prompt",
    });
}

impl Schedule {
    /// Adds the rows that `branch` needs and that are not in the step yet, at most `left` of them.
    fn take_rows(&mut self, branch: &Branch, need: Need, cache: &Cache, left: &mut usize) {
        let segment = branch.lease.expect("a running branch has a lease").segment;
        for position in first_row(branch, &need, cache)..need.end {
            let at = StepRow { segment, position: u32::try_from(position).expect("positions fit u32, as contexts do") };
            let slot = cache.prefix.slot(segment, at.position);
            if self.slots.insert((slot.page, slot.slot)) {
                if *left == 0 {
                    self.slots.remove(&(slot.page, slot.slot));
                    return;
                }
                *left -= 1;
                self.rows.push(Row { at, slot, branch: branch.id });
            }
            if position >= need.logits_from {
                self.asks.push(Ask { branch: branch.id, position, slot });
            }
        }
    }

    /// The row of each ask, after sorting both by rows: asks in rising order of rows, those of one row by branch.
    pub fn answer_rows(&mut self) -> Vec<u32> {
        let index: HashMap<_, _> =
            (0u32..).zip(&self.rows).map(|(ix, row)| ((row.slot.page, row.slot.slot), ix)).collect();
        let row_of = |ask: &Ask| index[&(ask.slot.page, ask.slot.slot)];
        self.asks.sort_by_key(|ask| (row_of(ask), ask.branch, ask.position));
        self.asks.iter().map(row_of).collect()
    }
}
