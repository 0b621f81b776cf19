//! The task file's key `sampling`: how tokens are sampled and when a sample ends. The schema of [`Sampling`] checks the
//! ranges; what depends on several keys is checked here.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::form::FormSettings;
use crate::source::Place;
use crate::source::values::{Pairs, Texts};
use offshoot_core::error::Result;
use offshoot_engine::{KeptForm, LogprobsMode, Records};

/// How tokens are sampled and when a sample ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits; 0: always the most probable token.
    #[schemars(extend("minimum" = 0, "x-expected" = "a 32-bit number of at least 0"))]
    pub temperature: f32,
    /// Only this many of the most probable tokens.
    #[schemars(range(min = 1))]
    pub top_k: Option<u32>,
    /// Only the most probable tokens that together have this probability; 1 keeps every token.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1, "x-expected" = "a number above 0, at most 1"))]
    pub top_p: f32,
    /// Only tokens with at least this share of the best one's probability; 0 keeps every token.
    #[schemars(extend("minimum" = 0, "maximum" = 1, "x-expected" = "a number from 0 to 1"))]
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that have occurred; 1 does nothing.
    #[schemars(extend("exclusiveMinimum" = 0, "x-expected" = "a 32-bit number above 0"))]
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time that it has been sampled.
    #[schemars(extend("x-expected" = "a 32-bit number"))]
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each token that has been sampled.
    #[schemars(extend("x-expected" = "a 32-bit number"))]
    pub presence_penalty: f32,
    /// Token ids and the values added to their logits: {"13": -100}.
    #[serde(deserialize_with = "biases", serialize_with = "biases_by_token")]
    #[schemars(with = "BTreeMap<u32, f32>", extend("x-expected" = "an object of 32-bit numbers by token id"))]
    pub logit_bias: Vec<(u32, f32)>,
    /// The only tokens that are sampled, by id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-expected" = "a list of token ids"))]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that are not sampled: neither alone nor behind a space.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_words: Vec<String>,
    /// The form that each sample's text must have (default: any text). It begins behind the reasoning where the model's
    /// chat template has one. Thoughts and steps go on in it; replies to questions to the model are in no form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<FormSettings>,
    /// The most tokens of a sample.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// Neither end of text nor stop strings end the sample before this many tokens.
    pub min_tokens: u32,
    /// The sample ends before the first of these strings.
    #[serde(deserialize_with = "texts")]
    #[schemars(with = "Texts")]
    pub stop: Vec<String>,
    /// The text keeps the stop string that ended it.
    pub include_stop: bool,
    /// Tokens that end a sample.
    #[schemars(extend("x-expected" = "a list of token ids"))]
    pub stop_token_ids: Vec<u32>,
    /// The model's end of text does not end a sample.
    pub ignore_eos: bool,
    /// The number of most probable tokens reported with their log-probabilities at each position, in addition to the
    /// sampled one.
    #[schemars(range(max = 20))]
    pub logprobs: Option<u32>,
    /// Whose most probable tokens `logprobs` lists: the model's own at temperature 1, or those of the distribution that
    /// each token was drawn from, which is then recorded in `drawn` beside each token.
    #[serde(skip_serializing_if = "is_default")]
    pub logprobs_mode: ListedLogprobs,
    /// Records in `drawn` the set of tokens that each one was drawn from: their number and smallest score, or also
    /// their ids, at most 1,024.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_kept: Option<ReturnedKept>,
    /// Records the entropy of the model's distribution in each token's place, in nats.
    #[serde(skip_serializing_if = "is_default")]
    pub return_entropy: bool,
    /// Records the model's confidence in each token's place: minus the mean log-probability of so many of its likeliest
    /// tokens, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2048))]
    pub return_confidence: Option<NonZeroU16>,
    /// Of all random numbers: the same seed draws the same samples.
    pub seed: u64,
}

/// Whose most probable tokens are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ListedLogprobs {
    /// The model's own.
    #[default]
    RawLogprobs,
    /// Those of the distribution that each token was drawn from.
    ProcessedLogprobs,
}

/// What is recorded of the set of tokens that a token was drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReturnedKept {
    /// Their number and smallest score.
    Count,
    /// Their ids, too.
    Ids,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            form: None,
            max_tokens: 256,
            min_tokens: 0,
            stop: Vec::new(),
            include_stop: false,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            logprobs_mode: ListedLogprobs::default(),
            return_kept: None,
            return_entropy: false,
            return_confidence: None,
            seed: 0,
        }
    }
}

fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Texts::deserialize(deserializer).map(|texts| texts.0)
}

/// The biases in the file's order.
fn biases<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(u32, f32)>, D::Error> {
    let by_token = Pairs::<f32>::deserialize(deserializer)?;
    let parsed = |(token, bias): (String, f32)| Some((token.parse().ok()?, bias));
    let all: Option<Vec<_>> = by_token.0.into_iter().map(parsed).collect();
    all.ok_or_else(|| serde::de::Error::custom("a token id above 32 bits"))
}

fn biases_by_token<S: Serializer>(biases: &[(u32, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(biases.iter().copied())
}

impl Sampling {
    /// Whose log-probabilities are listed, in the engine's terms.
    pub(crate) fn logprobs_mode(&self) -> LogprobsMode {
        match self.logprobs_mode {
            ListedLogprobs::RawLogprobs => LogprobsMode::RawLogprobs,
            ListedLogprobs::ProcessedLogprobs => LogprobsMode::ProcessedLogprobs,
        }
    }

    /// What is recorded of each token, in the engine's terms.
    pub(crate) fn records(&self) -> Records {
        let kept = self.return_kept.map(|kept| match kept {
            ReturnedKept::Count => KeptForm::Count,
            ReturnedKept::Ids => KeptForm::Ids,
        });
        let (entropy, confidence) = (self.return_entropy, self.return_confidence);
        Records { entropy, confidence, ..kept.map_or_else(Records::default, KeptForm::records) }
    }

    /// Checks what depends on several keys.
    pub(crate) fn check(&self, place: &Place<'_>) -> Result<()> {
        if self.stop.iter().any(String::is_empty) {
            return Err(place.key("stop").wrong_as("strings that are not empty", "\"\""));
        }
        if self.bad_words.iter().any(|word| word.trim_start().is_empty()) {
            return Err(place.key("bad_words").wrong_as("words of at least one character", "\"\""));
        }
        if self.min_tokens > self.max_tokens {
            return Err(place.key("min_tokens").wrong(format!("at most `max_tokens`, {}", self.max_tokens)));
        }
        Ok(())
    }
}
