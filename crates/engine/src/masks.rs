//! The masks of the positions that a late step samples or scores. Has them computed from the states of its branches'
//! forms, puts forced tokens on the branches' paths, and lets samples end whose form takes too much work. How a mask is
//! computed is left to the crate of forms.
//!
//! # Forced tokens
//! A token is *forced* if its form allows no other one. Where one is, the mask behind it is computed at once, and so
//! on: the run of forced tokens goes on the branch's path before it is sampled. The step after it computes the rows of
//! the whole run, samples each of them from its own logits under its own mask, and goes on behind the last. So the
//! tokens, and all that is recorded of them, are those of steps of one row. They are accepted one by one as their
//! records arrive ([`commit`](super::commit)): what ends the extend among them takes the rest back.

use std::collections::{HashMap, VecDeque};

use crate::branch::{Branch, BranchWork, FormMask, ScoredForm};
use crate::engine::Engine;
use crate::path_form::PathForm;
use crate::schedule::LogitsRequest;
use offshoot_core::error::Error;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_form::FormState;

/// The most forced tokens that a branch's path has ahead of what is sampled.
const MOST_FORCED: usize = 32;

impl Engine {
    /// Computes the masks of the positions that follow the rows of `requests`, whose tokens are all known, and keeps
    /// them with their branches. Given tokens whose masks can't be computed fail to be scored.
    pub(super) fn find_masks(&mut self, requests: &[LogitsRequest]) {
        let mut failed = Vec::new();
        let mut wanted: Vec<BranchId> =
            requests.iter().filter(|request| self.lacks_mask(request)).map(|request| request.branch).collect();
        while !wanted.is_empty() {
            wanted = self.find_sample_masks(&wanted);
        }
        self.find_score_masks(requests, &mut failed);
        self.fail_some(failed);
    }

    /// Whether the mask of a request is to be computed: its branch samples in a form, and has no mask of the position.
    fn lacks_mask(&self, request: &LogitsRequest) -> bool {
        let branch = self.branches.get(&request.branch).filter(|branch| branch.awaits(request.generation));
        branch.is_some_and(|branch| match &branch.work {
            BranchWork::Sample(sampling) => {
                sampling.rules.params.form.is_some() && sampling.mask_at(request.position + 1).is_none()
            }
            BranchWork::Idle | BranchWork::Score(_) | BranchWork::Values(_) => false,
        })
    }

    /// Computes the masks behind the paths of these branches. Returns the branches whose path got a forced token.
    fn find_sample_masks(&mut self, wanted: &[BranchId]) -> Vec<BranchId> {
        let mut forms: Vec<(BranchId, PathForm)> = Vec::with_capacity(wanted.len());
        for &id in wanted {
            let branch = self.branches.get_mut(&id).expect("it has a request that it waits for");
            forms.push((id, branch.tokens.take_form().expect("an extend with a form has its state on its path")));
        }
        let mut states: Vec<&mut FormState> = forms.iter_mut().map(|(_, form)| &mut form.state).collect();
        let masks = self.forms.masks(&mut states);
        let mut forced = Vec::new();
        for ((id, form), mask) in forms.into_iter().zip(masks) {
            let branch = self.branches.get_mut(&id).expect("it was there just now");
            branch.tokens.put_form(form);
            if let Err(limit) = &mask {
                log::debug!("branch {id} ends at the limit of its form: {limit}");
            }
            if add_mask(branch, mask, &self.facts.eos, self.config.joins_forced) == Added::Forced {
                forced.push(id);
            }
        }
        // The next step has several rows of such a branch, so that it cannot repeat this one.
        self.scheduler.changed |= forced.iter().any(|id| self.branches[id].knows_unrequested());
        forced
    }

    /// Computes the masks of given tokens that are scored as if they were sampled in a form.
    fn find_score_masks(&mut self, requests: &[LogitsRequest], failed: &mut Vec<(BranchId, Error)>) {
        let mut scored: HashMap<BranchId, ScoredPositions> = HashMap::new();
        for request in requests {
            let Some(branch) = self.branches.get_mut(&request.branch) else { continue };
            let token = branch.tokens.get(request.position + 1).copied();
            let (Some(token), true) = (token, branch.awaits(request.generation)) else { continue };
            let BranchWork::Score(scoring) = &mut branch.work else { continue };
            let next = scoring.next();
            match scored.get_mut(&request.branch) {
                // The requests of a branch have rising positions.
                Some(positions) => positions.tokens.push_back(token),
                None => {
                    let is_new = |form: &mut ScoredForm| request.position + 1 >= next + form.masks.len();
                    if let Some(form) = scoring.lend_form(is_new) {
                        scored.insert(request.branch, ScoredPositions { form, tokens: VecDeque::from([token]) });
                    }
                }
            }
        }
        let mut scored: Vec<(BranchId, ScoredPositions)> = scored.into_iter().collect();
        scored.sort_unstable_by_key(|&(id, _)| id);
        // One position of each branch at a time, so that one matcher goes along each branch's tokens.
        loop {
            let mut wanted: Vec<&mut (BranchId, ScoredPositions)> =
                scored.iter_mut().filter(|(_, positions)| !positions.tokens.is_empty()).collect();
            if wanted.is_empty() {
                break;
            }
            let mut states: Vec<&mut FormState> =
                wanted.iter_mut().map(|(_, positions)| &mut positions.form.state).collect();
            let masks = self.forms.masks(&mut states);
            for ((id, positions), mask) in wanted.into_iter().zip(masks) {
                let token = positions.tokens.pop_front().expect("a state was taken for each branch with a token left");
                match mask {
                    Ok(mask) => {
                        positions.form.state.push(token);
                        if mask.is_dead_end() {
                            // Nothing leads out of it, so that the mask is that of all tokens behind it, too.
                            for token in positions.tokens.drain(..) {
                                positions.form.masks.push_back(mask.clone());
                                positions.form.state.push(token);
                            }
                        }
                        positions.form.masks.push_back(mask);
                    }
                    Err(limit) => {
                        positions.tokens.clear();
                        let expected = "one that is found within the limits of work";
                        failed.push((*id, Error::value("a text's form", expected, limit.to_string())));
                    }
                }
            }
        }
        for (id, positions) in scored {
            let branch = self.branches.get_mut(&id).expect("it was there just now");
            if let BranchWork::Score(scoring) = &mut branch.work {
                scoring.put_form(positions.form);
            }
        }
    }

    /// Whether the last token of a branch, a stop token that is kept, is one that its form does not allow in its place:
    /// a stop token of the extend alone, behind the complete text.
    pub(super) fn stops_behind_form(&mut self, id: BranchId) -> bool {
        let Some(branch) = self.branches.get_mut(&id) else { return false };
        let before = branch.tokens.len() - 1;
        let (Some(&token), Some(mut state)) = (branch.tokens.get(before), branch.tokens.state_at(before)) else {
            return false;
        };
        match self.forms.masks(&mut [&mut state]).remove(0) {
            Ok(mask) => mask.allowed.as_ref().is_some_and(|allowed| !allowed.contains(token)),
            Err(_) => false,
        }
    }

    /// Fails branches that have work.
    pub(super) fn fail_some(&mut self, failed: Vec<(BranchId, Error)>) {
        let mut ended = Vec::new();
        for (id, error) in failed {
            let Some(branch) = self.branches.get_mut(&id).filter(|branch| !branch.rests()) else { continue };
            branch.take_back_forced();
            self.cache.settle(branch, true);
            self.scheduler.note_end(branch, true);
            branch.fail(error);
            ended.push(id);
        }
        self.retire(ended);
    }

    /// Copies the counts of masks into the metrics.
    pub(super) fn count_masks(&mut self) {
        let counts = self.forms.counts();
        self.metrics.masks_requested = counts.requested;
        self.metrics.masks_computed = counts.computed;
        self.metrics.masks_shared = counts.shared_states + counts.shared_places;
        self.metrics.mask_places_shared = counts.shared_places;
        self.metrics.mask_sets_shared = counts.shared_sets;
        self.metrics.masks_empty = counts.dead_ends;
        self.metrics.masks_failed = counts.failed;
        self.metrics.matchers_replayed = counts.replayed;
        self.metrics.matcher_tokens_replayed = counts.replayed_tokens;
        self.metrics.forms_held = counts.forms as u64;
        self.metrics.form_lanes_held = counts.lanes as u64;
        self.metrics.lane_bytes_held = counts.lane_bytes as u64;
        self.metrics.mask_bytes_held = counts.mask_bytes as u64;
        self.metrics.matcher_bytes_held = counts.matcher_bytes as u64;
    }
}

/// Positions of a branch's given tokens whose masks are computed.
struct ScoredPositions {
    /// Taken from the branch's work, and put back at the end.
    form: ScoredForm,
    /// The tokens at them.
    tokens: VecDeque<TokenId>,
}

/// What [`add_mask`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    /// The mask is kept.
    Mask,
    /// The mask is kept, and its only token is on the path.
    Forced,
}

/// Keeps the mask of the position behind the path of `branch`, and puts the token that it forces on the path, if it may
/// go there. Where the form is beyond its limit, no token can be sampled, and the sample ends when its turn comes.
fn add_mask(branch: &mut Branch, mask: FormMask, eos: &[TokenId], joins: bool) -> Added {
    let position = branch.tokens.len();
    let BranchWork::Sample(sampling) = &branch.work else { return Added::Mask };
    let has_room = position + 1 < sampling.limit && position - sampling.next() < MOST_FORCED;
    let forced = mask.as_ref().ok().filter(|mask| !mask.may_end).and_then(|mask| mask.forced);
    let token = forced.filter(|&token| joins && has_room && sampling.rules.may_force(branch, position, token, eos));
    let BranchWork::Sample(sampling) = &mut branch.work else { return Added::Mask };
    sampling.masks.push_back(mask);
    let Some(token) = token else { return Added::Mask };
    branch.tokens.push_sampled(token);
    Added::Forced
}
