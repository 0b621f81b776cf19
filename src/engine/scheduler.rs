//! Who gets rows in the next step: branches that decode first, then prompts and given tokens in chunks, oldest branch first.
//! It also decides who runs at all while pages are short: branches wait to start (`admission`), and the youngest yields so
//! that older ones can go on. It moves no data and knows no model.
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
//! `running` and `waiting` are one queue cut in two: the oldest run. Whoever yields goes back to the front of those that
//! wait, so the oldest branch never yields to another and every branch finishes.
//!
//! # Yielding
//! A branch that must yield is *swapped* where that pays and host memory has room: its own tokens' keys and values go there,
//! and it keeps a lease on what it shares with others. Otherwise, or when even that lease must go, it is *dropped*, and
//! computed again later. In either case it keeps its tokens, its place among the coins, and the draws that were submitted.

use std::collections::VecDeque;

use crate::engine::admission::{Commitment, Expectation};
use crate::engine::branch::{Branch, Hold, Stage};
use crate::engine::cache::{Branches, Cache};
use crate::engine::schedule::{Left, Schedule, first_row};
use crate::error::Error;
use crate::ids::BranchId;
use crate::kv::OutOfPages;

#[derive(Default)]
pub(super) struct Scheduler {
    running: VecDeque<BranchId>,
    waiting: VecDeque<BranchId>,
    expected: Expectation,
    /// Whether branches came or went since the last schedule.
    pub changed: bool,
    pub preemptions: u64,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Branches that grow at once.
    pub max_branches: usize,
    /// Rows of prompts and given tokens.
    pub chunk: usize,
    /// Rows whose logits are wanted; at least `max_branches`, so that every branch can have one.
    pub max_asks: usize,
}

/// Whether a schedule can be made now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ready {
    Now,
    /// A branch fits no more; it may have ended with the token that is being drawn, so its fate waits for that.
    AfterCollecting,
}

impl Scheduler {
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Branches that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Branches that have work and do not run.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A branch has got work.
    pub fn add(&mut self, branch: &mut Branch) {
        branch.stage = Stage::Waiting;
        self.waiting.push_back(branch.id);
        self.changed = true;
    }

    /// A branch's extend is about to end; the caller names it to `remove` afterwards.
    pub fn note_end(&mut self, branch: &mut Branch) {
        self.expected.note(branch);
        branch.stage = Stage::Resting;
    }

    /// These branches, in rising order, have no work any more.
    pub fn remove(&mut self, gone: &[BranchId]) {
        self.running.retain(|id| gone.binary_search(id).is_err());
        self.waiting.retain(|id| gone.binary_search(id).is_err());
        self.changed = true;
    }

    /// The rows of the next step, each with a slot, and who wants logits of them. Branches that cannot fit even alone fail.
    pub fn next_rows(&mut self, branches: &mut Branches, cache: &mut Cache, budget: Budget) -> Schedule {
        self.changed = false;
        let mut schedule = Schedule::default();
        let ready = self.keep_running(branches, cache);
        if ready == Ready::AfterCollecting || self.let_in(branches, cache, budget) == Ready::AfterCollecting {
            return schedule;
        }
        let (decodes, chunks): (Vec<_>, Vec<_>) = self
            .running
            .iter()
            .map(|id| &branches[id])
            .filter_map(|branch| branch.need().map(|need| (branch, need)))
            .partition(|(branch, need)| first_row(branch, need, cache) + 1 >= need.end);
        let mut left = Left { rows: usize::MAX, asks: budget.max_asks };
        for (branch, need) in decodes {
            schedule.take_rows(branch, need, cache, &mut left);
        }
        left.rows = budget.chunk;
        for (branch, need) in chunks {
            schedule.take_rows(branch, need, cache, &mut left);
        }
        cache.prefix.depth_first_by(&mut schedule.rows, |row| row.at);
        schedule
    }

    /// Slots for what running branches have to compute, oldest first; while there are none, the youngest yields.
    fn keep_running(&mut self, branches: &mut Branches, cache: &mut Cache) -> Ready {
        let mut at = 0;
        while let Some(&id) = self.running.get(at) {
            match self.reserve(id, branches, cache) {
                Ok(()) => at += 1,
                Err(_) if self.running.len() > 1 => self.preempt_youngest(branches, cache),
                Err(_) => match self.reserve_from_scratch(id, branches, cache) {
                    Ok(Ready::Now) => at += 1,
                    Ok(Ready::AfterCollecting) => return Ready::AfterCollecting,
                    Err(short) => {
                        self.running.pop_front();
                        fail(id, branches, cache, short);
                    }
                },
            }
        }
        Ready::Now
    }

    fn preempt_youngest(&mut self, branches: &mut Branches, cache: &mut Cache) {
        let Some(id) = self.running.pop_back() else { return };
        let branch = branches.get_mut(&id).expect("what runs is a branch");
        branch.stage = Stage::Waiting;
        self.waiting.push_front(id);
        self.preemptions += 1;
        if branch.need().is_none() {
            cache.give_up(branch); // It ends with what was submitted.
        } else if !cache.swap_out(branch) {
            branch.start_over();
            cache.give_up(branch);
        }
    }

    /// Starts branches in their order, as long as pages are expected to suffice; one that is alone starts in any case.
    fn let_in(&mut self, branches: &mut Branches, cache: &mut Cache, budget: Budget) -> Ready {
        if self.waiting.is_empty() || self.running.len() >= budget.max_branches {
            return Ready::Now;
        }
        let mut commitment = Commitment::of(self.running.iter().map(|id| &branches[id]), cache, &self.expected);
        while self.running.len() < budget.max_branches
            && let Some(&id) = self.waiting.front()
        {
            let cost = commitment.cost(&branches[&id], cache, &self.expected);
            let alone = self.running.is_empty();
            if !alone && !commitment.allows(cost, cache) {
                return Ready::Now;
            }
            let entered = match self.reserve(id, branches, cache) {
                Err(_) if alone => self.reserve_from_scratch(id, branches, cache),
                reserved => reserved.map(|()| Ready::Now),
            };
            let branch = branches.get_mut(&id).expect("what waits is a branch");
            match entered {
                Ok(Ready::Now) => {
                    self.waiting.pop_front();
                    branch.stage = Stage::Running;
                    commitment.add(branch, cost, cache);
                    self.running.push_back(id);
                }
                Ok(Ready::AfterCollecting) => return Ready::AfterCollecting,
                Err(short) if alone => {
                    self.waiting.pop_front();
                    fail(id, branches, cache, short);
                }
                Err(_) => {
                    if !matches!(branch.hold, Hold::Swapped(_)) {
                        cache.give_up(branch);
                    }
                    return Ready::Now;
                }
            }
        }
        Ready::Now
    }

    /// Reserves what `id` needs, taking pages from the cache and from branches that do not run.
    fn reserve(&self, id: BranchId, branches: &mut Branches, cache: &mut Cache) -> Result<(), OutOfPages> {
        loop {
            let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
            let Some(need) = branch.need() else { return Ok(()) };
            let Err(short) = cache.reserve(branch, need) else { return Ok(()) };
            if !self.make_room(short.needed, id, branches, cache) {
                return Err(short);
            }
        }
    }

    /// Tries to have `pages` free pages: cached segments go first, then what branches at rest hold (it becomes cache), then what
    /// branches that wait hold, youngest first.
    fn make_room(&self, pages: usize, id: BranchId, branches: &mut Branches, cache: &mut Cache) -> bool {
        if cache.evict_for(pages) {
            return true;
        }
        for branch in branches.values_mut().filter(|branch| branch.stage == Stage::Resting) {
            cache.give_up(branch);
        }
        if cache.evict_for(pages) {
            return true;
        }
        for other in self.waiting.iter().rev().filter(|&&other| other != id) {
            let other = branches.get_mut(other).expect("what waits is a branch");
            if cache.keeps_pages(other) {
                cache.give_up(other);
                if cache.evict_for(pages) {
                    return true;
                }
            }
        }
        false
    }

    /// The last resort of a branch that is alone: all pages are freed and its tokens laid out anew. Where segments were split
    /// inside a page they take more pages than their tokens need; whether a branch fits must not depend on that.
    fn reserve_from_scratch(
        &self,
        id: BranchId,
        branches: &mut Branches,
        cache: &mut Cache,
    ) -> Result<Ready, OutOfPages> {
        if branches[&id].ahead() > 0 {
            return Ok(Ready::AfterCollecting);
        }
        for branch in branches.values_mut() {
            cache.give_up(branch);
        }
        cache.evict_all();
        branches.get_mut(&id).expect("what runs or waits is a branch").start_over();
        self.reserve(id, branches, cache).map(|()| Ready::Now)
    }
}

fn fail(id: BranchId, branches: &mut Branches, cache: &mut Cache, short: OutOfPages) {
    let branch = branches.get_mut(&id).expect("what runs or waits is a branch");
    // It is alone: whatever is not free now is its own.
    let (free, capacity) = (cache.pages.free(), cache.pages.capacity());
    cache.give_up(branch);
    branch.stage = Stage::Resting;
    branch.fail(Error::OutOfPages {
        needed: capacity - free + short.needed,
        capacity,
        hint: "give the engine more memory for keys and values, or shorten the prompt",
    });
}
