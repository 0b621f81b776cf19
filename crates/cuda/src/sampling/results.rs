//! The sampled tokens, as the engine reads them.

use std::num::NonZeroU32;

use offshoot_backend::{SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Where the results of one step's requests lie: for each request (padded ones too) the token sampled, its
/// log-probability and its rank, 12 bytes; then for each request as many of the likeliest tokens as the most that any
/// request of the step wants, 8 bytes each. The structs are those of `kernels/sampling/sample.cuh`.
#[derive(Clone, Debug)]
pub struct ResultLayout {
    padded: usize,
    top_width: usize,
    /// For each request, how many of the likeliest tokens are reported, and whether the rank is.
    tops: Vec<Option<usize>>,
}

/// Bytes of what a request returns of its token.
const OWN: usize = 12;
/// In place of a token where none was sampled: NONE of `kernels/sampling/sample.cuh`.
const NO_TOKEN: TokenId = TokenId(u32::MAX);
/// Bytes of one of the likeliest tokens.
const PAIR: usize = 8;

impl ResultLayout {
    /// The layout of `requests` padded to `padded`, over `vocab` tokens.
    pub fn new(requests: &[SampleRequest], padded: usize, vocab: usize) -> Self {
        let tops = requests.iter().map(|request| request.top_logprobs.map(|top| top.min(vocab))).collect();
        Self { padded, top_width: requests.iter().map(SampleRequest::top).max().unwrap_or(0), tops }
    }

    pub fn bytes(&self) -> usize {
        self.padded * (OWN + self.top_width * PAIR)
    }

    /// One sample for each request, if a token was sampled for it.
    pub fn parse(&self, results: &[u8]) -> Vec<Option<SampledToken>> {
        let tops = &results[self.padded * OWN..];
        let one = |(index, &top): (usize, &Option<usize>)| {
            let own = &results[index * OWN..];
            let (token, logprob) = pair(own);
            let rank = top.and_then(|_| NonZeroU32::new(word(&own[PAIR..])));
            let tops = &tops[index * self.top_width * PAIR..];
            let top = tops.chunks_exact(PAIR).take(top.unwrap_or(0)).map(pair).collect();
            (token != NO_TOKEN).then_some(SampledToken { rank, top, ..SampledToken::of(token, logprob) })
        };
        self.tops.iter().enumerate().map(one).collect()
    }
}

/// A token and its log-probability.
fn pair(bytes: &[u8]) -> (TokenId, f32) {
    (TokenId(word(bytes)), f32::from_bits(word(&bytes[4..])))
}

/// The first four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytemuck::pod_read_unaligned(&bytes[..4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Pick;

    #[test]
    fn draws_and_likeliest_tokens_are_read_by_request() {
        let request = |top_logprobs| SampleRequest { top_logprobs, ..SampleRequest::of(Pick::Greedy) };
        // Three requests, the last of them padding; two places for the likeliest.
        let layout = ResultLayout::new(&[request(Some(1)), request(Some(2))], 3, 50);
        let own = (0..3u32).flat_map(|i| [i, (i as f32).to_bits(), 7 + i]);
        let likely = (3..9u32).flat_map(|i| [i, (i as f32).to_bits()]);
        let words: Vec<u8> = own.chain(likely).flat_map(u32::to_le_bytes).collect();
        assert_eq!(words.len(), layout.bytes());
        let sampled = layout.parse(&words);
        let pair = |i: u32| (TokenId(i), i as f32);
        let own = |i: u32, top| {
            let rank = NonZeroU32::new(7 + i);
            Some(SampledToken { rank, top, ..SampledToken::of(TokenId(i), i as f32) })
        };
        assert_eq!(sampled[0], own(0, vec![pair(3)]));
        assert_eq!(sampled[1], own(1, vec![pair(5), pair(6)]));
        let unranked = ResultLayout::new(&[request(None), request(Some(2))], 3, 50).parse(&words);
        assert_eq!(unranked[0].as_ref().map(|sampled| (sampled.token, sampled.rank)), Some((TokenId(0), None)));
        assert_eq!(sampled.len(), 2);
        let none: Vec<u8> = [u32::MAX, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(ResultLayout::new(&[request(None)], 1, 50).parse(&none), [None]);
    }
}
