//! Builds the request that samples a branch's next token: its uniform, its parameters, and banned tokens.
//! The backend samples (`Backend::sample` defines the order of penalties, temperature, top-k, top-p and min-p).

use crate::branch::{Branch, BranchWork, SamplingState};
use crate::token_counts::TokenCounts;
use crate::token_path;
use offshoot_backend::{Pick, SampleRequest};
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
    SampleRequest::of(Pick::Given(branch.tokens[position + 1]))
}

/// The request for the token at `position`.
fn sample_request(branch: &Branch, sampling: &SamplingState, position: usize, eos: &[TokenId]) -> SampleRequest {
    let params = &sampling.params;
    let pick = match params.temperature {
        0.0 => Pick::Greedy,
        temperature => Pick::Random {
            temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            uniform: sampling.uniforms.uniform(token_path::position(position)),
        },
    };
    SampleRequest {
        seen: sampling.counts.as_ref().map_or_else(Vec::new, TokenCounts::seen),
        unseen: (sampling.counts.is_some() && sampling.in_flight.tokens > 0).then_some(sampling.in_flight.request),
        repetition_penalty: params.repetition_penalty,
        frequency_penalty: params.frequency_penalty,
        presence_penalty: params.presence_penalty,
        logit_bias: params.logit_bias.clone(),
        banned: banned(branch, sampling, position, eos),
        allowed: sampling.allowed.clone(),
        top_logprobs: params.top_logprobs,
        ..SampleRequest::of(pick)
    }
}

/// The tokens that must not be sampled at `position`.
fn banned(branch: &Branch, sampling: &SamplingState, position: usize, eos: &[TokenId]) -> Vec<TokenId> {
    let mut banned = if bans_ends(sampling, position) { ends(sampling, eos) } else { Vec::new() };
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

/// Whether the text may not end yet with the token at `position`.
pub(super) fn bans_ends(sampling: &SamplingState, position: usize) -> bool {
    position < sampling.may_end_at()
}

/// The tokens that end the text.
fn ends(sampling: &SamplingState, eos: &[TokenId]) -> Vec<TokenId> {
    let eos = if sampling.stop.ignore_eos { &[] } else { eos };
    eos.iter().chain(&sampling.stop.tokens).copied().collect()
}
