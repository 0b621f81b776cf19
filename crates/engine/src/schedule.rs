//! A schedule: the rows of one step and the requests for their logits. The scheduler makes it; planning comes later.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;

use crate::branch::{Branch, BranchWork, Lease, NeededPositions};
use crate::cache::KvCache;
use crate::claims::{ScoreClaims, ValueClaims};
use crate::token_path::position;
use crate::values::ValuesState;
use offshoot_core::ids::{BranchId, GroupIx, PageId, SegmentId};
use offshoot_core::mix::IdMap;
use offshoot_kv::plan::{NewPage, of_group};
use offshoot_kv::{KvSlot, StepRow};

/// One query token of the step.
#[derive(Clone, Copy)]
pub(super) struct ScheduledRow {
    /// In the segment that has the token.
    pub at: StepRow,
    /// In the first page group.
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
    /// The position up to which each segment's path is taken.
    taken_upto: IdMap<SegmentId, u32>,
    /// Tokens that are being scored.
    scoring: ScoreClaims,
    /// Rows whose values are being computed.
    values: ValueClaims,
    /// For each page, the first position at which a scoring branch of this step goes on later.
    unscored_from: IdMap<PageId, u32>,
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

    /// Records what requests of `branch` in flight compute for others, too.
    pub fn note_in_flight(&mut self, branch: &Branch, cache: &KvCache) {
        self.scoring.add_in_flight(&cache.prefix, branch);
        self.values.add_in_flight(&cache.prefix, branch);
    }

    /// Adds the rows that `branch` needs and that are not in the step yet, as many as `left` allows. The cost is linear
    /// in the segments and rows that no earlier branch has taken, and for a scoring branch in `left.logit_rows` and the
    /// tokens that others score for it.
    pub fn take_rows(&mut self, branch: &Branch, need: NeededPositions, cache: &KvCache, left: &mut StepRoom) {
        if let BranchWork::Values(values) = &branch.work {
            return self.take_value_rows(branch, values, need, cache, left);
        }
        let Lease { segment, .. } = branch.lease().expect("a running branch has a lease");
        let wanted = self.wanted_rows(branch, &need, cache, left);
        // If others compute all logits of the tokens that have slots, only rows before them are missing.
        let logits_from = wanted.first().map_or(position(need.logits_from), |rows| rows.start);
        let begin = self.first_untaken(branch, cache, logits_from);
        let mut next = begin;
        let without_logits = std::iter::once((begin..logits_from, false));
        // What others compute between them is computed again if rows need the states before them.
        let has_states = cache.prefix.has_states();
        let gaps: Vec<Range<u32>> = wanted.windows(2).map(|two| two[0].end..two[1].start).collect();
        let gaps = gaps.into_iter().map(Some).chain(std::iter::once(None));
        let wanted = wanted.into_iter().zip(gaps).flat_map(|(rows, gap)| {
            std::iter::once((rows, true)).chain(gap.filter(|_| has_states).map(|gap| (gap, false)))
        });
        let runs = without_logits.chain(wanted);
        let parts = runs.flat_map(|(rows, wanted)| {
            cache.prefix.parts(segment, rows).into_iter().map(move |(id, part)| (id, part, wanted))
        });
        for (id, part, wanted) in parts {
            next = self.take_part(branch, id, part.clone(), wanted, cache, left);
            if next < part.end {
                break;
            }
        }
        if let BranchWork::Score(scoring) = &branch.work {
            self.note_scored(branch, need.logits_from, next.max(logits_from), scoring.shared_tops(), cache);
        }
    }

    /// Adds the rows that `branch` needs for its missing `values`, but for those that others compute: the rows of these
    /// positions, and without values those before the last of them that are not computed.
    fn take_value_rows(
        &mut self,
        branch: &Branch,
        values: &ValuesState,
        need: NeededPositions,
        cache: &KvCache,
        left: &mut StepRoom,
    ) {
        let prefix = &cache.prefix;
        let Lease { segment, .. } = branch.lease().expect("a running branch has a lease");
        let wanted: Vec<u32> = values.missing().filter(|&at| !self.values.have(prefix, segment, at)).collect();
        let (Some(&first), Some(&last)) = (wanted.first(), wanted.last()) else { return };
        // Rows begin where a state is kept, and none is left out behind that.
        let begin = self.first_untaken(branch, cache, if prefix.has_states() { first } else { last + 1 });
        let mut runs: Vec<(Range<u32>, bool)> = Vec::new();
        let mut next = begin;
        for at in wanted {
            if next < at {
                runs.push((next..at, false));
            }
            match runs.last_mut().filter(|(rows, wanted)| *wanted && rows.end == at) {
                Some((rows, _)) => rows.end = at + 1,
                None => runs.push((at..at + 1, true)),
            }
            next = next.max(at + 1);
        }
        let requested = self.requests.len();
        let parts = runs.into_iter().flat_map(|(rows, wanted)| {
            prefix.parts(segment, rows).into_iter().map(move |(id, part)| (id, part, wanted))
        });
        for (id, part, wanted) in parts {
            let next = self.take_part(branch, id, part.clone(), wanted, cache, left);
            if next < part.end {
                self.wait_behind(segment, next, cache);
                break;
            }
        }
        for request in &self.requests[requested..] {
            self.values.add(prefix, segment, position(request.position));
        }
        debug_assert!(self.requests.iter().skip(requested).all(|request| request.position < need.end));
    }

    /// The rows whose logits `branch` needs, in rising order; of a scoring branch, without those that others compute
    /// for it, and no more than fit.
    fn wanted_rows(
        &self,
        branch: &Branch,
        need: &NeededPositions,
        cache: &KvCache,
        left: &StepRoom,
    ) -> Vec<Range<u32>> {
        let (logits_from, end) = (position(need.logits_from), position(need.end));
        let BranchWork::Score(scoring) = &branch.work else { return std::iter::once(logits_from..end).collect() };
        let Lease { segment, .. } = branch.lease().expect("a running branch has a lease");
        let most = left.logit_rows.max(1);
        let Some(tops) = scoring.shared_tops() else {
            return std::iter::once(logits_from..end.min(logits_from.saturating_add(position(most)))).collect();
        };
        // A claim belongs to the slot of the token that is scored.
        let laid = cache.prefix.path_laid_upto(segment).min(end);
        let mut tokens = self.scoring.unscored(&cache.prefix, segment, logits_from + 1..laid, tops, most);
        // The token after the last row is its own affair.
        if tokens.len() < most && laid == end {
            tokens.push(end);
        }
        let mut rows: Vec<Range<u32>> = Vec::new();
        for row in tokens.into_iter().map(|token| token - 1) {
            match rows.last_mut().filter(|last| last.end == row) {
                Some(last) => last.end += 1,
                None => rows.push(row..row + 1),
            }
        }
        rows
    }

    /// The first position whose row `branch` must add: the first missing one that no earlier branch has taken, or
    /// `logits_from`; with states, that from which these can be computed.
    fn first_untaken(&self, branch: &Branch, cache: &KvCache, logits_from: u32) -> u32 {
        let Lease { segment, .. } = branch.lease().expect("a running branch has a lease");
        let mut begin = cache.prefix.resume_from(segment, cache.prefix.computed(segment).min(logits_from));
        let has_states = cache.prefix.has_states();
        let mut above = Some(segment);
        while let Some(id) = above {
            // Rows that end after the first one with logits may begin after it, where they have a state.
            if let Some(&upto) = self.taken_upto.get(&id).filter(|upto| !has_states || **upto <= logits_from) {
                begin = begin.max(upto).min(logits_from);
            }
            above = cache.prefix.parent(id).filter(|_| cache.prefix.first_position(id) > begin);
        }
        begin
    }

    /// Takes the rows at the positions `part` of segment `id`, with their logits if these are `wanted`. Returns the
    /// position of the first one for which there is no room, or the end.
    fn take_part(
        &mut self,
        branch: &Branch,
        id: SegmentId,
        part: Range<u32>,
        wanted: bool,
        cache: &KvCache,
        left: &mut StepRoom,
    ) -> u32 {
        // Later ones have no slots yet.
        let mut end = part.end.min(cache.prefix.laid_upto(id)).max(part.start);
        for at in part.start..end {
            let has_room = match wanted {
                true => left.logit_rows > 0,
                false => self.unscored_from.get(&cache.prefix.slot(id, at).page).is_none_or(|&from| at < from),
            };
            let taken = if has_room {
                self.take_row(branch.id, StepRow { segment: id, position: at }, cache, left)
            } else {
                None
            };
            let Some(row) = taken else {
                end = at;
                break;
            };
            if wanted {
                left.logit_rows -= 1;
                let (branch, generation, position) = (branch.id, branch.generation, at as usize);
                self.requests.push(LogitsRequest { branch, generation, position, row });
            }
        }
        // Only its writer requests rows of an open segment.
        if !branch.lease().is_some_and(|lease| lease.own && lease.segment == id) {
            let upto = self.taken_upto.entry(id).or_default();
            *upto = end.max(*upto);
        }
        end
    }

    /// Records that `branch` scores the tokens after the rows `from..next`, or leaves them to others: with so many of
    /// the likeliest tokens (`None`: in a way that no other branch can take over). It goes on at row
    /// `next`: those who only need its keys and values wait for it, so that it is not computed twice.
    fn note_scored(&mut self, branch: &Branch, from: usize, next: u32, tops: Option<usize>, cache: &KvCache) {
        let Lease { segment, .. } = branch.lease().expect("a running branch has a lease");
        if let Some(tops) = tops {
            self.scoring.add(&cache.prefix, segment, position(from) + 1..next + 1, tops);
        }
        self.wait_behind(segment, next, cache);
    }

    /// Has those who only need the keys and values of the row at `next` of the path of `segment` wait for the branch
    /// that goes on there.
    fn wait_behind(&mut self, segment: SegmentId, next: u32, cache: &KvCache) {
        for (_, page, rows) in cache.prefix.page_parts(segment, next..next + 1) {
            let first = self.unscored_from.entry(page).or_insert(rows.start);
            *first = rows.start.min(*first);
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

    /// Where branches go on: the segment of the last row of each whose logits it requests, and the position after it.
    pub fn branch_ends(&self) -> impl Iterator<Item = (SegmentId, u32)> {
        let rows: HashMap<u32, StepRow> = self.rows.iter().map(|row| (row.taken, row.at)).collect();
        // A branch's requests come in rising order, but those of others may come between them.
        let mut last_of_branch: IdMap<BranchId, u32> = IdMap::default();
        last_of_branch.extend(self.requests.iter().map(|request| (request.branch, request.row)));
        last_of_branch.into_values().map(move |row| {
            let StepRow { segment, position } = rows[&row];
            (segment, position + 1)
        })
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
    /// the next pages of the rows whose page is full, in all groups.
    pub fn advance(&mut self, new_pages: &[NewPage]) {
        for row in &mut self.rows {
            row.at.position += 1;
            row.slot.slot += 1;
        }
        for &NewPage { row, page, .. } in of_group(new_pages, GroupIx(0)) {
            self.rows[row as usize].slot = KvSlot { page, slot: 0 };
        }
        self.requests.iter_mut().for_each(|request| request.position += 1);
    }
}

/// The first position that `branch` must compute: the first missing one, or again the row whose logits it needs; with
/// states, that from which this row can be computed.
pub(super) fn first_row(branch: &Branch, need: &NeededPositions, cache: &KvCache) -> usize {
    let lease = branch.lease().expect("a running branch has a lease");
    let first = cache.prefix.computed(lease.segment).min(position(need.logits_from));
    cache.prefix.resume_from(lease.segment, first) as usize
}
