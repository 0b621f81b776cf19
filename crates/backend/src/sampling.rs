//! Sampling of a step's rows: the request of each row, and the token it gets.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::allowed::AllowedTokens;
use offshoot_core::ids::TokenId;

/// The largest `top_logprobs` of a request, and the most tokens that a confidence is the mean of
/// ([`Records::confidence`]): as many as a kernel can list in the shared memory of a block.
pub const MOST_TOP: usize = 2048;

/// The most ids of kept tokens that a record lists ([`Drawn::ids`]).
pub const MOST_KEPT: usize = 1024;

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
    /// The distribution whose likeliest tokens and rank `top_logprobs` reports.
    pub top_of: Distribution,
    /// What else is recorded of the token.
    pub records: Records,
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
            top_of: Distribution::Model,
            records: Records::default(),
        }
    }

    /// The request's uniform; 0 if it takes none.
    pub fn uniform(&self) -> f64 {
        match self.pick {
            Pick::Random { uniform, .. } => uniform,
            Pick::Greedy | Pick::Given { .. } => 0.0,
        }
    }

    /// The filters of the distribution that the token is drawn from, or scored under. `None`: a given token is scored
    /// under the model's own distribution alone, whatever bias, penalties, bans and allowed tokens the request has.
    pub fn filters(&self) -> Option<Filters> {
        match self.pick {
            Pick::Greedy => Some(Filters::default()),
            Pick::Random { filters, .. } => Some(filters),
            Pick::Given { under, .. } => under,
        }
    }

    /// Whether the likeliest tokens or the rank are reported, and by the distribution that the token is drawn from.
    pub fn lists_drawn(&self) -> bool {
        self.top_logprobs.is_some() && self.top_of == Distribution::Drawn
    }

    /// Whether anything that is reported depends on the filters and on changes of the scores: what a given token needs
    /// none of, unless it is recorded.
    pub fn depends_on_scores(&self) -> bool {
        match self.pick {
            Pick::Greedy | Pick::Random { .. } => true,
            Pick::Given { under, .. } => under.is_some() && (self.records.of_drawn() || self.lists_drawn()),
        }
    }

    /// Whether seen tokens change the scores.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// How many of the likeliest tokens the confidence is of; 0: it is not recorded.
    pub fn confidence_of(&self) -> usize {
        self.records.confidence.map_or(0, |count| usize::from(count.get()))
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
    /// The token at `uniform`, in [0, 1), of those that pass the filters.
    Random { filters: Filters, uniform: f64 },
    /// The token is given; only its log-probabilities are computed: the model's, and, where records ask for it, that of
    /// the distribution which a request with the filters `under` would draw from. `None`: the model's own distribution,
    /// without the request's bias, penalties, bans and allowed tokens.
    Given { token: TokenId, under: Option<Filters> },
}

impl Pick {
    /// A given token, scored under the model's own distribution.
    pub fn given(token: TokenId) -> Pick {
        Pick::Given { token, under: None }
    }
}

/// The temperature that scores are divided by, then the filters of the tokens, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filters {
    /// Above 0.
    pub temperature: f32,
    /// Only so many of the best tokens are kept; `None`: all.
    pub top_k: Option<u32>,
    /// The fewest best tokens whose probability reaches this are kept; 1: all.
    pub top_p: f32,
    /// Tokens of less than this share of the best one's probability are not kept; 0: all are.
    pub min_p: f32,
}

impl Default for Filters {
    /// Temperature 1, and all tokens are kept.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

/// One of the two distributions over tokens that a step has for a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// The model's own: the softmax of its unmodified logits.
    #[default]
    Model,
    /// The one that the token is drawn from: after bias, penalties, banned and allowed tokens, temperature and filters,
    /// renormalised over the tokens that are kept ([`Drawn`]).
    Drawn,
}

/// What is recorded of a token beside its log-probability under the model. Nothing is computed that is not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Records {
    /// [`SampledToken::drawn`].
    pub drawn: bool,
    /// [`Drawn::ids`]; asks for [`SampledToken::drawn`], too.
    pub kept_ids: bool,
    /// [`SampledToken::entropy`].
    pub entropy: bool,
    /// [`SampledToken::confidence`], of so many of the likeliest tokens, at most [`MOST_TOP`]; `None`: it is not
    /// recorded.
    pub confidence: Option<NonZeroU16>,
}

impl Records {
    /// Whether the distribution that the token is drawn from is recorded.
    pub fn of_drawn(self) -> bool {
        self.drawn || self.kept_ids
    }
}

/// A token that was sampled, or given and scored, and all that is recorded of it. Log-probabilities are natural.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// The token.
    pub token: TokenId,
    /// Its log-probability under the model itself: log-softmax of the unmodified logits.
    pub logprob: f32,
    /// Its place among all tokens, from 1, by the model's logits, or by the scores after bias, penalties and bans where
    /// [`SampleRequest::top_of`] says [`Distribution::Drawn`]: of equal ones the smaller id is first, as in `top`.
    /// `None` where no log-probabilities were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<NonZeroU32>,
    /// The likeliest tokens in its place with their log-probabilities under the distribution that
    /// [`SampleRequest::top_of`] names, likeliest first; empty where none were asked for. Of [`Distribution::Drawn`]
    /// only tokens that are kept are listed, so there may be fewer than were asked for.
    pub top: Vec<(TokenId, f32)>,
    /// The distribution that it was drawn from, or scored under; `None` where it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drawn: Option<Drawn>,
    /// The entropy of the model's own distribution in its place, in nats; `None` where it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entropy: Option<f32>,
    /// The model's confidence in its place, in nats: the mean log-probability of the k likeliest tokens, negated, where
    /// k is [`Records::confidence`], by the model's own distribution. Tokens whose logit is -inf are left out, so that
    /// the mean may be of fewer than k tokens; it is 0 where no token is left. The lower it is, the more evenly the
    /// likeliest tokens share the probability. `None` where it was not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f32>,
    /// Whether the form of its text allowed no other token in its place. A backend does not know: it says false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forced: bool,
}

impl SampledToken {
    /// A token of which nothing but its log-probability under the model is recorded.
    pub fn of(token: TokenId, logprob: f32) -> Self {
        Self {
            token,
            logprob,
            rank: None,
            top: Vec::new(),
            drawn: None,
            entropy: None,
            confidence: None,
            forced: false,
        }
    }
}

/// The distribution that a token was drawn from: the scores (the model's logits after bias, penalties, banned and
/// allowed tokens) divided by the temperature, and renormalised over the tokens that the filters keep. For
/// [`Pick::Greedy`] the temperature is 1 and no filter excludes any.
///
/// A token is kept if it can be drawn: one that is less likely than the best by more than a factor of e^87 is not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawn {
    /// The token's log-probability under this distribution; -inf for a given token that is not kept.
    pub logprob: f32,
    /// How many tokens are kept; 0 where every score is -inf.
    pub kept: u32,
    /// The smallest score (before the temperature) of the tokens that are kept, +inf where none is. Without bias and
    /// penalties these are the tokens whose logit is at least this, but for tokens of that very logit: of those, the
    /// ones with the smallest ids are kept.
    pub lowest: f32,
    /// The tokens that are kept, by rising id, where [`Records::kept_ids`] asks for them and they are at most
    /// [`MOST_KEPT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<TokenId>>,
}
