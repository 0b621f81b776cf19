//! Builds the request that samples a branch's next token: its uniform, its parameters, and the tokens that are banned;
//! and the request that scores a given token as if it were sampled so. The backend samples (`Backend::sample` defines
//! the order of penalties, temperature, top-k, top-p and min-p).

use std::sync::Arc;

use crate::allowed::Candidates;
use crate::branch::{Branch, BranchWork, SamplingState, WantedScores};
use crate::facts::EngineFacts;
use crate::request::{SamplingParams, Stop};
use crate::token_counts::TokenCounts;
use crate::token_path;
use offshoot_backend::{AllowedTokens, Filters, Pick, SampleRequest};
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;

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
            allowed: self.allowed.clone(),
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

/// The request for the logits of the row at `position` of `branch`.
pub(super) fn request(branch: &Branch, position: usize, eos: &[TokenId]) -> SampleRequest {
    match &branch.work {
        BranchWork::Sample(sampling) => sample_request(branch, sampling, position + 1, eos),
        BranchWork::Score(scoring) => match &scoring.scores {
            WantedScores::Model { tops } => {
                SampleRequest { top_logprobs: Some(*tops), ..SampleRequest::of(given(branch, position + 1, None)) }
            }
            WantedScores::AsSampled(rules) => score_request(branch, rules, position + 1, eos),
        },
        BranchWork::Idle => SampleRequest::of(given(branch, position + 1, None)),
    }
}

/// The pick of the given token at `position`.
fn given(branch: &Branch, position: usize, under: Option<Filters>) -> Pick {
    Pick::Given { token: branch.tokens[position], under }
}

/// The request for the token at `position`.
fn sample_request(branch: &Branch, sampling: &SamplingState, position: usize, eos: &[TokenId]) -> SampleRequest {
    let SamplingState { rules, uniforms, in_flight, .. } = sampling;
    let uniform = || uniforms.uniform(token_path::position(position));
    let pick = rules.filters().map_or(Pick::Greedy, |filters| Pick::Random { filters, uniform: uniform() });
    SampleRequest {
        unseen: (rules.counts.is_some() && in_flight.tokens > 0).then_some(in_flight.request),
        ..rules.request(branch, position, rules.counts.as_ref(), pick, eos)
    }
}

/// The request that scores the given token at `position` as if `rules` had sampled it, and all given ones before it.
fn score_request(branch: &Branch, rules: &SamplingRules, position: usize, eos: &[TokenId]) -> SampleRequest {
    let counts = rules.counts.clone().map(|mut counts| {
        branch.tokens.slice(rules.begin..position).iter().for_each(|&token| counts.add(token, true));
        counts
    });
    let pick = given(branch, position, Some(rules.filters().unwrap_or_default()));
    rules.request(branch, position, counts.as_ref(), pick, eos)
}

/// Why no token was sampled at the end of `branch`: what bans all of them, or else the model's logits.
pub(super) fn why_none(branch: &Branch, facts: &EngineFacts) -> Error {
    let BranchWork::Sample(sampling) = &branch.work else { return no_numbers() };
    let (rules, position) = (&sampling.rules, branch.tokens.len());
    let bans = [
        ("bad_words", rules.last_of_bad_words(branch, position)),
        ("min_tokens", rules.ends_banned(position, &facts.eos)),
        ("logit_bias", rules.params.tokens_biased_away()),
    ];
    let candidates = Candidates { vocab: facts.vocab, allowed: rules.allowed.as_deref(), bans };
    let left = format!("a token that may be sampled as number {}", position - rules.begin + 1);
    candidates.check(&left).err().unwrap_or_else(no_numbers)
}

/// The error of logits that are NaN or infinite.
pub(super) fn no_numbers() -> Error {
    Error::value("the model's logits", "finite numbers", "NaN or infinity, as its weights hold")
}
