//! Sampling of a step's rows: the request of each row, and the token it gets.

use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::allowed::AllowedTokens;
use offshoot_core::ids::TokenId;

/// The largest `top_logprobs` of a request: as many as a kernel can list in the shared memory of a block.
pub const MOST_TOP: usize = 2048;

/// The most sampled tokens a loaded step counts by itself: if its requests have penalties, it can be advanced this many
/// times before it must be loaded again with all tokens seen so far.
pub const MOST_COUNTED: usize = 128;

/// How the next token of one row is sampled. The CPU's order is the definition: penalties, temperature, top-k, top-p,
/// min-p, then the inverse of the cumulative distribution in vocabulary order at `uniform`. Where no token has a score
/// above -inf, none is sampled ([`Backend::collect`](crate::Backend::collect)).
#[derive(Clone, Debug)]
pub struct SampleRequest {
    pub pick: Pick,
    /// Tokens that penalties apply to.
    pub seen: Vec<SeenToken>,
    /// Index of the previous step's request that samples this branch's newest token: penalties apply to that token too,
    /// beside `seen` (`StepBatch::count_unseen`).
    pub unseen: Option<u32>,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// Added to the logits of these tokens, before penalties.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens never sampled (e.g. end-of-text below the minimal length).
    pub banned: Vec<TokenId>,
    /// The only tokens that are sampled, if they are not banned; `None`: all.
    pub allowed: Option<Arc<AllowedTokens>>,
    /// How many of the likeliest tokens to report beside the sampled one, at most [`MOST_TOP`], and its rank among all;
    /// `None`: neither.
    pub top_logprobs: Option<usize>,
}

impl SampleRequest {
    /// A request without bias, penalties or banned tokens.
    pub fn of(pick: Pick) -> Self {
        Self {
            pick,
            seen: Vec::new(),
            unseen: None,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            allowed: None,
            top_logprobs: None,
        }
    }

    /// The request's uniform; 0 if it takes none.
    pub fn uniform(&self) -> f64 {
        match self.pick {
            Pick::Random { uniform, .. } => uniform,
            Pick::Greedy | Pick::Given(_) => 0.0,
        }
    }

    /// Whether seen tokens change the scores.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// How many of the likeliest tokens are reported.
    pub fn top(&self) -> usize {
        self.top_logprobs.unwrap_or(0)
    }

    /// Replaces the request's uniform, if it takes one.
    pub fn set_uniform(&mut self, new: f64) {
        if let Pick::Random { uniform, .. } = &mut self.pick {
            *uniform = new;
        }
    }
}

/// A token that occurred in a branch's context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenToken {
    pub token: TokenId,
    /// Its count in the sampled text.
    pub sampled: u32,
    pub in_prompt: bool,
}

/// How a token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// The largest logit after penalties; on ties the smallest token id.
    Greedy,
    /// `uniform` in [0, 1). `top_k == None`: all; `top_p == 1`, `min_p == 0`: off. `temperature > 0`.
    Random { temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32, uniform: f64 },
    /// The token is given; only its log-probability is computed.
    Given(TokenId),
}

/// A token that was sampled, or given and scored, and all that is recorded of it. Log-probabilities are natural and
/// those of the model itself: log-softmax of the unmodified logits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its log-probability.
    pub logprob: f32,
    /// Its place among all tokens by the model's logits, from 1: of equal ones the smaller id is first, as in `top`.
    /// `None` where no log-probabilities were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<NonZeroU32>,
    /// The likeliest tokens in its place with their log-probabilities, likeliest first; empty where none were asked
    /// for.
    pub top: Vec<(TokenId, f32)>,
}
