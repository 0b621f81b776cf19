//! The rows of one step and who wants logits of them: what the scheduler decides, before anything is planned.

use crate::engine::branch::{Branch, Need};
use crate::engine::cache::Cache;
use crate::ids::{BranchId, PageId};
use crate::kv::{KvSlot, StepRow};
use crate::mix::{IdMap, IdSet};
use crate::plan::PageTurn;

/// One query token of the step.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub at: StepRow,
    pub slot: KvSlot,
    /// The branch that asked for it first, and that knows its token.
    pub branch: BranchId,
}

/// A branch that wants the logits of the row in `slot`, which is its position `position`.
#[derive(Clone, Copy)]
pub(super) struct Ask {
    pub branch: BranchId,
    /// The branch's turn when it asked.
    pub turn: u64,
    pub position: usize,
    pub slot: KvSlot,
}

#[derive(Default)]
pub(super) struct Schedule {
    /// Depth-first.
    pub rows: Vec<Row>,
    pub asks: Vec<Ask>,
    slots: IdSet<(PageId, u32)>,
}

/// What a step may still take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub rows: usize,
    pub asks: usize,
}

impl Schedule {
    /// Adds the rows that `branch` needs and that are not in the step yet, as many as `left` allows.
    pub fn take_rows(&mut self, branch: &Branch, need: Need, cache: &Cache, left: &mut Left) {
        let segment = branch.lease().expect("a running branch has a lease").segment;
        for position in first_row(branch, &need, cache)..need.end {
            let wanted = position >= need.logits_from;
            if wanted && left.asks == 0 {
                return;
            }
            let at = StepRow { segment, position: u32::try_from(position).expect("positions fit u32, as contexts do") };
            let slot = cache.prefix.slot(segment, at.position);
            if self.slots.insert((slot.page, slot.slot)) {
                if left.rows == 0 {
                    self.slots.remove(&(slot.page, slot.slot));
                    return;
                }
                left.rows -= 1;
                self.rows.push(Row { at, slot, branch: branch.id });
            }
            if wanted {
                left.asks -= 1;
                self.asks.push(Ask { branch: branch.id, turn: branch.turn, position, slot });
            }
        }
    }

    /// The row of each ask, after sorting both by rows: asks in rising order of rows, those of one row by branch.
    pub fn answer_rows(&mut self) -> Vec<u32> {
        let index: IdMap<_, _> =
            (0u32..).zip(&self.rows).map(|(ix, row)| ((row.slot.page, row.slot.slot), ix)).collect();
        let answered = |ask: Ask| (index[&(ask.slot.page, ask.slot.slot)], ask);
        let mut answered: Vec<(u32, Ask)> = self.asks.drain(..).map(answered).collect();
        answered.sort_by_key(|(row, ask)| (*row, ask.branch, ask.position));
        let rows;
        (rows, self.asks) = answered.into_iter().unzip();
        rows
    }

    /// Every row one token further, and its ask with it (each row has one, in the same order); `turns` are the pages of the
    /// rows whose own are full.
    pub fn advance(&mut self, turns: &[PageTurn]) {
        for row in &mut self.rows {
            row.at.position += 1;
            row.slot.slot += 1;
        }
        for &PageTurn { row, page } in turns {
            self.rows[row as usize].slot = KvSlot { page, slot: 0 };
        }
        for (ask, row) in self.asks.iter_mut().zip(&self.rows) {
            ask.position += 1;
            ask.slot = row.slot;
        }
    }
}

/// The first position that `branch` must compute: what is missing, or once more the row whose logits it wants.
pub(super) fn first_row(branch: &Branch, need: &Need, cache: &Cache) -> usize {
    let lease = branch.lease().expect("a running branch has a lease");
    (cache.prefix.computed(lease.segment) as usize).min(need.logits_from)
}
