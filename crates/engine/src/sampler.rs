//! Builds the request that samples a branch's next token: its uniform, its parameters, and the tokens that are banned
//! or, by the form of its text, not allowed; and the request that scores a given token as if it were sampled so. The
//! backend samples (`Backend::sample` defines the order of penalties, temperature, top-k, top-p and min-p).

use std::borrow::Cow;
use std::sync::Arc;

use crate::allowed::{Allowed, Candidates};
use crate::branch::{Branch, BranchWork, SamplingState, WantedScores};
use crate::facts::EngineFacts;
use crate::request::{FinishReason, SamplingParams, Stop};
use crate::token_counts::TokenCounts;
use crate::token_path;
use offshoot_backend::{AllowedTokens, Filters, Pick, SampleRequest};
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;
use offshoot_form::StateMask;

/// How the tokens of an extend are sampled, from position `begin` on: everything but their random numbers.
pub(super) struct SamplingRules {
    pub params: SamplingParams,
    /// The allowed tokens of `params`, whose own list is taken; shared with other extends that allow the same.
    pub allowed: Option<Arc<AllowedTokens>>,
    pub stop: Stop,
    /// First position of the extend.
    pub begin: usize,
    /// Of the tokens before `begin`, and of those that were sampled since; kept only if penalties are set.
    pub counts: Option<TokenCounts>,
}

impl SamplingRules {
    /// Whether the tokens that may be sampled depend on those sampled before, which the host must know.
    pub fn looks_back(&self) -> bool {
        self.params.looks_back()
    }

    /// The tokens that may be sampled, but for those that are banned, where the form allows `mask`.
    pub fn allowed_under(&self, mask: Option<&Arc<StateMask>>, facts: &EngineFacts) -> Allowed {
        Allowed::of(mask.map(|mask| &**mask), self.allowed.as_ref(), &self.stop, facts)
    }

    /// Whether `token` was the only one that the form allowed by `mask`: where the text may end, it may by the stop
    /// tokens of the extend, too.
    pub fn was_forced(&self, mask: &StateMask, token: TokenId) -> bool {
        let stops_alike = || self.stop.tokens.iter().all(|&stop| stop == token);
        mask.forced == Some(token) && (!mask.may_end || stops_alike())
    }

    /// Whether `token`, the only one that the form allows at `position` of `branch`, can be sampled there and go on the
    /// path before it is: it ends nothing, and nothing bans it.
    pub fn may_force(&self, branch: &Branch, position: usize, token: TokenId, eos: &[TokenId]) -> bool {
        let ends = eos.contains(&token) || self.stop.tokens.contains(&token);
        let is_allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
        let is_banned = || {
            self.last_of_bad_words(branch, position).contains(&token)
                || self.params.tokens_biased_away().contains(&token)
        };
        !ends && is_allowed && !is_banned()
    }

    /// First position whose token may end the text.
    pub fn may_end_at(&self) -> usize {
        self.begin.saturating_add(self.stop.min_tokens)
    }

    /// Whether the text may not end yet with the token at `position`.
    pub fn bans_ends(&self, position: usize) -> bool {
        position < self.may_end_at()
    }

    /// The temperature and what cuts the distribution of a token; `None`: the likeliest one is taken.
    fn filters(&self) -> Option<Filters> {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        (temperature > 0.0).then_some(Filters { temperature, top_k, top_p, min_p })
    }

    /// The request for the token at `position` of `branch`, behind what `counts` has counted.
    fn request(
        &self,
        branch: &Branch,
        position: usize,
        counts: Option<&TokenCounts>,
        pick: Pick,
        allowed: Option<Arc<AllowedTokens>>,
        eos: &[TokenId],
    ) -> SampleRequest {
        let params = &self.params;
        let (words, ends) = (self.last_of_bad_words(branch, position), self.ends_banned(position, eos));
        SampleRequest {
            seen: counts.map_or_else(Vec::new, TokenCounts::seen),
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            logit_bias: params.logit_bias.clone(),
            banned: ends.into_iter().chain(words).collect(),
            allowed,
            top_logprobs: params.top_logprobs,
            top_of: params.top_of(),
            records: params.recorded(),
            ..SampleRequest::of(pick)
        }
    }

    /// The tokens that would end a bad word at `position`.
    fn last_of_bad_words(&self, branch: &Branch, position: usize) -> Vec<TokenId> {
        let mut banned = Vec::new();
        for word in &self.params.bad_words {
            let Some((&last, before)) = word.split_last() else { continue };
            let sampled = position - self.begin;
            // Without tokens before it, it is banned whatever the host knows.
            if before.is_empty()
                || (before.len() <= sampled && *branch.tokens.slice(position - before.len()..position) == *before)
            {
                banned.push(last);
            }
        }
        banned
    }

    /// The tokens that end the text, while it may not end yet.
    fn ends_banned(&self, position: usize, eos: &[TokenId]) -> Vec<TokenId> {
        if self.bans_ends(position) { self.stop.ends(eos) } else { Vec::new() }
    }
}

/// The request for the logits of the row at `position` of `branch`. `allowed`: the tokens that may be sampled but for
/// those that are banned; `None`: all.
pub(super) fn request(
    branch: &Branch,
    position: usize,
    allowed: Option<Arc<AllowedTokens>>,
    eos: &[TokenId],
) -> SampleRequest {
    match &branch.work {
        BranchWork::Sample(sampling) => sample_request(branch, sampling, position + 1, allowed, eos),
        BranchWork::Score(scoring) => match &scoring.scores {
            WantedScores::Model { tops } => {
                SampleRequest { top_logprobs: Some(*tops), ..SampleRequest::of(given(branch, position + 1, None)) }
            }
            WantedScores::AsSampled { rules, .. } => score_request(branch, rules, position + 1, allowed, eos),
        },
        BranchWork::Values(_) | BranchWork::Idle => SampleRequest::of(given(branch, position + 1, None)),
    }
}

/// The pick of the given token at `position`.
fn given(branch: &Branch, position: usize, under: Option<Filters>) -> Pick {
    Pick::Given { token: branch.tokens[position], under }
}

/// The request for the token at `position`.
fn sample_request(
    branch: &Branch,
    sampling: &SamplingState,
    position: usize,
    allowed: Option<Arc<AllowedTokens>>,
    eos: &[TokenId],
) -> SampleRequest {
    let SamplingState { rules, uniforms, in_flight, .. } = sampling;
    let uniform = || uniforms.uniform(token_path::position(position));
    let pick = rules.filters().map_or(Pick::Greedy, |filters| Pick::Random { filters, uniform: uniform() });
    // Forced tokens before it that are not recorded yet.
    let forced = sampling.next()..position.min(branch.tokens.len());
    let counts = rules.counts.as_ref().map(|counts| match forced.is_empty() {
        true => Cow::Borrowed(counts),
        false => Cow::Owned(counted_behind(counts.clone(), &branch.tokens.slice(forced))),
    });
    SampleRequest {
        unseen: (rules.counts.is_some() && position > branch.tokens.len()).then_some(in_flight.request),
        ..rules.request(branch, position, counts.as_deref(), pick, allowed, eos)
    }
}

/// `counts` with those of `tokens`, which count as sampled.
fn counted_behind(mut counts: TokenCounts, tokens: &[TokenId]) -> TokenCounts {
    tokens.iter().for_each(|&token| counts.add(token, true));
    counts
}

/// The request that scores the given token at `position` as if `rules` had sampled it, and all given ones before it.
fn score_request(
    branch: &Branch,
    rules: &SamplingRules,
    position: usize,
    allowed: Option<Arc<AllowedTokens>>,
    eos: &[TokenId],
) -> SampleRequest {
    let before = || branch.tokens.slice(rules.begin..position);
    let counts = rules.counts.clone().map(|counts| counted_behind(counts, &before()));
    let pick = given(branch, position, Some(rules.filters().unwrap_or_default()));
    rules.request(branch, position, counts.as_ref(), pick, allowed, eos)
}

/// How an extend ends where no token was sampled: its text ends if its form lets it, and is in a dead end if its form
/// leaves no token that is not banned, or at its form's limit if it is not known what that leaves; else an error that
/// says what bans all of them, or that the model's logits are no numbers.
pub(super) fn end_at_none(branch: &Branch, facts: &EngineFacts) -> Result<FinishReason, Error> {
    let BranchWork::Sample(sampling) = &branch.work else { return Err(no_numbers()) };
    let (rules, position) = (&sampling.rules, sampling.next());
    let mask = sampling.mask_at(position);
    let bans = [
        ("bad_words", rules.last_of_bad_words(branch, position)),
        ("min_tokens", rules.ends_banned(position, &facts.eos)),
        ("logit_bias", rules.params.tokens_biased_away()),
    ];
    let allowed = sampling.allowed_at(position, facts);
    let candidates = Candidates { vocab: facts.vocab, allowed: allowed.set(), bans };
    let expected = format!("a token that may be sampled as number {}", position - rules.begin + 1);
    match (candidates.check(&expected), mask) {
        (_, Some(Err(_))) => Ok(FinishReason::FormLimit),
        (Ok(()), _) => Err(no_numbers()),
        (Err(_), Some(Ok(mask))) if mask.may_end => Ok(FinishReason::EndOfText),
        (Err(_), Some(Ok(_))) => Ok(FinishReason::DeadEnd),
        (Err(error), None) => Err(error),
    }
}

/// The error of logits that are NaN or infinite.
pub(super) fn no_numbers() -> Error {
    Error::value("the model's logits", "finite numbers", "NaN or infinity, as its weights hold")
}
