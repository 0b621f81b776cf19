//! The loaded step of the CPU backend: a batch with all tokens known, and the results not collected yet. The CPU runs a
//! step synchronously, so results are ready when `run` returns, or `sample_late` where requests are late.

use std::collections::VecDeque;

use offshoot_backend::{RowToken, SampleRequest, SampledToken, StepBatch, StepResults, StepShape};
use offshoot_core::ids::{GroupIx, TokenId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, Member, NewPage};

/// A loaded batch and the results of finished steps.
#[derive(Default)]
pub struct CpuStep {
    batch: StepBatch,
    /// What a member of a group that divides positions has of it; `None`: all.
    own: Option<OwnPositions>,
    /// The token of each row.
    tokens: Vec<TokenId>,
    /// Tokens the previous step sampled, by request; token 0 where none was.
    before: Vec<TokenId>,
    /// The requests of the batch where they are late, once they are loaded.
    late: Vec<SampleRequest>,
    /// Samples of the running step, by request.
    sampled: Vec<Option<SampledToken>>,
    /// Values that the running step keeps, row after row.
    values: Vec<f32>,
    /// Results of finished steps that were not collected, oldest first.
    done: VecDeque<StepResults>,
}

/// The part of a batch whose keys and values one member of a group of ranks stores.
struct OwnPositions {
    member: Member,
    /// One for each of the batch.
    plans: Vec<AttentionPlan>,
    /// For each page group the rows that it stores, in rising order, and their slots.
    rows: Vec<Vec<(usize, KvSlot)>>,
}

impl OwnPositions {
    fn of(batch: &StepBatch, member: Member) -> Self {
        let own_rows = |slots: &Vec<KvSlot>| {
            slots.iter().enumerate().filter_map(|(row, &at)| Some((row, member.slot(at)?))).collect()
        };
        Self {
            member,
            plans: batch.plans.iter().map(|plan| plan.of_member(member)).collect(),
            rows: batch.slots.iter().map(own_rows).collect(),
        }
    }
}

impl CpuStep {
    pub fn load(&mut self, batch: StepBatch, member: Option<Member>) -> StepShape {
        self.own = member.map(|member| OwnPositions::of(&batch, member));
        self.batch = batch;
        self.resolve()
    }

    pub fn advance(&mut self, uniforms: &[f64], new_pages: &[NewPage]) -> StepShape {
        self.batch.advance(uniforms, new_pages);
        if let Some(OwnPositions { member, .. }) = self.own {
            self.own = Some(OwnPositions::of(&self.batch, member));
        }
        self.resolve()
    }

    /// Attention plan `plan`, of the positions that this device has.
    pub fn plan(&self, plan: usize) -> &AttentionPlan {
        &self.own.as_ref().map_or(&self.batch.plans, |own| &own.plans)[plan]
    }

    /// The rows whose keys and values this device stores in the pages of `group`, with their slots; `None`: all of the
    /// batch, in its slots.
    pub fn own_rows(&self, group: GroupIx) -> Option<&[(usize, KvSlot)]> {
        self.own.as_ref().map(|own| &*own.rows[group.ix()])
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

    /// The requests that the batch was loaded with. Their `seen` lists include the previous step's samples.
    pub fn requests(&self) -> &[SampleRequest] {
        self.batch.requests.given()
    }

    /// Loads the late requests of the step that was run last.
    pub fn load_requests(&mut self, requests: Vec<SampleRequest>) {
        assert!(self.batch.requests.are_late(), "late requests of a step that has its own");
        assert_eq!(requests.len(), self.batch.logit_rows.len(), "a late request for each row of logits");
        self.late = requests;
    }

    /// The sample requests, and where their samples go.
    pub fn sampling(&mut self) -> (&[SampleRequest], &mut Vec<Option<SampledToken>>) {
        let requests = if self.batch.requests.are_late() { &self.late } else { self.batch.requests.given() };
        (requests, &mut self.sampled)
    }

    /// Keeps the values of the running step.
    pub fn keep_values(&mut self, values: &[f32]) {
        assert!(self.batch.requests.are_values(), "values of a step that is loaded to keep none");
        self.values = values.to_vec();
    }

    /// Ends a run: the step is done, unless its requests are late.
    pub fn end_run(&mut self) {
        if !self.batch.requests.are_late() {
            self.finish();
        }
    }

    /// Ends the step: its results can be collected, and the next step can refer to its samples.
    pub fn finish(&mut self) {
        self.before.clear();
        let token = |sampled: &Option<SampledToken>| sampled.as_ref().map_or(TokenId(0), |sampled| sampled.token);
        self.before.extend(self.sampled.iter().map(token));
        self.done.push_back(match self.batch.requests.are_values() {
            true => StepResults::Values(std::mem::take(&mut self.values)),
            false => StepResults::Samples(std::mem::take(&mut self.sampled)),
        });
    }

    /// Ends the step without results.
    pub fn fail(&mut self) {
        self.sampled.clear();
        self.values.clear();
    }

    /// The results of the oldest finished step not collected yet. Panics if there is none.
    pub fn collect(&mut self) -> StepResults {
        self.done.pop_front().expect("a step is run before it is collected")
    }
}
