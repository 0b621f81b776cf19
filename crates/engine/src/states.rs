//! Chooses which states of recurrent layers the rows of a step read, and where the states after them go. The scheduler
//! lets rows begin where a state is kept (`PrefixTree::resume_from`); the prefix tree keeps the states.
//!
//! # How many slots a step needs
//! The rows of a step form *groups*, one for each segment that has some, and groups follow each other along paths. The
//! state after a group is kept if a branch goes on from there: if no other group follows, or if a branch has the logits
//! of its last row. A group that alone follows another one, or the state of its own segment, takes over its slot. Where
//! several follow, the state between them has a slot of its own, and so has a parent's that a group reads. So a step of
//! `n` branches needs at most `2 n` slots, however many segments its rows are in, and as many branches run.
//!
//! # Checkpoints
//! A state that a branch could take over, in what it was given, is left behind while slots are free or hold what nobody
//! needs: others may part from it there. Their number is bounded. Half of it is for the ends of segments: the scheduler
//! splits prompts where the next waiting ones part from them (`Scheduler::spare_waiting`), and for states that the
//! prefix store or another engine is to have (`KvCache::leaves_state`): groups end there, too. The other half may be
//! the ends of chunks, for those that are not known yet.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::cache::KvCache;
use crate::schedule::Schedule;
use offshoot_core::ids::{SegmentId, StateId};
use offshoot_kv::{StatePlace, StateRun};

/// The runs of a step, with what was changed in the prefix tree for them.
pub(super) struct ChosenStates {
    pub runs: Vec<StateRun>,
    changes: Vec<StateChange>,
}

enum StateChange {
    New(StatePlace),
    Moved { from: StatePlace, to: StatePlace },
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
        place: StatePlace,
        /// See `StateRun::is_in`.
        is_in: bool,
    },
    /// That of the group with this number, which ends where this one begins.
    Group(usize),
}

impl Group {
    /// The place of the state after it.
    fn end(&self) -> StatePlace {
        StatePlace { segment: self.segment, position: self.positions.end }
    }
}

/// How many checkpoints a step may leave behind, and how many until half of all are there.
struct Checkpoints {
    left: usize,
    before_half: usize,
}

impl Checkpoints {
    /// Takes one, at the end of a segment or elsewhere, if there is one left for that.
    fn take(&mut self, ends_there: bool) -> bool {
        let takes = self.left > 0 && (ends_there || self.before_half > 0);
        if takes {
            self.left -= 1;
            self.before_half = self.before_half.saturating_sub(1);
        }
        takes
    }
}

/// Who goes on from which state in a step.
struct Readers {
    of_kept: HashMap<StateId, usize>,
    of_group: Vec<usize>,
    /// Where branches go on that have the logits of the last row there.
    branches: HashSet<StatePlace>,
}

impl Readers {
    fn new(groups: &[Group], branches: HashSet<StatePlace>) -> Self {
        let mut readers = Readers { of_kept: HashMap::new(), of_group: vec![0; groups.len()], branches };
        for group in groups {
            match group.from {
                Source::Empty => {}
                Source::Kept { slot, .. } => *readers.of_kept.entry(slot).or_default() += 1,
                Source::Group(number) => readers.of_group[number] += 1,
            }
        }
        readers
    }

    /// The place of the state whose slot `group` can take over: one that it alone continues, in its own segment or
    /// after another group.
    fn sole(&self, group: &Group, groups: &[Group]) -> Option<StatePlace> {
        let (place, readers) = match group.from {
            Source::Empty => return None,
            Source::Kept { place, .. } if place.segment != group.segment => return None,
            Source::Kept { slot, place, .. } => (place, self.of_kept[&slot]),
            Source::Group(number) => (groups[number].end(), self.of_group[number]),
        };
        (readers == 1 && !self.branches.contains(&place)).then_some(place)
    }
}

impl KvCache {
    /// The runs of the rows of `schedule`, which are depth-first; none for models without states.
    pub fn choose_states(&mut self, schedule: &Schedule) -> Result<ChosenStates, NoState> {
        let mut chosen = ChosenStates { runs: Vec::new(), changes: Vec::new() };
        if !self.prefix.has_states() {
            return Ok(chosen);
        }
        self.prefix.begin_state_runs();
        let groups = self.groups(schedule)?;
        let owned = |(segment, position): (SegmentId, u32)| StatePlace {
            segment: self.prefix.owner(segment, position - 1),
            position,
        };
        let readers = Readers::new(&groups, schedule.branch_ends().map(owned).collect());
        // What is read, or is there already, stays.
        for group in &groups {
            if let Source::Kept { slot, .. } = group.from {
                self.prefix.use_state(slot);
            }
            if let Some(slot) = self.state_of(group.end()) {
                self.prefix.use_state(slot);
            }
        }
        let needed = |group: &&Group| self.state_of(group.end()).is_none() && readers.sole(group, &groups).is_none();
        let spare = self.prefix.spare_states().saturating_sub(groups.iter().filter(needed).count());
        let (most, left) = self.prefix.checkpoints();
        let mut checkpoints = Checkpoints { left: spare.min(left), before_half: left.saturating_sub(most / 2) };
        for group in &groups {
            let (from, is_in) = match group.from {
                Source::Empty => (None, false),
                Source::Kept { slot, is_in, .. } => (Some(slot), is_in),
                Source::Group(number) => (chosen.runs[number].to, false),
            };
            let sole = readers.sole(group, &groups);
            match self.keep_after(group, sole.zip(from), &mut checkpoints, &mut chosen.changes) {
                Ok(to) => chosen.runs.push(StateRun { rows: group.rows.clone(), from, is_in, to }),
                Err(none) => {
                    self.undo_states(&chosen);
                    return Err(none);
                }
            }
        }
        Ok(chosen)
    }

    /// The slot for the state after `group`; `None` if that is kept already. `sole`: the state whose slot it can take
    /// over.
    fn keep_after(
        &mut self,
        group: &Group,
        sole: Option<(StatePlace, StateId)>,
        checkpoints: &mut Checkpoints,
        changes: &mut Vec<StateChange>,
    ) -> Result<Option<StateId>, NoState> {
        let to = group.end();
        if self.state_of(to).is_some() {
            return Ok(None);
        }
        if let Some((from, slot)) = sole {
            let ends_there = from.position == self.prefix.end(from.segment) || self.leaves_state(from);
            if self.prefix.is_open(from.segment) || !checkpoints.take(ends_there) {
                changes.push(StateChange::Moved { from, to });
                return Ok(Some(self.prefix.move_state(from, to)));
            }
            self.prefix.leave_state(slot);
        }
        let slot = self.prefix.keep_state(to).ok_or(NoState::OutOfSlots)?;
        changes.push(StateChange::New(to));
        Ok(Some(slot))
    }

    /// Whether the state at `place` is to be left there, for the prefix store or for another engine.
    fn leaves_state(&self, place: StatePlace) -> bool {
        self.stores_state(place) || self.lent_states.contains(&place)
    }

    fn state_of(&self, place: StatePlace) -> Option<StateId> {
        self.prefix.state_at(place.segment, place.position)
    }

    fn groups(&self, schedule: &Schedule) -> Result<Vec<Group>, NoState> {
        let mut groups: Vec<Group> = Vec::new();
        let mut by_end: HashMap<StatePlace, usize> = HashMap::new();
        for (row, at) in (0u32..).zip(schedule.rows.iter().map(|row| row.at)) {
            // Its segment may have been split since it was scheduled.
            let (segment, position) = (self.prefix.owner(at.segment, at.position), at.position);
            if let Some(last) = groups.last_mut() {
                if last.end() == (StatePlace { segment, position }) && !self.leaves_state(last.end()) {
                    last.positions.end += 1;
                    last.rows.end += 1;
                    continue;
                }
                by_end.insert(last.end(), groups.len() - 1);
            }
            let from = self.source(StatePlace { segment, position }, &by_end)?;
            groups.push(Group { segment, positions: position..position + 1, rows: row..row + 1, from });
        }
        Ok(groups)
    }

    /// The state before the row at `row.position` of `row.segment`. `by_end`: the groups before it.
    fn source(&self, row: StatePlace, by_end: &HashMap<StatePlace, usize>) -> Result<Source, NoState> {
        let StatePlace { segment, position } = row;
        if position == 0 {
            return Ok(Source::Empty);
        }
        let before = StatePlace { segment: self.prefix.owner(segment, position - 1), position };
        if let Some(slot) = self.state_of(before) {
            return Ok(Source::Kept { slot, place: before, is_in: false });
        }
        if let Some(&number) = by_end.get(&before) {
            return Ok(Source::Group(number));
        }
        let place = StatePlace { segment, position: position + 1 };
        let slot = self.state_of(place).ok_or(NoState::Missing)?;
        Ok(Source::Kept { slot, place, is_in: true })
    }

    /// Forgets the states that a step was to change which failed while it ran: nobody knows what is in their slots.
    /// They are computed again from the last ones before them that are kept.
    pub fn lose_states(&mut self, chosen: &ChosenStates) {
        for change in &chosen.changes {
            let (StateChange::New(place) | StateChange::Moved { to: place, .. }) = *change;
            self.prefix.drop_state(place);
        }
    }

    /// Takes back what was changed for a step that computed nothing.
    pub fn undo_states(&mut self, chosen: &ChosenStates) {
        for change in chosen.changes.iter().rev() {
            match *change {
                StateChange::New(place) => self.prefix.drop_state(place),
                StateChange::Moved { from, to } => _ = self.prefix.move_state(to, from),
            }
        }
    }
}
