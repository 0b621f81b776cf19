//! Chooses which states of delta-rule layers the rows of a step read, and where the states after them go. The scheduler
//! lets rows begin where a state is kept (`PrefixTree::resume_from`); the prefix tree keeps the states.

use std::collections::HashMap;
use std::ops::Range;

use crate::engine::cache::KvCache;
use crate::engine::schedule::ScheduledRow;
use crate::ids::{SegmentId, StateId};
use crate::kv::{PrefixTree, StateRun};

/// The runs of a step, with what was changed in the prefix tree for them.
pub(super) struct ChosenStates {
    pub runs: Vec<StateRun>,
    changes: Vec<StateChange>,
}

enum StateChange {
    New { segment: SegmentId, position: u32 },
    Moved { segment: SegmentId, from: u32, to: u32 },
}

/// Why no runs can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoState {
    /// The state before a row was evicted since its step was scheduled.
    Missing,
    /// The step needs more slots than there are.
    OutOfSlots,
}

/// Rows of one segment, of consecutive positions.
struct Group {
    segment: SegmentId,
    positions: Range<u32>,
    rows: Range<u32>,
    from: Source,
}

/// The state that a group continues.
#[derive(Clone, Copy)]
enum Source {
    Empty,
    Kept {
        slot: StateId,
        /// See `StateRun::is_in`.
        is_in: bool,
    },
    /// That of the group with this number, which ends where this one begins.
    Group(usize),
}

impl Group {
    /// The position of the kept state that it continues, if that is one of its own segment.
    fn own_source(&self, prefix: &PrefixTree) -> Option<(StateId, u32)> {
        let Source::Kept { slot, is_in } = self.from else { return None };
        let position = self.positions.start + u32::from(is_in);
        (position > prefix.first_position(self.segment)).then_some((slot, position))
    }
}

impl KvCache {
    /// The runs of `rows`, which are depth-first; none for models without states. The state after each run is kept.
    pub fn choose_states(&mut self, rows: &[ScheduledRow]) -> Result<ChosenStates, NoState> {
        let mut chosen = ChosenStates { runs: Vec::new(), changes: Vec::new() };
        if !self.prefix.has_states() {
            return Ok(chosen);
        }
        self.prefix.begin_state_runs();
        let groups = self.groups(rows)?;
        let mut users: HashMap<StateId, usize> = HashMap::new();
        for group in &groups {
            if let Source::Kept { slot, .. } = group.from {
                self.prefix.use_state(slot);
                *users.entry(slot).or_default() += 1;
            }
        }
        for group in &groups {
            let (from, is_in) = match group.from {
                Source::Empty => (None, false),
                Source::Kept { slot, is_in } => (Some(slot), is_in),
                Source::Group(number) => (chosen.runs[number].to, false),
            };
            let own = group.own_source(&self.prefix).filter(|(slot, _)| users[slot] == 1);
            match self.keep_after(group, own.map(|(_, position)| position), &mut chosen.changes) {
                Ok(to) => chosen.runs.push(StateRun { rows: group.rows.clone(), from, is_in, to }),
                Err(none) => {
                    self.undo_states(&chosen);
                    return Err(none);
                }
            }
        }
        Ok(chosen)
    }

    /// The slot for the state after `group`; `None` if that is kept already. `own`: the position of the state of its
    /// segment that nobody else continues. A branch continues its own state in place. In a prompt, the state before a
    /// chunk stays for others that part from it there, if a slot is free.
    fn keep_after(
        &mut self,
        group: &Group,
        own: Option<u32>,
        changes: &mut Vec<StateChange>,
    ) -> Result<Option<StateId>, NoState> {
        let Group { segment, ref positions, .. } = *group;
        let end = positions.end;
        if self.prefix.state_at(segment, end).is_some() {
            return Ok(None);
        }
        match own.filter(|_| self.prefix.is_open(segment) || !self.prefix.has_free_state()) {
            Some(from) => {
                changes.push(StateChange::Moved { segment, from, to: end });
                Ok(Some(self.prefix.move_state(segment, from, end)))
            }
            None => {
                let slot = self.prefix.keep_state(segment, end).ok_or(NoState::OutOfSlots)?;
                changes.push(StateChange::New { segment, position: end });
                Ok(Some(slot))
            }
        }
    }

    fn groups(&self, rows: &[ScheduledRow]) -> Result<Vec<Group>, NoState> {
        let mut groups: Vec<Group> = Vec::new();
        let mut by_end: HashMap<(SegmentId, u32), usize> = HashMap::new();
        for (row, at) in (0u32..).zip(rows.iter().map(|row| row.at)) {
            // Its segment may have been split since it was scheduled.
            let (segment, position) = (self.prefix.owner(at.segment, at.position), at.position);
            if let Some(last) = groups.last_mut() {
                if (last.segment, last.positions.end) == (segment, position) {
                    last.positions.end += 1;
                    last.rows.end += 1;
                    continue;
                }
                by_end.insert((last.segment, last.positions.end), groups.len() - 1);
            }
            let before = match position == self.prefix.first_position(segment) {
                true => self.prefix.parent(segment),
                false => Some(segment),
            };
            let (kept, group) =
                (self.prefix.state_at(segment, position), before.and_then(|id| by_end.get(&(id, position))));
            let from = match (kept, group) {
                _ if position == 0 => Source::Empty,
                (Some(slot), _) => Source::Kept { slot, is_in: false },
                (None, Some(&number)) => Source::Group(number),
                (None, None) => {
                    let slot = self.prefix.state_at(segment, position + 1).ok_or(NoState::Missing)?;
                    Source::Kept { slot, is_in: true }
                }
            };
            groups.push(Group { segment, positions: position..position + 1, rows: row..row + 1, from });
        }
        Ok(groups)
    }

    /// Takes back what was changed for a step that computed nothing.
    pub fn undo_states(&mut self, chosen: &ChosenStates) {
        for change in chosen.changes.iter().rev() {
            match *change {
                StateChange::New { segment, position } => self.prefix.drop_state(segment, position),
                StateChange::Moved { segment, from, to } => _ = self.prefix.move_state(segment, to, from),
            }
        }
    }
}
