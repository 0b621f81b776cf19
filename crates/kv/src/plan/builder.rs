//! The walk over the forest that all planners share: turns one decision per segment into items. Tile rule, windows,
//! spans and merge lists are handled here alone; a planner is only its [`Division`].
//!
//! The walk keeps for each segment the position from which its rows are not covered yet (`open`, always the start of a
//! tile). An item for rows of a segment covers the path from `open` to some end, across ancestors: a folded ancestor is
//! one that left `open` unchanged.

use std::ops::Range;

use super::{AttentionPlan, Csr, GrowingSpan, KvSpan, PlanHints, WorkItem};
use crate::{Forest, ForestSegment};

/// A segment with children, and what an item of its own would cover for all rows of it and beneath it.
pub(super) struct Node<'a> {
    pub index: usize,
    pub segment: &'a ForestSegment,
    /// Tokens of whole tiles that end in the segment and that no item above covers: its own and those folded into it.
    pub tokens: u32,
    /// No item above covers its rows.
    pub topmost: bool,
}

/// A planner's decisions.
pub(super) trait Division {
    /// Whether the segment gets an item of its own; otherwise its tokens are folded into the items of those beneath it.
    fn shares(&self, node: &Node<'_>) -> bool;

    /// Most tokens of an item of `rows` rows.
    fn most_tokens(&self, rows: usize) -> u32 {
        let _ = rows;
        u32::MAX
    }

    /// Whether backends may share the first steps of neighbouring items (see `AttentionPlan::joins_beginnings`).
    fn joins_beginnings(&self) -> bool {
        true
    }

    /// Called for each item that is made for `rows` of segment `index`.
    fn note_item(&self, index: usize, rows: &Range<usize>) {
        let _ = (index, rows);
    }
}

/// The plan for `forest` that `division` decides.
pub(super) fn build(forest: &Forest, hints: &PlanHints, division: &impl Division) -> AttentionPlan {
    assert!(
        hints.tile == 1 || hints.tile.is_multiple_of(forest.page_tokens),
        "tiles of {} positions are not whole pages of {}",
        hints.tile,
        forest.page_tokens
    );
    let mut builder = Builder::new(forest, hints, division);
    let mut open: Vec<u32> = Vec::with_capacity(forest.segments.len());
    for (index, segment) in forest.segments.iter().enumerate() {
        let from = segment.parent.map_or(0, |parent| open[parent as usize]);
        open.push(builder.divide(index, from));
    }
    builder.finish()
}

struct Builder<'a, D> {
    forest: &'a Forest,
    division: &'a D,
    plan: AttentionPlan,
}

impl<'a, D: Division> Builder<'a, D> {
    fn new(forest: &'a Forest, hints: &PlanHints, division: &'a D) -> Self {
        let plan = AttentionPlan {
            page_tokens: forest.page_tokens,
            tile: hints.tile,
            group: hints.group,
            window: hints.window,
            member: None,
            joins_beginnings: division.joins_beginnings(),
            items: Vec::with_capacity(forest.segments.len()),
            spans: Vec::with_capacity(2 * forest.segments.len()),
            pages: forest.pages.clone(),
            row_positions: forest.row_positions.clone(),
            merge: Csr::default(),
            growing: Vec::with_capacity(forest.row_positions.len()),
            flat_kv_tokens: 0,
        };
        Self { forest, division, plan }
    }

    /// Makes the items of one segment, whose rows are covered up to `from`. Returns the position up to which the rows
    /// beneath it are covered then.
    fn divide(&mut self, index: usize, from: u32) -> u32 {
        let segment = &self.forest.segments[index];
        let own = self.forest.own_rows(index);
        let own_end = self.forest.row_positions[own.clone()].last().map_or(from, |last| last + 1);
        let seen_from = self.first_seen(own.clone());
        if !own.is_empty() {
            self.plan.flat_kv_tokens += u64::from(own_end - seen_from);
        }
        if self.forest.is_leaf(index) {
            let grows = own.len() == 1 && own_end == segment.end();
            let whole = grows && from.max(seen_from) == segment.first_position;
            match whole && segment.tokens <= self.division.most_tokens(1) {
                true => self.lone_row(index, segment),
                false => self.cover(index, own.clone(), own, from..own_end),
            }
            if grows {
                self.plan.growing.push(GrowingSpan { span: index_u32(self.plan.spans.len() - 1), room: 0 });
            }
            return from;
        }
        let whole_tiles = from.max(self.tile_start(segment.end()));
        let node = Node { index, segment, tokens: whole_tiles - from, topmost: from == 0 };
        if node.tokens == 0 || !self.division.shares(&node) {
            self.cover(index, own.clone(), own, from..own_end);
            return from;
        }
        self.cover(index, segment.rows.start as usize..segment.rows.end as usize, own.clone(), from..whole_tiles);
        self.cover(index, own.clone(), own, whole_tiles..own_end);
        whole_tiles
    }

    /// Items of `rows` (segment `index`'s `own` ones first) over `range` of its path, as many as the division wants.
    fn cover(&mut self, index: usize, rows: Range<usize>, own: Range<usize>, range: Range<u32>) {
        if rows.is_empty() {
            return;
        }
        let most = self.division.most_tokens(rows.len());
        let mut rows = rows;
        let mut from = range.start.max(self.first_seen(rows.clone()));
        while from < range.end {
            let to = match range.end - from > most {
                true => self.tile_start(from + most).max(from + self.plan.tile),
                false => range.end,
            };
            // Own rows rise: those that end before this item see nothing of it or of later ones.
            let own = &self.plan.row_positions[rows.start..own.end.max(rows.start)];
            if own.first().is_some_and(|&first| first < from) {
                rows.start += own.partition_point(|&position| position < from);
            }
            if rows.is_empty() {
                return;
            }
            self.item(index, rows.clone(), from..to);
            from = to;
        }
    }

    /// The item of the usual leaf, a segment `index` with one row: a fast path that makes the same item as `cover`.
    fn lone_row(&mut self, index: usize, segment: &ForestSegment) {
        let Range { start: row, end } = segment.rows;
        self.division.note_item(index, &(row as usize..end as usize));
        let span = index_u32(self.plan.spans.len());
        let (pages, first_position, tokens) = (segment.pages.clone(), segment.first_position, segment.tokens);
        self.plan.spans.push(KvSpan { pages, first_position, tokens });
        self.plan.items.push(WorkItem { rows: row..end, spans: span..span + 1 });
    }

    /// One item over `range` of the path of segment `index`.
    fn item(&mut self, index: usize, rows: Range<usize>, range: Range<u32>) {
        self.division.note_item(index, &rows);
        let first_span = self.plan.spans.len();
        let mut segment = &self.forest.segments[index];
        while range.start < segment.first_position {
            let from = segment.first_position;
            if from < range.end.min(segment.end()) {
                self.plan.spans.push(span(segment, from..range.end.min(segment.end()), self.plan.page_tokens));
            }
            segment = &self.forest.segments[segment.parent.expect("positions before it are its ancestors'") as usize];
        }
        self.plan.spans.push(span(segment, range.start..range.end.min(segment.end()), self.plan.page_tokens));
        if self.plan.spans.len() - first_span > 1 {
            self.plan.spans[first_span..].reverse();
        }
        let spans = index_u32(first_span)..index_u32(self.plan.spans.len());
        self.plan.items.push(WorkItem { rows: index_u32(rows.start)..index_u32(rows.end), spans });
    }

    /// Start of the first tile that any of `rows` sees.
    fn first_seen(&self, rows: Range<usize>) -> u32 {
        let Some(window) = self.plan.window else { return 0 };
        let lowest = self.plan.row_positions[rows].iter().min().copied().unwrap_or(0);
        self.tile_start((lowest + 1).saturating_sub(window))
    }

    fn tile_start(&self, position: u32) -> u32 {
        position - position % self.plan.tile
    }

    /// Lists each row's items. Items are made depth-first, so every list rises.
    fn finish(mut self) -> AttentionPlan {
        self.plan.merge = Csr::of_items(&self.plan.items, self.plan.row_positions.len());
        self.plan
    }
}

/// The positions `range` of `segment`, all within it.
fn span(segment: &ForestSegment, range: Range<u32>, page_tokens: u32) -> KvSpan {
    let page = |position: u32| segment.pages.start + position / page_tokens - segment.held_from / page_tokens;
    let first = if range.start == segment.held_from { segment.pages.start } else { page(range.start) };
    let end = if range.end == segment.end() { segment.pages.end } else { page(range.end - 1) + 1 };
    KvSpan { pages: first..end, first_position: range.start, tokens: range.end - range.start }
}

fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("a step has fewer than 2^32 rows and spans")
}
