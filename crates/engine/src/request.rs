//! The engine's requests and events: continuations, sampling parameters, stop conditions. Plain data. The field docs
//! define how uniforms, penalties and stops act; `sampler` and `branch` implement it.
#![warn(missing_docs)]

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::allowed::Candidates;
use crate::confidence::ConfidenceStop;
use crate::records::{LogprobsMode, TokenRecord, TokenRecords};
use crate::routes::TokenRoutes;
use crate::uniforms::UniformKey;
use crate::weights::{AdapterSpan, WeightSpan};
use offshoot_backend::{AllowedTokens, Distribution, MOST_TOP, Records, SampledToken};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId, WeightVersion};
use offshoot_form::SampleForm;

/// How tokens are sampled: bias, penalties, the tokens that are left out, temperature, top-k, top-p, min-p, in this
/// order, then the uniform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// 0: greedy (the likeliest token after penalties; of equals, the smallest id).
    pub temperature: f32,
    /// Only the k likeliest tokens; `None`: all.
    pub top_k: Option<u32>,
    /// Only the likeliest tokens that together reach this probability; 1: all.
    pub top_p: f32,
    /// Only tokens at least this share of the likeliest one's probability; 0: all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or sampled before; 1: off.
    pub repetition_penalty: f32,
    /// Subtracted for each time that a token was sampled, from -2 to 2; 0: off.
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that were sampled, from -2 to 2; 0: off.
    pub presence_penalty: f32,
    /// Added to single logits first of all.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// The only tokens that are sampled; `None`: all. Where it has none of the tokens that end a text, only its length
    /// does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<TokenId>>,
    /// Runs of tokens that are never sampled: the last token of one is not, where those before it are the last that the
    /// extend has sampled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_words: Vec<Vec<TokenId>>,
    /// The form that the sampled text must have; `None`: any text. Beside it all else acts as ever, on the tokens that
    /// the form allows. A branch whose extend ended before the text of its form did goes on in it with an extend under
    /// an equal form, and so do its forks; behind given tokens, or under another form, a text begins anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<SampleForm>,
    /// How many of the likeliest tokens are reported beside each sampled one, at most [`MOST_TOP`], and its rank among
    /// all; `None`: neither.
    pub top_logprobs: Option<usize>,
    /// Whose log-probabilities `top_logprobs` lists, and whose ranks; clients are shown the sampled tokens' own by it,
    /// too ([`TokenRecord::logprob_by`]).
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs_mode: LogprobsMode,
    /// What is recorded of each sampled token beside its log-probability under the model.
    #[serde(skip_serializing_if = "is_default")]
    pub records: Records,
    /// Whether the extend's end tells the experts that were chosen for each token of the branch ([`Finish::routes`]).
    /// Only of an engine that keeps them ([`EngineConfig::keeps_routes`](crate::EngineConfig::keeps_routes)).
    #[serde(skip_serializing_if = "is_default")]
    pub routes: bool,
}

/// Whether a field has the value that it has where nothing is said.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed: None,
            bad_words: Vec::new(),
            form: None,
            top_logprobs: None,
            logprobs_mode: LogprobsMode::default(),
            records: Records::default(),
            routes: false,
        }
    }
}

/// Parameters one by one: `SamplingParams::default().temperature(0.8).top_p(0.95)`.
impl SamplingParams {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        SamplingParams::default().temperature(0.0)
    }

    /// Sets the temperature.
    pub fn temperature(self, temperature: f32) -> Self {
        SamplingParams { temperature, ..self }
    }

    /// Samples from the `top_k` likeliest tokens only.
    pub fn top_k(self, top_k: u32) -> Self {
        SamplingParams { top_k: Some(top_k), ..self }
    }

    /// Samples from the likeliest tokens that together reach this probability only.
    pub fn top_p(self, top_p: f32) -> Self {
        SamplingParams { top_p, ..self }
    }

    /// Samples from tokens of at least this share of the likeliest one's probability only.
    pub fn min_p(self, min_p: f32) -> Self {
        SamplingParams { min_p, ..self }
    }

    /// Makes tokens that were in the prompt or sampled before less likely.
    pub fn repetition_penalty(self, repetition_penalty: f32) -> Self {
        SamplingParams { repetition_penalty, ..self }
    }

    /// Makes a token less likely for each time that it was sampled.
    pub fn frequency_penalty(self, frequency_penalty: f32) -> Self {
        SamplingParams { frequency_penalty, ..self }
    }

    /// Makes a token less likely once it was sampled.
    pub fn presence_penalty(self, presence_penalty: f32) -> Self {
        SamplingParams { presence_penalty, ..self }
    }

    /// Reports so many of the likeliest tokens beside each sampled one.
    pub fn top_logprobs(self, top_logprobs: usize) -> Self {
        SamplingParams { top_logprobs: Some(top_logprobs), ..self }
    }

    /// Shows these log-probabilities.
    pub fn logprobs_mode(self, logprobs_mode: LogprobsMode) -> Self {
        SamplingParams { logprobs_mode, ..self }
    }

    /// Records this of each sampled token, too.
    pub fn records(self, records: Records) -> Self {
        SamplingParams { records, ..self }
    }

    /// Tells the experts that were chosen for each token.
    pub fn routes(self, routes: bool) -> Self {
        SamplingParams { routes, ..self }
    }

    /// Samples from these tokens only.
    pub fn allowed(self, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        SamplingParams { allowed: Some(tokens.into_iter().collect()), ..self }
    }

    /// Samples a text of this form.
    pub fn form(self, form: impl Into<SampleForm>) -> Self {
        SamplingParams { form: Some(form.into()), ..self }
    }

    /// Never samples this run of tokens, either.
    pub fn bad_word(mut self, tokens: impl IntoIterator<Item = TokenId>) -> Self {
        self.bad_words.push(tokens.into_iter().collect());
        self
    }

    /// Whether the tokens that may be sampled depend on those sampled before, which the host must know.
    pub(crate) fn looks_back(&self) -> bool {
        self.form.is_some() || self.bad_words.iter().any(|word| word.len() > 1)
    }

    /// Whether more is asked for than tokens and texts: log-probabilities or a record.
    pub fn records_tokens(&self) -> bool {
        self.top_logprobs.is_some() || self.records != Records::default()
    }

    /// What a backend records of each token: `records`, and the distribution drawn from where its log-probabilities are
    /// shown.
    pub(crate) fn recorded(&self) -> Records {
        let is_shown = self.logprobs_mode == LogprobsMode::ProcessedLogprobs;
        Records { drawn: self.records.of_drawn() || is_shown, ..self.records }
    }

    /// The distribution whose likeliest tokens, and ranks, are reported.
    pub(crate) fn top_of(&self) -> Distribution {
        match self.logprobs_mode {
            LogprobsMode::RawLogprobs => Distribution::Model,
            LogprobsMode::ProcessedLogprobs => Distribution::Drawn,
        }
    }

    /// Whether a sample depends on the tokens before it.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// Checks the parameters.
    ///
    /// # Errors
    ///
    /// Names the first parameter out of range for a model of `vocab` tokens, or those that leave none to sample.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let is_penalty = |value: f32| (-2.0..=2.0).contains(&value);
        let ranges = [
            (
                "temperature",
                self.temperature,
                self.temperature.is_finite() && self.temperature >= 0.0,
                "a number from 0 up",
            ),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "a number above 0 and up to 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "a number from 0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0,
                "a number above 0",
            ),
            ("frequency_penalty", self.frequency_penalty, is_penalty(self.frequency_penalty), "a number from -2 to 2"),
            ("presence_penalty", self.presence_penalty, is_penalty(self.presence_penalty), "a number from -2 to 2"),
        ];
        for (name, value, holds, expected) in ranges {
            if !holds {
                return Err(Error::value(name, expected, value.to_string()));
            }
        }
        if self.top_k == Some(0) {
            return Err(Error::value("top_k", "a number from 1 up", "0"));
        }
        if let Some(wanted) = self.top_logprobs.filter(|&wanted| wanted > MOST_TOP) {
            return Err(Error::value("top_logprobs", format!("at most {MOST_TOP}"), wanted.to_string()));
        }
        let confidence = self.records.confidence.filter(|count| usize::from(count.get()) > MOST_TOP);
        if let Some(count) = confidence {
            return Err(Error::value("tokens of a confidence", format!("at most {MOST_TOP}"), count.to_string()));
        }
        for (token, bias) in &self.logit_bias {
            check_token("logit_bias", *token, vocab)?;
            if bias.is_nan() {
                return Err(Error::value(format!("logit_bias of token {token}"), "a number", "NaN"));
            }
        }
        if self.allowed.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::value("allowed_token_ids", "at least one token", "none"));
        }
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(Error::value("bad_words", "words of at least one token", "one of none"));
        }
        let check =
            |what: &str, tokens: &[TokenId]| tokens.iter().try_for_each(|&token| check_token(what, token, vocab));
        check("allowed_token_ids", self.allowed.as_deref().unwrap_or_default())?;
        self.bad_words.iter().try_for_each(|word| check("bad_words", word))?;
        self.check_left(vocab, Vec::new())
    }

    /// Refuses parameters by which no token may be sampled first of all, where `ends` are banned.
    fn check_left(&self, vocab: usize, ends: Vec<TokenId>) -> Result<()> {
        let words = self.bad_words.iter().filter_map(|word| if let [token] = word[..] { Some(token) } else { None });
        let bans: [(&str, Vec<TokenId>); 3] =
            [("bad_words", words.collect()), ("min_tokens", ends), ("logit_bias", self.tokens_biased_away())];
        // Nearly always the first allowed token is not banned; a list of allowed tokens may be long and repeat itself.
        let banned: HashSet<TokenId> = bans.iter().flat_map(|(_, tokens)| tokens).copied().collect();
        if self.allowed.as_ref().is_some_and(|tokens| !tokens.iter().all(|token| banned.contains(token))) {
            return Ok(());
        }
        let set = self.allowed.as_ref().map(|tokens| AllowedTokens::new(tokens.iter().copied(), vocab));
        Candidates { vocab, allowed: set.as_ref(), bans }.check("a token that may be sampled")
    }

    /// The tokens that `logit_bias` keeps from being sampled.
    pub(crate) fn tokens_biased_away(&self) -> Vec<TokenId> {
        let away = self.logit_bias.iter().filter(|(_, bias)| *bias == f32::NEG_INFINITY);
        away.map(|&(token, _)| token).collect()
    }
}

fn check_token(what: &str, token: TokenId, vocab: usize) -> Result<()> {
    match token.ix() < vocab {
        true => Ok(()),
        false => Err(Error::value(what, format!("tokens below {vocab}"), token.to_string())),
    }
}

/// When an extend ends. The model's end-of-text tokens end it too, unless `ignore_eos`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Stop {
    /// Tokens sampled at most, from 1 up.
    pub max_tokens: usize,
    /// No stop acts before this many tokens are sampled; end-of-text and stop tokens are not sampled before.
    pub min_tokens: usize,
    /// Text that ends the branch, also across token borders.
    pub strings: Vec<String>,
    /// Tokens that end the branch.
    pub tokens: Vec<TokenId>,
    /// Whether the model's end of text is a token like any other.
    pub ignore_eos: bool,
    /// Keeps the stop string in the text, the stop token among the tokens.
    pub include_stop: bool,
    /// Whether the text shows special tokens. Stop strings are searched in the text as it is shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub show_special: bool,
    /// Ends a sample in which the model loses confidence; its parameters must record confidences
    /// ([`Records::confidence`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confidence: Option<ConfidenceStop>,
}

impl Default for Stop {
    fn default() -> Self {
        Stop {
            max_tokens: 256,
            min_tokens: 0,
            strings: Vec::new(),
            tokens: Vec::new(),
            ignore_eos: false,
            include_stop: false,
            show_special: false,
            confidence: None,
        }
    }
}

impl Stop {
    /// Whether only `max_tokens` and the model's context end an extend, so that its length is known.
    pub fn is_exact(&self) -> bool {
        self.ignore_eos && self.tokens.is_empty() && self.strings.is_empty() && self.confidence.is_none()
    }

    /// Ends after so many tokens, if nothing else ends it before.
    pub fn max_tokens(max_tokens: usize) -> Self {
        Stop { max_tokens, ..Stop::default() }
    }

    /// Ends before this text, too.
    pub fn at(mut self, string: impl Into<String>) -> Self {
        self.strings.push(string.into());
        self
    }

    /// Ends before this token, too.
    pub fn at_token(mut self, token: TokenId) -> Self {
        self.tokens.push(token);
        self
    }

    /// Lets no stop act before so many tokens are sampled.
    pub fn min_tokens(self, min_tokens: usize) -> Self {
        Stop { min_tokens, ..self }
    }

    /// Ends where the model loses confidence, too.
    pub fn at_confidence(self, confidence: ConfidenceStop) -> Self {
        Stop { confidence: Some(confidence), ..self }
    }

    /// Keeps the stop string in the text, the stop token among the tokens.
    pub fn included(self) -> Self {
        Stop { include_stop: true, ..self }
    }

    /// Goes on after the model's end of text.
    pub fn ignoring_eos(self) -> Self {
        Stop { ignore_eos: true, ..self }
    }

    /// Checks the fields.
    ///
    /// # Errors
    ///
    /// Names the first field out of range for a model of `vocab` tokens.
    pub fn check(&self, vocab: usize) -> Result<()> {
        if self.max_tokens == 0 {
            return Err(Error::value("max_tokens", "a number from 1 up", "0"));
        }
        if self.min_tokens > self.max_tokens {
            return Err(Error::value(
                "min_tokens",
                format!("at most max_tokens ({})", self.max_tokens),
                self.min_tokens.to_string(),
            ));
        }
        if self.strings.iter().any(String::is_empty) {
            return Err(Error::value("stop strings", "text", "an empty string"));
        }
        if let Some(confidence) = self.confidence.filter(|confidence| !confidence.below.is_finite()) {
            return Err(Error::value("the lowest confidence", "a number", confidence.below.to_string()));
        }
        self.tokens.iter().try_for_each(|&token| check_token("stop tokens", token, vocab))
    }

    /// Checks the fields, and that `min_tokens` leaves a token of those that `params`, which were checked, let be
    /// sampled. `eos`: the model's end-of-text tokens.
    ///
    /// # Errors
    ///
    /// The errors of [`check`](Self::check); where no token is left to sample, one that names the parameters that ban
    /// them.
    pub fn check_beside(&self, params: &SamplingParams, vocab: usize, eos: &[TokenId]) -> Result<()> {
        self.check(vocab)?;
        if let Some(confidence) = self.confidence.filter(|_| params.records.confidence.is_none()) {
            let expected = format!("a number of tokens, for samples end by the mean of {} of them", confidence.window);
            return Err(Error::value("tokens of a confidence", expected, "none"));
        }
        match self.min_tokens {
            0 => Ok(()),
            _ => params.check_left(vocab, self.ends(eos)),
        }
    }

    /// The tokens that end the text. `eos`: the model's end-of-text tokens.
    pub(crate) fn ends(&self, eos: &[TokenId]) -> Vec<TokenId> {
        let eos = if self.ignore_eos { &[] } else { eos };
        eos.iter().chain(&self.tokens).copied().collect()
    }
}

/// How a branch is extended.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all sample")]
pub enum Continuation {
    /// Tokens are sampled until a stop.
    Sampled {
        /// How they are sampled.
        params: SamplingParams,
        /// When the extend ends.
        stop: Stop,
        /// The source of random numbers.
        uniforms: UniformKey,
    },
    /// These tokens follow. Where they are not scored, the extend finishes at once: the tokens are computed when
    /// something is sampled or scored after them, once for all branches that share them.
    Given {
        /// The tokens.
        tokens: Vec<TokenId>,
        /// How they are scored; `None`: not at all.
        scoring: Option<Scoring>,
    },
}

/// How given tokens are scored.
#[derive(Clone, Debug)]
pub enum Scoring {
    /// By the model's own distribution. Branches that share tokens share these scores.
    Model {
        /// How many of the likeliest tokens are reported in each one's place, at most [`MOST_TOP`].
        top: usize,
    },
    /// By the distributions from which an extend with these parameters and stop conditions would have drawn them, one
    /// after the other: everything that it would have recorded of them is recorded, the same bits where results do not
    /// depend on what else a step computes. A token that it could not have drawn has a
    /// [`Drawn::logprob`](offshoot_backend::Drawn::logprob) of minus infinity.
    AsSampled {
        /// How the tokens would have been sampled, and what is recorded of them.
        params: Box<SamplingParams>,
        /// Of these only `min_tokens` counts, before which no token that ends a text may be drawn.
        stop: Box<Stop>,
    },
    /// By a scorer's head: its values at some tokens of the branch ([`Finish::values`]). An engine takes this only if
    /// its model is a scorer ([`EngineFacts::values`](crate::EngineFacts::values)), and such an engine scores in no
    /// other way. No value is computed twice while the keys and values of its token are kept: neither for the same
    /// branch nor for others whose tokens begin alike. The given tokens behind the last position are not computed yet.
    Values {
        /// The positions of these tokens in the branch, rising, each below its length with the given tokens. They may
        /// name earlier tokens, and the given tokens may be none.
        at: Arc<[u32]>,
    },
}

/// What a scorer computes for the row of one token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionValues {
    /// The token's position in its branch.
    pub at: u32,
    /// As many as [`EngineFacts::values`](crate::EngineFacts::values) says, all finite.
    pub values: Box<[f32]>,
}

/// A branch, and how it is extended.
#[derive(Clone, Debug)]
pub struct Extend {
    /// The branch.
    pub branch: BranchId,
    /// What follows its tokens.
    pub continuation: Continuation,
}

impl Extend {
    /// Tokens are sampled until a stop, by the uniforms of `uniforms`.
    pub fn sampled(branch: BranchId, params: &SamplingParams, stop: &Stop, uniforms: UniformKey) -> Self {
        let (params, stop) = (params.clone(), stop.clone());
        Extend { branch, continuation: Continuation::Sampled { params, stop, uniforms } }
    }

    /// These tokens follow. With `top` they are scored by the model's own distribution, and so many of the likeliest
    /// tokens are reported in each one's place ([`Scoring::Model`]).
    pub fn given(branch: BranchId, tokens: Vec<TokenId>, top: Option<usize>) -> Self {
        let scoring = top.map(|top| Scoring::Model { top });
        Extend { branch, continuation: Continuation::Given { tokens, scoring } }
    }

    /// These tokens follow, and are scored as an extend by `params` and `stop` would have drawn them
    /// ([`Scoring::AsSampled`]).
    pub fn given_as_sampled(branch: BranchId, tokens: Vec<TokenId>, params: &SamplingParams, stop: &Stop) -> Self {
        let (params, stop) = (Box::new(params.clone()), Box::new(stop.clone()));
        Extend {
            branch,
            continuation: Continuation::Given { tokens, scoring: Some(Scoring::AsSampled { params, stop }) },
        }
    }

    /// These tokens follow, and a scorer computes the values of the tokens at the positions `at` of the branch
    /// ([`Scoring::Values`]).
    pub fn given_with_values(branch: BranchId, tokens: Vec<TokenId>, at: impl Into<Arc<[u32]>>) -> Self {
        let scoring = Some(Scoring::Values { at: at.into() });
        Extend { branch, continuation: Continuation::Given { tokens, scoring } }
    }
}

/// An event of what is extended: of a branch, as its `EventReceiver` has it; or of a sample or a node, as those who
/// name branches so pass it on. Events of one id arrive in order. `End` and `Why`: what is known of its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<Id = BranchId, End = Finish, Why = Error> {
    /// Tokens were sampled and kept: one, or several if the reader lags. Sent only to readers of tokens.
    Tokens {
        /// What grew.
        id: Id,
        /// Its new tokens.
        tokens: Vec<SampledToken>,
        /// Their text, as far as it is final: never half a character, never part of a stop string. It lags while either
        /// may have begun.
        text: String,
        /// The weights that they were sampled under.
        weights: WeightVersion,
        /// The adapter that they were sampled under; `None`: none.
        adapter: Option<AdapterVersion>,
    },
    /// It is complete, or was cancelled with its tokens so far. It rests; it can be extended or forked again.
    Finished {
        /// What ended.
        id: Id,
        /// What the extend added to it.
        finish: End,
    },
    /// It could not be extended further. It keeps its tokens and rests; others go on.
    Failed {
        /// What failed.
        id: Id,
        /// Why.
        error: Why,
    },
}

impl<Id: Copy, End, Why> Event<Id, End, Why> {
    /// The branch, sample or node that it is of.
    pub fn id(&self) -> Id {
        match self {
            Event::Tokens { id, .. } | Event::Finished { id, .. } | Event::Failed { id, .. } => *id,
        }
    }

    /// This event under another id.
    pub fn with_id<Other>(self, id: Other) -> Event<Other, End, Why> {
        match self {
            Event::Tokens { tokens, text, weights, adapter, .. } => {
                Event::Tokens { id, tokens, text, weights, adapter }
            }
            Event::Finished { finish, .. } => Event::Finished { id, finish },
            Event::Failed { error, .. } => Event::Failed { id, error },
        }
    }

    /// Whether it ends an extend.
    pub fn is_end(&self) -> bool {
        !matches!(self, Event::Tokens { .. })
    }

    /// Appends the tokens of `later`, which follow those of this event, if they were sampled under the same weights and
    /// adapter; otherwise returns it.
    pub(super) fn join(&mut self, later: Self) -> Option<Self> {
        match (self, later) {
            (
                Event::Tokens { tokens, text, weights, adapter, .. },
                Event::Tokens { tokens: more, text: further, weights: under, adapter: with, .. },
            ) if (*weights, *adapter) == (under, with) => {
                tokens.extend(more);
                text.push_str(&further);
                None
            }
            (_, later) => Some(later),
        }
    }
}

/// Why an extend ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// One of the stop strings appeared in the text.
    StopString(String),
    /// One of the stop tokens was sampled.
    StopToken(TokenId),
    /// The model ended its text.
    EndOfText,
    /// `max_tokens` were sampled.
    Length,
    /// The model's context has no room for another token.
    ContextFull,
    /// The model lost confidence ([`Stop::confidence`]).
    LowConfidence,
    /// The form of the text allows no token behind those that were sampled, and does not end there.
    DeadEnd,
    /// What the form of the text allows next takes more work to find than a step, or a form, may take.
    FormLimit,
    /// `cancel` was called, also because enough other samples of the group had finished ([`GroupEnd`]).
    ///
    /// [`GroupEnd`]: crate::GroupEnd
    Cancelled,
    /// The time that whoever asked for the sample gives it was over.
    OutOfTime,
    /// The engine was paused ([`PauseMode::Abort`](crate::PauseMode::Abort)).
    Aborted,
    /// The tokens were given.
    Given,
    /// The extend failed (`Event::Failed`); no `Finish` has this reason.
    Failed,
}

impl FinishReason {
    /// Whether the text of a form is complete whatever its form allows, so that nothing goes on in it: the model ended
    /// it. A stop token of the extend alone ends the form, too, where it is kept and the form does not allow it.
    pub(crate) fn ends_form(&self, eos: &[TokenId]) -> bool {
        match self {
            FinishReason::EndOfText => true,
            FinishReason::StopToken(token) => eos.contains(token),
            _ => false,
        }
    }

    /// Whether somebody ended the extend before it was complete.
    pub fn is_cut(&self) -> bool {
        matches!(self, FinishReason::Cancelled | FinishReason::OutOfTime | FinishReason::Aborted)
    }
}

/// What one extend added to a branch.
///
/// A stop *token* is not kept: neither here nor in what a later extend or fork continues on (unless
/// `Stop::include_stop`). A stop *string* is cut from `text`, but the tokens that spelt it are kept, for a token may
/// hold the end of the answer and the beginning of the stop: later extends and forks continue on `tokens`, not on
/// `text`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// Why the extend ended.
    pub reason: FinishReason,
    /// The tokens that are kept.
    pub tokens: Vec<TokenId>,
    /// Their text, cut at a stop string.
    pub text: String,
    /// Sum over all tokens sampled or scored by this extend, a stop token that was not kept included: the natural
    /// logarithm of the probability that the model, at temperature 1, goes on like this.
    pub logprob: f64,
    /// What is recorded of each of `tokens`; nothing of given tokens that were not scored.
    #[serde(flatten)]
    pub records: TokenRecords,
    /// The end-of-text or stop token that was sampled last and is not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_token: Option<SampledToken>,
    /// Whether the text of the form that the extend sampled in ([`SamplingParams::form`]) is complete, so that a later
    /// extend of the branch in the same form begins it anew, and does not go on in it. False where it had no form.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub form_ended: bool,
    /// The weights under which each of [`sampled_ids`](Finish::sampled_ids) was sampled or scored, as runs in rising
    /// order, the first from 0. Empty where there are none, or they were given and not scored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<WeightSpan>,
    /// The adapter under which each of them was sampled or scored, likewise. Empty where there was none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AdapterSpan>,
    /// The experts that were chosen for each token of the branch, from its first on, those of its prompt included: for
    /// all but the last one that was sampled ([`sampled_ids`](Finish::sampled_ids)), which no step has computed. If the
    /// weights have changed meanwhile, the last ones have chosen all of them. `None` where they were not asked for
    /// ([`SamplingParams::routes`]), or the extend was cancelled while the branch waited without keys and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routes: Option<TokenRoutes>,
    /// What a scorer has computed for the positions that were asked for ([`Scoring::Values`]), in their order. Of an
    /// extend that was cancelled those that it has, up to the first one that it lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<PositionValues>,
}

impl Finish {
    /// Nothing was added.
    pub fn empty(reason: FinishReason) -> Self {
        let (tokens, text, records) = (Vec::new(), String::new(), TokenRecords::default());
        let (weights, adapters, values) = (Vec::new(), Vec::new(), Vec::new());
        Finish {
            reason,
            tokens,
            text,
            logprob: 0.0,
            records,
            stop_token: None,
            form_ended: false,
            weights,
            adapters,
            routes: None,
            values,
        }
    }

    /// The log-probability of each of `tokens` under the model itself; none of given tokens that were not scored.
    pub fn logprobs(&self) -> &[f32] {
        self.records.logprobs()
    }

    /// Number of tokens that the extend sampled or was given, a stop token that was not kept included.
    pub fn sampled(&self) -> usize {
        self.tokens.len() + usize::from(self.stop_token.is_some())
    }

    /// The tokens that the extend sampled or was given, a stop token that was not kept included.
    pub fn sampled_ids(&self) -> Cow<'_, [TokenId]> {
        match &self.stop_token {
            None => Cow::Borrowed(&self.tokens),
            Some(stop) => Cow::Owned(self.tokens.iter().copied().chain([stop.token]).collect()),
        }
    }

    /// What is recorded of each of [`sampled_ids`](Self::sampled_ids), in their order; nothing of given tokens that
    /// were not scored.
    pub fn sampled_records(&self) -> impl Iterator<Item = TokenRecord<'_>> + Clone {
        let kept = self.records.of_tokens(0, self.tokens.iter().copied());
        kept.chain(self.stop_token.iter().map(TokenRecord::of))
    }

    /// `logprob` under the distribution that `mode` names; `None` if it is not recorded of a token
    /// ([`TokenRecord::logprob_by`]).
    pub fn logprob_by(&self, mode: LogprobsMode) -> Option<f64> {
        match mode {
            LogprobsMode::RawLogprobs => Some(self.logprob),
            LogprobsMode::ProcessedLogprobs => {
                self.sampled_records().map(|record| record.logprob_by(mode).map(f64::from)).sum()
            }
        }
    }
}
