//! Chooses the form in which each item of a plan of latent attention is read: by cost, or as a check wants it.
//! Copies go to the items that save most for each page, as far as there are pages.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::latents::{FormCosts, ItemRows};
use super::parts::number;
use super::{AttentionPlan, CopyRoom, LatentForm, LatentFormChoice, PlanHints, WorkItem};
use crate::{CopyStore, Forest};

use offshoot_core::dice::Dice;
use offshoot_core::ids::PageId;

/// How an item is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemForm {
    pub form: LatentForm,
    /// The position from which it is absorbed all the same, where a tile and a page begin; `None`: it has one form.
    pub upto: Option<u32>,
}

impl ItemForm {
    pub const ABSORBED: ItemForm = ItemForm { form: LatentForm::Absorbed, upto: None };
}

/// Why tokens are read in a form that takes longer than another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhySlower {
    /// To make the copies would cost more than they save.
    Making,
    /// Too few pages are left for copies, or for such as are kept.
    Pages,
    /// All copies of the step would save less than it costs to read any.
    Start,
}

/// How the items of a plan are read.
pub(super) struct ItemForms {
    /// One for each item.
    pub chosen: Vec<ItemForm>,
    /// Items that would cost less if they were read from copies, which are made where they are missing.
    candidates: Vec<Candidate>,
    /// The forms that would have been chosen if reading any copies did not cost more than all of them save.
    save_too_little: Option<Vec<ItemForm>>,
}

impl ItemForms {
    /// So many items, all absorbed.
    pub fn absorbed(items: usize) -> Self {
        Self { chosen: vec![ItemForm::ABSORBED; items], candidates: Vec::new(), save_too_little: None }
    }

    /// The forms of the parts that items are cut to, in their order.
    pub fn of_parts(&self) -> Vec<LatentForm> {
        let parts = |of: &ItemForm| [Some(of.form), of.upto.map(|_| LatentForm::Absorbed)];
        self.chosen.iter().flat_map(parts).flatten().collect()
    }

    /// Whether no item reads copies.
    pub fn are_absorbed(&self) -> bool {
        self.chosen.iter().all(|chosen| chosen.form == LatentForm::Absorbed)
    }

    /// For each item of `plan`, whose cheapest forms these are, why a slower one is taken for some of its tokens;
    /// `None`: all are read in the fastest form.
    pub fn why_slower(&self, plan: &AttentionPlan, costs: &FormCosts<'_>) -> Vec<Option<WhySlower>> {
        let candidates: HashSet<(usize, CopyStore)> =
            self.candidates.iter().map(|candidate| (candidate.item, candidate.store)).collect();
        let is_candidate = |item, store| candidates.contains(&(item, store));
        let why = |(number, item): (usize, &WorkItem)| {
            let (ItemForm { form, upto }, rows) = (self.chosen[number], item.rows.len());
            match form {
                LatentForm::Again if is_candidate(number, CopyStore::Kept) => Some(WhySlower::Pages),
                LatentForm::Kept | LatentForm::Again => upto.map(|_| WhySlower::Pages),
                LatentForm::Absorbed if costs.absorbed(rows) <= costs.copied(rows) => None,
                LatentForm::Absorbed if !CopyStore::ALL.iter().any(|&store| is_candidate(number, store)) => {
                    Some(WhySlower::Making)
                }
                LatentForm::Absorbed => match self.save_too_little.as_ref().map(|chosen| chosen[number]) {
                    Some(ItemForm { form: LatentForm::Kept | LatentForm::Again, upto: None }) => Some(WhySlower::Start),
                    Some(_) | None => Some(WhySlower::Pages),
                },
            }
        };
        plan.items.iter().enumerate().map(why).collect()
    }
}

/// How each item of `plan` is read.
pub(super) fn choose(
    plan: &AttentionPlan,
    forest: &Forest,
    hints: &PlanHints,
    choice: LatentFormChoice,
    room: &CopyRoom<'_>,
) -> ItemForms {
    let mut forms = ItemForms::absorbed(plan.items.len());
    let Some(costs) = FormCosts::of(hints).filter(|_| hints.may_copy(room)) else { return forms };
    let fresh: Vec<bool> = (0..forest.segments.len()).map(|index| !forest.own_rows(index).is_empty()).collect();
    let grows: HashSet<u32> = plan.growing.iter().map(|growing| growing.span).collect();
    let may_have = |item: &WorkItem, store: CopyStore| match store {
        CopyStore::Kept => !plan.segments_of(item, forest).any(|index| fresh[index]),
        CopyStore::Again => !grows.contains(&(item.spans.end - 1)),
    };
    let mut taken = Taken { room, pages: Default::default() };
    match choice {
        LatentFormChoice::Cheapest => {
            let has_prompt = |item: &WorkItem| {
                let segments = &forest.row_segments[item.rows.start as usize..item.rows.end as usize];
                segments.iter().any(|&index| forest.has_prompt(index as usize))
            };
            forms.candidates = candidates(plan, &costs, room, has_prompt, may_have);
            let saved = choose_cheapest(plan, &costs, &forms.candidates, taken, &mut forms.chosen);
            if !forms.are_absorbed() && saved <= hints.cost.latents.start {
                let absorbed = vec![ItemForm::ABSORBED; plan.items.len()];
                forms.save_too_little = Some(std::mem::replace(&mut forms.chosen, absorbed));
            }
        }
        LatentFormChoice::All(form) => {
            let all = forms.chosen.iter_mut().enumerate();
            all.for_each(|(item, chosen)| *chosen = taken.take_if(plan, item, form, may_have));
        }
        LatentFormChoice::Random(seed) => {
            let mut dice = Dice::new(seed);
            let all = forms.chosen.iter_mut().enumerate();
            all.for_each(|(item, chosen)| *chosen = taken.take_if(plan, item, dice.pick(&LatentForm::ALL), may_have));
        }
    }
    forms
}

/// Gives candidates copies as far as pages are left: first those that get them whole, then others to the beginning for
/// which there are pages. Returns the nanoseconds of a layer that are saved.
fn choose_cheapest(
    plan: &AttentionPlan,
    costs: &FormCosts<'_>,
    candidates: &[Candidate],
    mut taken: Taken<'_>,
    chosen: &mut [ItemForm],
) -> f64 {
    let mut saved = 0.0;
    for is_whole in [true, false] {
        for candidate in candidates {
            if chosen[candidate.item].form != LatentForm::Absorbed {
                continue;
            }
            let Some(beginning) = taken.beginning(plan, candidate.item, candidate.store) else { continue };
            let saving = match beginning.upto {
                None => candidate.saving,
                Some(_) if is_whole => continue,
                Some(_) => {
                    let part = beginning.tokens as f64 / candidate.tokens as f64;
                    part * candidate.saving - costs.states(plan.items[candidate.item].rows.len())
                }
            };
            if saving > 0.0 {
                chosen[candidate.item] = taken.take(beginning, candidate.store);
                saved += saving;
            }
        }
    }
    saved
}

/// An item that costs less from the copies of a store than absorbed.
struct Candidate {
    item: usize,
    store: CopyStore,
    tokens: usize,
    /// Nanoseconds of a layer that it costs less, and those for each page of the copy.
    saving: f64,
    of_page: f64,
}

/// The candidates among the items of several rows, those first that save most for each page. An item may be one for
/// both stores.
fn candidates(
    plan: &AttentionPlan,
    costs: &FormCosts<'_>,
    room: &CopyRoom<'_>,
    has_prompt: impl Fn(&WorkItem) -> bool,
    may_have: impl Fn(&WorkItem, CopyStore) -> bool,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for (number, item) in plan.items.iter().enumerate().filter(|(_, item)| item.rows.len() > 1) {
        let rows = item.rows.len();
        let less = costs.absorbed(rows) - costs.copied(rows);
        if less <= 0.0 {
            continue;
        }
        let item_rows = ItemRows { rows, has_prompt: has_prompt(item) };
        let seen = plan.seen_tokens(item) as f64 / rows as f64;
        for store in CopyStore::ALL.into_iter().filter(|&store| may_have(item, store)) {
            let (mut tokens, mut missing, mut pages) = (0, 0, 0);
            for (page, slots) in plan.page_slots(item) {
                let count = slots.len();
                (tokens, pages) = (tokens + count, pages + 1);
                let is_held = store == CopyStore::Kept && (room.holds)(page, slots);
                missing += if is_held { 0 } else { count };
            }
            let saving = seen * less - missing as f64 * costs.made(store, item_rows);
            if saving > 0.0 {
                let of_page = saving / f64::from(pages);
                candidates.push(Candidate { item: number, store, tokens, saving, of_page });
            }
        }
    }
    candidates.sort_by(|a, b| b.of_page.total_cmp(&a.of_page));
    candidates
}

/// The pages of latents that are given copies, by store.
struct Taken<'a> {
    room: &'a CopyRoom<'a>,
    pages: [HashSet<PageId>; CopyStore::COUNT],
}

/// The beginning of an item for whose copies pages are left.
struct Beginning {
    tokens: usize,
    /// Its pages without those that other items have taken.
    new: Vec<PageId>,
    /// Its end; `None`: it is all of the item.
    upto: Option<u32>,
}

impl Taken<'_> {
    /// As much of an item as pages are left for in `store`: all, or up to a place where a tile and a page begin.
    /// `None`: not even up to the first such place.
    fn beginning(&self, plan: &AttentionPlan, item: usize, store: CopyStore) -> Option<Beginning> {
        let (taken, most) = (&self.pages[store as usize], self.room.pages[store as usize]);
        let item = &plan.items[item];
        let first = plan.spans_of(item)[0].first_position;
        let unit = plan.tile.max(plan.page_tokens) as usize;
        let (mut tokens, mut new) = (0, Vec::new());
        // Tokens and new pages up to the last such place.
        let mut aligned = (0, 0);
        for (page, slots) in plan.page_slots(item) {
            // Neighbouring spans may share a page.
            if !taken.contains(&page) && new.last() != Some(&page) {
                if taken.len() + new.len() >= most {
                    let (tokens, pages) = aligned;
                    new.truncate(pages);
                    return (tokens > 0).then(|| Beginning { tokens, new, upto: Some(first + number(tokens)) });
                }
                new.push(page);
            }
            tokens += slots.len();
            if (first as usize + tokens).is_multiple_of(unit) {
                aligned = (tokens, new.len());
            }
        }
        Some(Beginning { tokens, new, upto: None })
    }

    /// Takes the pages that are left for an item, if it may be read in that form.
    fn take_if(
        &mut self,
        plan: &AttentionPlan,
        item: usize,
        form: LatentForm,
        may_have: impl Fn(&WorkItem, CopyStore) -> bool,
    ) -> ItemForm {
        let store = form.store().filter(|&store| may_have(&plan.items[item], store));
        let beginning = store.and_then(|store| Some((self.beginning(plan, item, store)?, store)));
        beginning.map_or(ItemForm::ABSORBED, |(beginning, store)| self.take(beginning, store))
    }

    fn take(&mut self, beginning: Beginning, store: CopyStore) -> ItemForm {
        self.pages[store as usize].extend(beginning.new);
        ItemForm { form: store.into(), upto: beginning.upto }
    }
}
