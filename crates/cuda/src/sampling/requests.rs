//! The requests of one step as the kernels read them: a header, a record a request, then every request's lists, in one
//! block of bytes. The structs mirror those of `kernels/sampling/sample.cuh`. Uniforms are apart: most steps change
//! nothing else.

use bytemuck::{Pod, Zeroable, bytes_of};

use super::results::ids_width;
use offshoot_backend::{Filters, MOST_TOP, Pick, SampleRequest};

const GREEDY: u32 = 0;
const RANDOM: u32 = 1;
const GIVEN: u32 = 2;

/// In place of an index or a count.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BlockHeader {
    top_width: u32,
    has_records: u32,
    ids_width: u32,
    padding: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RequestRecord {
    pick: u32,
    given: u32,
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    unseen: u32,
    top: u32,
    biases: u32,
    seens: u32,
    bans: u32,
    /// 4-byte words from the start of the block to the lists of this request.
    first: u32,
    /// Tokens counted on the device: none, when requests are loaded.
    counted: u32,
    /// The place of its set of allowed tokens.
    allowed: u32,
    /// [`record_bits`].
    records: u32,
    /// How many of the likeliest tokens the confidence is of; 0: it is not returned.
    confidence: u32,
}

/// A greedy request that reports no log-probabilities; padded rows have it too.
const PLAIN: RequestRecord = RequestRecord {
    pick: GREEDY,
    given: 0,
    temperature: 1.0,
    top_k: u32::MAX,
    top_p: 1.0,
    min_p: 0.0,
    repetition: 1.0,
    frequency: 0.0,
    presence: 0.0,
    unseen: NONE,
    top: NONE,
    biases: 0,
    seens: 0,
    bans: 0,
    first: 0,
    counted: 0,
    allowed: NONE,
    records: 0,
    confidence: 0,
};

/// What `request` returns beside its token, but for the confidence: RECORDS_DRAWN and its neighbours of
/// `kernels/sampling/sample.cuh`.
pub fn record_bits(request: &SampleRequest) -> u32 {
    let records = request.records;
    let bits = [records.of_drawn(), records.kept_ids, records.entropy, request.lists_drawn()];
    bits.into_iter().zip(0..).map(|(is_set, bit)| u32::from(is_set) << bit).sum()
}

/// Whether `request` returns a record beside its token.
pub fn has_record(request: &SampleRequest) -> bool {
    record_bits(request) != 0 || request.confidence_of() > 0
}

/// In each entry of a list, the kernels write `was`: the model's logit of the token.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BiasEntry {
    token: u32,
    bias: f32,
    was: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SeenEntry {
    token: u32,
    sampled: u32,
    in_prompt: u32,
    was: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct BanEntry {
    token: u32,
    was: f32,
}

/// Bytes of an entry of the tokens seen, also of those that the device counts.
pub const SEEN_BYTES: usize = size_of::<SeenEntry>();

/// Replaces `block` by the requests, padded to `padded`, over `vocab` tokens. `places`: where each one's set of allowed
/// tokens lies. Panics when a request wants more than [`MOST_TOP`] likeliest tokens, or a confidence of more.
pub fn pack(requests: &[SampleRequest], places: &[Option<u32>], padded: usize, vocab: usize, block: &mut Vec<u8>) {
    assert_eq!(requests.len(), places.len(), "a place, or none, for each request");
    assert!(requests.len() <= padded, "{} requests padded to {padded}", requests.len());
    let top_width = requests.iter().map(SampleRequest::top).max().unwrap_or(0);
    assert!(top_width <= MOST_TOP, "{top_width} likeliest tokens; the kernels list {MOST_TOP}");
    let averaged = requests.iter().map(SampleRequest::confidence_of).max().unwrap_or(0);
    assert!(averaged <= MOST_TOP, "a confidence of {averaged} tokens; the kernels list {MOST_TOP}");
    block.clear();
    block.extend_from_slice(bytes_of(&BlockHeader {
        top_width: word(top_width),
        has_records: u32::from(requests.iter().any(has_record)),
        ids_width: word(ids_width(requests, vocab)),
        padding: 0,
    }));
    let records = block.len();
    block.extend((0..padded).flat_map(|_| bytes_of(&PLAIN)));
    for (index, (request, place)) in requests.iter().zip(places).enumerate() {
        let allowed = place.unwrap_or(NONE);
        let record = RequestRecord { allowed, ..pack_one(request, block) };
        let at = records + index * size_of::<RequestRecord>();
        block[at..at + size_of::<RequestRecord>()].copy_from_slice(bytes_of(&record));
    }
}

/// The record of one request, whose lists are appended to `block`.
fn pack_one(request: &SampleRequest, block: &mut Vec<u8>) -> RequestRecord {
    let (pick, given) = match request.pick {
        Pick::Greedy => (GREEDY, 0),
        Pick::Random { .. } => (RANDOM, 0),
        Pick::Given { token, .. } => (GIVEN, token.0),
    };
    let top = request.top_logprobs.map_or(NONE, word);
    let (records, confidence) = (record_bits(request), word(request.confidence_of()));
    let mut record = RequestRecord { pick, given, top, records, confidence, first: word(block.len() / 4), ..PLAIN };
    if !request.depends_on_scores() {
        return record;
    }
    if let Some(Filters { temperature, top_k, top_p, min_p }) = request.filters() {
        let top_k = top_k.map_or(u32::MAX, |k| k.max(1));
        record = RequestRecord { temperature, top_k, top_p, min_p, ..record };
    }

    let biases = request.logit_bias.iter().map(|&(token, bias)| BiasEntry { token: token.0, bias, was: 0.0 });
    record.biases = append(biases, |entry| entry.token, block);
    if request.has_penalties() {
        let seens = request.seen.iter().map(|seen| SeenEntry {
            token: seen.token.0,
            sampled: seen.sampled,
            in_prompt: u32::from(seen.in_prompt),
            was: 0.0,
        });
        record.seens = append(seens, |entry| entry.token, block);
        record.unseen = request.unseen.unwrap_or(NONE);
        record.repetition = request.repetition_penalty;
        record.frequency = request.frequency_penalty;
        record.presence = request.presence_penalty;
    }
    let bans = request.banned.iter().map(|token| BanEntry { token: token.0, was: 0.0 });
    record.bans = append(bans, |entry| entry.token, block);
    record
}

/// Appends a list by rising token, entries of one token in their order; returns its length.
fn append<T: Pod>(entries: impl Iterator<Item = T>, token: impl Fn(&T) -> u32, block: &mut Vec<u8>) -> u32 {
    let mut list: Vec<T> = entries.collect();
    list.sort_by_key(token);
    block.extend_from_slice(bytemuck::cast_slice(&list));
    word(list.len())
}

fn word(count: usize) -> u32 {
    u32::try_from(count).expect("a step's requests are far smaller than 16 GiB")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use offshoot_backend::{Distribution, Records, SeenToken};
    use offshoot_core::ids::TokenId;

    fn request(pick: Pick) -> SampleRequest {
        SampleRequest { unseen: Some(3), banned: vec![TokenId(9), TokenId(2)], ..SampleRequest::of(pick) }
    }

    #[test]
    fn the_kernels_hold_as_many_tokens() {
        let kernels = include_str!("../../../../kernels/sampling/sample.cuh");
        assert!(kernels.contains(&format!("MOST_COUNTED = {};", offshoot_backend::MOST_COUNTED)));
        assert!(kernels.contains(&format!("MOST_KEPT = {};", offshoot_backend::MOST_KEPT)));
    }

    fn record(block: &[u8], index: usize) -> RequestRecord {
        let at = size_of::<BlockHeader>() + index * size_of::<RequestRecord>();
        bytemuck::pod_read_unaligned(&block[at..at + size_of::<RequestRecord>()])
    }

    #[test]
    fn lists_lie_sorted_where_the_record_says() {
        let seen = [7, 5, 7].map(|t| SeenToken { token: TokenId(t), sampled: t, in_prompt: true }).to_vec();
        let penalised = SampleRequest {
            seen,
            frequency_penalty: 0.5,
            logit_bias: vec![(TokenId(1), -1.0)],
            top_logprobs: Some(4),
            ..request(Pick::Greedy)
        };
        let mut block = vec![1];
        pack(&[request(Pick::given(TokenId(6))), penalised], &[None, Some(3)], 4, 50, &mut block);
        assert_eq!(block[..4], 4u32.to_le_bytes(), "the widest list of likeliest tokens");

        let given = record(&block, 0);
        assert_eq!((given.pick, given.given, given.bans, given.unseen), (GIVEN, 6, 0, NONE));
        let lists = record(&block, 1);
        assert_eq!((lists.biases, lists.seens, lists.bans, lists.unseen, lists.top), (1, 3, 2, 3, 4));
        assert_eq!((given.allowed, lists.allowed), (NONE, 3));
        let words: Vec<u32> = block.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let words = &words[lists.first as usize..];
        assert_eq!([words[0], words[3], words[7], words[11], words[15], words[17]], [1, 5, 7, 7, 2, 9]);
        assert_eq!(words.len(), 3 + 3 * 4 + 2 * 2);
        assert_eq!(bytes_of(&record(&block, 3)), bytes_of(&PLAIN));
    }

    #[test]
    fn given_tokens_have_filters_and_lists_where_they_are_recorded() {
        let filters = Filters { temperature: 0.5, top_k: Some(4), top_p: 0.9, min_p: 0.1 };
        let of = |under, records, top_of| SampleRequest {
            records,
            top_of,
            top_logprobs: Some(1),
            ..request(Pick::Given { token: TokenId(7), under })
        };
        let drawn = Records { drawn: true, ..Records::default() };
        let entropy = Records { entropy: true, confidence: NonZeroU16::new(20), ..Records::default() };
        let requests = [
            of(Some(filters), Records::default(), Distribution::Model),
            of(Some(filters), entropy, Distribution::Model),
            of(Some(filters), drawn, Distribution::Model),
            of(Some(filters), Records { kept_ids: true, ..Records::default() }, Distribution::Drawn),
            of(None, drawn, Distribution::Model),
        ];
        let mut block = Vec::new();
        pack(&requests, &[None; 5], 6, 50, &mut block);
        let found = [0, 1, 2, 3, 4, 5].map(|index| {
            let RequestRecord { pick, given, temperature, bans, records, confidence, .. } = record(&block, index);
            (pick, given, temperature, bans, [records, confidence])
        });
        let plain = |records, confidence| (GIVEN, 7, 1.0, 0, [records, confidence]);
        let under = |records| (GIVEN, 7, 0.5, 2, [records, 0]);
        let padding = (GREEDY, 0, 1.0, 0, [0, 0]);
        assert_eq!(found, [plain(0, 0), plain(4, 20), under(1), under(1 + 2 + 8), plain(1, 0), padding]);
        let words: Vec<u32> = block[..16].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        assert_eq!(words, [1, 1, 4, 0], "likeliest tokens, records, ids of at most top-k tokens");
    }

    #[test]
    fn neutral_penalties_need_no_lists() {
        let seen = vec![SeenToken { token: TokenId(1), sampled: 1, in_prompt: false }];
        let filters = Filters { temperature: 0.5, top_k: Some(0), top_p: 0.9, min_p: 0.1 };
        let pick = Pick::Random { filters, uniform: 0.25 };
        let neutral = SampleRequest { seen, ..request(pick) };
        let mut block = Vec::new();
        pack(&[neutral], &[None], 1, 50, &mut block);
        let random = record(&block, 0);
        assert_eq!((random.pick, random.seens, random.unseen, random.bans), (RANDOM, 0, NONE, 2));
        assert_eq!((random.temperature, random.top_k, random.top_p, random.min_p), (0.5, 1, 0.9, 0.1));
    }
}
