//! Explains what `balanced` does with each segment of a step and why, for `offshoot plan --explain`. Records the
//! planner's own decisions while it plans; decides nothing.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::balanced::{Balanced, Weighed};
use super::builder::{Division, Node, build};
use super::forms::{CopyRoom, LatentForm, LatentFormChoice, all_absorbed, forms};
use super::latents::FormCosts;
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
    /// How its own items are read, of latent attention that may read copies.
    pub form: Option<ExplainedForm>,
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

/// The form of a segment's items, and what its tokens, and those folded into it, would cost in each: nanoseconds of the
/// whole device, for one layer, without states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExplainedForm {
    pub form: LatentForm,
    /// Tokens of the beginning that are read so, where there are no pages for all of them.
    pub beginning: Option<u32>,
    pub absorbed_ns: f64,
    /// Read from copies that are there.
    pub copied_ns: f64,
    /// To make these copies, once or in each step.
    pub expanded_ns: f64,
}

/// Plans `forest` as `Planner::Balanced` does. `room`: what there is for copies of latents. Returns the plan, all forms
/// together, and one explanation per segment, in their order.
pub fn explain(forest: &Forest, hints: &PlanHints, room: &CopyRoom<'_>) -> (AttentionPlan, Vec<Explained>) {
    let notes = Notes::new(forest, hints);
    let plan = build(forest, hints, &notes);
    let read = read_tokens(forest, &plan);
    let flat = flat_tokens(forest, &plan);
    let chosen = forms(&plan, forest, hints, LatentFormChoice::Cheapest, room);
    if all_absorbed(&chosen)
        && let Some(without) = hints.without_copies()
    {
        return explain(forest, &without, room);
    }
    let costs = FormCosts::of(hints).filter(|_| room.pages != CopyRoom::NONE.pages);
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
        let form = note.first_shared.zip(costs.as_ref()).map(|(item, costs)| {
            let (tokens, rows) = (tokens_of(&plan, item) as f64, plan.items[item].rows.len());
            ExplainedForm {
                form: chosen[item].form,
                beginning: chosen[item].upto.map(|upto| upto - first_position(&plan, item)),
                absorbed_ns: tokens * costs.absorbed(rows),
                copied_ns: tokens * costs.copied(rows),
                expanded_ns: tokens * costs.expanded(),
            }
        });
        let read_bytes = match note.first_shared.zip(form) {
            Some((item, ExplainedForm { form: LatentForm::Kept | LatentForm::Again, beginning, .. })) => {
                // As much of all that is read of the segment as of its first item.
                let all = tokens_of(&plan, item);
                let copied = read[index] * beginning.map_or(all, u64::from) / all;
                copied * hints.copied_token_bytes() + (read[index] - copied) * hints.token_bytes()
            }
            _ => read[index] * hints.token_bytes(),
        };
        explained.push(Explained {
            rows: segment.rows.len(),
            treatment,
            weighed: note.weighed,
            flat_bytes: flat[index] * hints.token_bytes(),
            form,
            read_bytes,
        });
    }
    (plan, explained)
}

/// `balanced` with a record of its decisions.
struct Notes<'a> {
    forest: &'a Forest,
    balanced: Balanced<'a>,
    segments: RefCell<Vec<Note>>,
    /// Items noted so far, which are those of the plan in order.
    items: Cell<usize>,
}

#[derive(Clone, Default)]
struct Note {
    weighed: Option<Weighed>,
    /// Number of items that include rows beneath the segment, and of items of its own rows alone.
    shared_items: usize,
    own_items: usize,
    /// The plan's number of the first of the former.
    first_shared: Option<usize>,
}

impl<'a> Notes<'a> {
    fn new(forest: &'a Forest, hints: &'a PlanHints) -> Self {
        let segments = RefCell::new(vec![Note::default(); forest.segments.len()]);
        Self { forest, balanced: Balanced::new(forest, hints), segments, items: Cell::new(0) }
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
        let (note, item) = (&mut self.segments.borrow_mut()[index], self.items.get());
        self.items.set(item + 1);
        match rows.end > self.forest.own_rows(index).end {
            true => {
                note.shared_items += 1;
                note.first_shared.get_or_insert(item);
            }
            false => note.own_items += 1,
        }
    }
}

/// The first position that an item reads.
fn first_position(plan: &AttentionPlan, item: usize) -> u32 {
    plan.spans[plan.items[item].spans.start as usize].first_position
}

/// Tokens that an item reads.
fn tokens_of(plan: &AttentionPlan, item: usize) -> u64 {
    let spans = plan.items[item].spans.clone();
    plan.spans[spans.start as usize..spans.end as usize].iter().map(|span| u64::from(span.tokens)).sum()
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
