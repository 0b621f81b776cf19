//! Depth-first snapshot of the segments that are live in one step: the only thing a planner sees. Made by
//! `PrefixTree::forest`; holds no references into the tree.

use std::ops::Range;

use crate::ids::{PageId, SegmentId};

/// One query token of a step, as the scheduler asks for it: the token at `position` of the branch that ends in
/// `segment`. The token itself already belongs to the path of `segment` (its slot is reserved before the forest is
/// taken).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepRow {
    pub segment: SegmentId,
    pub position: u32,
}

/// A live segment: its tokens occupy the absolute positions `first_position .. first_position + tokens`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForestSegment {
    pub id: SegmentId,
    /// Index into `Forest::segments`; always smaller than the segment's own index.
    pub parent: Option<u32>,
    pub first_position: u32,
    /// Tokens whose keys and values exist once this step's are appended.
    pub tokens: u32,
    /// Range into `Forest::pages`. The first token lies in slot `first_position % page_tokens` of the first page. Empty
    /// where no row of the step sees anything of the segment, as its keys and values are gone.
    pub pages: Range<u32>,
    /// The rows of this segment and of everything beneath it: first its own, by rising position, then its children's.
    pub rows: Range<u32>,
}

impl ForestSegment {
    /// First position after the segment.
    pub fn end(&self) -> u32 {
        self.first_position + self.tokens
    }
}

/// The live part of the prefix tree. Segments depth-first, rows depth-first: every subtree is one contiguous row range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forest {
    pub page_tokens: u32,
    pub segments: Vec<ForestSegment>,
    /// Page lists of all segments, back to back.
    pub pages: Vec<PageId>,
    /// Absolute position of each row.
    pub row_positions: Vec<u32>,
    /// Index into `segments` of the segment each row belongs to.
    pub row_segments: Vec<u32>,
}

impl Forest {
    /// The rows of segment `index` itself, without those beneath it.
    pub fn own_rows(&self, index: usize) -> Range<usize> {
        let rows = &self.segments[index].rows;
        let end = match self.segments.get(index + 1) {
            Some(next) if next.parent == u32::try_from(index).ok() => next.rows.start,
            _ => rows.end,
        };
        rows.start as usize..end as usize
    }

    /// Whether nothing is beneath segment `index`. In depth-first order its first child follows it.
    pub fn is_leaf(&self, index: usize) -> bool {
        self.segments.get(index + 1).is_none_or(|next| next.parent != u32::try_from(index).ok())
    }

    /// Checks what the fields' docs promise. `Err` says what is broken and where.
    pub fn check(&self) -> Result<(), String> {
        let rows = self.row_positions.len();
        if rows != self.row_segments.len() {
            return Err(format!("{rows} row positions, {} row segments", self.row_segments.len()));
        }
        // The path from the root to the segment at hand, each with the row with which its next child begins.
        let mut path: Vec<(u32, u32)> = Vec::new();
        let mut next_root_row = 0;
        for (index, segment) in (0u32..).zip(&self.segments) {
            while path.last().is_some_and(|&(above, _)| Some(above) != segment.parent) {
                path.pop();
            }
            let (first_position, next_row) = match path.last_mut() {
                Some((parent, next)) => (self.segments[*parent as usize].end(), next),
                None => (0, &mut next_root_row),
            };
            let follows = segment.first_position == first_position && segment.rows.start == *next_row;
            *next_row = segment.rows.end;
            let first_child_row = self.own_rows(index as usize).end;
            path.push((index, u32::try_from(first_child_row).expect("rows are counted in u32")));
            let fault = match path.len() == 1 && segment.parent.is_some() || !follows {
                true => Some("it does not go on where its parent or elder sibling ends"),
                false => self.fault_within(index),
            };
            if let Some(fault) = fault {
                return Err(format!("segment {index} of the forest: {fault}: {segment:?}"));
            }
        }
        match next_root_row as usize == rows {
            true => Ok(()),
            false => Err(format!("{rows} rows, of which the roots hold {next_root_row}")),
        }
    }

    /// What is wrong with the rows and pages of one segment.
    fn fault_within(&self, index: u32) -> Option<&'static str> {
        let segment = &self.segments[index as usize];
        let own = self.own_rows(index as usize);
        if segment.rows.is_empty() || own.start > own.end || segment.rows.end as usize > self.row_positions.len() {
            return Some("it has no rows, or rows that do not exist");
        }
        let positions = &self.row_positions[own.clone()];
        if !positions.is_sorted() || positions.iter().any(|p| !(segment.first_position..segment.end()).contains(p)) {
            return Some("its rows are at positions that fall or are not its own");
        }
        if self.row_segments[own.clone()].iter().any(|&owner| owner != index) {
            return Some("its rows name another segment");
        }
        let pages = match segment.tokens {
            0 => 0,
            _ => (segment.end() - 1) / self.page_tokens - segment.first_position / self.page_tokens + 1,
        };
        let exist = segment.pages.end as usize <= self.pages.len();
        let is_hollow = segment.pages.is_empty() && own.is_empty();
        (!is_hollow && segment.pages.len() != pages as usize || !exist)
            .then_some("its pages hold another number of tokens")
    }
}
