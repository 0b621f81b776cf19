//! Depth-first snapshot of the segments that are live in one step: the only thing a planner sees. Made by
//! `PrefixTree::forest`; holds no references into the tree.

use std::ops::Range;

use crate::ids::{PageId, SegmentId};

/// One query token of a step, as the scheduler asks for it: the token at `position` of the branch that ends in `segment`.
/// The token itself already belongs to `segment` (its slot is reserved before the forest is taken).
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
    /// Range into `Forest::pages`. The first token lies in slot `first_position % page_tokens` of the first page.
    pub pages: Range<u32>,
    /// The rows of this segment and of everything beneath it.
    pub rows: Range<u32>,
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
