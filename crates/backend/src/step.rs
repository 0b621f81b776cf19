//! One forward step as integers: each row's token, position and KV slot, the attention plans, and what is sampled. Made
//! by the engine, loaded by a backend (`Backend::load`), read by the ops.

use offshoot_core::ids::TokenId;
use offshoot_kv::plan::{AttentionPlan, NewPage};
use offshoot_kv::{CopyStore, Expansion, KvSlot, StateRun};

use super::lora::AdapterSlot;
use super::sampling::{SampleRequest, SampledToken, SeenToken};

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    Known(TokenId),
    /// The token the previous step samples for its request of this index. The host may not know it yet.
    Sampled(u32),
}

/// What becomes of the rows of a step's output, and when that is said: tokens are sampled from their logits, or their
/// values are kept.
#[derive(Clone, Debug, Default)]
pub enum StepRequests {
    /// Nothing is sampled: logits are computed at most.
    #[default]
    None,
    /// One for each of the step's logits rows.
    Given(Vec<SampleRequest>),
    /// Late requests, one for each of the step's logits rows: the step is run up to its logits, which stay as they are
    /// until the requests are loaded ([`Backend::load_requests`](crate::Backend::load_requests)) and sampled
    /// ([`Backend::sample_late`](crate::Backend::sample_late)). So what is allowed in a row may depend on a token that
    /// the host reads while the device computes the row.
    Late,
    /// The numbers that a scorer computes for each of the step's logits rows are kept for the host
    /// ([`Backend::keep_values`](crate::Backend::keep_values)); nothing is sampled.
    Values,
}

/// What a step that was run has for the host.
#[derive(Clone, Debug, PartialEq)]
pub enum StepResults {
    /// One sample for each request; `None` where no token may be sampled.
    Samples(Vec<Option<SampledToken>>),
    /// The values of each logits row, one row after the other.
    Values(Vec<f32>),
}

impl StepResults {
    /// The samples. Panics if the step kept values.
    pub fn samples(self) -> Vec<Option<SampledToken>> {
        match self {
            StepResults::Samples(samples) => samples,
            StepResults::Values(_) => panic!("a step that keeps values is collected by `collect_values`"),
        }
    }

    /// The values. Panics if the step kept none.
    pub fn values(self) -> Vec<f32> {
        match self {
            StepResults::Values(values) => values,
            StepResults::Samples(_) => panic!("a step that keeps no values is collected by `collect`"),
        }
    }
}

impl StepRequests {
    /// The requests that the step is loaded with.
    pub fn given(&self) -> &[SampleRequest] {
        match self {
            StepRequests::Given(requests) => requests,
            StepRequests::None | StepRequests::Late | StepRequests::Values => &[],
        }
    }

    fn given_mut(&mut self) -> &mut [SampleRequest] {
        match self {
            StepRequests::Given(requests) => requests,
            StepRequests::None | StepRequests::Late | StepRequests::Values => &mut [],
        }
    }

    /// Whether the step gets its requests after it is run.
    pub fn are_late(&self) -> bool {
        matches!(self, StepRequests::Late)
    }

    /// Whether the step keeps values.
    pub fn are_values(&self) -> bool {
        matches!(self, StepRequests::Values)
    }

    /// Whether a step of so many logits rows may have them.
    pub fn fit(&self, logit_rows: usize) -> bool {
        match self {
            StepRequests::None | StepRequests::Values => true,
            StepRequests::Given(requests) => requests.len() == logit_rows,
            StepRequests::Late => logit_rows > 0,
        }
    }
}

/// No requests: nothing is sampled.
impl From<Vec<SampleRequest>> for StepRequests {
    fn from(requests: Vec<SampleRequest>) -> Self {
        if requests.is_empty() { StepRequests::None } else { StepRequests::Given(requests) }
    }
}

/// The rows of one step, depth-first.
#[derive(Clone, Debug, Default)]
pub struct StepBatch {
    pub tokens: Vec<RowToken>,
    /// Absolute position of each row.
    pub positions: Vec<u32>,
    /// For each page group of the model the slot of each row.
    pub slots: Vec<Vec<KvSlot>>,
    /// Rows whose logits (of a scorer: whose values) are computed, in rising order. A row appears once per sample taken
    /// from its logits.
    pub logit_rows: Vec<u32>,
    /// One per kind of attention (heads, window and page group) of the model's layers, in the order of
    /// `Decoder::plan_hints`.
    pub plans: Vec<AttentionPlan>,
    /// For models with latent attention alone: what is expanded for this step, by [`CopyStore`]. Then the last two
    /// plans read the copies of each store, in the same order, and may have no items.
    pub expansions: Option<[Vec<Expansion>; CopyStore::COUNT]>,
    /// For models with delta-rule layers: runs that have each row once, in the order in which they are computed. A run
    /// may read what an earlier one has written.
    pub state_runs: Vec<StateRun>,
    /// The adapter of each row; or empty, and then no row has one.
    pub adapters: Vec<Option<AdapterSlot>>,
    /// What is sampled from the logits, or that values are kept.
    pub requests: StepRequests,
}

/// Row counts of a step's buffers: those of the batch, or larger if the backend pads. Padded rows are never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    pub rows: usize,
    pub logit_rows: usize,
    /// Whether tokens are sampled from the logits in the step itself, not by late requests; of a scorer, whether the
    /// values are kept.
    pub samples: bool,
    /// Whether some row has an adapter.
    pub adapters: bool,
    /// Whether latents are read as they are, by absorbed queries; false for models without latent attention.
    pub absorbs: bool,
    /// What the step reads of each [`CopyStore`] and makes there, in the order of `CopyStore::ALL`.
    pub copies: [CopiesShape; CopyStore::COUNT],
}

/// What a step reads of a store of copies, and makes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CopiesShape {
    /// Whether the store's plan has items.
    pub is_read: bool,
    /// How many [`Expansion`]s the step has, or more if the backend pads.
    pub expansions: usize,
}

impl StepBatch {
    pub fn shape(&self) -> StepShape {
        StepShape {
            rows: self.tokens.len(),
            logit_rows: self.logit_rows.len(),
            samples: !self.requests.given().is_empty() || self.requests.are_values(),
            adapters: self.adapters.iter().any(Option::is_some),
            absorbs: self.absorbs(),
            copies: self.copies_shape(),
        }
    }

    fn absorbs(&self) -> bool {
        let latents = &self.plans[..self.growing_plans()];
        self.expansions.is_some() && latents.iter().any(|plan| !plan.items.is_empty())
    }

    fn copies_shape(&self) -> [CopiesShape; CopyStore::COUNT] {
        let Some(expansions) = &self.expansions else { return Default::default() };
        let plans = &self.plans[self.plans.len() - CopyStore::COUNT..];
        CopyStore::ALL.map(|store| CopiesShape {
            is_read: !plans[store as usize].items.is_empty(),
            expansions: expansions[store as usize].len(),
        })
    }

    /// The plans of what grows with its rows: all but those of copies.
    fn growing_plans(&self) -> usize {
        self.plans.len() - if self.expansions.is_some() { CopyStore::COUNT } else { 0 }
    }

    /// Whether this batch can be advanced by one token per row ([`StepBatch::advance`]): every row is sampled from
    /// once, in order, so that request `r` samples the next token of row `r`, every row has a state of its own, and
    /// every plan can be advanced. Late requests are given again for each step.
    pub fn can_advance(&self) -> bool {
        let each_once =
            self.logit_rows.len() == self.tokens.len() && (0u32..).zip(&self.logit_rows).all(|(r, &w)| r == w);
        let goes_on = self.state_runs.iter().all(|run| run.to.is_some() && run.rows.len() == 1);
        let is_sampled = !matches!(self.requests, StepRequests::None | StepRequests::Values)
            && self.requests.fit(self.logit_rows.len());
        let plans = &self.plans[..self.growing_plans()];
        each_once && is_sampled && goes_on && plans.iter().all(AttentionPlan::can_advance)
    }

    /// Counts each request's `unseen` token as seen. `before`: the tokens the previous step sampled, by request. This
    /// is the definition; an asynchronous backend does it on the device.
    pub fn count_unseen(&mut self, before: &[TokenId]) {
        for request in self.requests.given_mut() {
            let Some(unseen) = request.unseen.take() else { continue };
            let token = before[unseen as usize];
            match request.seen.iter_mut().find(|seen| seen.token == token) {
                Some(seen) => seen.sampled += 1,
                None => request.seen.push(SeenToken { token, sampled: 1, in_prompt: false }),
            }
        }
    }

    /// Advances every row by one token: row `r` gets the token that request `r` samples, one position further.
    /// `uniforms`: one per request, ignored where a request takes none and where requests are late. `new_pages`: for
    /// each group the new pages of rows whose last page is full, in rising order of row. Requests with penalties must
    /// have been counted before ([`StepBatch::count_unseen`]).
    pub fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage]) {
        debug_assert!(self.can_advance());
        for (row, token) in (0u32..).zip(&mut self.tokens) {
            *token = RowToken::Sampled(row);
        }
        self.positions.iter_mut().for_each(|position| *position += 1);
        advance_slots(&mut self.slots, new_pages);
        let growing = self.growing_plans();
        let (growing, of_copies) = self.plans.split_at_mut(growing);
        growing.iter_mut().for_each(|plan| plan.advance(new_pages));
        of_copies.iter_mut().for_each(AttentionPlan::advance_rows);
        // Copies that are kept are made once.
        if let Some(expansions) = &mut self.expansions {
            expansions[CopyStore::Kept as usize].clear();
        }
        StateRun::advance(&mut self.state_runs);
        for (row, request) in (0u32..).zip(self.requests.given_mut()) {
            request.unseen = request.has_penalties().then_some(row);
        }
        for (request, &uniform) in self.requests.given_mut().iter_mut().zip(uniforms) {
            request.set_uniform(uniform);
        }
    }
}

/// Moves each row's slots, one in each group, to those of its next token.
pub fn advance_slots(slots: &mut [Vec<KvSlot>], new_pages: &[NewPage]) {
    slots.iter_mut().flatten().for_each(|slot| slot.slot += 1);
    for &NewPage { group, row, page } in new_pages {
        slots[group.ix()][row as usize] = KvSlot { page, slot: 0 };
    }
}
