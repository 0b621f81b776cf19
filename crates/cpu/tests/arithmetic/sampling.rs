//! Sampling: the fast path samples the same tokens as the definition (`Isa::Portable`: a full sort in f64) for random
//! logits, uniforms and parameters; and the definition behaves as documented.

use std::num::NonZeroU32;
use std::sync::Arc;

use offshoot_backend::{AllowedTokens, Filters, Pick, SampleRequest, SampledToken, SeenToken};
use offshoot_core::ids::TokenId;
use offshoot_cpu::sampling::{self, SampleScratch};
use offshoot_cpu::{Cores, CpuBuffer, Isa, Team};
use proptest::prelude::*;

pub fn request(pick: Pick) -> SampleRequest {
    SampleRequest::of(pick)
}

pub fn random(temperature: f32, top_k: Option<u32>, top_p: f32, min_p: f32, uniform: f64) -> SampleRequest {
    request(Pick::Random { filters: Filters { temperature, top_k, top_p, min_p }, uniform })
}

/// The sample, if a token is left.
pub fn sampled(isa: Isa, logits: &[f32], request: &SampleRequest) -> Option<SampledToken> {
    let logits = CpuBuffer { rows: 1, width: logits.len(), data: logits.to_vec() };
    let (cores, mut sampled) = (Cores { isa, team: Team::new(1).into() }, Vec::new());
    sampling::sample(&cores, &mut SampleScratch::default(), &logits, std::slice::from_ref(request), &mut sampled);
    sampled.remove(0)
}

pub fn sample(isa: Isa, logits: &[f32], request: &SampleRequest) -> SampledToken {
    sampled(isa, logits, request).unwrap_or_else(|| panic!("{isa}: a token is left by {request:?}"))
}

/// The sample, after checking that every code path samples the same token.
fn sample_on_all(logits: &[f32], request: &SampleRequest) -> SampledToken {
    let sampled = sample(Isa::Portable, logits, request);
    for isa in Isa::available() {
        assert_eq!(sample(isa, logits, request).token, sampled.token, "{isa}, {request:?}");
    }
    sampled
}

/// Whether no code path samples any token.
fn is_none_left(logits: &[f32], request: &SampleRequest) -> bool {
    Isa::available().into_iter().chain([Isa::Portable]).all(|isa| sampled(isa, logits, request).is_none())
}

pub fn token(ix: usize) -> TokenId {
    TokenId::new(ix)
}

pub fn logits() -> impl Strategy<Value = Vec<f32>> {
    // Some on a coarse grid, so that ties are common; some very small; some special values.
    let one = prop_oneof![
        8 => -8.0f32..8.0,
        4 => (-6i32..6).prop_map(|x| x as f32 / 2.0),
        1 => -200.0f32..-50.0,
        1 => prop_oneof![Just(f32::NEG_INFINITY), Just(f32::NAN), Just(0.0), Just(-0.0)],
    ];
    prop_oneof![prop::collection::vec(one.clone(), 1..40), prop::collection::vec(one, 200..1500)]
}

/// Thousands of tokens of about the same weight: noise, a grid with many ties, ties alone, and noise above a floor.
pub fn flat_logits() -> impl Strategy<Value = Vec<f32>> {
    let count = 5000usize..12_000;
    prop_oneof![
        prop::collection::vec(-1.5f32..1.5, count.clone()),
        prop::collection::vec((-4i32..4).prop_map(|x| x as f32 / 4.0), count.clone()),
        count.clone().prop_map(|count| vec![0.25; count]),
        prop::collection::vec(prop_oneof![2 => 3.0f32..3.001, 1 => -1.0f32..0.0], count),
    ]
}

pub fn filters() -> impl Strategy<Value = Filters> {
    let each = (
        prop_oneof![Just(1.0f32), 0.05f32..3.0],
        prop_oneof![Just(None), (1u32..80).prop_map(Some), Just(Some(5000))],
        prop_oneof![Just(1.0f32), 0.01f32..0.999],
        prop_oneof![Just(0.0f32), 0.001f32..0.5],
    );
    each.prop_map(|(temperature, top_k, top_p, min_p)| Filters { temperature, top_k, top_p, min_p })
}

/// Bias, penalties and banned tokens. Token ids must be wrapped by `within`.
pub fn changes() -> impl Strategy<Value = SampleRequest> {
    let at = || 0usize..1500;
    (
        prop::collection::vec((at(), 0u32..4, any::<bool>()), 0..6),
        (prop_oneof![Just(1.0f32), 0.8f32..1.5], -0.5f32..1.0, -0.5f32..1.0),
        prop::collection::vec((at(), prop_oneof![-9.0f32..9.0, Just(f32::NEG_INFINITY)]), 0..3),
        prop::collection::vec(at(), 0..3),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(at(), 1..30)],
    )
        .prop_map(|(seen, (repetition, frequency, presence), bias, banned, allowed)| SampleRequest {
            seen: seen.into_iter().map(|(t, n, p)| SeenToken { token: token(t), sampled: n, in_prompt: p }).collect(),
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            logit_bias: bias.into_iter().map(|(t, b)| (token(t), b)).collect(),
            banned: banned.into_iter().map(token).collect(),
            allowed: (!allowed.is_empty()).then(|| Arc::new(AllowedTokens::new(allowed.into_iter().map(token), 1500))),
            top_logprobs: Some(7),
            ..request(Pick::Greedy)
        })
}

/// `changes` with token ids modulo the vocabulary.
pub fn within(mut changes: SampleRequest, vocab: usize) -> SampleRequest {
    let wrap = |t: TokenId| token(t.ix() % vocab);
    changes.seen.iter_mut().for_each(|seen| seen.token = wrap(seen.token));
    changes.logit_bias.iter_mut().for_each(|(t, _)| *t = wrap(*t));
    changes.banned.iter_mut().for_each(|t| *t = wrap(*t));
    let wrapped = |set: Arc<AllowedTokens>| {
        let tokens = (0..set.vocab()).map(token).filter(|t| set.contains(*t));
        Arc::new(AllowedTokens::new(tokens.map(wrap), vocab))
    };
    changes.allowed = changes.allowed.map(wrapped);
    changes
}

/// Bound of the error of cumulative probabilities on the fast path, which sums f32 exponentials. Each is accurate to a
/// few units in the last place of an argument up to 87: 1e-5 of an unlikely token's weight, 2e-7 of a likely one's.
pub const CDF_TOLERANCE: f64 = 1e-6;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn flat_distributions_are_cut_at_the_same_token(
        logits in flat_logits(),
        temperature in prop_oneof![Just(1.0f32), 0.3f32..3.0],
        top_p in prop_oneof![Just(1.0f32), 0.3f32..0.9999],
        min_p in prop_oneof![Just(0.0f32), 0.001f32..0.9],
        // The last token that is kept is sampled at the largest uniform.
        uniform in prop_oneof![0.0..1.0f64, Just(1.0f64.next_down())],
    ) {
        let at = |uniform: f64, top_p: f32| {
            SampleRequest {
                banned: vec![token(3)],
                ..random(temperature, None, top_p, min_p, uniform.clamp(0.0, 1.0))
            }
        };
        let clear = sample(Isa::Portable, &logits, &at(uniform, top_p)).token;
        for isa in Isa::available() {
            let fast = sample(isa, &logits, &at(uniform, top_p)).token;
            let near = || {
                let nudged = [
                    (uniform - CDF_TOLERANCE, top_p),
                    (uniform + CDF_TOLERANCE, top_p),
                    (uniform, top_p * (1.0 - 1e-6)),
                    (uniform, top_p * (1.0 + 1e-6)),
                ];
                nudged.iter().any(|&(uniform, top_p)| sample(Isa::Portable, &logits, &at(uniform, top_p)).token == fast)
            };
            prop_assert!(fast == clear || near(), "{isa}: {fast} for {clear}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn fast_and_clear_sample_the_same(
        logits in logits(), filters in filters(), uniform in 0.0..1.0f64, changes in changes()
    ) {
        let top_p = filters.top_p;
        let at = |uniform: f64, top_p: f32| SampleRequest {
            pick: Pick::Random { filters: Filters { top_p, ..filters }, uniform: uniform.clamp(0.0, 1.0) },
            ..within(changes.clone(), logits.len())
        };
        let clear = sampled(Isa::Portable, &logits, &at(uniform, top_p));
        for isa in Isa::available() {
            let fast = sampled(isa, &logits, &at(uniform, top_p));
            prop_assert_eq!(fast.is_some(), clear.is_some(), "{}", isa);
            let (Some(fast), Some(clear)) = (fast, &clear) else { continue };
            let near = || {
                let nudged = [
                    (uniform - CDF_TOLERANCE, top_p),
                    (uniform + CDF_TOLERANCE, top_p),
                    (uniform, top_p * (1.0 - 1e-6)),
                    (uniform, top_p * (1.0 + 1e-6)),
                ];
                nudged
                    .iter()
                    .any(|&(uniform, top_p)| sample(Isa::Portable, &logits, &at(uniform, top_p)).token == fast.token)
            };
            prop_assert!(fast.token == clear.token || near(), "{isa}: {} for {}", fast.token, clear.token);
            prop_assert!(fast.token != clear.token || fast.rank == clear.rank, "{isa}: {:?}", fast.rank);
            prop_assert_eq!(fast.top.len(), clear.top.len());
            for (fast, clear) in fast.top.iter().zip(&clear.top) {
                prop_assert_eq!(fast.0, clear.0, "{}", isa);
                // Both are rounded from f64; the sums differ by less than CDF_TOLERANCE.
                prop_assert!(
                    fast.1 == clear.1 || (fast.1 - clear.1).abs() <= 1e-6 * (1.0 + clear.1.abs()),
                    "{}: {} for {}", isa, fast.1, clear.1
                );
            }
        }
    }

    #[test]
    fn greedy_is_the_first_best(logits in logits(), changes in changes()) {
        let greedy = within(changes, logits.len());
        prop_assume!(sampled(Isa::Portable, &logits, &greedy).is_some());
        let best = sample_on_all(&logits, &greedy).token;
        let top_one = SampleRequest {
            pick: random(0.7, Some(1), 1.0, 0.0, 0.99).pick,
            ..greedy
        };
        prop_assert_eq!(sample_on_all(&logits, &top_one).token, best);
    }

    #[test]
    fn log_probabilities_are_those_of_the_model(logits in logits(), changes in changes(), given in 0usize..1500) {
        let given = SampleRequest { pick: Pick::given(token(given % logits.len())), ..within(changes, logits.len()) };
        let max = logits.iter().copied().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, f32::max);
        prop_assume!(max.is_finite());
        let exp = |x: f32| if x.is_nan() { 0.0 } else { f64::from(x - max).exp() };
        let sum: f64 = logits.iter().map(|&x| exp(x)).sum();
        let Pick::Given { token: at, .. } = given.pick else { unreachable!() };
        for isa in Isa::available() {
            let sampled = sample(isa, &logits, &given);
            prop_assert_eq!(sampled.token, at);
            let exact = (exp(logits[at.ix()]) / sum).ln();
            prop_assert!(
                f64::from(sampled.logprob) == exact
                    || (f64::from(sampled.logprob) - exact).abs() < 1e-5 * (1.0 + exact.abs()),
                "{}: {} for {}", isa, sampled.logprob, exact
            );
        }
    }
}

#[test]
fn sampled_frequencies_match_probabilities() {
    let logits: Vec<f32> = (0..300).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
    let scaled: Vec<f64> = logits.iter().map(|x| (f64::from(*x) / 0.8).exp()).collect();
    let sum: f64 = scaled.iter().sum();
    const UNIFORMS: usize = 20_000;
    let mut counts = vec![0usize; logits.len()];
    let isa = Isa::chosen().unwrap();
    for i in 0..UNIFORMS {
        let uniform = (i as f64 + 0.5) / UNIFORMS as f64;
        counts[sample(isa, &logits, &random(0.8, None, 1.0, 0.0, uniform)).token.ix()] += 1;
    }
    for (count, scaled) in counts.iter().zip(&scaled) {
        // Evenly spaced uniforms: an interval of length p contains p * UNIFORMS of them, up to one at each end.
        assert!((*count as f64 - scaled / sum * UNIFORMS as f64).abs() <= 2.0);
    }
}

/// Under a set of allowed tokens, the frequencies of many draws fit the distribution renormalised over the set:
/// Pearson's chi-squared over its tokens is below its 99.99 % quantile.
#[test]
fn draws_under_a_mask_fit_the_renormalised_distribution() {
    const DRAWS: usize = 100_000;
    let logits: Vec<f32> = (0..24).map(|i| ((i * 13) % 17) as f32 / 5.0).collect();
    let sets: [&[u32]; 3] = [&[0, 3, 5, 6, 11, 17, 22, 23], &[1, 2], &[4, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20]];
    // The 1 - 1e-4 quantile of chi-squared with so many degrees of freedom, by Wilson and Hilferty's approximation:
    // z = 3.719 is that of the normal distribution.
    let quantile = |free: f64| {
        let part = 2.0 / (9.0 * free);
        free * (1.0 - part + 3.719 * part.sqrt()).powi(3)
    };
    for isa in [Isa::chosen().unwrap(), Isa::Portable] {
        for (number, ids) in (0u64..).zip(sets) {
            let allowed = Arc::new(AllowedTokens::new(ids.iter().map(|&id| TokenId(id)), logits.len()));
            let mut dice = offshoot_core::dice::Dice::new(31 + number);
            let mut counts = vec![0usize; logits.len()];
            for _ in 0..DRAWS {
                let uniform = f64::from(dice.within(0, u32::MAX - 1)) / f64::from(u32::MAX);
                let request = SampleRequest { allowed: Some(allowed.clone()), ..random(0.7, None, 1.0, 0.0, uniform) };
                counts[sample(isa, &logits, &request).token.ix()] += 1;
            }
            let weight = |id: u32| (f64::from(logits[id as usize]) / 0.7).exp();
            let sum: f64 = ids.iter().map(|&id| weight(id)).sum();
            let chi_squared: f64 = ids
                .iter()
                .map(|&id| {
                    let expected = weight(id) / sum * DRAWS as f64;
                    (counts[id as usize] as f64 - expected).powi(2) / expected
                })
                .sum();
            let inside: usize = ids.iter().map(|&id| counts[id as usize]).sum();
            assert_eq!(inside, DRAWS, "{isa}: only allowed tokens are drawn");
            assert!(chi_squared < quantile(ids.len() as f64 - 1.0), "{isa}: {chi_squared} over {ids:?}");
            let greedy = SampleRequest { allowed: Some(allowed), ..request(Pick::Greedy) };
            let likeliest =
                ids.iter().copied().max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]).then(b.cmp(&a)));
            assert_eq!(Some(sample(isa, &logits, &greedy).token.0), likeliest, "{isa}");
        }
    }
}

#[test]
fn edges() {
    let logits = [1.0, 3.0, 3.0, 2.0, -5.0];
    // Ties go to the smaller id: in greedy choice, in top-k, in the list of the likeliest.
    assert_eq!(sample_on_all(&logits, &request(Pick::Greedy)).token, token(1));
    assert_eq!(sample_on_all(&logits, &random(1.0, Some(1), 1.0, 0.0, 0.999)).token, token(1));
    let top =
        sample(Isa::chosen().unwrap(), &logits, &SampleRequest { top_logprobs: Some(3), ..request(Pick::Greedy) }).top;
    assert_eq!(top.iter().map(|(t, _)| t.ix()).collect::<Vec<_>>(), [1, 2, 3]);
    // So it does in ranks.
    for isa in Isa::available().into_iter().chain([Isa::Portable]) {
        let given = |at| SampleRequest { top_logprobs: Some(0), ..request(Pick::given(token(at))) };
        let ranks = [0, 1, 2, 3, 4].map(|at| sample(isa, &logits, &given(at)).rank.map(NonZeroU32::get));
        assert_eq!(ranks, [4, 1, 2, 3, 5].map(Some), "{isa}");
        assert_eq!(sample(isa, &logits, &request(Pick::Greedy)).rank, None, "nobody asked");
    }
    // A tiny top-p or a large min-p keeps the best token.
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 1e-9, 0.0, 0.999)).token, token(1));
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 0.0, 0.0, 0.999)).token, token(1));
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 1.0, 2.0, 0.999)).token, token(2));
    // The smallest and the largest uniform.
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 1.0, 0.0, 0.0)).token, token(0));
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 1.0, 0.0, 1.0f64.next_down())).token, token(4));
    // Very low and very high temperatures.
    assert_eq!(sample_on_all(&logits, &random(1e-30, None, 1.0, 0.0, 0.3)).token, token(1));
    assert_eq!(sample_on_all(&logits, &random(1e30, None, 1.0, 0.0, 0.7)).token, token(3));
    // Equal logits: only the uniform decides.
    for (uniform, expected) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 2), (0.99, 3)] {
        assert_eq!(sample_on_all(&[0.5; 4], &random(0.7, None, 1.0, 0.0, uniform)).token, token(expected));
    }
}

#[test]
fn banned_tokens_and_tokens_biased_to_minus_infinity_are_never_sampled() {
    let logits: Vec<f32> = (0..200).map(|i| (i % 7) as f32).collect();
    for i in 0..200 {
        let uniform = f64::from(i) / 200.0;
        let banned = SampleRequest {
            banned: (0..150).map(token).collect(),
            logit_bias: (150..190).map(|t| (token(t), f32::NEG_INFINITY)).collect(),
            ..random(1.3, None, 1.0, 0.0, uniform)
        };
        assert!(sample_on_all(&logits, &banned).token >= token(190));
    }
    let all = SampleRequest { banned: (0..200).map(token).collect(), ..request(Pick::Greedy) };
    assert!(is_none_left(&logits, &all));
    for filters in [(None, 1.0), (Some(5), 1.0), (None, 0.5)] {
        let all = SampleRequest { pick: random(1.0, filters.0, filters.1, 0.0, 0.5).pick, ..all.clone() };
        assert!(is_none_left(&logits, &all));
    }
    let given = SampleRequest { pick: Pick::given(token(7)), ..all };
    assert_eq!(sample_on_all(&logits, &given).token, token(7), "what is given is scored");
}

#[test]
fn nan_and_infinite_logits() {
    let logits = [f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    assert_eq!(sample_on_all(&logits, &request(Pick::Greedy)).token, token(2));
    assert_eq!(sample_on_all(&logits, &random(1.0, None, 1.0, 0.0, 0.5)).token, token(2));
    for logits in [[f32::NAN; 3], [f32::NEG_INFINITY; 3]] {
        assert!(
            is_none_left(&logits, &random(1.0, None, 0.9, 0.0, 0.5)) && is_none_left(&logits, &request(Pick::Greedy))
        );
        let given = sample_on_all(&logits, &request(Pick::given(token(1))));
        assert_eq!((given.token, given.logprob), (token(1), f32::NEG_INFINITY));
    }
}

#[test]
fn penalties_by_their_definitions() {
    let logits = [2.0, -2.0, 1.9, 0.0];
    let penalised = |sampled, in_prompt, change: fn(&mut SampleRequest)| {
        let seen = [0, 1].map(|t| SeenToken { token: token(t), sampled, in_prompt }).to_vec();
        let mut request = SampleRequest { seen, ..random(1.0, None, 1.0, 0.0, 0.0) };
        change(&mut request);
        // Finds the probabilities of all tokens from the uniforms at which the sampled token changes.
        let mut last = 0;
        let mut cumulative = [0.0; 5];
        for i in 0..=20_000 {
            let uniform = f64::from(i) / 20_001.0;
            let Pick::Random { uniform: at, .. } = &mut request.pick else { unreachable!() };
            *at = uniform;
            let sampled = sample(Isa::chosen().unwrap(), &logits, &request).token.ix();
            (last..sampled).for_each(|t| cumulative[t + 1] = uniform);
            last = sampled;
        }
        cumulative[4] = 1.0;
        (0..4).map(|t| cumulative[t + 1] - cumulative[t]).collect::<Vec<f64>>()
    };
    let softmax = |x: [f64; 4]| x.map(|v| v.exp() / x.iter().map(|v| v.exp()).sum::<f64>());
    let close = |found: Vec<f64>, exact: [f64; 4]| {
        assert!(found.iter().zip(exact).all(|(a, b)| (a - b).abs() < 2e-4), "{found:?} for {exact:?}");
    };
    // Repetition: the prompt counts; positive logits are divided, negative ones multiplied.
    close(penalised(0, true, |r| r.repetition_penalty = 2.0), softmax([1.0, -4.0, 1.9, 0.0]));
    close(penalised(3, false, |r| r.repetition_penalty = 2.0), softmax([1.0, -4.0, 1.9, 0.0]));
    // Frequency and presence: sampled text only.
    close(penalised(3, true, |r| r.frequency_penalty = 0.5), softmax([0.5, -3.5, 1.9, 0.0]));
    close(penalised(3, false, |r| r.presence_penalty = 0.5), softmax([1.5, -2.5, 1.9, 0.0]));
    close(
        penalised(0, true, |r| (r.frequency_penalty, r.presence_penalty) = (0.5, 0.5)),
        softmax([2.0, -2.0, 1.9, 0.0]),
    );
}
