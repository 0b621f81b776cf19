//! Commits a collected step: appends sampled tokens to their branches, applies stop conditions, sends events.

use crate::branch::{Branch, BranchWork, SamplingState};
use crate::cache::KvCache;
use crate::engine::Engine;
use crate::events::EventBatcher;
use crate::facts::EngineFacts;
use crate::metrics::Metrics;
use crate::records::TokenRecord;
use crate::request::{Event, FinishReason, Stop};
use crate::said::Said;
use crate::sampler;
use crate::schedule::LogitsRequest;
use crate::scores;
use crate::token_path::TokenPath;
use crate::weights::Versions;
use offshoot_backend::SampledToken;
use offshoot_core::error::Error;
use offshoot_core::ids::{BranchId, TokenId};

impl Engine {
    /// `sampled` holds one result for each of `requests`, `None` where no token may be sampled. Results of branches
    /// that have ended or restarted are discarded.
    pub(super) fn commit(&mut self, requests: &[LogitsRequest], sampled: Vec<Option<SampledToken>>) {
        let (mut ended, mut batcher) = (Vec::new(), EventBatcher::default());
        for (request, sampled) in requests.iter().zip(sampled) {
            let is_current = |branch: &&mut Branch| branch.awaits(request.generation);
            let Some(branch) = self.branches.get_mut(&request.branch).filter(is_current) else {
                self.metrics.tokens_discarded += 1;
                continue;
            };
            self.metrics.prompt_tokens_logical += branch.count_given(request.position);
            self.metrics.tokens_sampled += u64::from(matches!(branch.work, BranchWork::Sample(_)));
            if let BranchWork::Score(_) = branch.work
                && !self.cache.take_over(branch, request.position + 1)
            {
                branch.request_again();
                self.metrics.tokens_discarded += 1;
                continue;
            }
            let outcome = answer(branch, sampled, &self.facts, &mut self.cache, &mut batcher, &mut self.metrics);
            if outcome.is_some() {
                branch.take_back_forced();
            }
            self.cache.settle(branch, outcome.is_some());
            if let Some(outcome) = outcome {
                batcher.flush();
                self.cache.keep_sampled(branch);
                self.scheduler.note_end(branch, outcome.is_err());
                let outcome = outcome.and_then(|reason| self.note_routes(request.branch).map(|()| reason));
                if let Some(branch) = self.branches.get_mut(&request.branch) {
                    match outcome {
                        Ok(reason) => {
                            if reason.ends_form(&self.facts.eos) {
                                branch.tokens.end_form();
                            }
                            branch.finish(reason);
                        }
                        Err(error) => branch.fail(error),
                    }
                }
                ended.push(request.branch);
            }
        }
        self.metrics.scores_reused = self.cache.scores_reused;
        batcher.flush();
        self.retire(ended);
    }

    /// Removes branches whose extend has ended from the scheduler, and frees keys and values past their tokens.
    pub(super) fn retire(&mut self, mut ended: Vec<BranchId>) {
        if ended.is_empty() {
            return;
        }
        ended.sort_unstable();
        self.scheduler.remove(&ended, &self.branches);
        for id in ended {
            let Some(branch) = self.branches.get_mut(&id) else { continue };
            let holds_more =
                branch.lease().is_none_or(|lease| self.cache.prefix.end(lease.segment) as usize > branch.tokens.len());
            if holds_more {
                self.cache.release(branch); // Given tokens that were not scored, or a path without its own tokens.
            }
        }
    }
}

/// Applies one result to its branch. Returns how the extend ends, if it does.
fn answer(
    branch: &mut Branch,
    sampled: Option<SampledToken>,
    facts: &EngineFacts,
    cache: &mut KvCache,
    batcher: &mut EventBatcher,
    metrics: &mut Metrics,
) -> Option<Result<FinishReason, Error>> {
    let Some(sampled) = sampled else { return Some(sampler::end_at_none(branch, facts)) };
    if !sampled.logprob.is_finite() {
        return Some(Err(sampler::no_numbers()));
    }
    match branch.work {
        BranchWork::Sample(_) => accept(branch, sampled, facts, cache.versions(branch), batcher, metrics).transpose(),
        BranchWork::Score(_) => record(branch, sampled, cache).map(Ok),
        BranchWork::Values(_) | BranchWork::Idle => None,
    }
}

/// Appends a token that was sampled under `versions`. Returns why the extend ends, if it does.
fn accept(
    branch: &mut Branch,
    sampled: SampledToken,
    facts: &EngineFacts,
    versions: Versions,
    batcher: &mut EventBatcher,
    metrics: &mut Metrics,
) -> Result<Option<FinishReason>, Error> {
    let BranchWork::Sample(sampling) = &mut branch.work else { return Ok(None) };
    sampling.in_flight.tokens -= 1;
    if let Some(&forced) = branch.tokens.get(sampling.next()).filter(|&&forced| forced != sampled.token) {
        let token = sampled.token;
        let what = format!("the device sampled token {token} where a form allows {forced} alone");
        return Err(Error::Internal(what));
    }
    let mask = sampling.masks.pop_front().and_then(Result::ok);
    let forced = mask.as_ref().is_some_and(|mask| sampling.rules.was_forced(mask, sampled.token));
    metrics.tokens_forced += u64::from(forced);
    let sampled = SampledToken { forced, ..sampled };
    versions.note(&mut sampling.weights, &mut sampling.adapters, sampling.records.len());
    let stop = &sampling.rules.stop;
    let stops = stop_token(stop, sampled.token, &facts.eos);
    if stops.is_some() && !stop.include_stop {
        sampling.stop_token = Some(sampled);
        return Ok(stops);
    }
    let heard = sampling.events.hears_tokens().then(|| vec![sampled.clone()]);
    let of_form = mask.as_ref().and_then(|mask| mask.allowed.as_ref());
    if of_form.is_some_and(|allowed| !allowed.contains(sampled.token)) {
        branch.tokens.end_form(); // A stop token of the extend alone, behind the complete text.
    }
    let Appended { text, ends } = append(sampling, &mut branch.tokens, sampled, facts);
    if let Some(tokens) = heard {
        let (id, Versions { weights, adapter }) = (branch.id, versions);
        batcher.send(&sampling.events, Event::Tokens { id, tokens, text, weights, adapter });
    }
    Ok(ends)
}

/// What follows from a token that was appended.
struct Appended {
    /// The text that is final with it.
    text: String,
    /// Why the extend ends with it, if it does.
    ends: Option<FinishReason>,
}

/// Appends a token that is kept to an extend and to the `path` of its branch.
fn append(sampling: &mut SamplingState, path: &mut TokenPath, sampled: SampledToken, facts: &EngineFacts) -> Appended {
    let (token, stop) = (sampled.token, &sampling.rules.stop);
    let count = sampling.records.len() + 1;
    let piece = sampling.text.push(token, count >= stop.min_tokens);
    let (stops, at_limit) = (stop_token(stop, token, &facts.eos), count >= stop.max_tokens);
    if let Some(counts) = &mut sampling.rules.counts {
        counts.add(token, true);
    }
    // A forced token is on the path already.
    if path.get(sampling.next()).is_none() {
        path.push_sampled(token);
    }
    let window = sampling.confidence.as_mut().zip(sampled.confidence);
    let is_low = window.is_some_and(|(window, confidence)| window.push(confidence)) && count >= stop.min_tokens;
    sampling.records.push(sampled);
    let is_full = sampling.next() >= facts.context;
    let ends = stops
        .or(piece.stopped_by.map(FinishReason::StopString))
        .or(is_low.then_some(FinishReason::LowConfidence))
        .or(at_limit.then_some(FinishReason::Length))
        .or(is_full.then_some(FinishReason::ContextFull));
    Appended { text: piece.text, ends }
}

/// Appends what another engine has sampled for an extend that begins, as its first tokens. Returns why the extend ends
/// with them, if it does.
pub(super) fn append_said(branch: &mut Branch, said: Said, facts: &EngineFacts) -> Option<FinishReason> {
    let BranchWork::Sample(sampling) = &mut branch.work else { return None };
    (sampling.weights, sampling.adapters) = (said.weights, said.adapters);
    let (mut tokens, path) = (said.tokens.into_iter(), &mut branch.tokens);
    tokens.find_map(|sampled| append(sampling, path, sampled, facts).ends)
}

fn stop_token(stop: &Stop, token: TokenId, eos: &[TokenId]) -> Option<FinishReason> {
    if stop.tokens.contains(&token) {
        return Some(FinishReason::StopToken(token));
    }
    (eos.contains(&token) && !stop.ignore_eos).then_some(FinishReason::EndOfText)
}

/// Records the log-probability of the next given token, also for other branches. Returns the finish reason at the last
/// one.
fn record(branch: &mut Branch, sampled: SampledToken, cache: &mut KvCache) -> Option<FinishReason> {
    let versions = cache.versions(branch);
    let BranchWork::Score(scoring) = &mut branch.work else { return None };
    let (at, score) = (scoring.next(), scores::kept(TokenRecord::of(&sampled), scoring.top_of()));
    scoring.add(sampled, versions);
    let ends = scoring.next() == branch.tokens.len();
    cache.keep_score(branch, at, score, versions);
    ends.then_some(FinishReason::Given)
}
