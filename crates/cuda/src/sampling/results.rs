//! The sampled tokens, as the engine reads them.

use std::num::NonZeroU32;

use super::requests::has_record;
use offshoot_backend::{Drawn, MOST_KEPT, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;

/// Where the results of one step's requests lie: for each request (padded ones too) the token sampled, its
/// log-probability and its rank, 12 bytes; then for each request as many of the likeliest tokens as the most that any
/// request of the step wants, 8 bytes each; then, if any request has a record, 20 bytes for each; then for each as many
/// ids of kept tokens as any request may have. The structs are those of `kernels/sampling/sample.cuh`.
#[derive(Clone, Debug)]
pub struct ResultLayout {
    padded: usize,
    top_width: usize,
    has_records: bool,
    ids_width: usize,
    returned: Vec<Returned>,
}

/// What a request returns beside its token.
#[derive(Clone, Copy, Debug)]
struct Returned {
    /// How many of the likeliest tokens, and the rank; `None`: neither.
    top: Option<usize>,
    /// Whether of the likeliest tokens only those are listed that the request keeps.
    lists_drawn: bool,
    drawn: bool,
    kept_ids: bool,
    entropy: bool,
    confidence: bool,
}

/// Bytes of what a request returns of its token.
const OWN: usize = 12;
/// In place of a token where none was sampled: NONE of `kernels/sampling/sample.cuh`.
const NO_TOKEN: TokenId = TokenId(u32::MAX);
/// Bytes of one of the likeliest tokens.
const PAIR: usize = 8;
/// Bytes of a record.
const RECORD: usize = 20;
/// Bytes of the id of a kept token.
const ID: usize = 4;

/// Places for kept ids that each request has in the results: the most that any of them can have, over `vocab` tokens.
pub fn ids_width(requests: &[SampleRequest], vocab: usize) -> usize {
    let kept = |request: &SampleRequest| {
        let top_k = request.filters().and_then(|filters| filters.top_k);
        top_k.map_or(vocab, |k| (k.max(1) as usize).min(vocab)).min(MOST_KEPT)
    };
    requests.iter().filter(|request| request.records.kept_ids).map(kept).max().unwrap_or(0)
}

impl ResultLayout {
    /// The layout of `requests` padded to `padded`, over `vocab` tokens.
    pub fn new(requests: &[SampleRequest], padded: usize, vocab: usize) -> Self {
        let returned = |request: &SampleRequest| Returned {
            top: request.top_logprobs.map(|top| top.min(vocab)),
            lists_drawn: request.lists_drawn(),
            drawn: request.records.of_drawn(),
            kept_ids: request.records.kept_ids,
            entropy: request.records.entropy,
            confidence: request.records.confidence.is_some(),
        };
        Self {
            padded,
            top_width: requests.iter().map(SampleRequest::top).max().unwrap_or(0),
            has_records: requests.iter().any(has_record),
            ids_width: ids_width(requests, vocab),
            returned: requests.iter().map(returned).collect(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.ids_at() + self.padded * self.ids_width * ID
    }

    /// One sample for each request, if a token was sampled for it.
    pub fn parse(&self, results: &[u8]) -> Vec<Option<SampledToken>> {
        self.returned.iter().enumerate().map(|(index, returned)| self.parse_one(results, index, *returned)).collect()
    }

    fn parse_one(&self, results: &[u8], index: usize, returned: Returned) -> Option<SampledToken> {
        let own = &results[index * OWN..];
        let (token, logprob) = pair(own);
        if token == NO_TOKEN {
            return None;
        }
        let record = returned.has_record().then(|| &results[self.records_at() + index * RECORD..]);
        let kept = record.map_or(0, |record| word(&record[4..]));
        let listed = match (returned.top, returned.lists_drawn) {
            (Some(top), true) => top.min(kept as usize),
            (top, _) => top.unwrap_or(0),
        };
        let tops = &results[self.tops_at() + index * self.top_width * PAIR..];
        let ids = || {
            let ids = &results[self.ids_at() + index * self.ids_width * ID..];
            ids.chunks_exact(ID).take(kept as usize).map(|id| TokenId(word(id))).collect()
        };
        let drawn = record.filter(|_| returned.drawn).map(|record| Drawn {
            logprob: number(record),
            kept,
            lowest: number(&record[8..]),
            ids: (returned.kept_ids && kept as usize <= MOST_KEPT).then(ids),
        });
        Some(SampledToken {
            rank: returned.top.and_then(|_| NonZeroU32::new(word(&own[PAIR..]))),
            top: tops.chunks_exact(PAIR).take(listed).map(pair).collect(),
            drawn,
            entropy: record.filter(|_| returned.entropy).map(|record| number(&record[12..])),
            confidence: record.filter(|_| returned.confidence).map(|record| number(&record[16..])),
            ..SampledToken::of(token, logprob)
        })
    }

    fn tops_at(&self) -> usize {
        self.padded * OWN
    }

    fn records_at(&self) -> usize {
        self.tops_at() + self.padded * self.top_width * PAIR
    }

    fn ids_at(&self) -> usize {
        self.records_at() + if self.has_records { self.padded * RECORD } else { 0 }
    }
}

impl Returned {
    fn has_record(self) -> bool {
        self.drawn || self.entropy || self.confidence || self.lists_drawn
    }
}

/// A token and its log-probability.
fn pair(bytes: &[u8]) -> (TokenId, f32) {
    (TokenId(word(bytes)), number(&bytes[4..]))
}

/// The first four bytes.
fn word(bytes: &[u8]) -> u32 {
    bytemuck::pod_read_unaligned(&bytes[..4])
}

/// The first four bytes.
fn number(bytes: &[u8]) -> f32 {
    f32::from_bits(word(bytes))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use offshoot_backend::{Distribution, Filters, Pick, Records};

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

    #[test]
    fn records_and_kept_ids_are_read_by_request() {
        let request = |top_logprobs, records, filters| SampleRequest {
            top_logprobs,
            top_of: Distribution::Drawn,
            records,
            ..SampleRequest::of(Pick::Random { filters, uniform: 0.5 })
        };
        let all = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(20) };
        let confidence = Records { confidence: NonZeroU16::new(20), ..Records::default() };
        let top_k = |k| Filters { top_k: Some(k), ..Filters::default() };
        let requests = [
            request(Some(2), all, top_k(3)),
            request(Some(2), Records::default(), top_k(1)),
            request(None, Records { entropy: true, ..Records::default() }, Filters::default()),
            request(None, Records::default(), Filters::default()),
            request(None, all, top_k(2)),
            request(None, confidence, top_k(2)),
        ];
        let layout = ResultLayout::new(&requests, 7, 50);
        let own = (0..7u32).flat_map(|i| [i, 0, 1]);
        let likely = (0..14u32).flat_map(|i| [i, (i as f32).to_bits()]);
        let numbers = |i: u32| [i as f32, 9.0 + i as f32].map(f32::to_bits);
        let records =
            (0..7u32).flat_map(|i| [vec![0.5f32.to_bits(), 1 + i % 2, 2.5f32.to_bits()], numbers(i).to_vec()]);
        let records = records.flatten();
        let ids = 100..121u32;
        let words: Vec<u8> = own.chain(likely).chain(records).chain(ids).flat_map(u32::to_le_bytes).collect();
        assert_eq!(words.len(), layout.bytes());
        let sampled: Vec<SampledToken> = layout.parse(&words).into_iter().flatten().collect();
        let drawn = |kept, ids: &[u32]| {
            Some(Drawn { logprob: 0.5, kept, lowest: 2.5, ids: Some(ids.iter().copied().map(TokenId).collect()) })
        };
        let found: Vec<_> = sampled.iter().map(|s| (s.top.len(), s.drawn.clone(), s.entropy, s.confidence)).collect();
        assert_eq!(
            found,
            [
                (1, drawn(1, &[100]), Some(0.0), Some(9.0)),
                (2, None, None, None),
                (0, None, Some(2.0), None),
                (0, None, None, None),
                (0, drawn(1, &[112]), Some(4.0), Some(13.0)),
                (0, None, None, Some(14.0)),
            ]
        );
    }

    #[test]
    fn nothing_is_copied_that_no_request_asks_for() {
        let plain = SampleRequest::of(Pick::Greedy);
        assert_eq!(ResultLayout::new(&[plain.clone(), plain], 4, 50).bytes(), 4 * OWN);
        let confidence = Records { confidence: NonZeroU16::new(20), ..Records::default() };
        let confident = SampleRequest { records: confidence, ..SampleRequest::of(Pick::Greedy) };
        assert_eq!(ResultLayout::new(&[confident], 4, 50).bytes(), 4 * (OWN + RECORD), "no list leaves the device");
        let ids = |top_k| SampleRequest {
            records: Records { kept_ids: true, ..Records::default() },
            ..SampleRequest::of(Pick::Random { filters: Filters { top_k, ..Filters::default() }, uniform: 0.5 })
        };
        let bytes = |requests: &[SampleRequest]| ResultLayout::new(requests, 4, 5000).bytes();
        assert_eq!(bytes(&[ids(Some(20))]), 4 * (OWN + RECORD + 20 * ID));
        assert_eq!(bytes(&[ids(Some(20)), ids(None)]), 4 * (OWN + RECORD + MOST_KEPT * ID));
    }
}
