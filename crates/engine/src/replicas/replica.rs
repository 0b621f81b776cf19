//! One engine behind the router: what it has been given, and what waits for it.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::{EngineHandle, EventReader, Priority, QueueKey};

use super::load::Work;
use super::prefix::KnownPrefixes;
use super::queue::Queue;

pub struct Replica {
    pub engine: EngineHandle,
    /// The events of all that runs on it.
    pub events: EventReader,
    /// What it has computed, or will: of its queue, too.
    pub known: KnownPrefixes,
    /// Prefixes that its engine has been given, or another one has lent it.
    pub begun: KnownPrefixes,
    pub queue: Queue,
    /// Extends that it was given and that have not ended, by priority, and their work.
    in_flight: BTreeMap<Priority, usize>,
    running: Work,
    /// Since when it could take over work that other replicas would then not have.
    pub idle_since: Option<Instant>,
    /// Why its engine ended, once it has.
    pub lost: Option<String>,
}

/// The part of the branches that an engine runs at once which may wait in it: it is never short of work while the
/// router sleeps, and what waits in the router can still go elsewhere.
const AHEAD_PART: usize = 8;

impl Replica {
    pub fn new(engine: EngineHandle) -> Self {
        Replica {
            engine,
            events: EventReader::new(),
            known: KnownPrefixes::default(),
            begun: KnownPrefixes::default(),
            queue: Queue::default(),
            in_flight: BTreeMap::new(),
            running: Work::default(),
            idle_since: None,
            lost: None,
        }
    }

    pub fn lives(&self) -> bool {
        self.lost.is_none()
    }

    /// Records an extend that its engine is given.
    pub fn begin(&mut self, key: QueueKey, work: Work) {
        *self.in_flight.entry(key.priority).or_default() += 1;
        self.running += work;
    }

    /// Records its end.
    pub fn end(&mut self, key: QueueKey, work: Work) {
        if let Some(count) = self.in_flight.get_mut(&key.priority) {
            *count -= 1;
            if *count == 0 {
                self.in_flight.remove(&key.priority);
            }
        }
        self.running -= work;
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.values().sum()
    }

    pub fn running(&self) -> Work {
        self.running
    }

    /// Whether the engine is to have an extend of this priority now. One that is more urgent than what fills the engine
    /// does not wait here: the engine preempts.
    pub fn has_room(&self, priority: Priority) -> bool {
        let most = self.engine.facts().max_branches;
        let before: usize = self.in_flight.range(..=priority).map(|(_, count)| count).sum();
        before < most + most.div_ceil(AHEAD_PART)
    }

    /// Whether branches of its engine are free and nothing waits for them.
    pub fn is_short_of_work(&self) -> bool {
        self.lives() && self.queue.is_empty() && self.in_flight() < self.engine.facts().max_branches
    }

    /// All of its work, in tokens.
    pub fn tokens_ahead(&self) -> u64 {
        let mut work = self.queue.work();
        work += self.running;
        work.prompt + work.output
    }
}
