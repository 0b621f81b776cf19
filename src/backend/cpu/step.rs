//! The loaded step of the CPU backend: a batch with all tokens known, and the samples not collected yet. The CPU runs a
//! step synchronously, so samples are ready when `run` returns.

use std::collections::VecDeque;

use crate::backend::{RowToken, SampleRequest, Sampled, StepBatch, StepShape};
use crate::ids::TokenId;
use crate::plan::NewPage;

/// A loaded batch and the samples of finished steps.
#[derive(Default)]
pub struct CpuStep {
    batch: StepBatch,
    /// The token of each row.
    tokens: Vec<TokenId>,
    /// Tokens the previous step sampled, by request.
    before: Vec<TokenId>,
    /// Samples of the running step, by request.
    sampled: Vec<Sampled>,
    /// Samples of finished steps that were not collected, oldest first.
    done: VecDeque<Vec<Sampled>>,
}

impl CpuStep {
    pub fn load(&mut self, batch: StepBatch) -> StepShape {
        self.batch = batch;
        self.resolve()
    }

    pub fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> StepShape {
        self.batch.advance(uniforms, new_pages);
        self.resolve()
    }

    /// Replaces references to the previous step's samples by the tokens.
    fn resolve(&mut self) -> StepShape {
        let token = |token: &RowToken| match *token {
            RowToken::Known(token) => token,
            RowToken::Sampled(request) => self.before[request as usize],
        };
        self.tokens.clear();
        self.tokens.extend(self.batch.tokens.iter().map(token));
        self.batch.count_unseen(&self.before);
        self.batch.shape()
    }

    pub fn batch(&self) -> &StepBatch {
        &self.batch
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The sample requests. Their `seen` lists include the previous step's samples.
    pub fn requests(&self) -> &[SampleRequest] {
        &self.batch.requests
    }

    /// The sample requests, and where their samples go.
    pub fn sampling(&mut self) -> (&[SampleRequest], &mut Vec<Sampled>) {
        (&self.batch.requests, &mut self.sampled)
    }

    /// Ends the step: its samples can be collected and the next step can refer to them.
    pub fn finish(&mut self) {
        self.before.clear();
        self.before.extend(self.sampled.iter().map(|sampled| sampled.token));
        self.done.push_back(std::mem::take(&mut self.sampled));
    }

    /// Ends the step without samples.
    pub fn fail(&mut self) {
        self.sampled.clear();
    }

    /// The samples of the oldest finished step not collected yet. Panics if there is none.
    pub fn collect(&mut self) -> Vec<Sampled> {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
