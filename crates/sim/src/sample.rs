//! Samples from logits that are all equal, without computing them.

use std::num::NonZeroU32;

use offshoot_backend::{Drawn, Filters, MOST_KEPT, Pick, Records, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// The sample of `request` among `vocab` equally likely tokens; `None` if all are banned. Penalties and biases are
/// ignored. Depends on the request only: a uniform gives the same token in any step. Records are those of logits that
/// are all 0.
pub fn sample(request: &SampleRequest, vocab: usize) -> Option<SampledToken> {
    let logprob = -(vocab as f32).ln();
    let token = match request.pick {
        Pick::Given { token, .. } => token,
        Pick::Greedy => first_left(request, 0, vocab)?,
        Pick::Random { filters, uniform } => {
            first_left(request, (uniform * most_kept(filters, vocab)) as usize, vocab)?
        }
    };
    let drawn = (request.records.of_drawn() || request.lists_drawn()).then(|| drawn(request, token, vocab));
    // On ties the smallest ids come first.
    let (rank, top) = match drawn.as_ref().filter(|_| request.lists_drawn()) {
        Some(drawn) => (drawn.place + 1, listed(drawn.kept.iter().copied(), request.top(), drawn.of_kept())),
        None => (token.ix() + 1, listed((0..vocab).map(TokenId::new), request.top(), logprob)),
    };
    Some(SampledToken {
        rank: request.top_logprobs.and_then(|_| NonZeroU32::new(rank as u32)),
        top,
        drawn: drawn.filter(|_| request.records.of_drawn()).map(|drawn| drawn.record(token, request.records)),
        entropy: request.records.entropy.then_some(-logprob),
        confidence: request.records.confidence.map(|_| -logprob),
        ..SampledToken::of(token, logprob)
    })
}

/// How many of `vocab` tokens pass the filters, if none is banned.
fn most_kept(filters: Filters, vocab: usize) -> f64 {
    let best = filters.top_k.map_or(vocab, |k| (k.max(1) as usize).min(vocab));
    (best as f64 * f64::from(filters.top_p)).ceil()
}

/// The first `most` of `tokens`, each with `logprob`.
fn listed(tokens: impl Iterator<Item = TokenId>, most: usize, logprob: f32) -> Vec<(TokenId, f32)> {
    tokens.take(most).map(|token| (token, logprob)).collect()
}

/// The distribution that a token is drawn from.
struct KeptTokens {
    /// Equally likely ones, by rising id.
    kept: Vec<TokenId>,
    /// How many tokens are before the drawn one: those that are left by rising id, then the others.
    place: usize,
}

impl KeptTokens {
    /// The log-probability of a kept token.
    fn of_kept(&self) -> f32 {
        -(self.kept.len() as f32).ln()
    }

    fn record(&self, token: TokenId, records: Records) -> Drawn {
        let is_kept = self.kept.binary_search(&token).is_ok();
        Drawn {
            logprob: if is_kept { self.of_kept() } else { f32::NEG_INFINITY },
            kept: self.kept.len() as u32,
            lowest: if self.kept.is_empty() { f32::INFINITY } else { 0.0 },
            ids: (records.kept_ids && self.kept.len() <= MOST_KEPT).then(|| self.kept.clone()),
        }
    }
}

/// The first tokens that are left, as many as the filters keep.
fn drawn(request: &SampleRequest, token: TokenId, vocab: usize) -> KeptTokens {
    let is_left = |other: &TokenId| request.filters().is_none() || is_left(request, *other);
    let most = request.filters().map_or(vocab, |filters| (most_kept(filters, vocab) as usize).max(1));
    let tokens = || (0..vocab).map(TokenId::new);
    let place = match is_left(&token) {
        true => tokens().take(token.ix()).filter(is_left).count(),
        false => tokens().filter(|other| is_left(other) || *other < token).count(),
    };
    KeptTokens { kept: tokens().filter(is_left).take(most).collect(), place }
}

/// The first token from `ix` on that is allowed and not banned, wrapping around the vocabulary.
fn first_left(request: &SampleRequest, ix: usize, vocab: usize) -> Option<TokenId> {
    let mut around = (0..vocab).map(|offset| TokenId::new((ix + offset) % vocab));
    around.find(|token| is_left(request, *token))
}

fn is_left(request: &SampleRequest, token: TokenId) -> bool {
    let is_allowed = request.allowed.as_ref().is_none_or(|allowed| allowed.contains(token));
    is_allowed && !request.banned.contains(&token)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::sync::Arc;

    use super::*;
    use offshoot_backend::{AllowedTokens, Distribution};

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

    #[test]
    fn records_are_those_of_equal_logits() {
        let confidence = NonZeroU16::new(20);
        let records = Records { drawn: true, kept_ids: true, entropy: true, confidence };
        let of = |request: SampleRequest| {
            let (top_logprobs, top_of) = (Some(3), Distribution::Drawn);
            sample(&SampleRequest { records, top_logprobs, top_of, ..request }, 100).unwrap()
        };
        let ids = |sampled: &SampledToken| sampled.drawn.as_ref().and_then(|drawn| drawn.ids.clone()).unwrap();
        let numbers = |tokens: &[TokenId]| tokens.iter().map(|token| token.0).collect::<Vec<_>>();
        let random = SampleRequest { banned: vec![TokenId(0), TokenId(3)], ..random(0.7, Some(4)) };
        let sampled = of(random.clone());
        assert_eq!((sampled.token, numbers(&ids(&sampled))), (TokenId(2), vec![1, 2, 4, 5]));
        assert_eq!(sampled.rank, NonZeroU32::new(2));
        let drawn = sampled.drawn.as_ref().unwrap();
        assert_eq!((drawn.kept, drawn.lowest, drawn.logprob), (4, 0.0, -(4f32.ln())));
        assert_eq!(sampled.top, [1, 2, 4].map(|token| (TokenId(token), -(4f32.ln()))));
        assert_eq!((sampled.entropy, sampled.confidence), (Some(100f32.ln()), Some(100f32.ln())));

        // Scored as it was drawn, and tokens that are not kept.
        let score = |token| {
            of(SampleRequest { pick: Pick::Given { token: TokenId(token), under: random.filters() }, ..random.clone() })
        };
        assert_eq!(score(2), sampled);
        for (token, rank) in [(6, 5), (0, 99), (3, 100)] {
            let lost = score(token);
            assert_eq!((lost.drawn.unwrap().logprob, lost.rank), (f32::NEG_INFINITY, NonZeroU32::new(rank)), "{token}");
        }
        let plain = of(SampleRequest { pick: Pick::given(TokenId(3)), ..random.clone() });
        assert_eq!((ids(&plain).len(), plain.rank), (100, NonZeroU32::new(4)), "the model alone bans none");

        // Whatever is drawn is kept.
        for (uniform, banned) in (0..50).map(|i| (f64::from(i) / 50.0, i)) {
            for (top_k, top_p) in [(None, 0.3), (Some(7), 0.9), (Some(2), 1.0)] {
                let pick = Pick::Random { filters: Filters { top_k, top_p, ..Filters::default() }, uniform };
                let banned: Vec<TokenId> = (banned % 9..banned).map(TokenId).collect();
                let sampled = of(SampleRequest { banned, ..SampleRequest::of(pick) });
                assert!(ids(&sampled).contains(&sampled.token), "{sampled:?}");
            }
        }
    }
}
