//! One forward step as integers: which token each row holds, where it stands, where its key and value go, who sees what and
//! what is drawn. Made by the engine, loaded by a backend (`Backend::load`), read by the ops.

use crate::ids::TokenId;
use crate::kv::KvSlot;
use crate::plan::{AttentionPlan, PageTurn};

use super::{SampleRequest, SeenToken};

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    Known(TokenId),
    /// What the step loaded before this one draws for its request of this index: nobody need have read it yet.
    Drawn(u32),
}

/// The rows of one step, depth-first.
#[derive(Clone, Debug, Default)]
pub struct StepBatch {
    pub tokens: Vec<RowToken>,
    /// Absolute position of each row.
    pub positions: Vec<u32>,
    pub slots: Vec<KvSlot>,
    /// Rows whose logits are wanted, rising; a row is named once for each draw that its logits serve.
    pub wanted: Vec<u32>,
    /// One for each kind of attention (heads and window) of the model's layers, in the order of `Decoder::plan_hints`.
    pub plans: Vec<AttentionPlan>,
    /// One for each of `wanted`, or none at all: then nothing is drawn, and logits are only computed.
    pub requests: Vec<SampleRequest>,
}

/// How many rows a step's buffers have: as many as the batch, or more where a backend pads (what a padded row holds, nobody
/// reads).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    pub rows: usize,
    pub wanted: usize,
    /// Whether tokens are drawn from the wanted rows.
    pub draws: bool,
}

impl StepBatch {
    pub fn shape(&self) -> StepShape {
        StepShape { rows: self.tokens.len(), wanted: self.wanted.len(), draws: !self.requests.is_empty() }
    }

    /// Whether this batch with every row one token further is a step of its own: every row is drawn from once, in order,
    /// so that request `r` draws the next token of row `r`, and every plan can.
    pub fn can_advance(&self) -> bool {
        let each_once = self.wanted.len() == self.tokens.len() && (0u32..).zip(&self.wanted).all(|(r, &w)| r == w);
        each_once && self.requests.len() == self.wanted.len() && self.plans.iter().all(AttentionPlan::can_advance)
    }

    /// Counts what is unseen: `before` are the tokens that the step before this one drew, by request. The definition; a device does
    /// it where its tokens are.
    pub fn count_unseen(&mut self, before: &[TokenId]) {
        for request in &mut self.requests {
            let Some(unseen) = request.unseen.take() else { continue };
            let token = before[unseen as usize];
            match request.seen.iter_mut().find(|seen| seen.token == token) {
                Some(seen) => seen.sampled += 1,
                None => request.seen.push(SeenToken { token, sampled: 1, in_prompt: false }),
            }
        }
    }

    /// Makes it that step: row `r` holds what request `r` draws, one position further; `coins` are the new draws' (of
    /// requests that toss none, any number), `turns` the pages of the rows whose own are full, in rising order. What was unseen
    /// before is counted by then ([`StepBatch::count_unseen`]), or nobody asks for it.
    pub fn advance(&mut self, coins: &[f64], turns: &[PageTurn]) {
        debug_assert!(self.can_advance());
        for (row, token) in (0u32..).zip(&mut self.tokens) {
            *token = RowToken::Drawn(row);
        }
        self.positions.iter_mut().for_each(|position| *position += 1);
        advance_slots(&mut self.slots, turns);
        self.plans.iter_mut().for_each(|plan| plan.advance(turns));
        for (row, request) in (0u32..).zip(&mut self.requests) {
            request.unseen = request.has_penalties().then_some(row);
        }
        for (request, &coin) in self.requests.iter_mut().zip(coins) {
            request.toss(coin);
        }
    }
}

/// Where the next token of each row goes.
pub fn advance_slots(slots: &mut [KvSlot], turns: &[PageTurn]) {
    slots.iter_mut().for_each(|slot| slot.slot += 1);
    for &PageTurn { row, page } in turns {
        slots[row as usize] = KvSlot { page, slot: 0 };
    }
}
