//! The step that the CPU's ops read: a batch whose tokens are known, and the samples that nobody collected yet. The
//! work itself is done at once.

use std::collections::VecDeque;

use crate::backend::{RowToken, SampleRequest, Sampled, StepBatch, StepShape};
use crate::ids::TokenId;
use crate::plan::NewPage;

#[derive(Default)]
pub struct Step {
    batch: StepBatch,
    tokens: Vec<TokenId>,
    /// What the step before sampled, by request.
    before: Vec<TokenId>,
    /// What this step sampled.
    sampled: Vec<Sampled>,
    done: VecDeque<Vec<Sampled>>,
}

impl Step {
    pub fn load(&mut self, batch: StepBatch) -> StepShape {
        self.batch = batch;
        self.resolve()
    }

    pub fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> StepShape {
        self.batch.advance(uniforms, new_pages);
        self.resolve()
    }

    fn resolve(&mut self) -> StepShape {
        let token = |token: &RowToken| match *token {
            RowToken::Known(token) => token,
            RowToken::Sampled(request) => self.before[request as usize],
        };
        self.tokens = self.batch.tokens.iter().map(token).collect();
        self.batch.count_unseen(&self.before);
        self.batch.shape()
    }

    pub fn batch(&self) -> &StepBatch {
        &self.batch
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The requests, with every token seen.
    pub fn requests(&self) -> &[SampleRequest] {
        &self.batch.requests
    }

    pub fn note_sampled(&mut self, sampled: Vec<Sampled>) {
        self.sampled = sampled;
    }

    /// The step is done: what it sampled can be collected, and is what the next one goes on from.
    pub fn finish(&mut self) {
        self.before = self.sampled.iter().map(|sampled| sampled.token).collect();
        self.done.push_back(std::mem::take(&mut self.sampled));
    }

    /// Panics where no step was run that was not collected.
    pub fn collect(&mut self) -> Vec<Sampled> {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
