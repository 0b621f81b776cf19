//! Explains what `balanced` does with each segment of a step and why, for `offshoot plan --explain`. Records the
//! planner's own decisions while it plans; decides nothing.

use std::cell::RefCell;
use std::ops::Range;

use super::balanced::{Balanced, Weighed};
use super::builder::{Division, Node, build};
use super::{AttentionPlan, PlanHints};
use crate::Forest;

/// One segment, for one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Rows of the segment and of all beneath it.
    pub rows: usize,
    pub treatment: Treatment,
    /// The costs that were compared, of the segment's tokens and those folded into it; `None` without a choice.
    pub weighed: Option<Weighed>,
    /// Bytes of its keys and values that a flat plan would read, and that this plan reads.
    pub flat_bytes: u64,
    pub read_bytes: u64,
}

/// How a segment is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Once for all rows, by so many items of its own.
    Shared { items: usize },
    /// Folded: read by the items beneath it.
    Folded,
    /// A leaf: read by items of its own rows, together with the tokens folded into it.
    Own { items: usize },
    /// Not read: no window reaches it.
    Unseen,
}

/// Plans `forest` as `Planner::Balanced` does. Returns the plan and one explanation per segment, in their order.
pub fn explain(forest: &Forest, hints: &PlanHints) -> (AttentionPlan, Vec<Explained>) {
    let notes = Notes::new(forest, hints);
    let plan = build(forest, hints, &notes);
    let read = read_tokens(forest, &plan);
    let flat = flat_tokens(forest, &plan);
    let notes = notes.segments.into_inner();
    let mut explained = Vec::with_capacity(notes.len());
    for (index, note) in notes.into_iter().enumerate() {
        let segment = &forest.segments[index];
        let treatment = match note.shared_items {
            0 if read[index] == 0 && segment.tokens > 0 => Treatment::Unseen,
            0 if forest.is_leaf(index) => Treatment::Own { items: note.own_items },
            0 => Treatment::Folded,
            items => Treatment::Shared { items },
        };
        explained.push(Explained {
            rows: segment.rows.len(),
            treatment,
            weighed: note.weighed,
            flat_bytes: flat[index] * hints.token_bytes(),
            read_bytes: read[index] * hints.token_bytes(),
        });
    }
    (plan, explained)
}

/// `balanced` with a record of its decisions.
struct Notes<'a> {
    forest: &'a Forest,
    balanced: Balanced<'a>,
    segments: RefCell<Vec<Note>>,
}

#[derive(Clone, Default)]
struct Note {
    weighed: Option<Weighed>,
    /// Number of items that include rows beneath the segment, and of items of its own rows alone.
    shared_items: usize,
    own_items: usize,
}

impl<'a> Notes<'a> {
    fn new(forest: &'a Forest, hints: &'a PlanHints) -> Self {
        let segments = RefCell::new(vec![Note::default(); forest.segments.len()]);
        Self { forest, balanced: Balanced::new(forest, hints), segments }
    }
}

impl Division for Notes<'_> {
    fn shares(&self, node: &Node<'_>) -> bool {
        self.segments.borrow_mut()[node.index].weighed = Some(self.balanced.weigh_node(node));
        self.balanced.shares(node)
    }

    fn most_tokens(&self, rows: usize) -> u32 {
        self.balanced.most_tokens(rows)
    }

    fn note_item(&self, index: usize, rows: &Range<usize>) {
        let note = &mut self.segments.borrow_mut()[index];
        match rows.end > self.forest.own_rows(index).end {
            true => note.shared_items += 1,
            false => note.own_items += 1,
        }
    }
}

/// Tokens of each segment that the plan's items read.
fn read_tokens(forest: &Forest, plan: &AttentionPlan) -> Vec<u64> {
    let mut read = vec![0; forest.segments.len()];
    for item in &plan.items {
        let mut at = forest.row_segments[item.rows.start as usize];
        for span in plan.spans[item.spans.start as usize..item.spans.end as usize].iter().rev() {
            while let Some(parent) = forest.segments[at as usize].parent
                && forest.segments[at as usize].first_position > span.first_position
            {
                at = parent;
            }
            read[at as usize] += u64::from(span.tokens);
        }
    }
    read
}

/// Tokens of each segment that a flat plan reads: the rows of each segment read their whole context, from the first
/// tile that they see.
fn flat_tokens(forest: &Forest, plan: &AttentionPlan) -> Vec<u64> {
    let mut flat = vec![0; forest.segments.len()];
    for index in 0..forest.segments.len() {
        let positions = &plan.row_positions[forest.own_rows(index)];
        let (Some(lowest), Some(highest)) = (positions.first(), positions.last()) else { continue };
        let seen = plan.window.map_or(0, |window| (lowest + 1).saturating_sub(window));
        let range = seen - seen % plan.tile..highest + 1;
        let mut at = Some(index);
        while let Some(index) = at {
            let segment = &forest.segments[index];
            let (from, to) = (range.start.max(segment.first_position), range.end.min(segment.end()));
            flat[index] += u64::from(to.saturating_sub(from));
            at = segment.parent.map(|parent| parent as usize);
        }
    }
    flat
}
