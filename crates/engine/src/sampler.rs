//! Builds the request that samples a branch's next token: its uniform, token counts for penalties, and banned tokens.
//! The backend samples (`Backend::sample` defines the order of penalties, temperature, top-k, top-p and min-p).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::branch::{Branch, BranchWork, SamplingState};
use offshoot_backend::{Pick, SampleRequest, SeenToken};
use offshoot_core::ids::TokenId;

/// How often tokens occur.
#[derive(Debug, Default)]
pub(super) struct RunCounts(BTreeMap<TokenId, TokenCount>);

#[derive(Clone, Copy, Debug, Default)]
struct TokenCount {
    sampled: u32,
    given: bool,
}

impl RunCounts {
    pub fn add(&mut self, token: TokenId, sampled: bool) {
        let count = self.0.entry(token).or_default();
        count.sampled += u32::from(sampled);
        count.given |= !sampled;
    }
}

/// The tokens of one branch, for its penalties.
#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    /// Counts of the runs that it shares with others.
    shared: Vec<Arc<RunCounts>>,
    own: RunCounts,
}

impl TokenCounts {
    pub fn new(shared: Vec<Arc<RunCounts>>, own: RunCounts) -> Self {
        TokenCounts { shared, own }
    }

    pub fn add(&mut self, token: TokenId, sampled: bool) {
        self.own.add(token, sampled);
    }

    /// In rising order of tokens.
    pub fn seen(&self) -> Vec<SeenToken> {
        let seen = |(&token, count): (&TokenId, &TokenCount)| SeenToken {
            token,
            sampled: count.sampled,
            in_prompt: count.given,
        };
        let each = self.shared.iter().map(|shared| &**shared).chain([&self.own]);
        let mut all: Vec<SeenToken> = each.flat_map(|counts| counts.0.iter().map(seen)).collect();
        if !self.shared.is_empty() {
            // A few sorted runs, which a stable sort merges.
            all.sort_by_key(|seen| seen.token);
            all.dedup_by(|next, first| {
                let is_same = next.token == first.token;
                if is_same {
                    first.sampled += next.sampled;
                    first.in_prompt |= next.in_prompt;
                }
                is_same
            });
        }
        all
    }

    #[cfg(test)]
    pub fn shares_with(&self, other: &Self) -> bool {
        matches!((&self.shared[..], &other.shared[..]), ([first, ..], [second, ..]) if Arc::ptr_eq(first, second))
    }
}

/// The request for the logits of the row at `position` of `branch`.
pub(super) fn request(branch: &Branch, position: usize, eos: &[TokenId]) -> SampleRequest {
    match &branch.work {
        BranchWork::Sample(sampling) => sample_request(sampling, position + 1, eos),
        BranchWork::Score(scoring) => SampleRequest { top_logprobs: scoring.tops, ..given(branch, position) },
        BranchWork::Idle => given(branch, position),
    }
}

fn given(branch: &Branch, position: usize) -> SampleRequest {
    SampleRequest::of(Pick::Given(branch.tokens[position + 1]))
}

/// The request for the token at `position`.
fn sample_request(sampling: &SamplingState, position: usize, eos: &[TokenId]) -> SampleRequest {
    let params = &sampling.params;
    let pick = match params.temperature {
        0.0 => Pick::Greedy,
        temperature => Pick::Random {
            temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            uniform: uniform(sampling, position),
        },
    };
    SampleRequest {
        seen: sampling.counts.as_ref().map_or_else(Vec::new, TokenCounts::seen),
        unseen: (sampling.counts.is_some() && sampling.in_flight.tokens > 0).then_some(sampling.in_flight.request),
        repetition_penalty: params.repetition_penalty,
        frequency_penalty: params.frequency_penalty,
        presence_penalty: params.presence_penalty,
        logit_bias: params.logit_bias.clone(),
        banned: match bans_ends(sampling, position) {
            true => ends(sampling, eos),
            false => Vec::new(),
        },
        top_logprobs: params.top_logprobs.unwrap_or(0),
        ..SampleRequest::of(pick)
    }
}

/// The uniform of the token at `position`.
fn uniform(sampling: &SamplingState, position: usize) -> f64 {
    sampling.uniforms.uniform(u32::try_from(position).expect("positions fit u32, as contexts do"))
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
