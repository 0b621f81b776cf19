//! Explains what `balanced` does with each segment of a step and why, for `offshoot plan --explain`. Records the
//! planner's own decisions while it plans; decides nothing.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use super::balanced::{Balanced, Weighed};
use super::builder::{Division, Node, build};
use super::form_choice::{ItemForm, WhySlower, choose};
use super::latents::FormCosts;
use super::{AttentionPlan, CopyRoom, KvSpan, LatentForm, LatentFormChoice, PlanHints};
use crate::Forest;

/// One segment, for one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Rows of the segment and of all beneath it.
    pub rows: usize,
    pub treatment: Treatment,
    /// The costs that were compared, of the segment's tokens and those folded into it; `None` without a choice.
    pub weighed: Option<Weighed>,
    /// How the items are read that share it, or would share it if it were read from copies; of latent attention that
    /// may read copies.
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

/// How all items that share a segment are read, and what their tokens, those folded into the segment included, would
/// cost in each form: nanoseconds of the whole device, for one layer, without states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExplainedForm {
    /// The form of the copies that are read, of the first item that reads some; else absorbed.
    pub form: LatentForm,
    /// Tokens of all items, and those of them that are read from copies.
    pub tokens: u64,
    pub copied: u64,
    pub absorbed_ns: f64,
    /// Read from copies that are there.
    pub copied_ns: f64,
    /// To make these copies, once or in each step.
    pub expanded_ns: f64,
    /// Why a slower form is taken for some tokens; `None`: all are read in the fastest one.
    pub why_slower: Option<WhySlower>,
}

/// Plans `forest` as `Planner::Balanced` does. `room`: what there is for copies of latents. Returns the plan, all forms
/// together, and one explanation per segment, in their order.
pub fn explain(forest: &Forest, hints: &PlanHints, room: &CopyRoom<'_>) -> (AttentionPlan, Vec<Explained>) {
    let noted = Noted::plan(forest, hints);
    let forms = choose(&noted.plan, forest, hints, LatentFormChoice::Cheapest, room);
    let Some(costs) = FormCosts::of(hints).filter(|_| hints.may_copy(room)) else {
        let explained = noted.explained(forest, hints, &forms.chosen, |_| None);
        return (noted.plan, explained);
    };
    let why = forms.why_slower(&noted.plan, &costs);
    let why = |index: usize| noted.segments[index].shared.iter().find_map(|&item| why[item]);
    let read = |index: usize| noted.form(index, &forms.chosen, &costs, why(index));
    match hints.without_copies().filter(|_| forms.are_absorbed()) {
        None => {
            let explained = noted.explained(forest, hints, &forms.chosen, read);
            (noted.plan, explained)
        }
        // Then it is another plan. What would have been read from copies says why it is not.
        Some(without) => {
            let absorbed = Noted::plan(forest, &without);
            let chosen = vec![ItemForm::ABSORBED; absorbed.plan.items.len()];
            let read = |index: usize| read(index).or_else(|| absorbed.form(index, &chosen, &costs, None));
            let explained = absorbed.explained(forest, &without, &chosen, read);
            (absorbed.plan, explained)
        }
    }
}

/// A plan and what was noted while it was made.
struct Noted {
    plan: AttentionPlan,
    /// One for each segment.
    segments: Vec<Note>,
}

impl Noted {
    fn plan(forest: &Forest, hints: &PlanHints) -> Self {
        let notes = Notes::new(forest, hints);
        let plan = build(forest, hints, &notes);
        Self { plan, segments: notes.segments.into_inner() }
    }

    /// How the items that share segment `index` are read; `None`: it has none.
    fn form(
        &self,
        index: usize,
        chosen: &[ItemForm],
        costs: &FormCosts<'_>,
        why_slower: Option<WhySlower>,
    ) -> Option<ExplainedForm> {
        let shared = &self.segments[index].shared;
        let form = shared.iter().map(|&item| chosen[item].form).find(|&form| form != LatentForm::Absorbed);
        let form = form.unwrap_or(LatentForm::Absorbed);
        let mut read = ExplainedForm {
            form,
            tokens: 0,
            copied: 0,
            absorbed_ns: 0.0,
            copied_ns: 0.0,
            expanded_ns: 0.0,
            why_slower,
        };
        for &item in shared {
            let work = &self.plan.items[item];
            for span in self.plan.spans_of(work) {
                let tokens = f64::from(span.tokens);
                read.tokens += u64::from(span.tokens);
                read.copied += chosen[item].copied(span);
                read.absorbed_ns += tokens * costs.absorbed(work.rows.len());
                read.copied_ns += tokens * costs.copied(work.rows.len());
                read.expanded_ns += tokens * costs.expanded();
            }
        }
        (!shared.is_empty()).then_some(read)
    }

    /// The explanations of all segments. `form`: how the items that share one are read.
    fn explained(
        &self,
        forest: &Forest,
        hints: &PlanHints,
        chosen: &[ItemForm],
        form: impl Fn(usize) -> Option<ExplainedForm>,
    ) -> Vec<Explained> {
        let read = read_tokens(forest, &self.plan, chosen);
        let flat = flat_tokens(forest, &self.plan);
        let explained = |(index, note): (usize, &Note)| {
            let segment = &forest.segments[index];
            let [absorbed, copied] = read[index];
            let treatment = match note.shared.len() {
                0 if absorbed + copied == 0 && segment.tokens > 0 => Treatment::Unseen,
                0 if forest.is_leaf(index) => Treatment::Own { items: note.own_items },
                0 => Treatment::Folded,
                items => Treatment::Shared { items },
            };
            Explained {
                rows: segment.rows.len(),
                treatment,
                weighed: note.weighed,
                form: form(index),
                flat_bytes: flat[index] * hints.token_bytes(),
                read_bytes: absorbed * hints.token_bytes() + copied * hints.copied_token_bytes(),
            }
        };
        self.segments.iter().enumerate().map(explained).collect()
    }
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
    /// The plan's numbers of the items that include rows beneath the segment.
    shared: Vec<usize>,
    /// The number of items of its own rows alone.
    own_items: usize,
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
            true => note.shared.push(item),
            false => note.own_items += 1,
        }
    }
}

/// Tokens of each segment that the plan's items read as latents, and that they read from copies.
fn read_tokens(forest: &Forest, plan: &AttentionPlan, chosen: &[ItemForm]) -> Vec<[u64; 2]> {
    let mut read = vec![[0; 2]; forest.segments.len()];
    for (number, item) in plan.items.iter().enumerate() {
        let mut at = forest.row_segments[item.rows.start as usize];
        for span in plan.spans_of(item).iter().rev() {
            while let Some(parent) = forest.segments[at as usize].parent
                && forest.segments[at as usize].first_position > span.first_position
            {
                at = parent;
            }
            let copied = chosen[number].copied(span);
            let [absorbed, of_copies] = &mut read[at as usize];
            *absorbed += u64::from(span.tokens) - copied;
            *of_copies += copied;
        }
    }
    read
}

impl ItemForm {
    /// Tokens of a span of the item that are read from copies.
    fn copied(self, span: &KvSpan) -> u64 {
        match self.form {
            LatentForm::Absorbed => 0,
            LatentForm::Kept | LatentForm::Again => {
                let upto = self.upto.unwrap_or(u32::MAX);
                u64::from(upto.saturating_sub(span.first_position).min(span.tokens))
            }
        }
    }
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
