//! Divides a plan of latent attention among its forms. Each item of a plan that a planner has made is read in one form:
//! absorbed, or from copies of the latents that are expanded to keys and values. So sharing is decided as for all other
//! attention, and only then how shared latents are read: copies pay under many rows. An item for whose copies too few
//! pages are left is cut in two: its beginning is read from copies, the rest as latents. `form_choice` chooses, `parts`
//! cuts.
//!
//! # What may be read from copies
//! Copies that are kept must be made of what earlier steps have computed, in segments that no row of this step belongs
//! to. Copies that each layer makes again may hold this step's own latents. A span that grows is never copied, so that
//! a plan can be advanced: its rows then have a newest token that no copy has.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::form_choice::{ItemForms, choose};
use super::parts::number;
use super::{AttentionPlan, Csr, KvSpan, NewPage, PlanFault, PlanHints, PlanStats, Planner, WorkItem};
use crate::{CopyStore, Forest};

use offshoot_core::ids::PageId;

/// How an item of latent attention is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatentForm {
    /// From the latents themselves, by queries that are mapped to their space.
    Absorbed,
    /// From copies that stay for later steps.
    Kept,
    /// From copies that each layer of the step makes again.
    Again,
}

impl LatentForm {
    pub const ALL: [LatentForm; 3] = [LatentForm::Absorbed, LatentForm::Kept, LatentForm::Again];

    /// The store of the copies that are read.
    pub fn store(self) -> Option<CopyStore> {
        match self {
            LatentForm::Absorbed => None,
            LatentForm::Kept => Some(CopyStore::Kept),
            LatentForm::Again => Some(CopyStore::Again),
        }
    }
}

impl From<CopyStore> for LatentForm {
    fn from(store: CopyStore) -> Self {
        match store {
            CopyStore::Kept => LatentForm::Kept,
            CopyStore::Again => LatentForm::Again,
        }
    }
}

/// Who chooses the form of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatentFormChoice {
    /// The cost model.
    #[default]
    Cheapest,
    /// All items have this form if they may, as far as pages are left; the rest is absorbed. For checks.
    All(LatentForm),
    /// Dice of this seed, among the forms that an item may have. For checks.
    Random(u64),
}

/// The pages for copies.
pub struct CopyRoom<'a> {
    /// Pages of each store.
    pub pages: [usize; CopyStore::COUNT],
    /// Whether a copy of these slots of a page of latents is kept.
    pub holds: &'a dyn Fn(PageId, Range<u32>) -> bool,
}

impl CopyRoom<'_> {
    /// No pages.
    pub const NONE: CopyRoom<'static> = CopyRoom { pages: [0; CopyStore::COUNT], holds: &|_, _| false };
}

/// The plans of one step's latent attention. Together they cover for each row what it sees, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPlans {
    /// What is read as latents. Has all spans that grow. A row may have no item in it.
    pub absorbed: AttentionPlan,
    /// What is read from copies, by [`CopyStore`]. The pages are those of the latents that are copied.
    pub copied: [AttentionPlan; CopyStore::COUNT],
}

impl Planner {
    /// Plans the step's latent attention. Every result passes [`FormPlans::check`].
    pub fn plan_forms(
        self,
        forest: &Forest,
        hints: &PlanHints,
        choice: LatentFormChoice,
        room: &CopyRoom<'_>,
    ) -> FormPlans {
        let mut plan = self.plan(forest, hints);
        let mut forms = choose(&plan, forest, hints, choice, room);
        if choice == LatentFormChoice::Cheapest
            && forms.are_absorbed()
            && let Some(without) = hints.without_copies()
        {
            // What is shared for the sake of copies does not pay without them.
            plan = self.plan(forest, &without);
            forms = ItemForms::absorbed(plan.items.len());
        }
        plan.cut_items(&forms.chosen);
        let plans = FormPlans::new(plan, hints, &forms.of_parts());
        debug_assert_eq!(plans.check(forest), Ok(()));
        plans
    }
}

impl FormPlans {
    /// `plan`, whose items have these forms.
    pub(super) fn new(mut plan: AttentionPlan, hints: &PlanHints, forms: &[LatentForm]) -> Self {
        let tile = hints.latents.map_or(hints.tile, |latents| latents.tile);
        let copied =
            CopyStore::ALL.map(|store| AttentionPlan { tile, ..plan.items_where(|item| forms[item] == store.into()) });
        if forms.iter().any(|&form| form != LatentForm::Absorbed) {
            plan.retain_items(|item| forms[item] == LatentForm::Absorbed);
        }
        FormPlans { absorbed: plan, copied }
    }

    /// Moves every row one token further, as [`AttentionPlan::advance`] does: only if the absorbed plan can be
    /// advanced.
    pub fn advance(&mut self, new_pages: &[NewPage]) {
        self.absorbed.advance(new_pages);
        self.copied.iter_mut().for_each(AttentionPlan::advance_rows);
    }

    /// Counts for one layer, all forms together. What copies take to be made is not counted.
    pub fn stats(&self, hints: &PlanHints) -> PlanStats {
        let mut stats = self.absorbed.stats(hints);
        for plan in &self.copied {
            let read = plan.stats(hints);
            let tokens = read.kv_bytes_read / hints.token_bytes();
            stats.kv_bytes_read += tokens * hints.copied_token_bytes();
            stats.items += read.items;
            stats.partials += read.partials;
            stats.row_tokens += read.row_tokens;
        }
        stats
    }

    /// Checks that the plans compute together the attention of `forest`'s rows, and that copies that are kept are made
    /// of latents that this step does not compute.
    ///
    /// # Errors
    ///
    /// The first fault of the plan that has all items, or of a copy.
    pub fn check(&self, forest: &Forest) -> Result<(), PlanFault> {
        let kept = &self.copied[CopyStore::Kept as usize];
        for (number, item) in kept.items.iter().enumerate() {
            if let Some(index) = kept.segments_of(item, forest).find(|&index| !forest.own_rows(index).is_empty()) {
                return Err(PlanFault::NotComputed { item: number, segment: index });
            }
        }
        match self.copied.iter().all(|plan| plan.items.is_empty()) {
            true => self.absorbed.check(forest),
            false => self.joined().check(forest),
        }
    }

    /// One plan of all items.
    fn joined(&self) -> AttentionPlan {
        let mut joined = AttentionPlan { items: Vec::new(), ..self.absorbed.clone() };
        let mut items = self.absorbed.items.clone();
        for plan in &self.copied {
            let (spans, pages) = (number(joined.spans.len()), number(joined.pages.len()));
            joined.pages.extend(&plan.pages);
            joined.spans.extend(
                plan.spans
                    .iter()
                    .map(|span| KvSpan { pages: span.pages.start + pages..span.pages.end + pages, ..span.clone() }),
            );
            items.extend(plan.items.iter().map(|item| WorkItem {
                rows: item.rows.clone(),
                spans: item.spans.start + spans..item.spans.end + spans,
            }));
        }
        // A row's items must have rising indices.
        items.sort_by_key(|item| (joined.spans[item.spans.start as usize].first_position, item.rows.start));
        joined.items = items;
        joined.merge = Csr::of_items(&joined.items, joined.row_positions.len());
        joined
    }
}
