//! The requests of steps. Those of a *late* step follow its submission: the device computes its logits while the host
//! collects the step before, and computes the masks behind the tokens that it has sampled (`masks`). So no mask is
//! guessed and none is computed in vain, and each token is drawn by its own uniform, as in any other step. How
//! one request is made is left to `sampler`.

use std::time::Instant;

use crate::allowed::Allowed;
use crate::branch::{BranchWork, WantedScores};
use crate::engine::Engine;
use crate::sampler;
use crate::schedule::LogitsRequest;
use crate::step::lap;
use offshoot_backend::{Pick, SampleRequest};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::BranchId;

impl Engine {
    /// Gives the step that was submitted last its requests, if it is late: all tokens before them are known by now.
    pub(super) fn sample_late(&mut self) -> Result<()> {
        let Some(requests) = self.late.take() else { return Ok(()) };
        let mut began = Instant::now();
        self.find_masks(&requests);
        lap(&mut began, &mut self.metrics.seconds_masking);
        let made = requests.iter().map(|request| self.sample_request(request)).collect();
        let turn = self.config.enter_gate();
        lap(&mut began, &mut self.metrics.seconds_waiting);
        let sampled = self.model.sample(made);
        drop(turn);
        match sampled {
            Err(error) if error.is_shortage() => self.sample_without_forms(&requests, &error)?,
            sampled => sampled?,
        }
        lap(&mut began, &mut self.metrics.seconds_forward);
        Ok(())
    }

    /// Gives the step that was submitted last its requests again, for which the device lacked memory: masks are what
    /// takes it, so that the branches that have forms fail.
    fn sample_without_forms(&mut self, requests: &[LogitsRequest], error: &Error) -> Result<()> {
        let in_form = requests.iter().map(|request| request.branch).filter(|id| self.branches[id].is_in_form());
        let failed: Vec<(BranchId, Error)> = in_form.map(|id| (id, error.same_shortage())).collect();
        if failed.is_empty() {
            return Err(error.same_shortage());
        }
        log::warn!("{} samples in forms fail: {error}", failed.len());
        self.fail_some(failed);
        let made = requests.iter().map(|request| self.sample_request(request)).collect();
        let _turn = self.config.enter_gate();
        self.model.sample(made)
    }

    /// The sampling request of one row of a step. A row that no branch waits for any more gets any request: its result
    /// is discarded.
    pub(super) fn sample_request(&mut self, request: &LogitsRequest) -> SampleRequest {
        let Some(branch) = self.branches.get(&request.branch).filter(|branch| branch.awaits(request.generation)) else {
            return SampleRequest::of(Pick::Greedy);
        };
        let position = request.position + 1;
        let allowed = match &branch.work {
            BranchWork::Sample(sampling) => sampling.allowed_at(position, &self.facts),
            BranchWork::Score(scoring) => match &scoring.scores {
                WantedScores::Model { .. } => Allowed::All,
                WantedScores::AsSampled { rules, .. } => rules.allowed_under(scoring.mask_at(position), &self.facts),
            },
            BranchWork::Values(_) | BranchWork::Idle => Allowed::All,
        };
        sampler::request(branch, request.position, self.allowed.share_allowed(allowed), &self.facts.eos)
    }
}
