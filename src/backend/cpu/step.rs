//! The step that the CPU's ops read: a batch whose tokens are known, and the draws that nobody collected yet. The work itself
//! is done at once.

use std::collections::VecDeque;

use crate::backend::{RowToken, SampleRequest, Sampled, StepBatch, StepShape};
use crate::ids::TokenId;
use crate::plan::PageTurn;

#[derive(Default)]
pub struct Step {
    batch: StepBatch,
    tokens: Vec<TokenId>,
    /// What the step before drew, by request.
    before: Vec<TokenId>,
    /// What this step drew.
    drawn: Vec<Sampled>,
    done: VecDeque<Vec<Sampled>>,
}

impl Step {
    pub fn load(&mut self, batch: StepBatch) -> StepShape {
        self.batch = batch;
        self.resolve()
    }

    pub fn advance(&mut self, coins: &[f64], turns: &[PageTurn]) -> StepShape {
        self.batch.advance(coins, turns);
        self.resolve()
    }

    fn resolve(&mut self) -> StepShape {
        let token = |token: &RowToken| match *token {
            RowToken::Known(token) => token,
            RowToken::Drawn(request) => self.before[request as usize],
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

    pub fn draw(&mut self, drawn: Vec<Sampled>) {
        self.drawn = drawn;
    }

    /// The step is done: what it drew can be collected, and is what the next one goes on from.
    pub fn finish(&mut self) {
        self.before = self.drawn.iter().map(|drawn| drawn.token).collect();
        self.done.push_back(std::mem::take(&mut self.drawn));
    }

    /// Panics where no step was run that was not collected.
    pub fn collect(&mut self) -> Vec<Sampled> {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
