//! Checks that a plan is correct: every row reads each position it sees exactly once, reads only its own path, and
//! keeps its tiles whole. For tests and debug builds; costs about as much as planning.

use std::ops::Range;

use super::{AttentionPlan, GrowingSpan, KvSpan, WorkItem};
use crate::Forest;

/// The first error found in a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanFault {
    #[error("the plan says {field} = {found}, the forest {expected}")]
    Field { field: &'static str, expected: usize, found: usize },
    #[error("item {item} has the {what} {range:?}, of which {bound} exist")]
    Range { item: usize, what: &'static str, range: Range<u32>, bound: usize },
    #[error("item {item}: its spans do not adjoin at position {position}")]
    Gap { item: usize, position: u32 },
    #[error("item {item}: positions {positions:?} are not on the path of row {row}")]
    OffPath { item: usize, row: u32, positions: Range<u32> },
    #[error("item {item}: the pages listed for positions {positions:?} do not hold them")]
    WrongPages { item: usize, positions: Range<u32> },
    #[error("item {item} reads kept copies of segment {segment}, in which the step computes rows")]
    NotComputed { item: usize, segment: usize },
    #[error("row {row} sees position {position}, which no item covers for it")]
    Missing { row: u32, position: u32 },
    #[error("row {row} covers position {position} in item {item} again")]
    Twice { row: u32, position: u32, item: usize },
    #[error("the tile of position {position} is divided for row {row} before item {item}")]
    SplitTile { row: u32, position: u32, item: usize },
    #[error("row {row}: its merge list is not the rising list of its items (at item {item})")]
    MergeList { row: u32, item: usize },
    #[error("the spans that grow should be {expected:?}, not {found:?}")]
    GrowingSpan { expected: Vec<u32>, found: Vec<u32> },
}

impl AttentionPlan {
    /// Checks that the plan computes the attention of `forest`'s rows.
    pub fn check(&self, forest: &Forest) -> Result<(), PlanFault> {
        self.check_fields(forest)?;
        for item in 0..self.items.len() {
            self.check_item(forest, item)?;
        }
        for (row, &position) in (0u32..).zip(&self.row_positions) {
            self.check_row(row, position)?;
        }
        self.check_growing(forest)
    }

    fn check_fields(&self, forest: &Forest) -> Result<(), PlanFault> {
        let same = |field, found, expected| match found == expected {
            true => Ok(()),
            false => Err(PlanFault::Field { field, expected, found }),
        };
        let rows = forest.row_positions.len();
        same("page_tokens", self.page_tokens as usize, forest.page_tokens as usize)?;
        same("rows", self.row_positions.len(), rows)?;
        same("merge lists + 1", self.merge.offsets.len(), rows + 1)?;
        same("merge lists' end", self.merge.offsets[rows] as usize, self.merge.values.len())?;
        same("rows of all items", self.items.iter().map(|i| i.rows.len()).sum(), self.merge.values.len())?;
        for (&found, &expected) in self.row_positions.iter().zip(&forest.row_positions) {
            same("a row's position", found as usize, expected as usize)?;
        }
        Ok(())
    }

    /// The positions from the first to the last span of an item that `check_item` passed.
    fn positions(&self, item: &WorkItem) -> Range<u32> {
        let spans = self.spans_of(item);
        let last = &spans[spans.len() - 1];
        spans[0].first_position..last.first_position + last.tokens
    }

    /// Ranges are real, spans adjoin, lie on the path of all rows, and name the pages that hold them.
    fn check_item(&self, forest: &Forest, item: usize) -> Result<(), PlanFault> {
        let work = &self.items[item];
        let real = |what, range: &Range<u32>, bound| match range.start < range.end && range.end as usize <= bound {
            true => Ok(()),
            false => Err(PlanFault::Range { item, what, range: range.clone(), bound }),
        };
        real("rows", &work.rows, self.row_positions.len())?;
        real("spans", &work.spans, self.spans.len())?;
        let mut at = forest.row_segments[work.rows.start as usize];
        let mut below: Option<u32> = None;
        for span in self.spans_of(work).iter().rev() {
            let positions = span.first_position..span.first_position.saturating_add(span.tokens);
            real("positions of a span", &positions, u32::MAX as usize)?;
            real("pages", &span.pages, self.pages.len())?;
            if below.is_some_and(|next| next != positions.end) {
                return Err(PlanFault::Gap { item, position: positions.end });
            }
            below = Some(positions.start);
            at = self.check_span(forest, item, span, positions, at)?;
        }
        Ok(())
    }

    /// Checks one span of `item`, looking for its segment from `at` upward, and returns that segment.
    fn check_span(
        &self,
        forest: &Forest,
        item: usize,
        span: &KvSpan,
        positions: Range<u32>,
        mut at: u32,
    ) -> Result<u32, PlanFault> {
        let rows = &self.items[item].rows;
        while forest.segments[at as usize].first_position > positions.start {
            let parent = forest.segments[at as usize].parent;
            at = parent.expect("a segment that does not begin at position 0 has a parent");
        }
        let segment = &forest.segments[at as usize];
        if positions.end > segment.end() {
            return Err(PlanFault::OffPath { item, row: rows.start, positions });
        }
        if rows.end > segment.rows.end {
            return Err(PlanFault::OffPath { item, row: segment.rows.end, positions });
        }
        if positions.start < segment.held_from {
            return Err(PlanFault::WrongPages { item, positions });
        }
        let page = |position: u32| (position / self.page_tokens - segment.held_from / self.page_tokens) as usize;
        let held = &forest.pages[segment.pages.start as usize..segment.pages.end as usize];
        let expected = &held[page(positions.start)..=page(positions.end - 1)];
        match self.pages[span.pages.start as usize..span.pages.end as usize] == *expected {
            true => Ok(at),
            false => Err(PlanFault::WrongPages { item, positions }),
        }
    }

    /// The row's merge list names its items, in rising positions that break between tiles and leave out nothing it
    /// sees.
    fn check_row(&self, row: u32, position: u32) -> Result<(), PlanFault> {
        let list = self.merge.offsets[row as usize] as usize..self.merge.offsets[row as usize + 1] as usize;
        let list = self.merge.values.get(list).unwrap_or_default();
        if let Some(falls) = list.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(PlanFault::MergeList { row, item: falls[1] as usize });
        }
        let mut next = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let mut before: Option<Range<u32>> = None;
        for &item in list {
            let item = item as usize;
            let work = self.items.get(item).filter(|work| work.rows.contains(&row));
            let work = work.ok_or(PlanFault::MergeList { row, item })?;
            let covered = self.positions(work);
            if let Some(above) = before {
                if covered.start < above.end {
                    return Err(PlanFault::Twice { row, position: covered.start, item });
                }
                if covered.start / self.tile == (above.end - 1) / self.tile {
                    return Err(PlanFault::SplitTile { row, position: covered.start, item });
                }
            }
            if next < covered.start && next <= position {
                return Err(PlanFault::Missing { row, position: next });
            }
            next = next.max(covered.end);
            before = Some(covered);
        }
        match next > position {
            true => Ok(()),
            false => Err(PlanFault::Missing { row, position: next }),
        }
    }

    /// Each row that can grow has its last span listed; its last item ends with the row (`check_row`).
    fn check_growing(&self, forest: &Forest) -> Result<(), PlanFault> {
        let grows = |&(row, _): &(usize, _)| {
            let index = forest.row_segments[row] as usize;
            let newest = forest.row_positions[row] + 1 == forest.segments[index].end();
            newest && forest.is_leaf(index) && forest.own_rows(index).len() == 1
        };
        let last_span = |(_, &end): (usize, &u32)| {
            let item = self.merge.values[end as usize - 1];
            self.items[item as usize].spans.end - 1
        };
        let expected: Vec<u32> = self.merge.offsets[1..].iter().enumerate().filter(grows).map(last_span).collect();
        let found: Vec<u32> = self.growing.iter().map(|growing| growing.span).collect();
        let has_room = |growing: &GrowingSpan| {
            let end = self.spans[growing.span as usize].pages.end + growing.room;
            end as usize <= self.pages.len()
        };
        match found == expected && self.growing.iter().all(has_room) {
            true => Ok(()),
            false => Err(PlanFault::GrowingSpan { expected, found }),
        }
    }
}
