//! What a collected step leaves behind: drawn tokens, stops, events.

use crate::backend::{Backend, Sampled};
use crate::engine::branch::{Branch, Drawing, Work};
use crate::engine::events::EventBatcher;
use crate::engine::request::{Event, FinishReason, SampledToken};
use crate::engine::schedule::Ask;
use crate::engine::{Engine, EngineFacts};
use crate::error::Error;
use crate::ids::{BranchId, TokenId};

impl<B: Backend> Engine<B> {
    /// `drawn` answers `asks`, one by one. An answer is nobody's where the branch has ended meanwhile, or begun anew.
    pub(super) fn commit(&mut self, asks: &[Ask], drawn: Vec<Sampled>) {
        let (mut ended, mut batcher) = (Vec::new(), EventBatcher::default());
        for (ask, drawn) in asks.iter().zip(drawn) {
            let asked = |branch: &&mut Branch| branch.turn == ask.turn && !branch.rests();
            let Some(branch) = self.branches.get_mut(&ask.branch).filter(asked) else {
                self.metrics.tokens_discarded += 1;
                continue;
            };
            self.metrics.prompt_tokens_logical += branch.count_given(ask.position);
            self.metrics.tokens_sampled += u64::from(matches!(branch.work, Work::Draw(_)));
            if let Some(outcome) = answer(branch, drawn, &self.facts, &mut batcher) {
                batcher.flush();
                self.scheduler.note_end(branch, outcome.is_err());
                match outcome {
                    Ok(reason) => branch.finish(reason),
                    Err(error) => branch.fail(error),
                }
                ended.push(ask.branch);
            }
            self.cache.settle(branch);
        }
        batcher.flush();
        self.retire(ended);
    }

    /// These branches' extends have ended: nobody schedules them, and they hold no more than what they may go on from.
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
                self.cache.give_up(branch); // Given tokens that were not scored, or a path without its own tokens.
            }
        }
    }
}

/// Takes what was drawn for a branch. Says how the extend ends, if it does.
fn answer(
    branch: &mut Branch,
    drawn: Sampled,
    facts: &EngineFacts,
    batcher: &mut EventBatcher,
) -> Option<Result<FinishReason, Error>> {
    if !drawn.logprob.is_finite() {
        let found = "NaN or infinity, as its weights hold";
        return Some(Err(Error::value("the model's logits", "finite numbers", found)));
    }
    match branch.work {
        Work::Draw(_) => accept(branch, drawn, facts, batcher).map(Ok),
        Work::Score(_) => record(branch, drawn).map(Ok),
        Work::Rest => None,
    }
}

/// Takes the token that a branch drew. Says why the extend ends, if it does.
fn accept(
    branch: &mut Branch,
    drawn: Sampled,
    facts: &EngineFacts,
    batcher: &mut EventBatcher,
) -> Option<FinishReason> {
    let Work::Draw(drawing) = &mut branch.work else { return None };
    let Sampled { token, logprob, top } = drawn;
    drawing.ahead.tokens -= 1;
    let stops = stop_token(drawing, token, &facts.eos);
    if stops.is_some() && !drawing.stop.include_stop {
        drawing.stop_logprob = Some(logprob);
        return stops;
    }
    drawing.logprobs.push(logprob);
    if drawing.params.top_logprobs.is_some() {
        drawing.top.push(top.clone());
    }
    if let Some(counts) = &mut drawing.counts {
        counts.add(token, true);
    }
    let drawn = drawing.logprobs.len();
    let piece = drawing.text.push(token, drawn >= drawing.stop.min_tokens);
    let at_limit = drawn >= drawing.stop.max_tokens;
    if drawing.events.hears_tokens() {
        let tokens = vec![SampledToken { token, logprob, top }];
        batcher.send(&drawing.events, Event::Tokens { branch: branch.id, tokens, text: piece.text });
    }
    branch.tokens.push_drawn(token);
    let is_full = branch.tokens.len() >= facts.context;
    stops
        .or(piece.stopped_by.map(FinishReason::StopString))
        .or(at_limit.then_some(FinishReason::Length))
        .or(is_full.then_some(FinishReason::ContextFull))
}

fn stop_token(drawing: &Drawing, token: TokenId, eos: &[TokenId]) -> Option<FinishReason> {
    if drawing.stop.tokens.contains(&token) {
        return Some(FinishReason::StopToken(token));
    }
    (eos.contains(&token) && !drawing.stop.ignore_eos).then_some(FinishReason::EndOfText)
}

/// Takes the log-probability of a given token.
fn record(branch: &mut Branch, drawn: Sampled) -> Option<FinishReason> {
    let Work::Score(scoring) = &mut branch.work else { return None };
    scoring.logprobs.push(drawn.logprob);
    (scoring.begin + scoring.logprobs.len() == branch.tokens.len()).then_some(FinishReason::Given)
}
