//! The sampled tokens, as the engine reads them.

use offshoot_backend::{SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Where the results of one step's requests lie: for each request (padded ones too) the token sampled and its
/// log-probability, 8 bytes; then for each request as many of the likeliest tokens as the most that any request of the
/// step wants, 8 bytes each.
#[derive(Clone, Debug)]
pub struct ResultLayout {
    padded: usize,
    top_width: usize,
    /// For each request, how many of the likeliest tokens are reported.
    tops: Vec<usize>,
}

const PAIR: usize = 8;

impl ResultLayout {
    /// The layout of `requests` padded to `padded`, over `vocab` tokens.
    pub fn new(requests: &[SampleRequest], padded: usize, vocab: usize) -> Self {
        let wanted = || requests.iter().map(|request| request.top_logprobs);
        let tops = wanted().map(|top| top.min(vocab)).collect();
        Self { padded, top_width: wanted().max().unwrap_or(0), tops }
    }

    pub fn bytes(&self) -> usize {
        self.padded * (1 + self.top_width) * PAIR
    }

    /// One sample for each request.
    pub fn parse(&self, results: &[u8]) -> Vec<SampledToken> {
        let tops = &results[self.padded * PAIR..];
        let one = |(index, &top): (usize, &usize)| {
            let (token, logprob) = pair(&results[index * PAIR..]);
            let tops = &tops[index * self.top_width * PAIR..];
            let top = tops.chunks_exact(PAIR).take(top).map(pair).collect();
            SampledToken { token, logprob, top }
        };
        self.tops.iter().enumerate().map(one).collect()
    }
}

/// A token and its log-probability.
fn pair(bytes: &[u8]) -> (TokenId, f32) {
    let word = |at: usize| bytemuck::pod_read_unaligned::<u32>(&bytes[at..at + 4]);
    (TokenId(word(0)), f32::from_bits(word(4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Pick;

    #[test]
    fn draws_and_likeliest_tokens_are_read_by_request() {
        let request = |top_logprobs| SampleRequest { top_logprobs, ..SampleRequest::of(Pick::Greedy) };
        // Three requests, the last of them padding; two places for the likeliest.
        let layout = ResultLayout::new(&[request(1), request(2)], 3, 50);
        let pairs: Vec<u8> = (0..9u32).flat_map(|i| [i, (i as f32).to_bits()]).flat_map(u32::to_le_bytes).collect();
        assert_eq!(pairs.len(), layout.bytes());
        let sampled = layout.parse(&pairs);
        let pair = |i: u32| (TokenId(i), i as f32);
        assert_eq!(sampled[0], SampledToken { token: TokenId(0), logprob: 0.0, top: vec![pair(3)] });
        assert_eq!(sampled[1], SampledToken { token: TokenId(1), logprob: 1.0, top: vec![pair(5), pair(6)] });
        assert_eq!(sampled.len(), 2);
    }
}
