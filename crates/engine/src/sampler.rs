//! Builds the request that samples a branch's next token: its uniform, its parameters, and the tokens that are banned.
//! The backend samples (`Backend::sample` defines the order of penalties, temperature, top-k, top-p and min-p).

use crate::allowed::Candidates;
use crate::branch::{Branch, BranchWork, SamplingState};
use crate::facts::EngineFacts;
use crate::token_counts::TokenCounts;
use crate::token_path;
use offshoot_backend::{Filters, Pick, SampleRequest};
use offshoot_core::error::Error;
use offshoot_core::ids::TokenId;

/// The request for the logits of the row at `position` of `branch`.
pub(super) fn request(branch: &Branch, position: usize, eos: &[TokenId]) -> SampleRequest {
    match &branch.work {
        BranchWork::Sample(sampling) => sample_request(branch, sampling, position + 1, eos),
        BranchWork::Score(scoring) => SampleRequest { top_logprobs: Some(scoring.tops), ..given(branch, position) },
        BranchWork::Idle => given(branch, position),
    }
}

fn given(branch: &Branch, position: usize) -> SampleRequest {
    SampleRequest::of(Pick::given(branch.tokens[position + 1]))
}

/// The request for the token at `position`.
fn sample_request(branch: &Branch, sampling: &SamplingState, position: usize, eos: &[TokenId]) -> SampleRequest {
    let params = &sampling.params;
    let pick = match params.temperature {
        0.0 => Pick::Greedy,
        temperature => Pick::Random {
            filters: Filters { temperature, top_k: params.top_k, top_p: params.top_p, min_p: params.min_p },
            uniform: sampling.uniforms.uniform(token_path::position(position)),
        },
    };
    let (words, ends) = (last_of_bad_words(branch, sampling, position), ends_banned(sampling, position, eos));
    SampleRequest {
        seen: sampling.counts.as_ref().map_or_else(Vec::new, TokenCounts::seen),
        unseen: (sampling.counts.is_some() && sampling.in_flight.tokens > 0).then_some(sampling.in_flight.request),
        repetition_penalty: params.repetition_penalty,
        frequency_penalty: params.frequency_penalty,
        presence_penalty: params.presence_penalty,
        logit_bias: params.logit_bias.clone(),
        banned: ends.into_iter().chain(words).collect(),
        allowed: sampling.allowed.clone(),
        top_logprobs: params.top_logprobs,
        ..SampleRequest::of(pick)
    }
}

/// Why no token was sampled at the end of `branch`: what bans all of them, or else the model's logits.
pub(super) fn why_none(branch: &Branch, facts: &EngineFacts) -> Error {
    let BranchWork::Sample(sampling) = &branch.work else { return no_numbers() };
    let position = branch.tokens.len();
    let bans = [
        ("bad_words", last_of_bad_words(branch, sampling, position)),
        ("min_tokens", ends_banned(sampling, position, &facts.eos)),
        ("logit_bias", sampling.params.tokens_biased_away()),
    ];
    let candidates = Candidates { vocab: facts.vocab, allowed: sampling.allowed.as_deref(), bans };
    let left = format!("a token that may be sampled as number {}", position - sampling.begin + 1);
    candidates.check(&left).err().unwrap_or_else(no_numbers)
}

/// The error of logits that are NaN or infinite.
pub(super) fn no_numbers() -> Error {
    Error::value("the model's logits", "finite numbers", "NaN or infinity, as its weights hold")
}

/// The tokens that would end a bad word at `position`.
fn last_of_bad_words(branch: &Branch, sampling: &SamplingState, position: usize) -> Vec<TokenId> {
    let mut banned = Vec::new();
    for word in &sampling.params.bad_words {
        let Some((&last, before)) = word.split_last() else { continue };
        let sampled = position - sampling.begin;
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
fn ends_banned(sampling: &SamplingState, position: usize, eos: &[TokenId]) -> Vec<TokenId> {
    if bans_ends(sampling, position) { sampling.stop.ends(eos) } else { Vec::new() }
}

/// Whether the text may not end yet with the token at `position`.
pub(super) fn bans_ends(sampling: &SamplingState, position: usize) -> bool {
    position < sampling.may_end_at()
}
