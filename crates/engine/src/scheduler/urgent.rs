//! Admits urgent branches: those at the head of the queue whose priority is higher than that of the last running
//! branch. They are admitted before the rows of a step are given out, and less urgent branches are preempted for them,
//! last first: for a row of the step if all branches that may run do, and for pages as `admission` counts them.
//!
//! No branch is preempted in vain: the branches to preempt are counted before, at least as many as suffice, and none if
//! all of them would not suffice. So each admission of an urgent branch costs a bounded number of preemptions, and
//! there are no others for its sake. A branch preempted for a more urgent one waits as if it had never been admitted:
//! its keys and values stay cached, or in host memory, until somebody needs the room.

use super::{Entry, Ready, Scheduler, StepBudget, single};
use crate::admission::Commitment;
use crate::branch::Stage;
use crate::cache::{Branches, KvCache};
use crate::place::{Priority, QueueKey};
use crate::schedule::first_row;

impl Scheduler {
    /// Admits urgent branches in queue order while the step has rows for them and pages suffice without those of less
    /// urgent ones.
    pub(super) fn admit_urgent(&mut self, branches: &mut Branches, cache: &mut KvCache, budget: StepBudget) -> Ready {
        let mut passed = None;
        let Some(first) = self.first_urgent(passed) else { return Ready::Now };
        let mut left = self.rows_left_for(first.priority, branches, cache, budget);
        let mut commitment = self.commitment(first.priority, branches, cache);
        while let Some(place) = self.first_urgent(passed).filter(|place| place.priority == first.priority) {
            // No branch is preempted for one that could not run yet, because its prefix is being read from disk.
            if self.is_read(place.branch, branches, cache) {
                passed = Some(place);
                continue;
            }
            let new_rows = single::new_rows(&branches[&place.branch], cache);
            if left == 0 && new_rows > 0 {
                return Ready::Now;
            }
            if !self.make_way(place, &mut commitment, branches, cache, budget) {
                return Ready::Now;
            }
            match self.enter(place, &mut commitment, branches, cache) {
                Entry::Runs => left = left.saturating_sub(new_rows),
                Entry::Failed => {}
                Entry::NoRoom => return Ready::Now,
                Entry::Reads => passed = Some(place),
                Entry::AfterCollecting => return Ready::AfterCollecting,
            }
        }
        Ready::Now
    }

    /// The first branch in the queue after the place `passed`, if it is more urgent than the last running one.
    fn first_urgent(&self, passed: Option<QueueKey>) -> Option<QueueKey> {
        let last = self.running.last()?;
        self.next_queued(passed).filter(|first| first.is_more_urgent_than(*last))
    }

    /// Rows of the next step that decodes, and prompts and given tokens of at least this priority, leave free. Rows
    /// that several branches share are counted for each.
    fn rows_left_for(&self, priority: Priority, branches: &Branches, cache: &KvCache, budget: StepBudget) -> usize {
        let (mut decodes, mut chunks) = (0, 0);
        for place in &self.running {
            let branch = &branches[&place.branch];
            let Some(need) = branch.need() else { continue };
            match need.end.saturating_sub(first_row(branch, &need, cache)) {
                0 | 1 => decodes += 1,
                rows if place.priority <= priority => chunks += rows,
                _ => {}
            }
        }
        budget.rows.saturating_sub(decodes).max(budget.prompt_rows).saturating_sub(chunks)
    }

    /// Preempts as many less urgent branches as `place` needs to be admitted. False, and none, if all would not
    /// suffice.
    fn make_way(
        &mut self,
        place: QueueKey,
        commitment: &mut Commitment,
        branches: &mut Branches,
        cache: &mut KvCache,
        budget: StepBudget,
    ) -> bool {
        if single::never_fits(&branches[&place.branch], cache).is_some() {
            return true; // It fails as soon as it is tried.
        }
        if !self.fit(place, commitment, branches, cache).1 {
            let Some(less_urgent) = self.count_in_the_way(place, branches, cache) else { return false };
            for _ in 0..less_urgent {
                self.give_way(place, branches, cache);
            }
            *commitment = self.commitment(place.priority, branches, cache);
        }
        if self.running.len() >= budget.max_branches {
            self.give_row(branches, cache);
        }
        true
    }

    /// How many less urgent branches, from the last on, must give way until pages suffice for `place`; all of them if
    /// it would then run alone. `None` if pages would not suffice even then.
    fn count_in_the_way(&self, place: QueueKey, branches: &Branches, cache: &KvCache) -> Option<usize> {
        let mut less_urgent: Vec<QueueKey> = self.running.iter().chain(&self.preempted).copied().collect();
        less_urgent.retain(|other| place.is_more_urgent_than(*other));
        less_urgent.sort_unstable_by(|a, b| b.cmp(a));
        let suffice = |count: usize| {
            let without = |other: QueueKey| count > 0 && less_urgent[count - 1] <= other;
            let mut commitment = self.commitment_without(place.priority, branches, cache, without);
            let cost = commitment.cost(&branches[&place.branch], cache, &self.expected);
            commitment.allows(cost, cache)
        };
        let counts: Vec<usize> = (1..=less_urgent.len()).collect();
        let fewest = counts.partition_point(|&count| !suffice(count));
        let is_alone = self.running.iter().all(|other| place.is_more_urgent_than(*other));
        counts.get(fewest).copied().or(is_alone.then_some(less_urgent.len()))
    }

    /// The last admitted branch that is less urgent than `place` gives up what it holds; if there is none, false.
    pub(super) fn give_way(&mut self, place: QueueKey, branches: &mut Branches, cache: &mut KvCache) -> bool {
        let is_less_urgent = |other: &&QueueKey| place.is_more_urgent_than(**other);
        let last_running = self.running.last().filter(is_less_urgent);
        let last_preempted = self.preempted.last().filter(is_less_urgent).copied();
        match last_preempted {
            Some(last) if last_running.is_none_or(|running| *running < last) => {
                self.preempted.remove(&last);
                self.wait_anew(last, branches);
            }
            _ if last_running.is_some() => {
                let last = self.take_last_running();
                single::put_away(branches.get_mut(&last.branch).expect("only branches run"), cache);
                self.wait_anew(last, branches);
            }
            _ => return false,
        }
        true
    }

    /// The last running branch gives its row of the step to another one. Its keys and values stay cached.
    fn give_row(&mut self, branches: &mut Branches, cache: &mut KvCache) {
        let last = self.take_last_running();
        single::drop_own(branches.get_mut(&last.branch).expect("only branches run"), cache);
        self.wait_anew(last, branches);
    }

    /// Queues a branch that was admitted before as one that was not.
    fn wait_anew(&mut self, place: QueueKey, branches: &mut Branches) {
        let branch = branches.get_mut(&place.branch).expect("only branches are admitted");
        branch.stage = Stage::Waiting;
        self.waiting.insert(place);
        if branch.kept().is_some() {
            self.waiting_keep.insert(place);
        }
    }
}
