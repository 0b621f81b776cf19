//! The definition of sampling, step by step over a full sort, in f64.

use std::num::NonZeroU32;

use super::scores::{adjusted, safe};
use crate::exp::LOWEST;
use offshoot_backend::{Filters, Pick, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Samples one token; `None` if every score is -inf.
pub fn sample_row(logits: &[f32], request: &SampleRequest) -> Option<SampledToken> {
    let model = safe(logits);
    let scores = adjusted(&model, request);
    let token = match request.pick {
        Pick::Given { token, .. } => token.ix(),
        _ if scores.iter().all(|&score| score == f32::NEG_INFINITY) => return None,
        Pick::Greedy => by_score(&scores)[0],
        Pick::Random { filters, uniform } => inverse_cdf(&weights(&scores, filters), uniform),
    };
    let logprobs = log_softmax(&model);
    let order = by_score(&model);
    let place = order.iter().position(|&t| t == token).expect("every token has a place");
    let rank = request.top_logprobs.and_then(|_| NonZeroU32::new(place as u32 + 1));
    let top = order.into_iter().take(request.top()).map(|t| (TokenId::new(t), logprobs[t])).collect();
    Some(SampledToken { rank, top, ..SampledToken::of(TokenId::new(token), logprobs[token]) })
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
