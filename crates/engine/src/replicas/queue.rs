//! The extends that wait for a replica, in the engine's own order, and what they will cost it.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::{Event, EventSender, FinishReason, QueueKey, ReadyExtend, Said};
use offshoot_core::ids::BranchId;

use super::load::Work;
use super::prefix::Prefix;

/// An extend that has not ended, with all that another replica needs to begin it again.
pub struct Task {
    pub key: QueueKey,
    pub extend: ReadyExtend,
    /// The sender to its client.
    pub events: EventSender,
    /// The branch's tokens, with those that are given to it and those behind which it goes on.
    pub prefix: Prefix,
    /// What it costs the replica where it is now.
    pub work: Work,
    /// How it ends at the latest, if it was cancelled or aborted: its engine is asked to end it.
    pub cut: Option<FinishReason>,
    /// What its client has heard of it: another replica goes on behind this.
    pub said: Said,
}

/// An extend that engines have.
pub struct Started {
    /// Where it has not ended: one, except of pins.
    pub replicas: Vec<usize>,
    pub task: Task,
    /// The end of a pin that was heard first, or the first failure.
    pub end: Option<Event>,
}

impl Started {
    pub fn on(replica: usize, task: Task) -> Self {
        Started { replicas: vec![replica], task, end: None }
    }
}

impl Task {
    pub fn branch(&self) -> BranchId {
        self.key.branch
    }
}

/// A replica's tasks that it has not been given yet.
#[derive(Default)]
pub struct Queue {
    tasks: BTreeMap<QueueKey, Task>,
    work: Work,
}

impl Queue {
    pub fn push(&mut self, task: Task) {
        self.work += task.work;
        self.tasks.insert(task.key, task);
    }

    pub fn remove(&mut self, key: &QueueKey) -> Option<Task> {
        let task = self.tasks.remove(key)?;
        self.work -= task.work;
        Some(task)
    }

    pub fn get(&self, key: &QueueKey) -> Option<&Task> {
        self.tasks.get(key)
    }

    /// The place of the next one behind `passed`.
    pub fn next(&self, passed: Option<QueueKey>) -> Option<QueueKey> {
        let behind = (passed.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.tasks.range(behind).next().map(|(&key, _)| key)
    }

    /// Removes all tasks, in order.
    pub fn take_all(&mut self) -> Vec<Task> {
        std::mem::take(self).tasks.into_values().collect()
    }

    /// Removes all tasks from `key` on, in order.
    pub fn take_from(&mut self, key: &QueueKey) -> Vec<Task> {
        let taken: Vec<Task> = self.tasks.split_off(key).into_values().collect();
        taken.iter().for_each(|task| self.work -= task.work);
        taken
    }

    /// The tasks in order.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = &Task> {
        self.tasks.values()
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub fn work(&self) -> Work {
        self.work
    }
}
