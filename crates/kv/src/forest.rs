//! A depth-first snapshot of the segments that one step reads: the input of planners. Made by `PrefixTree::forest`;
//! holds no references into the tree.

use std::ops::Range;

use crate::page_counts::numbers_between;
use offshoot_core::ids::{PageId, SegmentId};

/// One query token of a step, as the scheduler requests it: the token at `position` of the branch that ends in
/// `segment`. Its slot is reserved before the forest is taken, so the token already belongs to the path of `segment`.
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
    /// Tokens with keys and values, including those that this step appends.
    pub tokens: u32,
    /// Range into `Forest::pages`: the pages of the positions `held_from ..`. The token at position `p` is in slot
    /// `p % page_tokens`. Empty if all were freed.
    pub pages: Range<u32>,
    /// First position of which the forest's group has pages: `first_position`, unless those behind the window were
    /// freed. No row of the step reads positions below.
    pub held_from: u32,
    /// The rows of this segment and its subtree: first its own, by rising position, then its children's.
    pub rows: Range<u32>,
}

impl ForestSegment {
    /// First position after the segment.
    pub fn end(&self) -> u32 {
        self.first_position + self.tokens
    }
}

/// The part of the prefix tree that a step reads. Segments and rows are depth-first, so every subtree is one contiguous
/// row range. The pages are those of one group; `PrefixTree::list_pages` exchanges them for another's.
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
    /// The rows of segment `index` itself, without those of its subtree.
    pub fn own_rows(&self, index: usize) -> Range<usize> {
        let rows = &self.segments[index].rows;
        let end = match self.segments.get(index + 1) {
            Some(next) if next.parent == u32::try_from(index).ok() => next.rows.start,
            _ => rows.end,
        };
        rows.start as usize..end as usize
    }

    /// Whether segment `index` has no children. In depth-first order its first child would follow it.
    pub fn is_leaf(&self, index: usize) -> bool {
        self.segments.get(index + 1).is_none_or(|next| next.parent != u32::try_from(index).ok())
    }

    /// Whether the rows of segment `index` itself are a prompt's: more than the one row of a leaf that decodes.
    pub fn has_prompt(&self, index: usize) -> bool {
        self.own_rows(index).len() > usize::from(self.is_leaf(index))
    }

    /// Checks the invariants stated at the fields. `Err` says what is broken and where.
    pub fn check(&self) -> Result<(), String> {
        let rows = self.row_positions.len();
        if rows != self.row_segments.len() {
            return Err(format!("{rows} row positions, {} row segments", self.row_segments.len()));
        }
        // The path from the root to the current segment; with each segment the first row of its next child.
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
                true => Some("it does not begin where its parent or previous sibling ends"),
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
            return Some("its rows are not sorted by position or lie outside of it");
        }
        if self.row_segments[own.clone()].iter().any(|&owner| owner != index) {
            return Some("its rows refer to another segment");
        }
        let held_from = segment.held_from;
        if held_from < segment.first_position || positions.first().is_some_and(|&first| first < held_from) {
            return Some("its rows or its pages begin where it has none");
        }
        let pages = numbers_between(self.page_tokens, held_from, segment.end());
        let exist = segment.pages.end as usize <= self.pages.len();
        (segment.pages.len() != pages || !exist).then_some("its pages do not match its tokens")
    }
}
