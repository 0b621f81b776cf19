//! What is live in one step: the order of its rows and the snapshot that planners see. Costs are those of the live segments,
//! whatever else the tree caches.

use std::cell::Cell;

use super::PrefixTree;
use crate::ids::SegmentId;
use crate::kv::{Forest, ForestSegment, StepRow};

/// A number for each segment met in the current round, so that a walk need not clear or search anything.
#[derive(Debug, Default)]
pub(super) struct Visits {
    round: Cell<u64>,
    notes: Vec<Cell<(u64, u32)>>,
}

impl Visits {
    pub fn grow(&mut self) {
        self.notes.push(Cell::new((0, 0)));
    }

    fn begin(&self) {
        self.round.set(self.round.get() + 1);
    }

    fn note(&self, id: SegmentId, number: u32) {
        self.notes[id.ix()].set((self.round.get(), number));
    }

    fn number(&self, id: SegmentId) -> Option<u32> {
        let (round, number) = self.notes[id.ix()].get();
        (round == self.round.get()).then_some(number)
    }
}

impl PrefixTree {
    /// Sorts rows depth-first: a segment's rows by position, then those of its children, oldest first. Rows of equal segment
    /// and position keep their order.
    pub fn depth_first(&self, rows: &mut [StepRow]) {
        self.depth_first_by(rows, |&row| row);
    }

    /// The same for whatever carries a row with it.
    pub fn depth_first_by<T>(&self, rows: &mut [T], row: impl Fn(&T) -> StepRow) {
        let owners = || rows.iter().map(&row).map(|r| self.owner(r.segment, r.position));
        let ranks = self.depth_first_ranks(owners());
        rows.sort_by_cached_key(|item| {
            let StepRow { segment, position } = row(item);
            let live = self.visits.number(self.owner(segment, position)).expect("every owner was visited");
            (ranks[live as usize], position)
        });
    }

    /// Numbers the segments above `owners` as they are met, and returns the depth-first rank of each number.
    fn depth_first_ranks(&self, owners: impl Iterator<Item = SegmentId>) -> Vec<u32> {
        self.visits.begin();
        let mut met: Vec<SegmentId> = Vec::new();
        for owner in owners {
            for id in self.ancestry(owner).take_while(|&id| self.visits.number(id).is_none()) {
                self.visits.note(id, super::count(met.len()));
                met.push(id);
            }
        }
        // Siblings side by side, youngest first, so that the stack below gives the oldest first.
        let number = |id| self.visits.number(id).expect("ancestors of what was met were met");
        let parent = |id| self.at(id).parent.map(number);
        let mut siblings: Vec<_> =
            met.iter().map(|&id| (parent(id), u64::MAX - self.at(id).born, number(id))).collect();
        siblings.sort_unstable();
        let below = |of: Option<u32>| {
            let first = siblings.partition_point(|&(p, ..)| p < of);
            siblings[first..].iter().take_while(move |&&(p, ..)| p == of).map(|&(.., n)| n)
        };
        let mut ranks = vec![0; met.len()];
        let mut stack: Vec<u32> = below(None).collect();
        let mut rank = 0;
        while let Some(next) = stack.pop() {
            ranks[next as usize] = rank;
            rank += 1;
            stack.extend(below(Some(next)));
        }
        ranks
    }

    /// The segments that `rows` need, for rows in the order of `depth_first`. A segment with rows beneath it shows all its
    /// tokens; one without ends at its last row.
    pub fn forest(&self, rows: &[StepRow]) -> Forest {
        let mut forest = Forest { page_tokens: self.page_tokens, ..Forest::default() };
        self.visits.begin();
        let mut new = Vec::new();
        for (row, &StepRow { segment, position }) in (0u32..).zip(rows) {
            let owner = self.owner(segment, position);
            new.extend(self.ancestry(owner).take_while(|&id| self.visits.number(id).is_none()));
            for id in new.drain(..).rev() {
                self.visits.note(id, super::count(forest.segments.len()));
                forest.segments.push(self.live_segment(id, row));
            }
            let index = self.visits.number(owner).expect("the owner was visited just now");
            let live = &mut forest.segments[index as usize];
            live.rows.end = row + 1;
            live.tokens = position + 1 - live.first_position;
            forest.row_positions.push(position);
            forest.row_segments.push(index);
        }
        self.close(&mut forest);
        debug_assert_eq!(forest.check(), Ok(()));
        debug_assert_eq!(self.check_ready(&forest), Ok(()));
        forest
    }

    /// `id` as it enters the snapshot with its first row; tokens, pages and last row are not known yet.
    fn live_segment(&self, id: SegmentId, row: u32) -> ForestSegment {
        let segment = self.at(id);
        ForestSegment {
            id,
            parent: segment.parent.and_then(|p| self.visits.number(p)),
            first_position: segment.first_position,
            tokens: 0,
            pages: 0..0,
            rows: row..row,
        }
    }

    /// Hands row ranges up to the parents, which are whole when something is beneath them, and lists the pages.
    fn close(&self, forest: &mut Forest) {
        for index in (0..forest.segments.len()).rev() {
            let Some(parent) = forest.segments[index].parent else { continue };
            let end = forest.segments[index].rows.end;
            let above = &mut forest.segments[parent as usize];
            above.rows.end = above.rows.end.max(end);
            above.tokens = self.at(above.id).len();
        }
        for live in &mut forest.segments {
            let first = super::count(forest.pages.len());
            let pages = self.pages_between(live.first_position, live.first_position + live.tokens);
            forest.pages.extend_from_slice(&self.at(live.id).pages[..pages]);
            live.pages = first..super::count(forest.pages.len());
        }
    }

    /// Whether all keys and values that the snapshot shows exist once its rows are computed: rows go on where `computed`
    /// ends, and what has rows beneath it is finished in this step at the latest.
    pub fn check_ready(&self, forest: &Forest) -> Result<(), String> {
        for (index, live) in forest.segments.iter().enumerate() {
            let mut ready = live.first_position + self.at(live.id).computed;
            for &position in &forest.row_positions[forest.own_rows(index)] {
                if position > ready {
                    return Err(format!("segment {}: row at {position}, but {ready} is not computed", live.id));
                }
                ready = ready.max(position + 1);
            }
            let end = live.first_position + live.tokens;
            if ready < end {
                return Err(format!("segment {}: rows beneath it need {end} positions, {ready} are ready", live.id));
            }
        }
        Ok(())
    }
}
