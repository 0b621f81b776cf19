//! One forward step as integers: which token each row holds, where it stands, where its key and value go, who sees what
//! and what is sampled. Made by the engine, loaded by a backend (`Backend::load`), read by the ops.

use crate::ids::TokenId;
use crate::kv::KvSlot;
use crate::plan::{AttentionPlan, NewPage};

use super::{SampleRequest, SeenToken};

/// The token of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowToken {
    Known(TokenId),
    /// The token that the previous step samples for its request of this index; the host may not know it yet.
    Sampled(u32),
}

/// The rows of one step, depth-first.
#[derive(Clone, Debug, Default)]
pub struct StepBatch {
    pub tokens: Vec<RowToken>,
    /// Absolute position of each row.
    pub positions: Vec<u32>,
    pub slots: Vec<KvSlot>,
    /// Rows whose logits are computed, rising; a row is named once for each sample that its logits serve.
    pub logit_rows: Vec<u32>,
    /// One for each kind of attention (heads and window) of the model's layers, in the order of `Decoder::plan_hints`.
    pub plans: Vec<AttentionPlan>,
    /// One for each of `logit_rows`, or none at all: then nothing is sampled, and logits are only computed.
    pub requests: Vec<SampleRequest>,
}

/// Row counts of a step's buffers: those of the batch, or more if the backend pads (padded rows are never read).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    pub rows: usize,
    pub logit_rows: usize,
    /// Whether tokens are sampled from the wanted rows.
    pub samples: bool,
}

impl StepBatch {
    pub fn shape(&self) -> StepShape {
        StepShape { rows: self.tokens.len(), logit_rows: self.logit_rows.len(), samples: !self.requests.is_empty() }
    }

    /// Whether this batch with every row one token further is a step of its own: every row is sampled from once, in
    /// order, so that request `r` samples the next token of row `r`, and every plan can.
    pub fn can_advance(&self) -> bool {
        let each_once =
            self.logit_rows.len() == self.tokens.len() && (0u32..).zip(&self.logit_rows).all(|(r, &w)| r == w);
        each_once && self.requests.len() == self.logit_rows.len() && self.plans.iter().all(AttentionPlan::can_advance)
    }

    /// Counts what is unseen: `before` are the tokens that the step before this one sampled, by request. The
    /// definition; a device does it where its tokens are.
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

    /// Makes it that step: row `r` holds what request `r` samples, one position further; `uniforms` are the new
    /// samples' (of requests that take none, any number), `new_pages` the pages of the rows whose own are full, in
    /// rising order. What was unseen before is counted by then ([`StepBatch::count_unseen`]), or nobody asks for it.
    pub fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage]) {
        debug_assert!(self.can_advance());
        for (row, token) in (0u32..).zip(&mut self.tokens) {
            *token = RowToken::Sampled(row);
        }
        self.positions.iter_mut().for_each(|position| *position += 1);
        advance_slots(&mut self.slots, new_pages);
        self.plans.iter_mut().for_each(|plan| plan.advance(new_pages));
        for (row, request) in (0u32..).zip(&mut self.requests) {
            request.unseen = request.has_penalties().then_some(row);
        }
        for (request, &uniform) in self.requests.iter_mut().zip(uniforms) {
            request.set_uniform(uniform);
        }
    }
}

/// Where the next token of each row goes.
pub fn advance_slots(slots: &mut [KvSlot], new_pages: &[NewPage]) {
    slots.iter_mut().for_each(|slot| slot.slot += 1);
    for &NewPage { row, page } in new_pages {
        slots[row as usize] = KvSlot { page, slot: 0 };
    }
}
