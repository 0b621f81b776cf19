//! A schedule: the rows of one step and the requests for their logits. The scheduler makes it; planning comes later.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::engine::branch::{Branch, Lease, NeededPositions};
use crate::engine::cache::KvCache;
use crate::ids::{BranchId, PageId, SegmentId};
use crate::kv::{KvSlot, StepRow};
use crate::mix::IdMap;
use crate::plan::NewPage;

/// One query token of the step.
#[derive(Clone, Copy)]
pub(super) struct ScheduledRow {
    /// In the segment that has the token.
    pub at: StepRow,
    pub slot: KvSlot,
    /// The first branch that needs it, which knows its token.
    pub branch: BranchId,
    /// Number of rows taken before it.
    taken: u32,
}

/// A branch's request for the logits of the row at its position `position`.
#[derive(Clone, Copy)]
pub(super) struct LogitsRequest {
    pub branch: BranchId,
    /// The branch's generation when the request was made.
    pub generation: u64,
    pub position: usize,
    /// `ScheduledRow::taken`.
    row: u32,
}

#[derive(Clone, Default)]
pub(super) struct Schedule {
    /// Depth-first.
    pub rows: Vec<ScheduledRow>,
    pub requests: Vec<LogitsRequest>,
    /// `ScheduledRow::taken` of the row in each slot.
    taken: IdMap<(PageId, u32), u32>,
    /// By segment: the position up to which its path is taken.
    taken_upto: IdMap<SegmentId, u32>,
}

/// The room that is left in a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepRoom {
    pub rows: usize,
    pub logit_rows: usize,
}

impl Schedule {
    /// An empty schedule with capacity for `rows`.
    pub fn for_rows(rows: usize) -> Self {
        let mut schedule = Schedule::default();
        schedule.rows.reserve(rows);
        schedule.requests.reserve(rows);
        schedule.taken.reserve(rows);
        schedule
    }

    /// Adds the rows that `branch` needs and that are not in the step yet, as many as `left` allows. The cost is linear
    /// in the segments and rows that no earlier branch has taken.
    pub fn take_rows(&mut self, branch: &Branch, need: NeededPositions, cache: &KvCache, left: &mut StepRoom) {
        let Lease { segment, own, .. } = branch.lease().expect("a running branch has a lease");
        let (logits_from, end) = (position(need.logits_from), position(need.end));
        let mut begin = position(first_row(branch, &need, cache));
        let mut path = Vec::new();
        let mut above = Some(segment);
        while let Some(id) = above {
            path.push(id);
            if let Some(&upto) = self.taken_upto.get(&id) {
                begin = begin.max(upto).min(logits_from);
            }
            above = cache.prefix.parent(id).filter(|_| cache.prefix.first_position(id) > begin);
        }
        for id in path.into_iter().rev().filter(|&id| cache.prefix.first_position(id) < end) {
            let run_end = end.min(cache.prefix.end(id));
            let mut at = StepRow { segment: id, position: begin.max(cache.prefix.first_position(id)) };
            while at.position < run_end {
                let wanted = at.position >= logits_from;
                let has_room = !wanted || left.logit_rows > 0;
                let taken = if has_room { self.take_row(branch.id, at, cache, left) } else { None };
                let Some(row) = taken else { break };
                if wanted {
                    left.logit_rows -= 1;
                    let position = at.position as usize;
                    self.requests.push(LogitsRequest {
                        branch: branch.id,
                        generation: branch.generation,
                        position,
                        row,
                    });
                }
                at.position += 1;
            }
            // Only its writer requests rows of an open segment.
            if !(own && id == segment) {
                let upto = self.taken_upto.entry(id).or_default();
                *upto = at.position.max(*upto);
            }
            if at.position < run_end {
                return;
            }
        }
    }

    /// The number of the row `at`, which is added for `branch` if it is new; `None` if there is no room for it.
    fn take_row(&mut self, branch: BranchId, at: StepRow, cache: &KvCache, left: &mut StepRoom) -> Option<u32> {
        let slot = cache.prefix.slot(at.segment, at.position);
        match self.taken.entry((slot.page, slot.slot)) {
            Entry::Occupied(taken) => Some(*taken.get()),
            Entry::Vacant(vacant) => {
                left.rows = left.rows.checked_sub(1)?;
                let taken = *vacant.insert(position(self.rows.len()));
                self.rows.push(ScheduledRow { at, slot, branch, taken });
                Some(taken)
            }
        }
    }

    /// The two halves of the rows, each with its requests; `None` for a single row. Rows are depth-first, so that a row
    /// depends only on rows of its own half or the first.
    pub fn halves(&self) -> Option<[Schedule; 2]> {
        let middle = self.rows.len() / 2;
        (middle > 0).then(|| [0..middle, middle..self.rows.len()].map(|rows| self.part(rows)))
    }

    fn part(&self, rows: Range<usize>) -> Schedule {
        let mut part = Schedule::for_rows(rows.len());
        let mut taken = HashMap::with_capacity(rows.len());
        for (number, row) in (0u32..).zip(&self.rows[rows]) {
            taken.insert(row.taken, number);
            part.rows.push(ScheduledRow { taken: number, ..*row });
        }
        let requests = self
            .requests
            .iter()
            .filter_map(|request| Some(LogitsRequest { row: *taken.get(&request.row)?, ..*request }));
        part.requests.extend(requests);
        part
    }

    /// Sorts the requests by row, then branch, and returns the row of each.
    pub fn logit_rows(&mut self) -> Vec<u32> {
        let mut index = vec![0; self.rows.len()];
        for (ix, row) in (0u32..).zip(&self.rows) {
            index[row.taken as usize] = ix;
        }
        let answered = |request: LogitsRequest| (index[request.row as usize], request);
        let mut answered: Vec<(u32, LogitsRequest)> = self.requests.drain(..).map(answered).collect();
        answered.sort_by_key(|(row, request)| (*row, request.branch, request.position));
        let rows;
        (rows, self.requests) = answered.into_iter().unzip();
        rows
    }

    /// Moves every row, and its request, one token further (each row has one request, in the same order). `new_pages`:
    /// the next pages of the rows whose page is full.
    pub fn advance(&mut self, new_pages: &[NewPage]) {
        for row in &mut self.rows {
            row.at.position += 1;
            row.slot.slot += 1;
        }
        for &NewPage { row, page } in new_pages {
            self.rows[row as usize].slot = KvSlot { page, slot: 0 };
        }
        self.requests.iter_mut().for_each(|request| request.position += 1);
    }
}

/// The first position that `branch` must compute: the first missing one, or again the row whose logits it needs.
pub(super) fn first_row(branch: &Branch, need: &NeededPositions, cache: &KvCache) -> usize {
    let lease = branch.lease().expect("a running branch has a lease");
    (cache.prefix.computed(lease.segment) as usize).min(need.logits_from)
}

fn position(tokens: usize) -> u32 {
    u32::try_from(tokens).expect("positions fit u32, as contexts do")
}
