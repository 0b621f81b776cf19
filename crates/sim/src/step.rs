//! The loaded step of the simulated device: its attention times, and the results not collected yet.

use std::collections::{BTreeSet, VecDeque};

use super::clock::StepTime;
use super::profile::DeviceProfile;
use super::sample::sample;
use offshoot_backend::{
    AdapterSlot, CopyStore, HeadLayout, SampleRequest, SampledToken, StepBatch, StepResults, StepShape,
};
use offshoot_kv::plan::NewPage;

/// A loaded batch, and the results of finished steps.
pub struct SimStep {
    /// For each plan: the heads of its layers, and bytes per element of their keys and values.
    heads: Vec<(HeadLayout, usize)>,
    /// The numbers that a row of the output has.
    outputs: usize,
    batch: StepBatch,
    /// For each plan: nanoseconds per layer.
    attention_ns: Vec<f64>,
    /// The requests of the batch where they are late, once they are loaded.
    late: Vec<SampleRequest>,
    sampled: Vec<Option<SampledToken>>,
    /// Steps that were run and not collected, oldest first.
    done: VecDeque<(StepTime, StepResults)>,
}

impl SimStep {
    pub(super) fn new(heads: Vec<(HeadLayout, usize)>, outputs: usize) -> Self {
        let (batch, attention_ns) = (StepBatch::default(), Vec::new());
        Self { heads, outputs, batch, attention_ns, late: Vec::new(), sampled: Vec::new(), done: VecDeque::new() }
    }

    pub(super) fn load(&mut self, batch: StepBatch, profile: &DeviceProfile) -> StepShape {
        self.batch = batch;
        self.time(profile)
    }

    pub(super) fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage], profile: &DeviceProfile) -> StepShape {
        self.batch.advance(uniforms, new_pages);
        self.time(profile)
    }

    fn time(&mut self, profile: &DeviceProfile) -> StepShape {
        let plans = self.batch.plans.iter().zip(&self.heads);
        self.attention_ns = plans.map(|(plan, &(heads, bytes))| profile.attention_ns(plan, heads, bytes)).collect();
        self.batch.shape()
    }

    pub(super) fn attention_ns(&self, plan: usize) -> f64 {
        self.attention_ns[plan]
    }

    /// The tokens whose latents the step expands to copies of this store, in each layer.
    pub(super) fn expanded_tokens(&self, store: CopyStore) -> usize {
        let expansions = self.batch.expansions.iter().flat_map(|expansions| &expansions[store as usize]);
        expansions.map(|expansion| expansion.slots.len()).sum()
    }

    /// The number of states that the step reads and writes in each recurrent layer.
    pub(super) fn state_runs(&self) -> usize {
        self.batch.state_runs.len()
    }

    /// The adapters of its rows, each once.
    pub(super) fn adapters(&self) -> impl Iterator<Item = AdapterSlot> {
        self.batch.adapters.iter().copied().flatten().collect::<BTreeSet<_>>().into_iter()
    }

    /// Whether its requests come after it is run.
    pub(super) fn is_late(&self) -> bool {
        self.batch.requests.are_late()
    }

    /// Loads the late requests of the step that was run last.
    pub(super) fn load_requests(&mut self, requests: Vec<SampleRequest>) {
        assert!(self.is_late(), "late requests of a step that has its own");
        assert_eq!(requests.len(), self.batch.logit_rows.len(), "a late request for each row of logits");
        self.late = requests;
    }

    pub(super) fn note_sampled(&mut self) {
        let requests = if self.is_late() { &self.late } else { self.batch.requests.given() };
        self.sampled = requests.iter().map(|request| sample(request, self.outputs)).collect();
    }

    /// Ends the step, which the device computes in `time`: its results can be collected. All values are 0.
    pub(super) fn finish(&mut self, time: StepTime) {
        let results = match self.batch.requests.are_values() {
            true => StepResults::Values(vec![0.0; self.batch.logit_rows.len() * self.outputs]),
            false => StepResults::Samples(std::mem::take(&mut self.sampled)),
        };
        self.done.push_back((time, results));
    }

    /// The oldest step not collected yet. Panics if there is none.
    pub(super) fn collect(&mut self) -> (StepTime, StepResults) {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
