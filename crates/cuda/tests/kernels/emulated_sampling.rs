//! The GPU's sampling kernels on the CPU, instruction by instruction (`emulator`). Those that count sampled
//! tokens and edit logits: requests that are advanced change logits to the last bit as requests that are made anew with
//! all tokens seen. The one that ranks: it finds the ranks and the likeliest tokens of the definition. All of a step:
//! requests with sets of allowed tokens sample as the definition, and leave the logits as they were.

use crate::emulator;

use std::ffi::c_void;
use std::num::NonZeroU16;
use std::sync::Arc;

use emulator::{Emulated, Schedule, When};
use offshoot_backend::{
    AllowedTokens, Distribution, Filters, MOST_COUNTED, MOST_KEPT, Pick, Records, RowToken, SampleRequest,
    SampledToken, SeenToken, StepBatch,
};
use offshoot_cases::allowed_requests;
use offshoot_core::dice::Dice;
use offshoot_core::ids::TokenId;
use offshoot_cpu::sampling::{SampleScratch, sample};
use offshoot_cpu::{Cores, CpuBuffer, Isa, Team};
use offshoot_cuda::compile::unit::Source;
use offshoot_cuda::compile::unit::Unit;
use offshoot_cuda::compile::units::{PLACE_SETS, SAMPLE, SAMPLE_COUNT};
use offshoot_cuda::sampling::{Places, ResultLayout, SEEN_BYTES, pack, place_bytes};

const ANY: Schedule = Schedule { copies: When::AtOnce, products: When::AtOnce, seed: 0, held: None };
/// Tokens of one chunk, as in kernels/sampling/sample.cuh.
const CHUNK: usize = 512;
const VOCAB: usize = 1100;
const CHUNKS: usize = VOCAB.div_ceil(CHUNK);

fn at<T>(argument: &mut T) -> *mut c_void {
    std::ptr::from_mut(argument).cast()
}

/// A kernel of `sample`.
fn one_of_sample(name: &str) -> Option<Emulated> {
    let is_it = |source: &&Source| source.name.ends_with(&format!("{name}.cu"));
    Emulated::compile(&Unit::new(SAMPLE.iter().find(is_it).expect("one of them")), name)
}

struct Kernels {
    count: Emulated,
    edit: Emulated,
}

impl Kernels {
    fn compile() -> Option<Self> {
        Some(Self {
            count: Emulated::compile(&Unit::new(&SAMPLE_COUNT), "sample_count")?,
            edit: one_of_sample("sample_edit")?,
        })
    }
}

/// What a step leaves on the device for the next one.
struct Device<'a> {
    kernels: &'a Kernels,
    /// What `pack` made, in words.
    requests: Vec<u32>,
    /// A token and its logit an ask.
    newest: Vec<[u32; 2]>,
    counted: Vec<u32>,
    drawn: Vec<u32>,
}

impl<'a> Device<'a> {
    fn load(kernels: &'a Kernels, requests: &[SampleRequest]) -> Self {
        let mut block = Vec::new();
        pack(requests, &vec![None; requests.len()], requests.len(), VOCAB, &mut block);
        Self {
            kernels,
            requests: block.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect(),
            newest: vec![[u32::MAX; 2]; requests.len()],
            counted: vec![0; requests.len() * MOST_COUNTED * SEEN_BYTES / 4],
            drawn: vec![u32::MAX; requests.len()],
        }
    }

    fn advance(&mut self) {
        let (mut requests, mut newest, mut counted) =
            (self.requests.as_mut_ptr(), self.newest.as_ptr(), self.counted.as_mut_ptr());
        let args = [at(&mut requests), at(&mut newest), at(&mut counted)];
        // SAFETY: the arguments of sample_count, in its order, each with memory for what its head says.
        unsafe { self.kernels.count.launch(self.drawn.len() as u32, 32, 0, ANY, &args) };
    }

    /// The logits of all asks as they are sampled from.
    fn edit(&mut self, logits: &[f32]) -> Vec<f32> {
        let asks = self.drawn.len();
        let mut edited = logits.to_vec();
        let mut sums = vec![[0.0f32; CHUNKS]; 3 * asks];
        let (max, sum) = sums.split_at_mut(asks);
        let (sum, min) = sum.split_at_mut(asks);
        let (mut logits, mut vocab, mut chunks) = (edited.as_mut_ptr(), VOCAB as u32, CHUNKS as u32);
        let (mut requests, mut drawn) = (self.requests.as_mut_ptr(), self.drawn.as_ptr());
        let (mut max, mut sum, mut min) = (max.as_mut_ptr(), sum.as_mut_ptr(), min.as_mut_ptr());
        let (mut newest, mut counted) = (self.newest.as_mut_ptr(), self.counted.as_mut_ptr());
        let mut sets = std::ptr::null::<u32>(); // All tokens are allowed.
        let args = [
            at(&mut logits),
            at(&mut vocab),
            at(&mut chunks),
            at(&mut requests),
            at(&mut drawn),
            at(&mut max),
            at(&mut sum),
            at(&mut min),
            at(&mut newest),
            at(&mut counted),
            at(&mut sets),
        ];
        // SAFETY: the arguments of sample_edit, in its order, each with memory for what its head says.
        unsafe { self.kernels.edit.launch(asks as u32, 256, CHUNKS.next_multiple_of(16), ANY, &args) };
        edited
    }
}

fn request(dice: &mut Dice, ask: usize) -> SampleRequest {
    let token = |dice: &mut Dice| TokenId(dice.within(0, VOCAB as u32 - 1));
    let mut tokens: Vec<TokenId> = (0..dice.within(0, 90)).map(|_| token(dice)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    let seen = |token| SeenToken { token, sampled: dice.within(0, 3), in_prompt: dice.one_in(2) };
    let seen = tokens.into_iter().map(seen).collect();
    let mut biased: Vec<TokenId> = (0..dice.within(0, 9)).map(|_| token(dice)).collect();
    biased.sort_unstable();
    biased.dedup();
    let plain = SampleRequest {
        logit_bias: biased.into_iter().map(|token| (token, 4.0 * dice.number())).collect(),
        banned: (0..dice.within(0, 4)).map(|_| token(dice)).collect(),
        ..SampleRequest::of(Pick::Greedy)
    };
    match ask % 4 {
        0 => plain,
        number => SampleRequest {
            seen,
            unseen: dice.one_in(2).then_some(ask as u32),
            repetition_penalty: if number == 1 { 1.3 } else { 1.0 },
            frequency_penalty: if number == 2 { 0.4 } else { 0.0 },
            presence_penalty: if number == 3 { -0.7 } else { 0.0 },
            ..plain
        },
    }
}

#[test]
fn advanced_requests_edit_as_new_ones_do() {
    const ASKS: usize = 12;
    let Some(kernels) = Kernels::compile() else { return };
    let mut dice = Dice::new(11);
    let logits: Vec<f32> = (0..ASKS * VOCAB).map(|_| 8.0 * dice.number()).collect();
    let requests: Vec<SampleRequest> = (0..ASKS).map(|ask| request(&mut dice, ask)).collect();
    // Few different tokens, many of them seen before: so that they come again.
    let draws = |dice: &mut Dice| -> Vec<TokenId> {
        let one = |request: &SampleRequest| match request.seen.len() {
            0 => TokenId(dice.within(0, 30)),
            seen if dice.one_in(2) => request.seen[dice.within(0, seen as u32 - 1) as usize].token,
            _ => TokenId(dice.within(0, 30)),
        };
        requests.iter().map(one).collect()
    };
    let mut definition = StepBatch {
        tokens: vec![RowToken::Known(TokenId(0)); ASKS],
        logit_rows: (0..ASKS as u32).collect(),
        requests: requests.clone().into(),
        ..StepBatch::default()
    };
    let mut before = draws(&mut dice);
    let mut device = Device::load(&kernels, &requests);
    for step in 0..=MOST_COUNTED {
        if step > 0 {
            definition.advance(&[], &[]);
            device.advance();
        }
        device.drawn = before.iter().map(|token| token.0).collect();
        let advanced = device.edit(&logits);
        definition.count_unseen(&before);
        if step.is_multiple_of(8) {
            let anew = Device::load(&kernels, definition.requests.given()).edit(&logits);
            let same = advanced.iter().zip(&anew).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{step} steps on");
        }
        before = draws(&mut dice);
    }
}

/// Rows of a model's usual logits, of ties, and of values that do not compare.
fn rows_of_all_kinds(dice: &mut Dice, asks: usize, vocab: usize) -> Vec<f32> {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
    let mut logit = |ask: usize| match ask % 5 {
        0 => 8.0 * dice.number(),
        1 => (4.0 * dice.number()).round() / 2.0,
        2 => 0.5,
        3 if dice.one_in(4) => dice.pick(&odd),
        3 => 3.0 * dice.number(),
        _ => f32::NEG_INFINITY,
    };
    (0..asks * vocab).map(|at| logit(at / vocab)).collect()
}

/// The maximum of each chunk of a row, and the sum of its weights, as sample_chunks leaves them.
fn chunk_values(row: &[f32]) -> Vec<(f32, f32)> {
    let safe = |logit: f32| if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) };
    let of = |chunk: &[f32]| {
        let max = chunk.iter().copied().map(safe).fold(f32::NEG_INFINITY, f32::max);
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        (max, chunk.iter().map(|&logit| (safe(logit) - base).exp()).sum())
    };
    row.chunks(CHUNK).map(of).collect()
}

/// What the definition samples.
fn definition(logits: &[f32], vocab: usize, requests: &[SampleRequest]) -> Vec<Option<SampledToken>> {
    let (cores, mut sampled) = (Cores { isa: Isa::Portable, team: Team::new(1).into() }, Vec::new());
    let logits = CpuBuffer { rows: requests.len(), width: vocab, data: logits.to_vec() };
    sample(&cores, &mut SampleScratch::default(), &logits, requests, &mut sampled);
    sampled
}

#[test]
fn ranks_and_likeliest_tokens_are_the_definitions() {
    const ASKS: usize = 40;
    let Some(kernel) = one_of_sample("sample_top") else { return };
    let mut dice = Dice::new(12);
    let logits = rows_of_all_kinds(&mut dice, ASKS, VOCAB);
    let tops = [None, Some(0), Some(1), Some(5), Some(40), Some(2000)];
    let given = |dice: &mut Dice, ask: usize| {
        let token = if dice.one_in(3) { dice.within(0, 9) } else { dice.within(0, VOCAB as u32 - 1) };
        SampleRequest { top_logprobs: tops[ask % tops.len()], ..SampleRequest::of(Pick::given(TokenId(token))) }
    };
    let requests: Vec<SampleRequest> = (0..ASKS).map(|ask| given(&mut dice, ask)).collect();

    let mut block = Vec::new();
    pack(&requests, &[None; ASKS], ASKS, VOCAB, &mut block);
    let layout = ResultLayout::new(&requests, ASKS, VOCAB);
    let mut words: Vec<u32> = block.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let mut results = vec![0u32; layout.bytes() / 4];
    for (own, request) in results.chunks_exact_mut(3).zip(&requests) {
        let Pick::Given { token, .. } = request.pick else { unreachable!("all are given") };
        own[0] = token.0; // As sample_token leaves it.
    }
    let (mut max, mut sum): (Vec<f32>, Vec<f32>) = logits.chunks(VOCAB).flat_map(chunk_values).unzip();
    let (mut on_device, mut vocab, mut chunks, mut asks) = (logits.clone(), VOCAB as u32, CHUNKS as u32, ASKS as u32);
    let (mut on_device, mut words, mut results_at) = (on_device.as_mut_ptr(), words.as_mut_ptr(), results.as_mut_ptr());
    let (mut max, mut sum) = (max.as_mut_ptr(), sum.as_mut_ptr());
    // No request is recorded: the kernel reads nothing of what a token is drawn from.
    let mut unread = [std::ptr::null::<u32>(); 7];
    let [sets, sample_max, sample_min, newest, cuts, log_totals, counted] = unread.each_mut().map(at);
    let args = [
        at(&mut on_device),
        at(&mut vocab),
        at(&mut chunks),
        at(&mut asks),
        at(&mut words),
        sets,
        at(&mut max),
        at(&mut sum),
        sample_max,
        sample_min,
        newest,
        cuts,
        log_totals,
        at(&mut results_at),
        counted,
    ];
    // SAFETY: the arguments of sample_top, in its order, each with memory for what its head says.
    unsafe { kernel.launch(ASKS as u32, 256, (8 * CHUNKS).next_multiple_of(16), ANY, &args) };
    let found: Vec<SampledToken> = layout.parse(bytemuck::cast_slice(&results)).into_iter().flatten().collect();
    assert_eq!(found.len(), ASKS, "given tokens are scored");

    let expected: Vec<SampledToken> = definition(&logits, VOCAB, &requests).into_iter().flatten().collect();
    for (ask, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!((found.token, found.rank), (expected.token, expected.rank), "ask {ask}");
        let ids = |top: &[(TokenId, f32)]| top.iter().map(|&(token, _)| token).collect::<Vec<_>>();
        assert_eq!(ids(&found.top), ids(&expected.top), "ask {ask}");
        let near = |(a, b): (&(TokenId, f32), &(TokenId, f32))| a.1 == b.1 || (a.1 - b.1).abs() < 1e-4;
        assert!(found.top.iter().zip(&expected.top).all(near), "ask {ask}");
    }
    assert!(expected.iter().filter_map(|sampled| sampled.rank).any(|rank| rank.get() as usize > CHUNK));
}

/// The kernels of `sample`, in their order, behind the one that puts sets in their places.
struct SampleKernels {
    place_sets: Emulated,
    chunks: Emulated,
    edit: Emulated,
    filter: Emulated,
    token: Emulated,
    top: Emulated,
}

impl SampleKernels {
    fn compile() -> Option<Self> {
        Some(Self {
            place_sets: Emulated::compile(&Unit::new(&PLACE_SETS), "place_sets")?,
            chunks: one_of_sample("sample_chunks")?,
            edit: one_of_sample("sample_edit")?,
            filter: one_of_sample("sample_filter")?,
            token: one_of_sample("sample_token")?,
            top: one_of_sample("sample_top")?,
        })
    }

    /// Puts sets of so many words in their places among `sets`, whose other places stay as they are.
    fn put_in_places(&self, filled: &[(u32, &AllowedTokens)], set_words: usize, sets: &mut [u32]) {
        let mut expected = sets.to_vec();
        let mut copied = vec![0u32; filled.len() * set_words];
        for (own, (place, set)) in copied.chunks_exact_mut(set_words).zip(filled) {
            own[..set.words().len()].copy_from_slice(set.words());
            expected[*place as usize * set_words..][..set_words].copy_from_slice(own);
        }
        let places: Vec<u32> = filled.iter().map(|&(place, _)| place).collect();
        let (mut from, mut places_at, mut to) = (copied.as_ptr(), places.as_ptr(), sets.as_mut_ptr());
        let mut quads = set_words as u32 / 4;
        let args = [at(&mut from), at(&mut places_at), at(&mut to), at(&mut quads)];
        // SAFETY: the arguments of place_sets, in its order, each with memory for what its head says.
        unsafe { self.place_sets.launch(filled.len() as u32, 256, 0, ANY, &args) };
        assert!(sets == expected, "sets in their places, and no other is changed");
    }

    /// What one step samples. `places` and `sets` hold the sets of allowed tokens of the steps before, as the device's
    /// memory does; `before`: the tokens that the last step sampled.
    fn sample(
        &self,
        (logits, vocab): (&[f32], usize),
        requests: &[SampleRequest],
        (places, sets): (&mut Places, &mut Vec<u32>),
        before: &[TokenId],
    ) -> Vec<Option<SampledToken>> {
        let (asks, chunk_count) = (requests.len(), vocab.div_ceil(CHUNK));
        let set_words = place_bytes(vocab) / size_of::<u32>();
        let placed = places.place(requests, sets.len() / set_words);
        sets.resize(sets.len().max(places.count() * set_words), 0);
        self.put_in_places(&placed.filled, set_words, sets);
        let mut block = Vec::new();
        pack(requests, &placed.of_requests, asks, vocab, &mut block);
        let layout = ResultLayout::new(requests, asks, vocab);
        let mut words: Vec<u32> = block.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let mut results = vec![0u32; layout.bytes() / 4];
        let mut on_device = logits.to_vec();
        let mut sums = vec![0f32; 6 * asks * chunk_count];
        let (mut newest_words, mut cut_words) = (vec![[u32::MAX; 2]; asks], vec![[0u32; 2]; asks]);
        let mut totals = vec![0f64; asks];
        let mut counted_words = vec![0u32; asks * MOST_COUNTED * SEEN_BYTES / 4];
        let mut sampled_words: Vec<u32> = before.iter().map(|token| token.0).collect();
        let uniforms: Vec<f64> = requests.iter().map(SampleRequest::uniform).collect();

        let mut row = on_device.as_mut_ptr();
        let mut parts: [*mut f32; 6] = std::array::from_fn(|part| sums[part * asks * chunk_count..].as_mut_ptr());
        let (mut vocab_word, mut chunks, mut rows) = (vocab as u32, chunk_count as u32, asks as u32);
        let (mut header, mut sets) = (words.as_mut_ptr(), sets.as_ptr());
        let (mut newest, mut cuts) = (newest_words.as_mut_ptr(), cut_words.as_mut_ptr());
        let (mut counted, mut sampled) = (counted_words.as_mut_ptr(), sampled_words.as_mut_ptr());
        let (mut uniforms_at, mut results_at) = (uniforms.as_ptr(), results.as_mut_ptr());
        let (logits_at, vocab_at, chunks_at) = (at(&mut row), at(&mut vocab_word), at(&mut chunks));
        let (header, sets, rows_at) = (at(&mut header), at(&mut sets), at(&mut rows));
        let [model_max, model_sum, products, max, sum, min] = parts.each_mut().map(at);
        let mut totals = totals.as_mut_ptr();
        let totals = at(&mut totals);
        let (newest, cuts, counted, sampled) = (at(&mut newest), at(&mut cuts), at(&mut counted), at(&mut sampled));
        let (uniforms_at, results_at) = (at(&mut uniforms_at), at(&mut results_at));
        let shared = |bytes: usize| bytes.next_multiple_of(16);
        let grid = asks as u32;

        let args = [logits_at, vocab_at, chunks_at, header, sets, model_max, model_sum, products, max, sum, min];
        // SAFETY: the arguments of sample_chunks, in its order, each with memory for what its head says.
        unsafe { self.chunks.launch(grid * chunks.div_ceil(8), 256, 0, ANY, &args) };
        let args = [logits_at, vocab_at, chunks_at, header, sampled, max, sum, min, newest, counted, sets];
        // SAFETY: as above, of sample_edit.
        unsafe { self.edit.launch(grid, 256, shared(chunk_count), ANY, &args) };
        let args = [logits_at, vocab_at, chunks_at, header, sets, max, sum, cuts];
        // SAFETY: as above, of sample_filter.
        unsafe { self.filter.launch(grid, 256, shared(4 * chunk_count), ANY, &args) };
        let args = [
            logits_at,
            vocab_at,
            chunks_at,
            rows_at,
            header,
            sets,
            uniforms_at,
            model_max,
            model_sum,
            products,
            max,
            sum,
            newest,
            cuts,
            totals,
            results_at,
            sampled,
            counted,
        ];
        // SAFETY: as above, of sample_token.
        unsafe { self.token.launch(grid, 32, shared(8 * chunk_count), ANY, &args) };
        let args = [
            logits_at, vocab_at, chunks_at, rows_at, header, sets, model_max, model_sum, max, min, newest, cuts,
            totals, results_at, counted,
        ];
        // SAFETY: as above, of sample_top.
        unsafe { self.top.launch(grid, 256, shared(8 * chunk_count), ANY, &args) };

        let same = logits.iter().zip(&on_device).all(|(before, after)| before.to_bits() == after.to_bits());
        assert!(same, "the model's logits are restored");
        let found = layout.parse(bytemuck::cast_slice(&results));
        for (found, &continued) in found.iter().zip(&sampled_words) {
            assert_eq!(continued, found.as_ref().map_or(0, |sampled| sampled.token.0), "the next step's tokens");
        }
        found
    }
}

/// Holds what is recorded of a sample to the definition. Returns how many requests had a record: 1 or none.
fn hold_record(found: &Option<SampledToken>, expected: &Option<SampledToken>, what: &str) -> usize {
    let Some((found, expected)) = found.as_ref().zip(expected.as_ref()) else { return 0 };
    let kept =
        |sampled: &SampledToken| sampled.drawn.as_ref().map(|drawn| (drawn.kept, drawn.lowest, drawn.ids.clone()));
    assert_eq!(kept(found), kept(expected), "{what}");
    let numbers = |sampled: &SampledToken| {
        let drawn = sampled.drawn.as_ref().map(|drawn| drawn.logprob);
        let top: Vec<f32> = sampled.top.iter().map(|&(_, logprob)| logprob).collect();
        let means = [sampled.entropy, sampled.confidence].into_iter().flatten().collect();
        [vec![sampled.logprob], top, drawn.into_iter().collect(), means].concat()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    let is_near = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-4 * (1.0 + b.abs());
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(found.iter().zip(&expected).all(is_near), "{what}: {found:?} for {expected:?}");
    usize::from(expected.len() > 1)
}

/// Records over rows of every kind, by requests with and without filters and changes of the scores; each token that was
/// sampled is then scored under the filters that it was drawn with, and has the same record to the bit.
#[test]
fn records_are_the_definitions_and_those_of_a_re_score() {
    let Some(kernels) = SampleKernels::compile() else { return };
    let mut dice = Dice::new(14);
    for vocab in [7, 1100, 2600] {
        let random = |filters, uniform| Pick::Random { filters, uniform };
        let of = |temperature, top_k, top_p, min_p| Filters { temperature, top_k, top_p, min_p };
        let filters = [
            Filters::default(),
            of(0.7, None, 1.0, 0.0),
            of(1.0, Some(20), 1.0, 0.0),
            of(1.3, Some(1500), 0.95, 0.0),
            of(1.0, None, 0.9, 0.0),
            of(0.6, None, 1.0, 0.1),
            of(0.05, Some(40), 0.95, 0.05),
            of(1.0, Some(MOST_KEPT as u32 + 1), 1.0, 0.0),
        ];
        let mut requests = Vec::new();
        for ask in 0..5 * 2 * filters.len() {
            let filters = filters[ask / 5 % filters.len()];
            let pick = if ask % 7 == 0 { Pick::Greedy } else { random(filters, dice.uniform()) };
            let edits = if ask < 40 { SampleRequest::of(pick) } else { wrapped(request(&mut dice, ask), vocab) };
            requests.push(SampleRequest {
                pick,
                records: Records {
                    drawn: ask % 2 == 0,
                    kept_ids: ask % 3 > 0,
                    entropy: ask % 4 > 0,
                    confidence: NonZeroU16::new([0, 1, 4, 20, 0, 2048][ask % 6]),
                },
                top_logprobs: [None, Some(0), Some(1), Some(30)][ask % 4],
                top_of: [Distribution::Model, Distribution::Drawn][ask % 3 / 2],
                ..edits
            });
        }
        let logits = rows_of_all_kinds(&mut dice, requests.len(), vocab);
        let before = dice.text(requests.len(), vocab);
        let sample = |requests: &[SampleRequest]| {
            kernels.sample((&logits, vocab), requests, (&mut Places::default(), &mut Vec::new()), &before)
        };
        let found = sample(&requests);
        let mut batch = StepBatch { requests: requests.clone().into(), ..StepBatch::default() };
        batch.count_unseen(&before);
        let expected = definition(&logits, vocab, batch.requests.given());
        for (ask, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("ask {ask} of {vocab} tokens: {:?}", requests[ask]);
            // No uniform and no filter of this seed lies at a boundary between two tokens.
            let own = |sampled: &Option<SampledToken>| sampled.as_ref().map(|sampled| (sampled.token, sampled.rank));
            assert_eq!(own(found), own(expected), "{what}");
            hold_record(found, expected, &what);
        }
        let scoring = requests.iter().zip(&found).map(|(request, found)| match found {
            Some(SampledToken { token, .. }) => {
                SampleRequest { pick: Pick::Given { token: *token, under: request.filters() }, ..request.clone() }
            }
            None => request.clone(),
        });
        assert_eq!(sample(&scoring.collect::<Vec<_>>()), found, "{vocab} tokens, scored under the same filters");
        // A token that may not be kept.
        let others: Vec<SampleRequest> = batch
            .requests
            .given()
            .iter()
            .map(|request| {
                let token = TokenId(dice.within(0, vocab as u32 - 1));
                SampleRequest { pick: Pick::Given { token, under: request.filters() }, ..request.clone() }
            })
            .collect();
        for (ask, (found, expected)) in sample(&others).iter().zip(&definition(&logits, vocab, &others)).enumerate() {
            let what = format!("ask {ask} of {vocab} tokens: {:?}", others[ask]);
            assert_eq!(found.as_ref().map(|s| s.rank), expected.as_ref().map(|s| s.rank), "{what}");
            hold_record(found, expected, &what);
        }
    }
}

/// `request` with its tokens modulo the vocabulary.
fn wrapped(mut request: SampleRequest, vocab: usize) -> SampleRequest {
    let wrap = |token: &mut TokenId| *token = TokenId(token.0 % vocab as u32);
    request.seen.iter_mut().for_each(|seen| wrap(&mut seen.token));
    request.seen.sort_unstable_by_key(|seen| seen.token);
    request.seen.dedup_by_key(|seen| seen.token);
    request.logit_bias.iter_mut().for_each(|(token, _)| wrap(token));
    request.banned.iter_mut().for_each(wrap);
    request
}

#[test]
fn allowed_tokens_are_sampled_as_by_the_definition() {
    let Some(kernels) = SampleKernels::compile() else { return };
    let mut dice = Dice::new(13);
    for vocab in [7, 70, 1100] {
        let (mut places, mut sets, mut left_none, mut records) = (Places::default(), Vec::new(), 0, 0);
        // Each step with other sets: their places are used again. In the last one each row has a set of its own.
        for step in 0..4 {
            let mut requests = allowed_requests(&mut dice, vocab);
            if step == 3 {
                assert!(places.count() <= 8, "the places of sets that nobody has are used again");
                let own = |(ask, request): (usize, &mut SampleRequest)| {
                    let tokens = (0..vocab as u32).filter(|token| token.wrapping_mul(2 * ask as u32 + 7) % 5 > 1);
                    request.allowed = Some(Arc::new(AllowedTokens::new(tokens.map(TokenId), vocab)));
                };
                requests.iter_mut().enumerate().for_each(own);
            }
            let logits = rows_of_all_kinds(&mut dice, requests.len(), vocab);
            let before = dice.text(requests.len(), vocab);
            let found = kernels.sample((&logits, vocab), &requests, (&mut places, &mut sets), &before);
            let mut batch = StepBatch { requests: requests.clone().into(), ..StepBatch::default() };
            batch.count_unseen(&before);
            let expected = definition(&logits, vocab, batch.requests.given());
            for (ask, (found, expected)) in found.iter().zip(&expected).enumerate() {
                // No uniform of this seed lies at a boundary between two tokens.
                let own =
                    |sampled: &Option<SampledToken>| sampled.as_ref().map(|sampled| (sampled.token, sampled.rank));
                let what = format!("ask {ask} of step {step}, {vocab} tokens: {:?}", requests[ask]);
                assert_eq!(own(found), own(expected), "{what}");
                let top = |sampled: &Option<SampledToken>| {
                    sampled.as_ref().map(|sampled| sampled.top.iter().map(|&(token, _)| token).collect::<Vec<_>>())
                };
                assert_eq!(top(found), top(expected), "{what}");
                records += hold_record(found, expected, &what);
                left_none += usize::from(found.is_none());
            }
        }
        assert!(left_none >= 3 * 8, "requests with no token left: {left_none}");
        assert!(records >= 3 * 16, "requests with records: {records}");
        assert!(places.count() >= 60, "a place for each row's set");
    }
}
