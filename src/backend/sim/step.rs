//! The step that a simulated device has loaded: what its attention takes, and the draws that were not collected yet.

use std::collections::VecDeque;

use super::clock::StepTime;
use super::draw::draw;
use super::profile::DeviceProfile;
use crate::backend::{HeadLayout, Sampled, StepBatch, StepShape};
use crate::plan::PageTurn;

pub struct Step {
    heads: HeadLayout,
    /// Bytes of an element of keys or values.
    kv_element_bytes: usize,
    vocab: usize,
    batch: StepBatch,
    /// Of each plan, in one layer, nanoseconds.
    attention_ns: Vec<f64>,
    drawn: Vec<Sampled>,
    done: VecDeque<(StepTime, Vec<Sampled>)>,
}

impl Step {
    pub(super) fn new(heads: HeadLayout, kv_element_bytes: usize, vocab: usize) -> Self {
        let (batch, attention_ns) = (StepBatch::default(), Vec::new());
        Self { heads, kv_element_bytes, vocab, batch, attention_ns, drawn: Vec::new(), done: VecDeque::new() }
    }

    pub(super) fn load(&mut self, batch: StepBatch, profile: &DeviceProfile) -> StepShape {
        self.batch = batch;
        self.time(profile)
    }

    pub(super) fn advance(&mut self, coins: &[f64], turns: &[PageTurn], profile: &DeviceProfile) -> StepShape {
        self.batch.advance(coins, turns);
        self.time(profile)
    }

    fn time(&mut self, profile: &DeviceProfile) -> StepShape {
        let (heads, kv_element_bytes) = (self.heads, self.kv_element_bytes);
        self.attention_ns =
            self.batch.plans.iter().map(|plan| profile.attention_ns(plan, heads, kv_element_bytes)).collect();
        self.batch.shape()
    }

    pub(super) fn attention_ns(&self, plan: usize) -> f64 {
        self.attention_ns[plan]
    }

    pub(super) fn draw(&mut self) {
        self.drawn = self.batch.requests.iter().map(|request| draw(request, self.vocab)).collect();
    }

    /// The step is computed in `time`: what it drew can be collected.
    pub(super) fn finish(&mut self, time: StepTime) {
        self.done.push_back((time, std::mem::take(&mut self.drawn)));
    }

    /// Panics where no step was run that was not collected.
    pub(super) fn collect(&mut self) -> (StepTime, Vec<Sampled>) {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
