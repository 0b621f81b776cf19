//! Records of samples: each says the distribution that its token was drawn from. On every code path the kept tokens are
//! those that a re-score gives a probability, their probabilities add up to 1, and a token that is drawn and one that
//! is scored under the same filters have the same record to the bit; and the fast path records what the definition
//! does.

use std::num::NonZeroU16;

use offshoot_backend::{Distribution, Drawn, Filters, MOST_KEPT, Pick, Records, SampleRequest, SampledToken};
use offshoot_core::ids::TokenId;
use offshoot_cpu::Isa;
use proptest::prelude::*;

use super::sampling::{
    CDF_TOLERANCE, changes, filters, flat_logits, logits, random, request, sample, sampled, token, within,
};

const ALL: Records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };

fn isas() -> Vec<Isa> {
    let mut isas = Isa::available();
    if !isas.contains(&Isa::Portable) {
        isas.push(Isa::Portable);
    }
    isas
}

fn recorded(request: SampleRequest) -> SampleRequest {
    SampleRequest { records: ALL, ..request }
}

/// The request for the record of a given token, under what `request` samples from.
fn scoring(request: &SampleRequest, at: usize) -> SampleRequest {
    let under = request.filters();
    SampleRequest { pick: Pick::Given { token: token(at), under }, ..request.clone() }
}

fn drawn(sampled: &SampledToken) -> &Drawn {
    sampled.drawn.as_ref().expect("the request asks for it")
}

/// Whether two log-probabilities are the same, but for rounding of sums of f32 exponentials.
fn are_close(found: f32, expected: f64) -> bool {
    let found = f64::from(found);
    found == expected || (found - expected).abs() <= 1e-5 * (1.0 + expected.abs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_record_names_the_tokens_that_can_be_drawn_and_their_probabilities(
        logits in logits(),
        filters in filters(),
        is_greedy in prop::bool::weighted(0.1),
        uniform in 0.0..1.0f64,
        changes in changes(),
    ) {
        let logits = &logits[..logits.len().min(150)];
        let pick = if is_greedy { Pick::Greedy } else { Pick::Random { filters, uniform } };
        let changes = within(changes, logits.len());
        let request = recorded(SampleRequest { pick, top_of: Distribution::Drawn, ..changes });
        for isa in isas() {
            let Some(sampled) = sampled(isa, logits, &request) else { continue };
            let scores: Vec<SampledToken> =
                (0..logits.len()).map(|at| sample(isa, logits, &scoring(&request, at))).collect();
            let own = &scores[sampled.token.ix()];
            prop_assert_eq!(&sampled, own, "{}: drawn and scored", isa);

            let logprobs: Vec<f32> = scores.iter().map(|score| drawn(score).logprob).collect();
            let is_kept = |t: &usize| logprobs[*t] > f32::NEG_INFINITY;
            let kept: Vec<TokenId> = (0..logits.len()).filter(is_kept).map(token).collect();
            let record = drawn(&sampled);
            prop_assert_eq!(record.ids.as_ref(), Some(&kept), "{}", isa);
            prop_assert_eq!(record.kept as usize, kept.len());
            let total: f64 = kept.iter().map(|t| f64::from(logprobs[t.ix()]).exp()).sum();
            prop_assert!((total - 1.0).abs() < 1e-5, "{}: {}", isa, total);
            for score in &scores {
                prop_assert!(drawn(score).ids == record.ids && drawn(score).lowest == record.lowest);
            }

            let mut ranked: Vec<(TokenId, f32)> = kept.iter().map(|&t| (t, logprobs[t.ix()])).collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            prop_assert_eq!(sampled.top.len(), ranked.len().min(request.top()));
            for (listed, ranked) in sampled.top.iter().zip(&ranked) {
                // Other scores may round to one log-probability.
                prop_assert_eq!((listed.1, logprobs[listed.0.ix()]), (ranked.1, ranked.1), "{}", isa);
            }
            let rank = sampled.rank.expect("the request asks for it").get() as usize;
            let better = logprobs.iter().filter(|logprob| **logprob > record.logprob).count();
            let equal = logprobs.iter().filter(|logprob| **logprob == record.logprob).count();
            prop_assert!((better + 1..=better + equal).contains(&rank), "{}: {} of {:?}", isa, rank, logprobs);
        }
    }

    #[test]
    fn fast_and_clear_record_the_same(
        logits in prop_oneof![3 => logits(), 1 => flat_logits()],
        filters in filters(),
        given in any::<prop::sample::Index>(),
        changes in changes(),
    ) {
        let changes = within(changes, logits.len());
        let at = given.index(logits.len());
        let score = |isa: Isa, filters: Filters| {
            let pick = Pick::Given { token: token(at), under: Some(filters) };
            sample(isa, &logits, &recorded(SampleRequest { pick, top_of: Distribution::Drawn, ..changes.clone() }))
        };
        let clear = score(Isa::Portable, filters);
        for isa in isas() {
            let fast = score(isa, filters);
            prop_assert!(are_close(fast.entropy.unwrap(), f64::from(clear.entropy.unwrap())), "{}", isa);
            let near = || {
                let Filters { temperature, top_p, min_p, .. } = filters;
                let by = [1.0 - 1e-6, 1.0 + 1e-6].map(|by: f32| [
                    Filters { top_p: (top_p * by).min(1.0), ..filters },
                    Filters { min_p: min_p * by, ..filters },
                    Filters { temperature: temperature * by, ..filters },
                ]);
                by.into_iter().flatten().map(|nudged| score(Isa::Portable, nudged))
            };
            let is_as = |clear: &SampledToken| {
                let (fast, clear) = (drawn(&fast), drawn(clear));
                (fast.kept, fast.lowest, &fast.ids) == (clear.kept, clear.lowest, &clear.ids)
                    && are_close(fast.logprob, f64::from(clear.logprob))
            };
            prop_assert!(is_as(&clear) || near().any(|nudged| is_as(&nudged)), "{}: {:?}, {:?}", isa, fast, clear);
            prop_assert_eq!(fast.rank, clear.rank);
        }
    }

    #[test]
    fn confidence_is_the_mean_log_probability_of_the_models_likeliest_tokens(
        logits in prop_oneof![3 => logits(), 1 => flat_logits()],
        changes in changes(),
        filters in filters(),
        count in prop_oneof![1u16..40, 1u16..2049],
        top in prop::option::of(0usize..40),
    ) {
        // The definition again, from what its doc says: a full sort, no chunks.
        let safe = |x: &f32| if x.is_nan() { f64::NEG_INFINITY } else { f64::from(*x) };
        let safe: Vec<f64> = logits.iter().map(safe).collect();
        let max = safe.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        prop_assume!(max.is_finite());
        let log_sum = max + safe.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
        let mut logprobs: Vec<f64> = safe.iter().filter(|x| x.is_finite()).map(|x| x - log_sum).collect();
        logprobs.sort_by(|a, b| b.total_cmp(a));
        logprobs.truncate(usize::from(count));
        let expected = -logprobs.iter().sum::<f64>() / logprobs.len() as f64;
        let records = Records { confidence: NonZeroU16::new(count), ..Records::default() };
        for isa in isas() {
            for pick in [Pick::given(token(0)), Pick::Random { filters, uniform: 0.5 }] {
                let changes = within(changes.clone(), logits.len());
                let request = SampleRequest { pick, records, top_logprobs: top, ..changes };
                let Some(sampled) = sampled(isa, &logits, &request) else { continue };
                let found = sampled.confidence.expect("the request asks for it");
                prop_assert!(are_close(found, expected), "{}: {} for {}", isa, found, expected);
            }
        }
    }

    #[test]
    fn entropy_is_that_of_the_model(logits in logits(), changes in changes(), filters in filters()) {
        let logits: Vec<f32> = logits.iter().map(|x| if x.is_nan() { f32::NEG_INFINITY } else { *x }).collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assume!(max.is_finite());
        let weights: Vec<f64> = logits.iter().map(|x| f64::from(x - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let of = |weight: f64| if weight > 0.0 { -weight / total * (weight / total).ln() } else { 0.0 };
        let entropy: f64 = weights.into_iter().map(of).sum();
        for isa in isas() {
            for pick in [Pick::given(token(0)), Pick::Random { filters, uniform: 0.5 }] {
                let request = SampleRequest { pick, ..within(changes.clone(), logits.len()) };
                let Some(sampled) = sampled(isa, &logits, &recorded(request)) else { continue };
                let found = sampled.entropy.expect("the request asks for it");
                prop_assert!(are_close(found, entropy), "{}: {} for {}", isa, found, entropy);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn wide_kept_sets_are_the_best_tokens_down_to_the_lowest(
        logits in flat_logits(),
        temperature in prop_oneof![Just(1.0f32), 0.3f32..3.0],
        top_p in prop_oneof![Just(1.0f32), 0.3f32..0.9999],
        min_p in prop_oneof![Just(0.0f32), 0.001f32..0.9],
        uniform in 0.0..1.0f64,
    ) {
        let request = recorded(random(temperature, None, top_p, min_p, uniform));
        for isa in isas() {
            let sampled = sample(isa, &logits, &request);
            prop_assert_eq!(&sampled, &sample(isa, &logits, &scoring(&request, sampled.token.ix())), "{}", isa);
            let record = drawn(&sampled);
            let above = (0..logits.len()).filter(|&t| logits[t] > record.lowest);
            let ties = (0..logits.len()).filter(|&t| logits[t] == record.lowest);
            let missing = (record.kept as usize).checked_sub(above.clone().count()).expect("all above are kept");
            prop_assert!((1..=ties.clone().count()).contains(&missing), "{}: {} of the lowest", isa, missing);
            let mut kept: Vec<usize> = above.chain(ties.take(missing)).collect();
            kept.sort_unstable();
            let total: f64 = kept.iter().map(|&t| (f64::from(logits[t]) / f64::from(temperature)).exp()).sum();
            let expected = f64::from(logits[sampled.token.ix()]) / f64::from(temperature) - total.ln();
            prop_assert!(are_close(record.logprob, expected), "{}: {} for {}", isa, record.logprob, expected);
            let ids = (kept.len() <= MOST_KEPT).then(|| kept.into_iter().map(token).collect());
            prop_assert_eq!(&record.ids, &ids);
        }
    }

    #[test]
    fn top_p_keeps_no_more_than_it_needs(logits in flat_logits(), top_p in 0.3f32..0.9999) {
        let request = recorded(random(1.0, None, top_p, 0.0, 0.5));
        for isa in isas() {
            let record = drawn(&sample(isa, &logits, &request)).clone();
            let mut sorted: Vec<f64> = logits.iter().map(|x| f64::from(*x).exp()).collect();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let total: f64 = sorted.iter().sum();
            let share = |kept: usize| sorted[..kept].iter().sum::<f64>() / total;
            let kept = record.kept as usize;
            prop_assert!(share(kept) >= f64::from(top_p) - CDF_TOLERANCE, "{}: {}", isa, kept);
            prop_assert!(share(kept - 1) <= f64::from(top_p) + CDF_TOLERANCE, "{}: {}", isa, kept);
        }
    }
}

#[test]
fn nothing_is_recorded_that_is_not_asked_for() {
    let logits = [1.0, 3.0, 2.0];
    for isa in isas() {
        let of = |records: Records| {
            let sampled = sample(isa, &logits, &SampleRequest { records, ..random(0.7, None, 0.9, 0.0, 0.5) });
            let ids = sampled.drawn.as_ref().map(|drawn| drawn.ids.is_some());
            let means = (sampled.entropy.is_some(), sampled.confidence.is_some());
            (ids, means, sampled.rank, sampled.top.len())
        };
        assert_eq!(of(Records::default()), (None, (false, false), None, 0), "{isa}");
        assert_eq!(of(Records { drawn: true, ..Records::default() }), (Some(false), (false, false), None, 0), "{isa}");
        assert_eq!(
            of(Records { kept_ids: true, ..Records::default() }),
            (Some(true), (false, false), None, 0),
            "{isa}"
        );
        assert_eq!(of(Records { entropy: true, ..Records::default() }), (None, (true, false), None, 0), "{isa}");
        let confidence = Records { confidence: NonZeroU16::new(2), ..Records::default() };
        assert_eq!(of(confidence), (None, (false, true), None, 0), "{isa}");
    }
}

#[test]
fn records_at_the_edges() {
    let logits = [1.0, 3.0, 3.0, 2.0, -5.0, -200.0];
    let edited = SampleRequest { banned: vec![token(3)], ..request(Pick::Greedy) };
    for isa in isas() {
        // Greedy: temperature 1, and no filter; a token that e^87 tells from the best one cannot be drawn.
        let greedy = sample(isa, &logits, &recorded(edited.clone()));
        let exact = -(2.0 + (-2.0f64).exp() + (-8.0f64).exp()).ln();
        assert!(are_close(drawn(&greedy).logprob, exact), "{isa}: {greedy:?}");
        assert_eq!((drawn(&greedy).kept, drawn(&greedy).lowest), (4, -5.0), "{isa}");
        assert_eq!(drawn(&greedy).ids, Some([0, 1, 2, 4].map(token).to_vec()), "{isa}");

        // Of equal scores the smaller ids are kept.
        let two = recorded(random(1.0, Some(1), 1.0, 0.0, 0.9));
        assert_eq!(drawn(&sample(isa, &logits, &two)).ids, Some(vec![token(1)]), "{isa}");
        let lost = sample(isa, &logits, &scoring(&two, 2));
        assert_eq!((drawn(&lost).logprob, drawn(&lost).kept), (f32::NEG_INFINITY, 1), "{isa}");
        assert!(lost.logprob.is_finite(), "{isa}: the model's own");

        // A given token without filters is scored under the model alone, whatever is banned.
        let plain = sample(isa, &logits, &recorded(SampleRequest { pick: Pick::given(token(3)), ..edited.clone() }));
        assert!(are_close(drawn(&plain).logprob, f64::from(plain.logprob)) && drawn(&plain).kept == 5, "{isa}");

        // Nothing can be drawn.
        let all: Vec<TokenId> = (0..6).map(token).collect();
        for filters in [
            Filters::default(),
            Filters { top_k: Some(2), ..Filters::default() },
            Filters { temperature: 0.5, top_p: 0.9, min_p: 0.1, ..Filters::default() },
        ] {
            let pick = Pick::Given { token: token(0), under: Some(filters) };
            let none = sample(isa, &logits, &recorded(SampleRequest { banned: all.clone(), ..request(pick) }));
            let record = Drawn { logprob: f32::NEG_INFINITY, kept: 0, lowest: f32::INFINITY, ids: Some(Vec::new()) };
            assert_eq!(none.drawn, Some(record), "{isa}, {filters:?}");
        }
        let broken = sample(isa, &[f32::NAN; 6], &recorded(request(Pick::given(token(0)))));
        assert_eq!((broken.entropy, broken.confidence, drawn(&broken).kept), (Some(0.0), Some(0.0), 0), "{isa}");
    }
}

#[test]
fn more_ids_than_fit_are_counted_alone() {
    let logits: Vec<f32> = (0..3000).map(|i| ((i * 37) % 101) as f32 / 20.0).collect();
    for isa in isas() {
        for (top_k, ids) in [(MOST_KEPT as u32, Some(MOST_KEPT)), (MOST_KEPT as u32 + 1, None)] {
            let request = recorded(random(0.8, Some(top_k), 1.0, 0.0, 0.3));
            let record = drawn(&sample(isa, &logits, &request)).clone();
            assert_eq!((record.kept, record.ids.map(|ids| ids.len())), (top_k, ids), "{isa}");
        }
        let record = drawn(&sample(isa, &logits, &recorded(random(0.8, None, 1.0, 0.0, 0.3)))).clone();
        assert_eq!((record.kept, record.lowest, record.ids), (3000, 0.0, None), "{isa}");
    }
}

#[test]
fn a_confidence_is_of_the_tokens_that_are_left() {
    let confidence = |isa, logits: &[f32], count| {
        let records = Records { confidence: NonZeroU16::new(count), ..Records::default() };
        // What the request changes of the scores changes nothing of the model's confidence.
        let edited = SampleRequest { banned: vec![token(1)], ..request(Pick::Greedy) };
        sample(isa, logits, &SampleRequest { records, ..edited }).confidence.expect("the request asks for it")
    };
    let none = f32::NEG_INFINITY;
    for isa in isas() {
        assert!(are_close(confidence(isa, &[0.5; 8], 3), 8.0f64.ln()), "{isa}: equally likely tokens");
        assert_eq!(confidence(isa, &[7.0, none, none], 2), 0.0, "{isa}: one token is certain");
        // Log-probabilities of 2/3 and 1/3; the third token has none, and there is no fourth.
        let two_thirds = [2.0f32.ln(), 0.0, none];
        for (count, expected) in [(1, (2.0f64 / 3.0).ln()), (2, ((2.0f64 / 9.0).ln()) / 2.0)] {
            assert!(are_close(confidence(isa, &two_thirds, count), -expected), "{isa}: {count} tokens");
        }
        assert_eq!(confidence(isa, &two_thirds, 2), confidence(isa, &two_thirds, 2048), "{isa}: more than there are");
    }
}
