//! Samples from logits that are all equal, without computing them.

use std::num::NonZeroU32;

use offshoot_backend::{Filters, Pick, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// The sample of `request` among `vocab` equally likely tokens; `None` if all are banned. Penalties and biases are
/// ignored. Depends on the request only: a uniform gives the same token in any step.
pub fn sample(request: &SampleRequest, vocab: usize) -> Option<SampledToken> {
    let logprob = -(vocab as f32).ln();
    let token = match request.pick {
        Pick::Given { token, .. } => token,
        Pick::Greedy => first_left(request, 0, vocab)?,
        Pick::Random { filters: Filters { top_k, top_p, .. }, uniform } => {
            let kept = top_k.map_or(vocab, |k| (k as usize).min(vocab)) as f64 * f64::from(top_p);
            first_left(request, (uniform * kept.ceil()) as usize, vocab)?
        }
    };
    // On ties the smallest ids come first.
    let rank = request.top_logprobs.and_then(|_| NonZeroU32::new(token.0 + 1));
    let top = (0..request.top().min(vocab)).map(|ix| (TokenId::new(ix), logprob)).collect();
    Some(SampledToken { rank, top, ..SampledToken::of(token, logprob) })
}

/// The first token from `ix` on that is allowed and not banned, wrapping around the vocabulary.
fn first_left(request: &SampleRequest, ix: usize, vocab: usize) -> Option<TokenId> {
    let mut around = (0..vocab).map(|offset| TokenId::new((ix + offset) % vocab));
    let is_allowed = |token: TokenId| request.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
    around.find(|token| is_allowed(*token) && !request.banned.contains(token))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use offshoot_backend::AllowedTokens;

    fn random(uniform: f64, top_k: Option<u32>) -> SampleRequest {
        SampleRequest::of(Pick::Random { filters: Filters { top_k, ..Filters::default() }, uniform })
    }

    #[test]
    fn every_token_is_as_likely_as_the_next() {
        let tokens: Vec<u32> =
            (0..100).map(|i| sample(&random((f64::from(i) + 0.5) / 100.0, None), 100).unwrap().token.0).collect();
        assert_eq!(tokens, (0..100).collect::<Vec<_>>());
        assert!((0..100).all(|i| sample(&random(f64::from(i) / 100.0, Some(7)), 100).unwrap().token.0 < 7));
        let top = sample(&SampleRequest { top_logprobs: Some(3), ..SampleRequest::of(Pick::Greedy) }, 100).unwrap().top;
        assert_eq!(top.iter().map(|(token, _)| token.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(top.iter().all(|&(_, logprob)| (logprob.exp() - 0.01).abs() < 1e-6));
    }

    #[test]
    fn banned_tokens_are_not_sampled_and_given_ones_are() {
        let banned = vec![TokenId(0), TokenId(1)];
        let request = |pick| SampleRequest { banned: banned.clone(), ..SampleRequest::of(pick) };
        assert_eq!(sample(&request(Pick::Greedy), 100).map(|sampled| sampled.token), Some(TokenId(2)));
        let allowed = |tokens: &[u32]| {
            let set = AllowedTokens::new(tokens.iter().copied().map(TokenId), 100);
            SampleRequest { allowed: Some(Arc::new(set)), ..request(Pick::Greedy) }
        };
        assert_eq!(sample(&allowed(&[1, 40, 60]), 100).map(|sampled| sampled.token), Some(TokenId(40)));
        assert_eq!(sample(&allowed(&[0, 1]), 100), None);
        assert_eq!(sample(&request(Pick::given(TokenId(1))), 100).map(|sampled| sampled.token), Some(TokenId(1)));
    }
}
