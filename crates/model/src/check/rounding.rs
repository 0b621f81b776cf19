//! Measures the effect of rounding keys and values, or states of recurrent layers: samples a text from the unrounded
//! model and compares the log-probabilities of its tokens with and without rounding.

use std::fmt;

use offshoot_backend::{Backend, KvDtype, StateDtype};
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_core::mix::{GOLDEN, mix};

use super::super::decoder::Decoder;
use super::super::sequence::Sequence;
use super::golden::{likeliest, logprob};

/// The result, printable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundingReport {
    /// Tokens sampled and compared.
    pub tokens: usize,
    /// Mean absolute difference of their log-probabilities (natural).
    pub mean: f64,
    /// Largest absolute difference.
    pub largest: f64,
    /// Positions where the likeliest token changes.
    pub changed: usize,
}

/// Samples `tokens` tokens (at least one, fewer than the context) after a first one and compares. Sets the KV dtype of
/// `backend` to `KvDtype::Model` at the end.
pub fn kv_rounding<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    kv: KvDtype,
    tokens: usize,
) -> Result<RoundingReport> {
    let set = |backend: &mut B, _: &mut Decoder<B>, rounded| {
        backend.set_kv_dtype(if rounded { kv } else { KvDtype::Model });
    };
    rounding(backend, model, tokens, set, all_logits)
}

/// Compares as `kv_rounding` does, with rounded states of recurrent layers. Sets those of `model` to `StateDtype::F32`
/// at the end. Both sides are computed token by token, each in a step of its own, so that devices round what long runs
/// leave as they do in decode steps.
pub fn state_rounding<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    states: StateDtype,
    tokens: usize,
) -> Result<RoundingReport> {
    let set = |_: &mut B, model: &mut Decoder<B>, rounded| {
        model.set_state_dtype(if rounded { states } else { StateDtype::F32 });
    };
    rounding(backend, model, tokens, set, logits_in_turn)
}

/// `set`: makes a backend and a model round, or not.
fn rounding<B: Backend>(
    backend: &mut B,
    model: &mut Decoder<B>,
    tokens: usize,
    set: impl Fn(&mut B, &mut Decoder<B>, bool),
    logits: impl Fn(&mut B, &mut Decoder<B>, &[TokenId]) -> Result<Vec<f32>>,
) -> Result<RoundingReport> {
    set(backend, model, false);
    let text = sampled(backend, model, tokens)?;
    let exact = logits(backend, model, &text)?;
    set(backend, model, true);
    let rounded = logits(backend, model, &text);
    set(backend, model, false);
    Ok(compare(&exact, &rounded?, &text[1..], model.config().vocab))
}

/// `exact`, `rounded`: `[tokens, vocab]` logits.
fn compare(exact: &[f32], rounded: &[f32], text: &[TokenId], vocab: usize) -> RoundingReport {
    let tokens = text.len();
    let rows = exact.chunks_exact(vocab).zip(rounded.chunks_exact(vocab)).zip(text);
    let mut report = RoundingReport { tokens, mean: 0.0, largest: 0.0, changed: 0 };
    for ((exact, rounded), token) in rows {
        let off = (logprob(exact, *token) - logprob(rounded, *token)).abs();
        report.mean += off / tokens as f64;
        report.largest = report.largest.max(off);
        report.changed += usize::from(likeliest(exact) != likeliest(rounded));
    }
    report
}

/// A first token and `tokens` more, each sampled from the whole vocabulary at temperature 1.
fn sampled<B: Backend>(backend: &mut B, model: &mut Decoder<B>, tokens: usize) -> Result<Vec<TokenId>> {
    let mut text = vec![model.config().bos.unwrap_or(TokenId(0))];
    let mut sequence = Sequence::new(backend, model, tokens)?;
    for number in 0..tokens as u64 {
        let logits = sequence.extend(&text[text.len() - 1..], 0..1)?;
        let uniform = (mix((number + 1).wrapping_mul(GOLDEN)) >> 11) as f64 / (1u64 << 53) as f64;
        text.push(sample(&logits, uniform));
    }
    Ok(text)
}

/// Samples by the inverse of the cumulative distribution.
fn sample(logits: &[f32], uniform: f64) -> TokenId {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| f64::from(logit - most).exp();
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    let mut below = 0.0;
    let reached = |&logit: &f32| {
        below += weight(logit);
        below > uniform * total
    };
    TokenId::new(logits.iter().position(reached).unwrap_or(0))
}

/// The logits after every token of `text` but the last, computed in one step.
fn all_logits<B: Backend>(backend: &mut B, model: &mut Decoder<B>, text: &[TokenId]) -> Result<Vec<f32>> {
    let given = &text[..text.len() - 1];
    let rows = u32::try_from(given.len()).expect("a context has fewer than 2^32 tokens");
    Sequence::new(backend, model, given.len())?.extend(given, 0..rows)
}

/// The logits after every token of `text` but the last, each computed in a step of its own.
fn logits_in_turn<B: Backend>(backend: &mut B, model: &mut Decoder<B>, text: &[TokenId]) -> Result<Vec<f32>> {
    let given = &text[..text.len() - 1];
    let mut sequence = Sequence::new(backend, model, given.len())?;
    let mut all = Vec::new();
    for token in given {
        all.extend(sequence.extend(std::slice::from_ref(token), 0..1)?);
    }
    Ok(all)
}

impl fmt::Display for RoundingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundingReport { tokens, mean, largest, changed } = *self;
        write!(
            f,
            "log-probabilities of {tokens} tokens that the model sampled: {mean:.4} off on average, {largest:.4} at \
             most; another token is the likeliest for {changed} of them"
        )
    }
}
