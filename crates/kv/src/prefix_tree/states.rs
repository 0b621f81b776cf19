//! The states of recurrent layers that are kept, each at a position of a segment. See *States* in the module's head.
//! Keys and values of a path serve any position on it; a state serves the one position up to which it was computed.
//! Where there is none, rows are computed again from the last one before, or from the start.

use super::state_table::{Held, Need, Snapshot, StateTable};
use super::{PrefixTree, SegmentState};
use offshoot_core::ids::{SegmentId, StateId};

/// The place of a state: after the token before `position`, which `segment` itself has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatePlace {
    pub segment: SegmentId,
    pub position: u32,
}

/// Checkpoints take at most 1/`CHECKPOINT_PART` of the slots, or `FEWEST_CHECKPOINTS` where that is fewer.
const CHECKPOINT_PART: usize = 40;
const FEWEST_CHECKPOINTS: usize = 8;

impl PrefixTree {
    /// This tree for a model with recurrent layers: it keeps up to `slots` states.
    pub fn keeping_states(mut self, slots: usize) -> Self {
        self.states = Some(StateTable::new(slots));
        self
    }

    /// Whether rows need the state before them.
    pub fn has_states(&self) -> bool {
        self.states.is_some()
    }

    /// The number of states that are kept.
    pub fn states_kept(&self) -> usize {
        self.states.as_ref().map_or(0, |table| table.slots.len() - table.free.len())
    }

    /// The first position from which rows can be computed so that the row at `first` of the path of `segment` is among
    /// them: `first` if there are no states, if the state before it is kept, or the one after it (the row is then read
    /// from that); else the last position before with a state.
    pub fn resume_from(&self, segment: SegmentId, first: u32) -> u32 {
        if !self.has_states() || first == 0 || self.is_after(segment, first) {
            return first;
        }
        let mut holders = self.holder(segment, first).into_iter().flat_map(|id| self.ancestry(id));
        let last_upto = |id: SegmentId| self.at(id).states.iter().rev().find(|kept| kept.position <= first);
        holders.find_map(last_upto).map_or(0, |kept| kept.position)
    }

    /// Whether the row at `position` can be read from the state after it, as the one before it is not kept.
    fn is_after(&self, segment: SegmentId, position: u32) -> bool {
        position < self.end(segment)
            && self.state_at(segment, position).is_none()
            && self.state_at(segment, position + 1).is_some()
    }

    /// The state at `position` of the path of `segment`, if it is kept.
    pub fn state_at(&self, segment: SegmentId, position: u32) -> Option<StateId> {
        let states = &self.at(self.holder(segment, position)?).states;
        states.iter().find(|kept| kept.position == position).map(|kept| kept.slot)
    }

    /// Begins to choose the runs of a step. What it uses from now on stays until the next one.
    pub fn begin_state_runs(&mut self) {
        self.states.iter_mut().for_each(|table| table.step += 1);
    }

    /// Marks the state in `slot` as used by the current step: as one that forks go on from if its segment ends there.
    pub fn use_state(&mut self, slot: StateId) {
        let Some(held) = self.states.as_ref().and_then(|table| table.slots[slot.ix()]) else { return };
        let owner = self.at(held.segment);
        let ends_there = owner.states.last().is_some_and(|last| (last.slot, last.position) == (slot, owner.end()));
        let need = if ends_there { Need::Continued } else { Need::Checkpoint };
        self.set_need(slot, need);
    }

    /// Marks the state in `slot`, which the current step has continued elsewhere, as a checkpoint.
    pub fn leave_state(&mut self, slot: StateId) {
        self.set_need(slot, Need::Checkpoint);
    }

    /// Marks the checkpoint in `slot`, which the prefix store has now, as one that nobody needs, unless its segment
    /// ends there: it makes way for others that are to be stored.
    pub fn note_stored(&mut self, slot: StateId) {
        let Some(held) = self.states.as_ref().and_then(|table| table.slots[slot.ix()]) else { return };
        let ends_there = self.state_at(held.segment, self.end(held.segment)) == Some(slot);
        if held.need == Need::Checkpoint && !ends_there {
            self.states.iter_mut().for_each(|table| table.change(slot, |held| held.need = Need::Cached));
        }
    }

    fn set_need(&mut self, slot: StateId, need: Need) {
        let Some(table) = &mut self.states else { return };
        let used = table.step;
        table.change(slot, |held| *held = Held { need, used, ..*held });
    }

    /// Gives the state at `place`, where there is none, a slot: a free one, or that of the state that goes next. `None`
    /// if the current step uses all.
    pub fn keep_state(&mut self, place: StatePlace) -> Option<StateId> {
        let StatePlace { segment, position } = place;
        debug_assert!(self.first_position(segment) < position && position <= self.end(segment));
        debug_assert_eq!(self.state_at(segment, position), None);
        if self.states.as_ref()?.free.is_empty() {
            let (next, owner) = self.states.as_ref()?.next_to_go()?;
            self.forget(owner, next);
        }
        let slot = self.states.as_mut()?.take(segment)?;
        self.note_state(segment, Snapshot { position, slot });
        Some(slot)
    }

    /// Gives a slot to a state that comes from host memory while a step is scheduled: rows that are scheduled already
    /// count on the states of paths that somebody uses, so it takes a free slot, or that of a state on another path.
    /// `None` if there is none, or nobody keeps states.
    pub fn keep_spare_state(&mut self, place: StatePlace) -> Option<StateId> {
        let table = self.states.as_ref()?;
        if table.free.is_empty() {
            // A segment that is used again has its states among the cached ones until a step uses these.
            let mut cached = table.by_use.range((Need::Cached, 0, StateId(0))..(Need::Checkpoint, 0, StateId(0)));
            let next = cached.find_map(|&(.., slot)| {
                let held = table.slots[slot.ix()].filter(|held| self.at(held.segment).users == 0)?;
                Some((slot, held.segment))
            });
            let (slot, owner) = next?;
            self.forget(owner, slot);
        }
        self.keep_state(place)
    }

    /// The number of states that can be kept without one being evicted that somebody needs.
    pub fn spare_states(&self) -> usize {
        self.states.as_ref().map_or(0, |table| table.free.len() + table.cached)
    }

    /// The largest number of checkpoints, and how many may still be left behind.
    pub fn checkpoints(&self) -> (usize, usize) {
        self.states.as_ref().map_or((0, 0), |table| {
            let most = (table.slots.len() / CHECKPOINT_PART).max(FEWEST_CHECKPOINTS);
            (most, most.saturating_sub(table.checkpoints))
        })
    }

    /// The number of states on paths that somebody holds.
    pub fn states_held(&self) -> usize {
        self.states.as_ref().map_or(0, |table| table.checkpoints + table.continued)
    }

    /// The state at `from` was continued, in its slot, to `to`.
    pub fn move_state(&mut self, from: StatePlace, to: StatePlace) -> StateId {
        let states = &mut self.at_mut(from.segment).states;
        let at = states.iter().position(|kept| kept.position == from.position).expect("the caller found it there");
        let Snapshot { slot, .. } = states.remove(at);
        self.note_state(to.segment, Snapshot { position: to.position, slot });
        if let Some(table) = &mut self.states {
            let used = table.step;
            table.change(slot, |held| *held = Held { segment: to.segment, need: Need::Continued, used });
        }
        slot
    }

    /// Whether `segment` has the state at `position` itself.
    pub fn has_own_state(&self, segment: SegmentId, position: u32) -> bool {
        self.at(segment).states.iter().any(|kept| kept.position == position)
    }

    /// Whether the branch that writes `segment` is the only one that can continue from its states.
    pub fn is_open(&self, segment: SegmentId) -> bool {
        self.at(segment).state == SegmentState::Open
    }

    /// Drops the state at `place`, which was not computed after all.
    pub fn drop_state(&mut self, place: StatePlace) {
        if let Some(slot) = self.state_at(place.segment, place.position) {
            self.forget(place.segment, slot);
        }
    }

    /// Marks the states of `segment`, whose last lease has ended, as cached.
    pub(super) fn cache_states(&mut self, segment: SegmentId) {
        self.change_states(segment, |held| held.need = Need::Cached);
    }

    /// Tells the slots of `segment` that they are its own now.
    pub(super) fn own_states(&mut self, segment: SegmentId) {
        self.change_states(segment, |held| held.segment = segment);
    }

    fn change_states(&mut self, segment: SegmentId, change: impl Fn(&mut Held)) {
        let Self { arena, states, .. } = self;
        let (Some(table), Some(owner)) = (states, &arena[segment.ix()]) else { return };
        owner.states.iter().for_each(|kept| table.change(kept.slot, &change));
    }

    fn note_state(&mut self, segment: SegmentId, kept: Snapshot) {
        let states = &mut self.at_mut(segment).states;
        states.insert(states.partition_point(|other| other.position < kept.position), kept);
    }

    fn forget(&mut self, segment: SegmentId, slot: StateId) {
        self.at_mut(segment).states.retain(|kept| kept.slot != slot);
        self.states.iter_mut().for_each(|table| table.release(slot));
    }

    /// Drops the states past the end of `segment`, which was shortened.
    pub(super) fn cut_states(&mut self, segment: SegmentId) {
        let end = self.end(segment);
        let kept = self.at(segment).states.partition_point(|kept| kept.position <= end);
        let gone = self.at_mut(segment).states.split_off(kept);
        self.release_states(gone);
    }

    /// Frees the slots of a removed segment's states.
    pub(super) fn release_states(&mut self, gone: Vec<Snapshot>) {
        let Some(table) = &mut self.states else { return };
        gone.into_iter().for_each(|kept| table.release(kept.slot));
    }

    /// Checks that states are at computed positions of their segments, each in a slot of its own, and that all slots
    /// are free or listed.
    pub(super) fn check_states(&self, ids: &[SegmentId]) -> Result<(), String> {
        let Some(table) = &self.states else {
            let with = ids.iter().find(|id| !self.at(**id).states.is_empty());
            return with.map_or(Ok(()), |id| Err(format!("segment {id} has a state, but nobody keeps states")));
        };
        let mut listed = 0;
        for &id in ids {
            let segment = self.at(id);
            let (first, computed) = (segment.first_position, segment.first_position + segment.computed);
            if !segment.states.is_sorted_by(|a, b| a.position < b.position) {
                return Err(format!("the states of segment {id} are not in order: {:?}", segment.states));
            }
            for kept in &segment.states {
                if !(first < kept.position && kept.position <= computed) {
                    return Err(format!("segment {id}, computed from {first} to {computed}, has a state at {kept:?}"));
                }
                match table.slots[kept.slot.ix()] {
                    Some(Held { segment, need, used })
                        if segment == id && table.by_use.contains(&(need, used, kept.slot)) =>
                    {
                        listed += 1;
                    }
                    other => return Err(format!("slot {} of segment {id} is listed as {other:?}", kept.slot)),
                }
            }
        }
        let (all, free) = (table.slots.len(), table.free.len());
        let counted = table.cached + table.checkpoints + table.continued;
        match listed + free == all && table.by_use.len() == listed && counted == listed {
            true => Ok(()),
            false => Err(format!("{listed} states are kept in {all} slots, of which {free} are free")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PagePool;
    use offshoot_core::ids::TokenId;

    /// A computed prompt of 20 tokens on pages of four, with states at these positions.
    fn prompt(slots: usize, positions: &[u32]) -> (PrefixTree, PagePool, SegmentId) {
        let mut tree = PrefixTree::new(4).keeping_states(slots);
        let mut pool = PagePool::new(16);
        let tokens: Vec<TokenId> = (0..20).map(TokenId).collect();
        let id = tree.admit(&mut pool, &tokens).unwrap();
        tree.mark_computed(id, 20);
        for &position in positions {
            tree.begin_state_runs();
            tree.keep_state(StatePlace { segment: id, position }).unwrap();
        }
        tree.check_integrity(&pool).unwrap();
        (tree, pool, id)
    }

    #[test]
    fn rows_begin_where_a_state_is_kept_or_the_one_after_is() {
        let (tree, _, id) = prompt(3, &[8, 14, 20]);
        let begins: Vec<u32> = [0, 5, 7, 8, 10, 13, 14, 18, 19].map(|first| tree.resume_from(id, first)).to_vec();
        assert_eq!(begins, [0, 0, 7, 8, 8, 13, 14, 14, 19]);
        let without = PrefixTree::new(4);
        assert!(!without.has_states() && without.states_kept() == 0);
    }

    #[test]
    fn states_go_with_the_tokens_before_them() {
        let (mut tree, mut pool, id) = prompt(3, &[8, 14, 20]);
        let slots = [8, 14, 20].map(|position| tree.state_at(id, position));
        let fork = tree.fork_at(&mut pool, id, 14);
        let upper = tree.parent(fork).unwrap();
        assert_ne!(upper, id);
        assert!(tree.has_own_state(upper, 14) && tree.has_own_state(id, 20) && !tree.has_own_state(id, 14));
        assert_eq!([8, 14, 20].map(|position| tree.state_at(id, position)), slots, "nothing is copied");
        assert_eq!(tree.resume_from(fork, 14), 14);
        tree.check_integrity(&pool).unwrap();
        // A state past a token that is taken back goes with it.
        tree.append(&mut pool, fork, &[TokenId(99)]).unwrap();
        tree.append_pending(&mut pool, fork).unwrap();
        tree.mark_computed(fork, 16);
        tree.begin_state_runs();
        let kept = tree.keep_state(StatePlace { segment: fork, position: 16 });
        assert_eq!(kept, slots[0], "the oldest makes room");
        tree.take_back(&mut pool, fork);
        assert_eq!((tree.state_at(fork, 16), tree.resume_from(fork, 15)), (None, 14));
        tree.check_integrity(&pool).unwrap();
        tree.release(fork);
        tree.release(id);
        tree.evict(&mut pool, usize::MAX);
        assert_eq!(tree.states_kept(), 0);
        tree.check_integrity(&pool).unwrap();
    }

    #[test]
    fn what_a_step_uses_stays_until_the_next() {
        let (mut tree, pool, id) = prompt(2, &[8, 14]);
        let place = |position| StatePlace { segment: id, position };
        tree.begin_state_runs();
        tree.use_state(tree.state_at(id, 8).unwrap());
        assert!(tree.keep_state(place(20)).is_some());
        assert_eq!([8, 14, 20].map(|position| tree.state_at(id, position).is_some()), [true, false, true]);
        assert_eq!(tree.keep_state(place(12)), None, "both are of this step");
        tree.begin_state_runs();
        tree.move_state(place(8), place(12));
        tree.drop_state(place(20));
        assert_eq!((tree.states_kept(), tree.spare_states()), (1, 1));
        tree.check_integrity(&pool).unwrap();
    }

    #[test]
    fn a_state_from_host_memory_takes_no_slot_on_a_path_in_use() {
        let (mut tree, mut pool, held) = prompt(2, &[8, 14]);
        tree.leave_state(tree.state_at(held, 8).unwrap());
        let other = tree.admit(&mut pool, &[TokenId(70), TokenId(71)]).unwrap();
        tree.mark_computed(other, 2);
        let place = StatePlace { segment: other, position: 2 };
        assert_eq!(tree.keep_spare_state(place), None, "a checkpoint stays");
        tree.release(held);
        tree.retain(held);
        assert_eq!(tree.keep_spare_state(place), None, "they are listed as cached, and somebody begins there");
        tree.release(held);
        assert!(tree.keep_spare_state(place).is_some());
        assert_eq!((tree.states_kept(), tree.state_at(held, 14).is_some()), (2, true));
        tree.check_integrity(&pool).unwrap();
    }

    #[test]
    fn what_nobody_holds_goes_first_then_what_was_left_behind() {
        let (mut tree, mut pool, held) = prompt(4, &[20, 8, 14]);
        let other = tree.admit(&mut pool, &[TokenId(70), TokenId(71)]).unwrap();
        tree.mark_computed(other, 2);
        tree.begin_state_runs();
        tree.keep_state(StatePlace { segment: other, position: 2 }).unwrap();
        for position in [8, 14] {
            tree.leave_state(tree.state_at(held, position).unwrap());
        }
        tree.release(other);
        assert_eq!((tree.spare_states(), tree.states_held()), (1, 3));
        assert_eq!(tree.checkpoints(), (FEWEST_CHECKPOINTS, FEWEST_CHECKPOINTS - 2));
        let mut gone = Vec::new();
        for position in [16, 17, 18, 19] {
            tree.begin_state_runs();
            tree.keep_state(StatePlace { segment: held, position }).unwrap();
            tree.check_integrity(&pool).unwrap();
            let kept = |segment, position| tree.state_at(segment, position).is_some();
            gone.push([kept(other, 2), kept(held, 8), kept(held, 14), kept(held, 20)]);
        }
        // The newest used last.
        assert_eq!(gone[0], [false, true, true, true]);
        assert_eq!(gone[1], [false, false, true, true]);
        assert_eq!(gone[2], [false, false, false, true]);
        assert_eq!(gone[3], [false; 4]);
    }
}
