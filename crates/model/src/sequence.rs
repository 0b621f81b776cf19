//! Runs a single sequence through the decoder in its own KV memory, without an engine: tokens in, logits out. Callers
//! may choose the forms of latent attention, to compare them.

use std::ops::Range;

use offshoot_backend::{AdapterSlot, Backend, RowToken, StepBatch, StepRequests};
use offshoot_core::error::Result;
use offshoot_core::ids::{GroupIx, PageId, SegmentId, StateId, TokenId};
use offshoot_kv::plan::{AttentionPlan, CopyRoom, LatentFormChoice, PlanHints, Planner};
use offshoot_kv::{Copied, CopyCache, CopyStore, Expansion, Forest, ForestSegment, KvSlot, PageGroups, StateRun};

use super::decoder::Decoder;

/// A sequence and its KV memory.
pub struct Sequence<'a, B: Backend> {
    pub(super) backend: &'a mut B,
    pub(super) model: &'a mut Decoder<B>,
    pub(super) kv: B::Kv,
    pub(super) step: B::Step,
    place: SequencePlace,
}

/// Where the tokens of a sequence have their keys and values.
struct SequencePlace {
    page_tokens: u32,
    /// Pages of each group.
    pages: usize,
    groups: PageGroups,
    /// Tokens computed so far; token `i` is in slot `i` of each group's memory.
    tokens: u32,
    /// `None`: one segment, all absorbed.
    forms: Option<Forms>,
}

/// How a sequence of a model with latent attention is read.
struct Forms {
    choice: LatentFormChoice,
    /// Tokens of a segment. Each segment is an item, which has one form.
    segment: u32,
    copies: CopyCache,
}

impl<'a, B: Backend> Sequence<'a, B> {
    /// Room for `capacity` tokens.
    pub fn new(backend: &'a mut B, model: &'a mut Decoder<B>, capacity: usize) -> Result<Self> {
        let page_tokens = backend.page_tokens();
        let pages = capacity.div_ceil(page_tokens as usize);
        model.set_longest(backend, capacity)?;
        let groups = model.config().page_groups(backend);
        let kv = backend.kv(&model.kv_shape(groups.count() * pages).with_states(1))?;
        let step = model.step(backend)?;
        Ok(Self {
            backend,
            model,
            kv,
            step,
            place: SequencePlace { page_tokens, pages, groups, tokens: 0, forms: None },
        })
    }

    /// Cuts the sequence of a model with latent attention to segments of so many tokens, whose forms are chosen by
    /// `choice`, among copies that have room for all of it. Other models have no forms: nothing changes.
    ///
    /// # Errors
    ///
    /// The device lacks memory.
    pub fn read_in(&mut self, choice: LatentFormChoice, segment: u32) -> Result<()> {
        if self.model.config().latents().is_none() {
            return Ok(());
        }
        let pages = [self.place.pages; CopyStore::COUNT];
        self.model.allocate_copies(self.backend, pages)?;
        self.place.forms = Some(Forms { choice, segment, copies: CopyCache::new(pages) });
        Ok(())
    }

    /// Appends `tokens` in one step. Returns the logits of rows `logit_rows` of that step, `[logit_rows.len(), vocab]`.
    pub fn extend(&mut self, tokens: &[TokenId], logit_rows: Range<u32>) -> Result<Vec<f32>> {
        self.extend_with_adapters(tokens, &[], logit_rows)
    }

    /// As `extend`, where each token has an adapter or none.
    pub fn extend_with_adapters(
        &mut self,
        tokens: &[TokenId],
        adapters: &[Option<AdapterSlot>],
        logit_rows: Range<u32>,
    ) -> Result<Vec<f32>> {
        let rows = logit_rows.len();
        let batch = StepBatch { adapters: adapters.to_vec(), ..self.batch(tokens, logit_rows) };
        let logits = self.model.forward(self.backend, &mut self.kv, &mut self.step, batch)?;
        let logits = self.backend.read(logits, rows)?;
        self.backend.collect(&mut self.step)?;
        Ok(logits)
    }

    /// The experts chosen for each token so far, `[tokens, layers with experts, chosen]`: only of a model that keeps
    /// them ([`Decoder::keep_routes`]).
    pub fn routes(&mut self) -> Result<Vec<u16>> {
        let Some(shape) = self.model.routes() else { return Ok(Vec::new()) };
        let slots: Vec<KvSlot> =
            (0..self.place.tokens).map(|position| self.place.slot(shape.group, position)).collect();
        self.backend.read_routes(&self.kv, &slots)
    }

    /// Says that the sequence ends at `tokens` tokens, which decides which factors a longrope uses (at first its room
    /// does). Returns whether they change: then nothing that was computed can be kept.
    pub(super) fn set_length(&mut self, tokens: usize) -> Result<bool> {
        let changes = self.model.set_longest(self.backend, tokens)?;
        if changes {
            self.truncate(0);
        }
        Ok(changes)
    }

    /// Keeps the first `tokens` tokens, or none if there is a state, which cannot go back; the next step continues
    /// after them. Returns how many are kept.
    pub(super) fn truncate(&mut self, tokens: usize) -> usize {
        let held = &mut self.place.tokens;
        let goes_back = tokens < *held as usize;
        let has_state = self.model.config().states().next().is_some();
        let tokens = if goes_back && has_state { 0 } else { tokens };
        *held = (*held).min(u32::try_from(tokens).unwrap_or(u32::MAX));
        if let Some(forms) = self.place.forms.as_mut().filter(|_| goes_back) {
            forms.copies.forget_all();
        }
        self.place.tokens as usize
    }

    /// The step that appends `tokens` and computes the logits of its rows `logit_rows`.
    pub(super) fn batch(&mut self, tokens: &[TokenId], logit_rows: Range<u32>) -> StepBatch {
        self.place.batch(tokens, logit_rows, self.model.plan_hints())
    }
}

impl SequencePlace {
    /// The step that appends `tokens` and computes the logits of its rows `logit_rows`.
    fn batch(&mut self, tokens: &[TokenId], logit_rows: Range<u32>, hints: &[PlanHints]) -> StepBatch {
        let new = u32::try_from(tokens.len()).expect("a step has fewer than 2^32 rows");
        let positions: Vec<u32> = (self.tokens..self.tokens + new).collect();
        let from = (self.tokens > 0).then_some(StateId(0));
        let state_runs = vec![StateRun { rows: 0..new, from, is_in: false, to: Some(StateId(0)) }];
        self.tokens += new;
        let (plans, expansions) = self.plan(&positions, hints);
        let slots_in = |group: GroupIx| positions.iter().map(|&position| self.slot(group, position)).collect();
        let slots = self.groups.iter().map(slots_in).collect();
        StepBatch {
            tokens: tokens.iter().copied().map(RowToken::Known).collect(),
            positions,
            slots,
            logit_rows: logit_rows.collect(),
            plans,
            expansions,
            state_runs,
            adapters: Vec::new(),
            requests: StepRequests::None,
        }
    }

    /// One plan for each of `hints` and, of latent attention, those of copies with what is expanded for them.
    fn plan(
        &mut self,
        positions: &[u32],
        hints: &[PlanHints],
    ) -> (Vec<AttentionPlan>, Option<[Vec<Expansion>; CopyStore::COUNT]>) {
        let mut plans = Vec::new();
        let mut copied = None;
        for hints in hints {
            let forest = self.forest(positions, hints.group);
            if hints.latents.is_none() {
                plans.push(Planner::Flat.plan(&forest, hints));
                continue;
            }
            // What was computed stays where it is, until `truncate` forgets all copies.
            let stamp = |_| 0;
            let (forms, assigned) = match &mut self.forms {
                None => {
                    let forms = Planner::Flat.plan_forms(&forest, hints, LatentFormChoice::Cheapest, &CopyRoom::NONE);
                    (forms.absorbed, Copied::none(forms.copied))
                }
                Some(Forms { choice, copies, .. }) => {
                    let plan = |room: &CopyRoom<'_>| Planner::Tree.plan_forms(&forest, hints, *choice, room);
                    let forms = copies.with_room(stamp, plan);
                    (forms.absorbed, copies.assign(forms.copied, stamp))
                }
            };
            plans.push(forms);
            copied = Some(assigned);
        }
        let expansions = copied.map(|copied| {
            plans.extend(copied.plans);
            copied.expansions
        });
        (plans, expansions)
    }

    fn slot(&self, group: GroupIx, position: u32) -> KvSlot {
        KvSlot { page: self.page(group, position / self.page_tokens), slot: position % self.page_tokens }
    }

    /// Page number `number` of the sequence in `group`.
    fn page(&self, group: GroupIx, number: u32) -> PageId {
        PageId::new(group.ix() * self.pages + number as usize)
    }

    /// The sequence in the pages of `group`: a chain of segments, or one.
    fn forest(&self, positions: &[u32], group: GroupIx) -> Forest {
        let mut forest = Forest { page_tokens: self.page_tokens, ..Forest::default() };
        let rows = positions.len() as u32;
        let length = self.forms.as_ref().map_or(self.tokens, |forms| forms.segment).max(1);
        for first in (0..self.tokens).step_by(length as usize) {
            let end = self.tokens.min(first + length);
            let (index, page) = (forest.segments.len() as u32, forest.pages.len() as u32);
            let numbers = first / self.page_tokens..end.div_ceil(self.page_tokens);
            forest.pages.extend(numbers.map(|number| self.page(group, number)));
            let above = forest.row_segments.len() as u32;
            forest.row_segments.extend(positions.iter().filter(|at| (first..end).contains(at)).map(|_| index));
            forest.segments.push(ForestSegment {
                id: SegmentId::new(index as usize),
                parent: index.checked_sub(1),
                first_position: first,
                tokens: end - first,
                pages: page..forest.pages.len() as u32,
                held_from: first,
                rows: above..rows,
            });
        }
        forest.row_positions = positions.to_vec();
        forest
    }
}
