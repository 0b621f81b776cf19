//! What is recorded of an extend's tokens, in columns: [`TokenRecords`]. A column that was not asked for is empty, so
//! that a record costs what it holds. What the values mean is defined by [`SampledToken`]; which of them a client is
//! shown is left to the client.
#![warn(missing_docs)]

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use offshoot_backend::{Drawn, Records, SampledToken};
use offshoot_core::ids::TokenId;

/// Whose log-probabilities a client is shown, by vLLM's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobsMode {
    /// Those of the model itself: log-softmax of the unmodified logits.
    #[default]
    RawLogprobs,
    /// Those of the distribution that a token was drawn from: after bias, penalties, bans, temperature, top-k, top-p
    /// and min-p. At temperature 0 that is the distribution of temperature 1, and nothing is cut.
    ProcessedLogprobs,
}

impl LogprobsMode {
    /// The modes by their names.
    pub const WORDS: [(&str, LogprobsMode); 2] =
        [("raw_logprobs", LogprobsMode::RawLogprobs), ("processed_logprobs", LogprobsMode::ProcessedLogprobs)];
}

/// In which form a client is given the set of tokens that each of a sample's tokens was drawn from: those that
/// penalties, bans, top-k, top-p and min-p leave. Each form has the number of tokens and their smallest score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptForm {
    /// Nothing else.
    Count,
    /// Their ids, where they are at most [`MOST_KEPT`](offshoot_backend::MOST_KEPT).
    Ids,
    /// The ids as a bit set ([`mask`](Self::mask)), where there are ids.
    Mask,
}

impl KeptForm {
    /// The forms by their names.
    pub const WORDS: [(&str, KeptForm); 3] =
        [("count", KeptForm::Count), ("ids", KeptForm::Ids), ("mask", KeptForm::Mask)];

    /// What must be recorded for it.
    pub fn records(self) -> Records {
        Records { drawn: true, kept_ids: self != KeptForm::Count, ..Records::default() }
    }

    /// Token ids, which rise, as bytes of a bit set: bit `id % 8`, from the lowest, of byte `id / 8`. It ends with the
    /// byte of the last one.
    pub fn mask(ids: &[TokenId]) -> Vec<u8> {
        let mut bytes = vec![0; ids.last().map_or(0, |last| last.ix() / 8 + 1)];
        ids.iter().for_each(|id| bytes[id.ix() / 8] |= 1 << (id.ix() % 8));
        bytes
    }
}

/// What is recorded of consecutive tokens, in columns: each is empty, or has an entry for every token. The tokens
/// themselves are kept elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRecords {
    logprobs: Vec<f32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ranks: Vec<Option<NonZeroU32>>,
    top: Vec<Vec<(TokenId, f32)>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    drawn: Vec<Option<Drawn>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entropies: Vec<Option<f32>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    confidences: Vec<Option<f32>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    forced: Vec<bool>,
}

/// Adds `value` to a column that has `len` entries, if it has any: one that is empty begins with the first value that
/// `is_recorded`, behind as many that are not.
fn push<T: Default + Clone>(column: &mut Vec<T>, len: usize, value: T, is_recorded: bool) {
    if is_recorded && column.len() < len {
        column.resize(len, T::default());
    }
    if is_recorded || !column.is_empty() {
        column.push(value);
    }
}

/// Adds the column `more`, of `added` tokens, to one of `len` tokens; either may be empty.
fn append<T: Default + Clone>(column: &mut Vec<T>, len: usize, more: Vec<T>, added: usize) {
    if column.is_empty() && more.is_empty() {
        return;
    }
    column.resize(len, T::default());
    column.extend(more);
    column.resize(len + added, T::default());
}

impl TokenRecords {
    /// Records of which only log-probabilities are known: those of the model.
    pub fn of_logprobs(logprobs: Vec<f32>) -> Self {
        TokenRecords { logprobs, ..TokenRecords::default() }
    }

    /// Number of recorded tokens.
    pub fn len(&self) -> usize {
        self.logprobs.len()
    }

    /// Whether no token is recorded.
    pub fn is_empty(&self) -> bool {
        self.logprobs.is_empty()
    }

    /// The log-probability of each token under the model itself ([`SampledToken::logprob`]).
    pub fn logprobs(&self) -> &[f32] {
        &self.logprobs
    }

    /// The place of each token among all ([`SampledToken::rank`]); empty where none was asked for, and `None` for a
    /// given token whose score was known without it.
    pub fn ranks(&self) -> &[Option<NonZeroU32>] {
        &self.ranks
    }

    /// The likeliest tokens in each one's place ([`SampledToken::top`]); empty where none were asked for.
    pub fn tops(&self) -> &[Vec<(TokenId, f32)>] {
        &self.top
    }

    /// The distribution that each token was drawn from ([`SampledToken::drawn`]); empty where it was not asked for.
    pub fn drawn(&self) -> &[Option<Drawn>] {
        &self.drawn
    }

    /// The entropy of the model's distribution in each token's place, in nats ([`SampledToken::entropy`]); empty where
    /// it was not asked for.
    pub fn entropies(&self) -> &[Option<f32>] {
        &self.entropies
    }

    /// The model's confidence in each token's place, in nats ([`SampledToken::confidence`]); empty where it was not
    /// asked for.
    pub fn confidences(&self) -> &[Option<f32>] {
        &self.confidences
    }

    /// Whether the form of the text allowed no other token in each one's place ([`SampledToken::forced`]); empty where
    /// no token was forced.
    pub fn forced(&self) -> &[bool] {
        &self.forced
    }

    /// The likeliest tokens in the place of token number `at`; none where none were asked for.
    pub fn top(&self, at: usize) -> &[(TokenId, f32)] {
        self.top.get(at).map_or(&[], Vec::as_slice)
    }

    /// The record of token number `at`, which is `token`; `None` where there is none.
    pub fn get(&self, at: usize, token: TokenId) -> Option<TokenRecord<'_>> {
        Some(TokenRecord {
            token,
            logprob: *self.logprobs.get(at)?,
            rank: self.ranks.get(at).copied().flatten(),
            top: self.top(at),
            drawn: self.drawn.get(at).and_then(Option::as_ref),
            entropy: self.entropies.get(at).copied().flatten(),
            confidence: self.confidences.get(at).copied().flatten(),
            forced: self.forced.get(at).copied().unwrap_or(false),
        })
    }

    /// The records of `tokens`, of which the first is token number `from`, as far as there are any.
    pub fn of_tokens<'a>(
        &'a self,
        from: usize,
        tokens: impl IntoIterator<Item = TokenId, IntoIter: Clone>,
    ) -> impl Iterator<Item = TokenRecord<'a>> + Clone {
        tokens.into_iter().zip(from..).map_while(|(token, at)| self.get(at, token))
    }

    /// Adds the record of the next token.
    pub fn push(&mut self, sampled: SampledToken) {
        let SampledToken { token: _, logprob, rank, top, drawn, entropy, confidence, forced } = sampled;
        let len = self.len();
        let (has_rank, has_top) = (rank.is_some(), !top.is_empty());
        let (has_drawn, has_entropy, has_confidence) = (drawn.is_some(), entropy.is_some(), confidence.is_some());
        push(&mut self.ranks, len, rank, has_rank);
        push(&mut self.top, len, top, has_top);
        push(&mut self.drawn, len, drawn, has_drawn);
        push(&mut self.entropies, len, entropy, has_entropy);
        push(&mut self.confidences, len, confidence, has_confidence);
        push(&mut self.forced, len, forced, forced);
        self.logprobs.push(logprob);
    }

    /// Takes the records of all but the first `first` tokens.
    pub fn split_off(&mut self, first: usize) -> TokenRecords {
        fn split<T>(column: &mut Vec<T>, first: usize) -> Vec<T> {
            column.split_off(first.min(column.len()))
        }
        TokenRecords {
            logprobs: split(&mut self.logprobs, first),
            ranks: split(&mut self.ranks, first),
            top: split(&mut self.top, first),
            drawn: split(&mut self.drawn, first),
            entropies: split(&mut self.entropies, first),
            confidences: split(&mut self.confidences, first),
            forced: split(&mut self.forced, first),
        }
    }

    /// Adds the records of the tokens that follow.
    pub fn append(&mut self, more: TokenRecords) {
        let (len, added) = (self.len(), more.len());
        append(&mut self.ranks, len, more.ranks, added);
        append(&mut self.top, len, more.top, added);
        append(&mut self.drawn, len, more.drawn, added);
        append(&mut self.entropies, len, more.entropies, added);
        append(&mut self.confidences, len, more.confidences, added);
        append(&mut self.forced, len, more.forced, added);
        self.logprobs.extend(more.logprobs);
    }
}

impl FromIterator<SampledToken> for TokenRecords {
    fn from_iter<I: IntoIterator<Item = SampledToken>>(tokens: I) -> Self {
        let mut records = TokenRecords::default();
        tokens.into_iter().for_each(|token| records.push(token));
        records
    }
}

/// What is recorded of one token: a [`SampledToken`] that borrows from its [`TokenRecords`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenRecord<'a> {
    /// The token.
    pub token: TokenId,
    /// Its log-probability under the model itself, as [`SampledToken::logprob`].
    pub logprob: f32,
    /// Its place among all tokens, as [`SampledToken::rank`].
    pub rank: Option<NonZeroU32>,
    /// The likeliest tokens in its place, as [`SampledToken::top`].
    pub top: &'a [(TokenId, f32)],
    /// The distribution that it was drawn from, as [`SampledToken::drawn`].
    pub drawn: Option<&'a Drawn>,
    /// The entropy of the model's distribution in its place, as [`SampledToken::entropy`].
    pub entropy: Option<f32>,
    /// The model's confidence in its place, as [`SampledToken::confidence`].
    pub confidence: Option<f32>,
    /// Whether the form of its text allowed no other token in its place.
    pub forced: bool,
}

impl<'a> TokenRecord<'a> {
    /// The record of `sampled`.
    pub fn of(sampled: &'a SampledToken) -> Self {
        let SampledToken { token, logprob, rank, top, drawn, entropy, confidence, forced } = sampled;
        TokenRecord {
            token: *token,
            logprob: *logprob,
            rank: *rank,
            top,
            drawn: drawn.as_ref(),
            entropy: *entropy,
            confidence: *confidence,
            forced: *forced,
        }
    }

    /// Its log-probability under the distribution that `mode` names. `None`: that is the one that the token was drawn
    /// from, and what was drawn from is not recorded. It is never replaced by the model's own, which is another number.
    pub fn logprob_by(&self, mode: LogprobsMode) -> Option<f32> {
        match mode {
            LogprobsMode::RawLogprobs => Some(self.logprob),
            LogprobsMode::ProcessedLogprobs => self.drawn.map(|drawn| drawn.logprob),
        }
    }
}

impl From<TokenRecord<'_>> for SampledToken {
    fn from(record: TokenRecord<'_>) -> Self {
        let TokenRecord { token, logprob, rank, top, drawn, entropy, confidence, forced } = record;
        SampledToken { token, logprob, rank, top: top.to_vec(), drawn: drawn.cloned(), entropy, confidence, forced }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampled(token: u32, [rank, top, drawn, entropy, confidence, forced]: [bool; 6]) -> SampledToken {
        let logprob = -(token as f32);
        let kept = Drawn { logprob: logprob / 2.0, kept: token + 1, lowest: logprob - 1.0, ids: None };
        SampledToken {
            rank: rank.then_some(NonZeroU32::MIN),
            top: if top { vec![(TokenId(token), logprob)] } else { Vec::new() },
            drawn: drawn.then_some(kept),
            entropy: entropy.then_some(0.5),
            confidence: confidence.then_some(7.5 - logprob),
            forced,
            ..SampledToken::of(TokenId(token), logprob)
        }
    }

    fn read(records: &TokenRecords, tokens: &[SampledToken]) -> Vec<SampledToken> {
        records.of_tokens(0, tokens.iter().map(|sampled| sampled.token)).map(SampledToken::from).collect()
    }

    proptest! {
        #[test]
        fn columns_hold_what_each_token_has(
            made in prop::collection::vec(any::<[bool; 6]>(), 0..12),
            cut in 0_usize..12,
        ) {
            let made = (0..).zip(made).map(|(token, has)| sampled(token, has));
            let tokens: Vec<SampledToken> = made.collect();
            let whole: TokenRecords = tokens.iter().cloned().collect();
            prop_assert_eq!(read(&whole, &tokens), &tokens[..]);
            let cut = cut.min(tokens.len());
            let mut parts: TokenRecords = tokens[..cut].iter().cloned().collect();
            parts.append(tokens[cut..].iter().cloned().collect());
            prop_assert_eq!(&parts, &whole);
            let rest = parts.split_off(cut);
            prop_assert_eq!([read(&parts, &tokens[..cut]), read(&rest, &tokens[cut..])].concat(), &tokens[..]);
            let text = serde_json::to_string(&whole).expect("plain data");
            prop_assert_eq!(serde_json::from_str::<TokenRecords>(&text).expect("as it was written"), whole);
        }
    }

    #[test]
    fn nothing_asked_is_nothing_kept() {
        let tokens: TokenRecords = (0..4).map(|token| sampled(token, [false; 6])).collect();
        assert_eq!((tokens.len(), tokens.logprobs()), (4, &[0.0, -1.0, -2.0, -3.0][..]));
        assert!(tokens.ranks().is_empty() && tokens.tops().is_empty());
        assert!(tokens.drawn().is_empty() && tokens.entropies().is_empty());
        assert!(tokens.confidences().is_empty() && tokens.forced().is_empty());
    }

    #[test]
    fn a_mask_has_the_bits_of_its_ids() {
        let ids = [0, 7, 8, 21].map(TokenId);
        assert_eq!(KeptForm::mask(&ids), [0b1000_0001, 0b1, 0b10_0000]);
        assert!(KeptForm::mask(&[]).is_empty());
    }

    #[test]
    fn a_mode_says_whose_log_probability_is_shown() {
        let (drawn, unknown) = (sampled(3, [false, false, true, false, false, false]), sampled(3, [false; 6]));
        let by = |token: &SampledToken, mode| TokenRecord::of(token).logprob_by(mode);
        assert_eq!(by(&drawn, LogprobsMode::RawLogprobs), Some(-3.0));
        assert_eq!(by(&drawn, LogprobsMode::ProcessedLogprobs), Some(-1.5));
        assert_eq!(by(&unknown, LogprobsMode::RawLogprobs), Some(-3.0));
        assert_eq!(by(&unknown, LogprobsMode::ProcessedLogprobs), None, "the model's own is another number");
    }
}
