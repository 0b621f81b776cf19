//! The definition of sampling, step by step over a full sort, in f64.

use std::borrow::Cow;
use std::cell::LazyCell;
use std::num::NonZeroU32;

use super::scores::{adjusted, safe};
use crate::exp::LOWEST;
use offshoot_backend::{Distribution, Drawn, Filters, MOST_KEPT, Pick, Records, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Samples one token; `None` if every score is -inf.
pub fn sample_row(logits: &[f32], request: &SampleRequest) -> Option<SampledToken> {
    let model = safe(logits);
    let scores = match request.filters() {
        Some(_) => adjusted(&model, request),
        None => Cow::Borrowed(&*model),
    };
    let filters = request.filters().unwrap_or_default();
    let weights = LazyCell::new(|| weights(&scores, filters));
    let token = match request.pick {
        Pick::Given { token, .. } => token.ix(),
        _ if scores.iter().all(|&score| score == f32::NEG_INFINITY) => return None,
        Pick::Greedy => first_best(&scores),
        Pick::Random { uniform, .. } => inverse_cdf(&weights, uniform),
    };
    let of_model = log_softmax(&model);
    let of_drawn = LazyCell::new(|| log_weights(&scores, filters.temperature, &weights));
    let order = match (request.top_logprobs, request.top_of) {
        (None, _) => Vec::new(),
        (Some(_), Distribution::Model) => by_score(&model),
        (Some(_), Distribution::Drawn) => by_score(&scores),
    };
    let place = order.iter().position(|&t| t == token);
    let listed = order.into_iter().filter_map(|t| match request.top_of {
        Distribution::Model => Some((TokenId::new(t), of_model[t])),
        Distribution::Drawn => (weights[t] > 0.0).then(|| (TokenId::new(t), of_drawn[t])),
    });
    Some(SampledToken {
        rank: place.and_then(|place| NonZeroU32::new(place as u32 + 1)),
        top: listed.take(request.top()).collect(),
        drawn: request.records.of_drawn().then(|| drawn(token, &scores, &weights, &of_drawn, request.records)),
        entropy: request.records.entropy.then(|| entropy(&model)),
        confidence: request.records.confidence.map(|count| confidence(&model, usize::from(count.get()))),
        ..SampledToken::of(TokenId::new(token), of_model[token])
    })
}

/// The record of the distribution that `token` was drawn from. `weights`: zero for tokens that are not kept.
fn drawn(token: usize, scores: &[f32], weights: &[f64], logprobs: &[f32], records: Records) -> Drawn {
    let kept: Vec<usize> = (0..scores.len()).filter(|&t| weights[t] > 0.0).collect();
    let ids = || kept.iter().map(|&t| TokenId::new(t)).collect();
    Drawn {
        logprob: logprobs[token],
        kept: kept.len() as u32,
        lowest: kept.iter().map(|&t| scores[t]).fold(f32::INFINITY, f32::min),
        ids: (records.kept_ids && kept.len() <= MOST_KEPT).then(ids),
    }
}

/// The token with the largest score; of equal ones the first.
fn first_best(scores: &[f32]) -> usize {
    let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter().position(|&score| score == best).expect("the largest score is one of them")
}

/// Tokens by falling score, ties by rising id.
fn by_score(scores: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)).then(a.cmp(&b)));
    order
}

/// Unnormalised probabilities after temperature and the three filters; zero for tokens filtered out.
fn weights(scores: &[f32], Filters { temperature, top_k, top_p, min_p }: Filters) -> Vec<f64> {
    let mut order = by_score(scores);
    let best = f64::from(scores[order[0]]);
    let weight = |t: usize| {
        let exponent = (f64::from(scores[t]) - best) / f64::from(temperature);
        if exponent >= f64::from(LOWEST) { exponent.exp() } else { 0.0 }
    };
    order.truncate(top_k.map_or(usize::MAX, |k| k.max(1) as usize));
    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut before = 0.0;
    let mut weights = vec![0.0; scores.len()];
    for &t in &order {
        let beyond_top_p = top_p < 1.0 && before >= f64::from(top_p) * total;
        if (before > 0.0 && beyond_top_p) || weight(t) < f64::from(min_p.min(1.0)) {
            break;
        }
        weights[t] = weight(t);
        before += weight(t);
    }
    weights
}

/// The first token in vocabulary order at which the running sum of `weights` exceeds `uniform` times their total.
fn inverse_cdf(weights: &[f64], uniform: f64) -> usize {
    let total: f64 = weights.iter().sum();
    let mut running = 0.0;
    let mut last = 0;
    for (t, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
        running += weight;
        last = t;
        if running > uniform * total {
            break;
        }
    }
    last
}

/// Log-probabilities; -inf everywhere if all logits are -inf.
fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    logits.iter().map(|&x| if max.is_finite() { (f64::from(x) - max - sum.ln()) as f32 } else { x }).collect()
}

/// Log-probabilities of tokens that weigh `weights`: their scores over the temperature, less the best one's, less the
/// logarithm of all weights; -inf for tokens of weight zero.
fn log_weights(scores: &[f32], temperature: f32, weights: &[f64]) -> Vec<f32> {
    let best = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = weights.iter().sum();
    let exponent = |t: usize| (f64::from(scores[t]) - best) / f64::from(temperature);
    let logprob = |t: usize| if weights[t] > 0.0 { (exponent(t) - total.ln()) as f32 } else { f32::NEG_INFINITY };
    (0..scores.len()).map(logprob).collect()
}

/// The entropy of the softmax of `logits`, in nats; 0 if all logits are -inf.
fn entropy(logits: &[f32]) -> f32 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exponents = logits.iter().map(|&x| f64::from(x) - max);
    let sum: f64 = exponents.clone().map(f64::exp).sum();
    let logprobs = exponents.map(|exponent| exponent - sum.ln());
    // A token of probability zero adds nothing.
    logprobs.filter(|logprob| logprob.is_finite()).map(|logprob| -logprob * logprob.exp()).sum::<f64>() as f32
}

/// The mean log-probability of the `count` likeliest tokens, negated. Tokens whose logit is -inf are left out; 0 if no
/// other token is left.
fn confidence(logits: &[f32], count: usize) -> f32 {
    let order = by_score(logits);
    let likeliest: Vec<f64> = order.into_iter().map(|t| f64::from(logits[t])).take(count).collect();
    let Some(&max) = likeliest.first().filter(|max| max.is_finite()) else { return 0.0 };
    let log_sum = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln();
    let below_best: Vec<f64> = likeliest.into_iter().filter(|x| x.is_finite()).map(|x| max - x).collect();
    (log_sum + below_best.iter().sum::<f64>() / below_best.len() as f64) as f32
}
