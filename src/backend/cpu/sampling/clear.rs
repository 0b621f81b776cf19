//! The definition of sampling, step by step over a full sort, in f64.

use crate::backend::{Pick, SampleRequest, Sampled};
use crate::ids::TokenId;

/// Draws one token. Ties go to the smaller token id everywhere. A NaN logit counts as -inf.
/// When no token is left (all banned or -inf), the result is token 0.
pub fn sample_row(logits: &[f32], request: &SampleRequest) -> Sampled {
    let model: Vec<f64> = logits.iter().map(|&x| if x.is_nan() { f64::NEG_INFINITY } else { f64::from(x) }).collect();
    let lse = log_sum_exp(&model);
    let scores = adjusted(&model, request);
    let token = match request.pick {
        Pick::Greedy => by_score(&scores)[0],
        Pick::Given(token) => token.ix(),
        Pick::Random { temperature, top_k, top_p, min_p, coin } => {
            let kept = kept(&scores, temperature, top_k, top_p, min_p);
            inverse_cdf(&kept, coin)
        }
    };
    let logprob = |t: usize| (model[t] - lse) as f32;
    let top = by_score(&model).into_iter().take(request.top_logprobs).map(|t| (TokenId::new(t), logprob(t))).collect();
    Sampled { token: TokenId::new(token), logprob: logprob(token), top }
}

/// The logits after bias, penalties and bans.
fn adjusted(model: &[f64], request: &SampleRequest) -> Vec<f64> {
    let mut scores = model.to_vec();
    for &(token, bias) in &request.logit_bias {
        scores[token.ix()] += f64::from(bias);
    }
    for seen in &request.seen {
        let score = &mut scores[seen.token.ix()];
        if seen.sampled > 0 || seen.in_prompt {
            let penalty = f64::from(request.repetition_penalty);
            *score = if *score > 0.0 { *score / penalty } else { *score * penalty };
        }
        if seen.sampled > 0 {
            *score -= f64::from(request.frequency_penalty) * f64::from(seen.sampled);
            *score -= f64::from(request.presence_penalty);
        }
    }
    for &token in &request.banned {
        scores[token.ix()] = f64::NEG_INFINITY;
    }
    scores
}

/// Tokens by falling score, equals by rising id.
fn by_score(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
    order
}

/// Probabilities after temperature and the three filters, zero where a token is out.
fn kept(scores: &[f64], temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32) -> Vec<f64> {
    let mut order = by_score(scores);
    let best = scores[order[0]];
    if let Some(k) = top_k {
        order.truncate((k as usize).max(1));
    }
    let weight = |t: usize| ((scores[t] - best) / f64::from(temperature)).exp();
    let total: f64 = order.iter().map(|&t| weight(t)).sum();
    let mut before = 0.0;
    let mut probabilities = vec![0.0; scores.len()];
    for &t in &order {
        if (top_p < 1.0 && before >= f64::from(top_p) * total && before > 0.0) || weight(t) < f64::from(min_p) {
            break;
        }
        before += weight(t);
        probabilities[t] = weight(t);
    }
    probabilities
}

/// The first token in vocabulary order at which the running sum exceeds `coin` of the whole.
fn inverse_cdf(weights: &[f64], coin: f64) -> usize {
    let total: f64 = weights.iter().sum();
    let mut running = 0.0;
    let mut last = 0;
    for (t, &w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
        running += w;
        last = t;
        if running > coin * total {
            break;
        }
    }
    last
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln()
}
