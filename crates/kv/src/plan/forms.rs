//! Divides a plan of latent attention among its forms. Each item of a plan that a planner has made is read in one form:
//! absorbed, or from copies of the latents that are expanded to keys and values. So sharing is decided as for all other
//! attention, and only then how shared latents are read: copies pay under many rows. An item for whose copies too few
//! pages are left is cut in two: its beginning is read from copies, the rest as latents.
//!
//! # What may be read from copies
//! Copies that are kept must be made of what earlier steps have computed, in segments that no row of this step belongs
//! to. Copies that each layer makes again may hold this step's own latents. A span that grows is never copied, so that
//! a plan can be advanced: its rows then have a newest token that no copy has.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::latents::{FormCosts, ItemRows};
use super::{AttentionPlan, Csr, GrowingSpan, KvSpan, NewPage, PlanFault, PlanHints, PlanStats, Planner, WorkItem};
use crate::{CopyStore, Forest};

use offshoot_core::dice::Dice;
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
        let mut forms = forms(&plan, forest, hints, choice, room);
        if choice == LatentFormChoice::Cheapest
            && forms.are_absorbed()
            && let Some(without) = hints.without_copies()
        {
            // What is shared for the sake of copies does not pay without them.
            plan = self.plan(forest, &without);
            forms = ItemForms::absorbed(plan.items.len());
        }
        let chosen = forms.chosen;
        plan.cut_items(&chosen);
        let plans = FormPlans::new(plan, hints, &forms_of_parts(&chosen));
        debug_assert_eq!(plans.check(forest), Ok(()));
        plans
    }
}

/// How an item is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ItemForm {
    pub form: LatentForm,
    /// The position from which it is absorbed all the same, where a tile and a page begin; `None`: it has one form.
    pub upto: Option<u32>,
}

/// Why latents are absorbed that would be read faster from copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyAbsorbed {
    /// To make the copies would cost more than they save.
    Making,
    /// No pages are left for copies.
    Pages,
    /// All copies of the step would save less than it costs to read any.
    Start,
}

impl ItemForm {
    pub const ABSORBED: ItemForm = ItemForm { form: LatentForm::Absorbed, upto: None };
}

/// How the items of a plan are read.
pub(super) struct ItemForms {
    /// One for each item.
    pub chosen: Vec<ItemForm>,
    /// Items that cost less when they are read from copies, those to make included, once for each store.
    wishes: Vec<Wish>,
    /// Whether what all copies save was less than what reading any costs.
    saves_too_little: bool,
}

impl ItemForms {
    fn absorbed(items: usize) -> Self {
        Self { chosen: vec![ItemForm::ABSORBED; items], wishes: Vec::new(), saves_too_little: false }
    }

    /// Whether no item reads copies.
    pub fn are_absorbed(&self) -> bool {
        self.chosen.iter().all(|chosen| chosen.form == LatentForm::Absorbed)
    }

    /// For each item of `plan`, whose cheapest forms these are, why it or its end is absorbed; `None`: copies are not
    /// read faster, or all of it is read from them.
    pub fn why_absorbed(&self, plan: &AttentionPlan, costs: &FormCosts<'_>) -> Vec<Option<WhyAbsorbed>> {
        let wished: HashSet<usize> = self.wishes.iter().map(|wish| wish.item).collect();
        let why = |(number, item): (usize, &WorkItem)| {
            let (ItemForm { form, upto }, rows) = (self.chosen[number], item.rows.len());
            match form {
                LatentForm::Kept | LatentForm::Again => upto.map(|_| WhyAbsorbed::Pages),
                LatentForm::Absorbed if costs.absorbed(rows) <= costs.copied(rows) => None,
                LatentForm::Absorbed if !wished.contains(&number) => Some(WhyAbsorbed::Making),
                LatentForm::Absorbed if self.saves_too_little => Some(WhyAbsorbed::Start),
                LatentForm::Absorbed => Some(WhyAbsorbed::Pages),
            }
        };
        plan.items.iter().enumerate().map(why).collect()
    }
}

/// The forms of the parts that items are cut to.
fn forms_of_parts(chosen: &[ItemForm]) -> Vec<LatentForm> {
    let parts = |of: &ItemForm| [Some(of.form), of.upto.map(|_| LatentForm::Absorbed)];
    chosen.iter().flat_map(parts).flatten().collect()
}

/// How each item of `plan` is read.
pub(super) fn forms(
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
            forms.wishes = wishes(plan, &costs, room, has_prompt, may_have);
            let saved = choose_cheapest(plan, &costs, &forms.wishes, taken, &mut forms.chosen);
            forms.saves_too_little = !forms.are_absorbed() && saved <= hints.cost.latents.start;
            if forms.saves_too_little {
                forms.chosen.fill(ItemForm::ABSORBED);
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

/// Fulfils wishes as far as pages are left: all that can be whole first, then the beginnings of others. Returns the
/// nanoseconds of a layer that are saved.
fn choose_cheapest(
    plan: &AttentionPlan,
    costs: &FormCosts<'_>,
    wishes: &[Wish],
    mut taken: Taken<'_>,
    chosen: &mut [ItemForm],
) -> f64 {
    let mut saved = 0.0;
    for is_whole in [true, false] {
        for wish in wishes {
            if chosen[wish.item].form != LatentForm::Absorbed {
                continue;
            }
            let Some(left) = taken.left(plan, wish.item, wish.store) else { continue };
            let saving = match left.upto {
                None => wish.saving,
                Some(_) if is_whole => continue,
                Some(_) => {
                    let part = left.tokens as f64 / wish.tokens as f64;
                    part * wish.saving - costs.states(plan.items[wish.item].rows.len())
                }
            };
            if saving > 0.0 {
                chosen[wish.item] = taken.take(left, wish.store);
                saved += saving;
            }
        }
    }
    saved
}

/// An item that costs less in another form than the absorbed one.
struct Wish {
    item: usize,
    store: CopyStore,
    tokens: usize,
    /// Nanoseconds of a layer that it costs less, and those for each page of the copy.
    saving: f64,
    of_page: f64,
}

/// All wishes of items of several rows, those first that save most for each page.
fn wishes(
    plan: &AttentionPlan,
    costs: &FormCosts<'_>,
    room: &CopyRoom<'_>,
    has_prompt: impl Fn(&WorkItem) -> bool,
    may_have: impl Fn(&WorkItem, CopyStore) -> bool,
) -> Vec<Wish> {
    let mut wishes = Vec::new();
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
                wishes.push(Wish { item: number, store, tokens, saving, of_page: saving / f64::from(pages) });
            }
        }
    }
    wishes.sort_by(|a, b| b.of_page.total_cmp(&a.of_page));
    wishes
}

/// The pages of latents that get copies in a plan, by store.
struct Taken<'a> {
    room: &'a CopyRoom<'a>,
    pages: [HashSet<PageId>; CopyStore::COUNT],
}

/// The beginning of an item for whose copies there are pages.
struct Left {
    tokens: usize,
    /// The pages that are taken for it.
    new: Vec<PageId>,
    /// Its end; `None`: it is all of the item.
    upto: Option<u32>,
}

impl Taken<'_> {
    /// As much of an item as there are pages for in `store`, up to a place where a tile and a page begin, or all.
    /// `None`: not even that much.
    fn left(&self, plan: &AttentionPlan, item: usize, store: CopyStore) -> Option<Left> {
        let (taken, most) = (&self.pages[store as usize], self.room.pages[store as usize]);
        let item = &plan.items[item];
        let first = plan.spans[item.spans.start as usize].first_position;
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
                    return (tokens > 0).then(|| Left { tokens, new, upto: Some(first + number(tokens)) });
                }
                new.push(page);
            }
            tokens += slots.len();
            if (first as usize + tokens).is_multiple_of(unit) {
                aligned = (tokens, new.len());
            }
        }
        Some(Left { tokens, new, upto: None })
    }

    /// Takes what is left for an item, if it may be read in that form.
    fn take_if(
        &mut self,
        plan: &AttentionPlan,
        item: usize,
        form: LatentForm,
        may_have: impl Fn(&WorkItem, CopyStore) -> bool,
    ) -> ItemForm {
        let store = form.store().filter(|&store| may_have(&plan.items[item], store));
        let left = store.and_then(|store| Some((self.left(plan, item, store)?, store)));
        left.map_or(ItemForm::ABSORBED, |(left, store)| self.take(left, store))
    }

    fn take(&mut self, left: Left, store: CopyStore) -> ItemForm {
        self.pages[store as usize].extend(left.new);
        ItemForm { form: store.into(), upto: left.upto }
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

impl KvSpan {
    /// What of it lies in `positions`, which begin and end where a page does, or outside of it.
    fn within(&self, positions: &Range<u32>, page_tokens: u32) -> Option<KvSpan> {
        let end = self.first_position + self.tokens;
        let (from, to) = (self.first_position.max(positions.start), end.min(positions.end));
        let page = |position: u32| self.pages.start + position / page_tokens - self.first_position / page_tokens;
        (from < to).then(|| KvSpan { pages: page(from)..page(to - 1) + 1, first_position: from, tokens: to - from })
    }
}

impl AttentionPlan {
    /// The pages that an item reads, each with its slots. A page that two spans share comes twice.
    pub(crate) fn page_slots(&self, item: &WorkItem) -> impl Iterator<Item = (PageId, Range<u32>)> {
        let spans = &self.spans[item.spans.start as usize..item.spans.end as usize];
        spans.iter().flat_map(|span| self.slots_of(span))
    }

    /// The sum over an item's rows of its tokens that each sees, without regard to a window.
    fn seen_tokens(&self, item: &WorkItem) -> u64 {
        let spans = &self.spans[item.spans.start as usize..item.spans.end as usize];
        let first = spans[0].first_position;
        let tokens: u32 = spans.iter().map(|span| span.tokens).sum();
        let rows = &self.row_positions[item.rows.start as usize..item.rows.end as usize];
        rows.iter().map(|&position| u64::from((position + 1).saturating_sub(first).min(tokens))).sum()
    }

    /// The pages of a span, each with the slots that belong to it.
    pub(crate) fn slots_of(&self, span: &KvSpan) -> impl Iterator<Item = (PageId, Range<u32>)> {
        let (first, end, of) = (span.first_position, span.first_position + span.tokens, self.page_tokens);
        let pages = &self.pages[span.pages.start as usize..span.pages.end as usize];
        (first / of..).zip(pages).map(move |(number, &page)| {
            let begins = number * of;
            (page, first.max(begins) - begins..end.min(begins + of) - begins)
        })
    }

    /// The segments of an item's spans, from the last one upward.
    fn segments_of<'a>(&'a self, item: &WorkItem, forest: &'a Forest) -> impl Iterator<Item = usize> + 'a {
        let mut at = forest.row_segments[item.rows.start as usize] as usize;
        let spans = &self.spans[item.spans.start as usize..item.spans.end as usize];
        spans.iter().rev().map(move |span| {
            while forest.segments[at].first_position > span.first_position {
                at = forest.segments[at].parent.expect("positions before it are its ancestors'") as usize;
            }
            at
        })
    }

    /// Cuts each item that has two forms in two, one behind the other.
    fn cut_items(&mut self, chosen: &[ItemForm]) {
        if chosen.iter().all(|chosen| chosen.upto.is_none()) {
            return;
        }
        let (items, spans) = (std::mem::take(&mut self.items), std::mem::take(&mut self.spans));
        // Where the end of each span went.
        let mut moved = vec![0; spans.len()];
        for (item, chosen) in items.into_iter().zip(chosen) {
            let cut = chosen.upto.unwrap_or(u32::MAX);
            for part in [0..cut, cut..u32::MAX].into_iter().take(1 + usize::from(chosen.upto.is_some())) {
                let first = number(self.spans.len());
                for index in item.spans.clone() {
                    if let Some(span) = spans[index as usize].within(&part, self.page_tokens) {
                        moved[index as usize] = number(self.spans.len());
                        self.spans.push(span);
                    }
                }
                // Its own rows come first and rise: those before the part see nothing of it.
                let rows = &self.row_positions[item.rows.start as usize..item.rows.end as usize];
                let before = number(rows.iter().take_while(|&&position| position < part.start).count());
                let rows = item.rows.start + before..item.rows.end;
                self.items.push(WorkItem { rows, spans: first..number(self.spans.len()) });
            }
        }
        self.merge = Csr::of_items(&self.items, self.row_positions.len());
        self.growing.iter_mut().for_each(|growing| growing.span = moved[growing.span as usize]);
    }

    /// A plan of those items alone, none of which grows.
    fn items_where(&self, keep: impl Fn(usize) -> bool) -> AttentionPlan {
        let mut own = AttentionPlan {
            items: Vec::new(),
            spans: Vec::new(),
            pages: Vec::new(),
            row_positions: self.row_positions.clone(),
            merge: Csr::default(),
            growing: Vec::new(),
            flat_kv_tokens: 0,
            ..*self
        };
        let mut kept = vec![None; self.items.len()];
        for (index, item) in self.items.iter().enumerate().filter(|&(index, _)| keep(index)) {
            kept[index] = Some(number(own.items.len()));
            let first = number(own.spans.len());
            for span in &self.spans[item.spans.start as usize..item.spans.end as usize] {
                let page = number(own.pages.len());
                own.pages.extend(&self.pages[span.pages.start as usize..span.pages.end as usize]);
                own.spans.push(KvSpan { pages: page..number(own.pages.len()), ..span.clone() });
            }
            own.items.push(WorkItem { rows: item.rows.clone(), spans: first..number(own.spans.len()) });
        }
        own.merge = self.merge.only(&kept);
        own
    }

    /// Leaves out all other items, none of which grows. Pages stay.
    fn retain_items(&mut self, keep: impl Fn(usize) -> bool) {
        let mut kept = vec![None; self.items.len()];
        let mut moved = vec![None; self.spans.len()];
        let (items, spans) = (std::mem::take(&mut self.items), std::mem::take(&mut self.spans));
        for (index, item) in items.into_iter().enumerate().filter(|&(index, _)| keep(index)) {
            kept[index] = Some(number(self.items.len()));
            let first = number(self.spans.len());
            for span in item.spans {
                moved[span as usize] = Some(number(self.spans.len()));
                self.spans.push(spans[span as usize].clone());
            }
            self.items.push(WorkItem { rows: item.rows, spans: first..number(self.spans.len()) });
        }
        self.merge = self.merge.only(&kept);
        for GrowingSpan { span, .. } in &mut self.growing {
            *span = moved[*span as usize].expect("items that grow stay");
        }
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("a step has fewer than 2^32 spans and pages")
}
