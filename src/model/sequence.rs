//! Runs a single sequence through the decoder in its own KV memory, without an engine: tokens in, logits out.

use std::ops::Range;

use crate::backend::{Backend, RowToken, StepBatch};
use crate::error::Result;
use crate::ids::{PageId, SegmentId, TokenId};
use crate::kv::{Forest, ForestSegment, KvSlot};
use crate::plan::Planner;

use super::decoder::Decoder;

/// A sequence and its KV memory.
pub struct Sequence<'a, B: Backend> {
    pub(super) backend: &'a mut B,
    pub(super) model: &'a mut Decoder<B>,
    pub(super) kv: B::Kv,
    pub(super) step: B::Step,
    /// Tokens computed so far; token `i` is in slot `i` of the memory.
    tokens: u32,
}

impl<'a, B: Backend> Sequence<'a, B> {
    /// Room for `capacity` tokens.
    pub fn new(backend: &'a mut B, model: &'a mut Decoder<B>, capacity: usize) -> Result<Self> {
        let pages = capacity.div_ceil(backend.page_tokens() as usize);
        model.set_longest(backend, capacity)?;
        let kv = backend.kv(&model.kv_shape(pages))?;
        let step = model.step(backend)?;
        Ok(Self { backend, model, kv, step, tokens: 0 })
    }

    /// Appends `tokens` in one step. Returns the logits of rows `logit_rows` of that step, `[logit_rows.len(), vocab]`.
    pub fn extend(&mut self, tokens: &[TokenId], logit_rows: Range<u32>) -> Result<Vec<f32>> {
        let rows = logit_rows.len();
        let batch = self.batch(tokens, logit_rows);
        let logits = self.model.forward(self.backend, &mut self.kv, &mut self.step, batch)?;
        let logits = self.backend.read(logits, rows)?;
        self.backend.collect(&mut self.step)?;
        Ok(logits)
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

    /// Keeps the first `tokens` tokens; the next step continues after them.
    pub(super) fn truncate(&mut self, tokens: usize) {
        self.tokens = self.tokens.min(u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    /// The step that appends `tokens` and computes the logits of its rows `logit_rows`.
    pub(super) fn batch(&mut self, tokens: &[TokenId], logit_rows: Range<u32>) -> StepBatch {
        let new = u32::try_from(tokens.len()).expect("a step has fewer than 2^32 rows");
        let positions: Vec<u32> = (self.tokens..self.tokens + new).collect();
        self.tokens += new;
        let forest = self.forest(&positions);
        let plans: Vec<_> = self.model.plan_hints().iter().map(|hints| Planner::Flat.plan(&forest, hints)).collect();
        let page_tokens = self.backend.page_tokens();
        let slot = |&position: &u32| KvSlot { page: PageId(position / page_tokens), slot: position % page_tokens };
        let slots = positions.iter().map(slot).collect();
        StepBatch {
            tokens: tokens.iter().copied().map(RowToken::Known).collect(),
            positions,
            slots,
            logit_rows: logit_rows.collect(),
            plans,
            requests: Vec::new(),
        }
    }

    /// The sequence as one segment; its page `i` is page `i` of the memory.
    fn forest(&self, positions: &[u32]) -> Forest {
        let pages = self.tokens.div_ceil(self.backend.page_tokens());
        let rows = positions.len() as u32;
        Forest {
            page_tokens: self.backend.page_tokens(),
            segments: vec![ForestSegment {
                id: SegmentId(0),
                parent: None,
                first_position: 0,
                tokens: self.tokens,
                pages: 0..pages,
                rows: 0..rows,
            }],
            pages: (0..pages).map(PageId).collect(),
            row_positions: positions.to_vec(),
            row_segments: vec![0; positions.len()],
        }
    }
}
