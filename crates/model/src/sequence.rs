//! Runs a single sequence through the decoder in its own KV memory, without an engine: tokens in, logits out.

use std::ops::Range;

use offshoot_backend::{AdapterSlot, Backend, RowToken, StepBatch, StepRequests};
use offshoot_core::error::Result;
use offshoot_core::ids::{GroupIx, PageId, SegmentId, StateId, TokenId};
use offshoot_kv::plan::{PlanHints, Planner};
use offshoot_kv::{Forest, ForestSegment, KvSlot, PageGroups, StateRun};

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
        Ok(Self { backend, model, kv, step, place: SequencePlace { page_tokens, pages, groups, tokens: 0 } })
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
        let has_state = self.model.config().delta_heads().next().is_some();
        let tokens = if goes_back && has_state { 0 } else { tokens };
        *held = (*held).min(u32::try_from(tokens).unwrap_or(u32::MAX));
        *held as usize
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
        let plan = |hints: &PlanHints| Planner::Flat.plan(&self.forest(&positions, hints.group), hints);
        let plans: Vec<_> = hints.iter().map(plan).collect();
        let slots_in = |group: GroupIx| positions.iter().map(|&position| self.slot(group, position)).collect();
        let slots = self.groups.iter().map(slots_in).collect();
        StepBatch {
            tokens: tokens.iter().copied().map(RowToken::Known).collect(),
            positions,
            slots,
            logit_rows: logit_rows.collect(),
            plans,
            expansions: None,
            state_runs,
            adapters: Vec::new(),
            requests: StepRequests::None,
        }
    }

    fn slot(&self, group: GroupIx, position: u32) -> KvSlot {
        KvSlot { page: self.page(group, position / self.page_tokens), slot: position % self.page_tokens }
    }

    /// Page number `number` of the sequence in `group`.
    fn page(&self, group: GroupIx, number: u32) -> PageId {
        PageId::new(group.ix() * self.pages + number as usize)
    }

    /// The sequence as one segment in the pages of `group`.
    fn forest(&self, positions: &[u32], group: GroupIx) -> Forest {
        let pages = self.tokens.div_ceil(self.page_tokens);
        let rows = positions.len() as u32;
        Forest {
            page_tokens: self.page_tokens,
            segments: vec![ForestSegment {
                id: SegmentId(0),
                parent: None,
                first_position: 0,
                tokens: self.tokens,
                pages: 0..pages,
                held_from: 0,
                rows: 0..rows,
            }],
            pages: (0..pages).map(|number| self.page(group, number)).collect(),
            row_positions: positions.to_vec(),
            row_segments: vec![0; positions.len()],
        }
    }
}
