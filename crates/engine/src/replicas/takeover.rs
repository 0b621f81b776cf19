//! What a replica that is short of work takes over: the tail of another one's queue. The cut is the one after which
//! both end earliest or nearly so, and of such cuts the one after which both need the fewest tokens: whole groups of
//! prompts that begin alike, unless a group is so large that copying its beginning, or computing it twice, pays.

use crate::{PrefixCosts, QueueKey};

use super::load::{Pace, Work};
use super::prefix::{KnownPrefixes, Prefix};
use super::queue::{Queue, Task};

/// Tasks from `from` on go; `twice`: tokens that both replicas then need, which are copied where that is faster than
/// computing them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takeover {
    pub from: QueueKey,
    pub twice: u64,
}

/// The replicas that it is about.
pub struct Between<'a> {
    pub queue: &'a Queue,
    /// Tasks from here on are for others already.
    pub upto: Option<QueueKey>,
    /// What the queue's replica runs already.
    pub running: Work,
    /// Replicas that share what is left of the queue afterwards: its own, and others that are short of work.
    pub sharers: u64,
    /// What the one that takes over runs, and what it has computed.
    pub taker_running: Work,
    pub taker_knows: &'a KnownPrefixes,
    pub pace: Pace,
    pub costs: PrefixCosts,
}

/// Tasks at the end of a queue that are looked at.
const MOST_TASKS: usize = 1 << 14;

/// The part of what the best cut saves that may be given up for fewer tokens computed twice; and the least part of the
/// time that a cut must save if it computes any twice.
const TOLERANCE: u64 = 8;

/// A cut before a task.
struct Cut {
    from: QueueKey,
    twice: u64,
    /// When the later of the two ends.
    end: u64,
}

impl Between<'_> {
    /// What to take over; `None` if that does not pay.
    pub fn best(&self) -> Option<Takeover> {
        let is_for_others = |task: &&Task| self.upto.is_some_and(|upto| task.key >= upto);
        let mut all = self.queue.work();
        all += self.running;
        self.queue.tasks().rev().take_while(is_for_others).for_each(|task| all -= task.work);
        let tasks: Vec<&Task> = self.queue.tasks().rev().skip_while(is_for_others).take(MOST_TASKS).collect();
        let whole = self.pace.time(all, longest(&tasks)) / self.sharers.max(1);
        let cuts = self.cuts(all, &tasks);
        let pays = |cut: &&Cut| cut.end < whole && (cut.twice == 0 || cut.end <= whole - whole / TOLERANCE);
        let earliest = cuts.iter().filter(pays).map(|cut| cut.end).min()?;
        let most = earliest + (whole - earliest) / TOLERANCE;
        let near = cuts.iter().filter(pays).filter(|cut| cut.end <= most);
        let cut = near.min_by_key(|cut| (cut.twice, cut.end))?;
        Some(Takeover { from: cut.from, twice: cut.twice })
    }

    /// Every cut of these tasks, the last first. `all`: the work of the queue's replica without a cut.
    fn cuts(&self, all: Work, tasks: &[&Task]) -> Vec<Cut> {
        // The longest sample of each task and those before it; `tasks` are last first.
        let mut before: Vec<u64> = Vec::with_capacity(tasks.len());
        for task in tasks.iter().rev() {
            before.push(before.last().copied().unwrap_or(0).max(task.work.output));
        }
        let mut cuts = Vec::with_capacity(tasks.len());
        let (mut given_up, mut taken) = (Work::default(), Work::default());
        let mut longest_taken = 0;
        let mut known: Option<(&Prefix, u64)> = None;
        for (at, task) in tasks.iter().enumerate() {
            let ahead = tasks.get(at + 1);
            let tokens = task.prefix.tokens() as u64;
            given_up += task.work;
            longest_taken = longest_taken.max(task.work.output);
            let knows = match known {
                Some((prefix, knows)) if prefix.is(&task.prefix) => knows,
                _ => self.taker_knows.known(&task.prefix) as u64,
            };
            known = Some((&task.prefix, knows));
            let from_here = Work { prompt: taken.prompt + tokens - knows, output: taken.output + task.work.output };
            let twice = from_here.prompt.saturating_sub(given_up.prompt);
            let mut brought = Work { prompt: from_here.prompt - twice + self.costs.brought(twice), ..from_here };
            let mut left = all;
            left -= given_up;
            let left_longest = tasks.len().checked_sub(at + 2).map_or(0, |last| before[last]);
            brought += self.taker_running;
            let taker = self.pace.time(brought, longest_taken);
            cuts.push(Cut {
                from: task.key,
                twice,
                end: (self.pace.time(left, left_longest) / self.sharers.max(1)).max(taker),
            });
            let shared = ahead.map_or(0, |ahead| task.prefix.shared_with(&ahead.prefix) as u64);
            taken += Work { prompt: tokens - shared, output: task.work.output };
        }
        cuts
    }
}

fn longest(tasks: &[&Task]) -> u64 {
    tasks.iter().map(|task| task.work.output).max().unwrap_or(0)
}
