//! The slots for states of recurrent layers: what each holds, and in which order they go. `states` says when.

use std::collections::BTreeSet;

use offshoot_core::ids::{SegmentId, StateId};

/// A state at the end of the first tokens of a path, up to `position`. That of position 0 is empty and never kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub position: u32,
    pub slot: StateId,
}

/// Who needs a state. When slots are short, the states of the first kind go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// Nobody has a lease on its segment.
    Cached,
    /// It was left behind by a branch that went on: others may part there.
    Checkpoint,
    /// A branch goes on from it, or forks of what ends there.
    Continued,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub segment: SegmentId,
    pub need: Need,
    /// The step that used it last.
    pub used: u64,
}

/// All slots for states.
#[derive(Debug, Default)]
pub(super) struct StateTable {
    /// What each slot holds; `None` if it is free.
    pub slots: Vec<Option<Held>>,
    pub free: Vec<StateId>,
    /// The slots that hold states, in the order in which they go.
    pub by_use: BTreeSet<(Need, u64, StateId)>,
    /// The number of states of each need.
    pub cached: usize,
    pub checkpoints: usize,
    pub continued: usize,
    /// The number of the step whose runs are chosen.
    pub step: u64,
}

impl StateTable {
    pub fn new(slots: usize) -> Self {
        let free = (0..slots).rev().map(StateId::new).collect();
        Self { slots: vec![None; slots], free, ..Self::default() }
    }

    /// Takes a free slot for a state of `segment`.
    pub fn take(&mut self, segment: SegmentId) -> Option<StateId> {
        let slot = self.free.pop()?;
        self.list(slot, Held { segment, need: Need::Continued, used: self.step });
        Some(slot)
    }

    pub fn release(&mut self, slot: StateId) {
        self.unlist(slot);
        self.free.push(slot);
    }

    pub fn list(&mut self, slot: StateId, held: Held) {
        self.slots[slot.ix()] = Some(held);
        self.by_use.insert((held.need, held.used, slot));
        *self.count(held.need) += 1;
    }

    pub fn unlist(&mut self, slot: StateId) -> Held {
        let held = self.slots[slot.ix()].take().expect("only a slot that holds a state is named");
        self.by_use.remove(&(held.need, held.used, slot));
        *self.count(held.need) -= 1;
        held
    }

    pub fn count(&mut self, need: Need) -> &mut usize {
        match need {
            Need::Cached => &mut self.cached,
            Need::Checkpoint => &mut self.checkpoints,
            Need::Continued => &mut self.continued,
        }
    }

    pub fn change(&mut self, slot: StateId, change: impl FnOnce(&mut Held)) {
        let mut held = self.unlist(slot);
        change(&mut held);
        self.list(slot, held);
    }

    /// The state that goes next, if the current step uses not all, and its segment.
    pub fn next_to_go(&self) -> Option<(StateId, SegmentId)> {
        let before = |need| self.by_use.range((need, 0, StateId(0))..(need, self.step, StateId(0))).next();
        let &(.., slot) = [Need::Cached, Need::Checkpoint, Need::Continued].into_iter().find_map(before)?;
        self.slots[slot.ix()].map(|held| (slot, held.segment))
    }
}
