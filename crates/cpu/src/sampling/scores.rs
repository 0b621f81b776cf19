//! Prepares logits for both samplers: replaces values that do not compare, then applies a request's bias, penalties and
//! banned tokens.

use std::borrow::Cow;

use offshoot_backend::{SampleRequest, SeenToken};

/// `logits` without NaN (now -inf) and +inf (now the largest f32).
pub fn safe(logits: &[f32]) -> Cow<'_, [f32]> {
    // NaN fails this comparison, too.
    match logits.iter().all(|&x| x <= f32::MAX) {
        true => Cow::Borrowed(logits),
        false => Cow::Owned(made_all_safe(logits)),
    }
}

/// A copy with -inf for NaN, and the largest f32 for +inf.
pub fn made_all_safe(logits: &[f32]) -> Vec<f32> {
    logits.iter().map(|&x| made_safe(x)).collect()
}

fn made_safe(x: f32) -> f32 {
    if x.is_nan() { f32::NEG_INFINITY } else { x.min(f32::MAX) }
}

/// The scores a request samples from, before temperature and filters: bias is added; then penalties are applied
/// (repetition as in Hugging Face: positive scores of seen tokens are divided, others multiplied; frequency and
/// presence as in OpenAI's API: subtracted, for tokens in the sampled text); then banned tokens, and all but the
/// allowed ones, are set to -inf.
pub fn adjusted<'a>(model: &'a [f32], request: &SampleRequest) -> Cow<'a, [f32]> {
    let no_penalty = request.seen.is_empty()
        || (request.repetition_penalty == 1.0 && request.frequency_penalty == 0.0 && request.presence_penalty == 0.0);
    if request.logit_bias.is_empty() && request.banned.is_empty() && request.allowed.is_none() && no_penalty {
        return Cow::Borrowed(model);
    }
    let mut scores = model.to_vec();
    for &(token, bias) in &request.logit_bias {
        scores[token.ix()] += bias;
    }
    for seen in &request.seen {
        let score = &mut scores[seen.token.ix()];
        *score = penalised(*score, seen, request);
    }
    for token in request.logit_bias.iter().map(|&(token, _)| token).chain(request.seen.iter().map(|seen| seen.token)) {
        // NaN from inf - inf or a NaN bias; +inf from the largest f32 divided by a penalty below 1.
        scores[token.ix()] = made_safe(scores[token.ix()]);
    }
    for &token in &request.banned {
        scores[token.ix()] = f32::NEG_INFINITY;
    }
    if let Some(allowed) = &request.allowed {
        assert_eq!(allowed.vocab(), scores.len(), "sample: allowed tokens and logits of one vocabulary");
        keep(&mut scores, allowed.words());
    }
    Cow::Owned(scores)
}

/// Sets scores to -inf whose bit is 0: bit `t % 32` of word `t / 32` is that of score `t`.
fn keep(scores: &mut [f32], words: &[u32]) {
    // A comparison with a constant for each place in a word, which the compiler does for several at once.
    const BITS: [u32; 32] = {
        let mut bits = [0; 32];
        let mut at = 0;
        while at < 32 {
            bits[at] = 1 << at;
            at += 1;
        }
        bits
    };
    for (scores, &word) in scores.chunks_mut(BITS.len()).zip(words) {
        for (score, bit) in scores.iter_mut().zip(BITS) {
            *score = if word & bit == 0 { f32::NEG_INFINITY } else { *score };
        }
    }
}

fn penalised(score: f32, seen: &SeenToken, request: &SampleRequest) -> f32 {
    let mut score = score;
    if seen.sampled > 0 || seen.in_prompt {
        score = if score > 0.0 { score / request.repetition_penalty } else { score * request.repetition_penalty };
    }
    if seen.sampled > 0 {
        score -= request.frequency_penalty * seen.sampled as f32 + request.presence_penalty;
    }
    score
}
