//! Records of samples: what is recorded of each token while it is sampled is recorded of it again, bit for bit, where
//! it is given and scored as if it were sampled so; and a record holds what its request asked for, no more.

use std::num::NonZeroU16;

use offshoot_backend::MOST_KEPT;
use offshoot_core::ids::TokenId;
use offshoot_engine::{
    EngineConfig, Event, Extend, Finish, FinishReason, LogprobsMode, Records, SampledToken, SamplingParams, Stop,
};
use proptest::prelude::*;

use super::any::for_any;
use super::bench::{
    EOS, Mode, Shape, VOCAB, draw, finish, finishes, in_turn, key, length, params, prompt, replicas, roomy, run_ahead,
};

/// Everything is recorded, and the likeliest tokens.
fn recorded(params: SamplingParams, mode: LogprobsMode) -> SamplingParams {
    let records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
    SamplingParams { top_logprobs: Some(5), logprobs_mode: mode, records, ..params }
}

fn all_of(finish: &Finish) -> Vec<SampledToken> {
    finish.sampled_records().map(SampledToken::from).collect()
}

/// Any parameters, and when the sample ends.
fn any_params() -> impl Strategy<Value = (SamplingParams, Stop)> {
    let filters = (
        prop_oneof![Just(0.0f32), Just(1.0), 0.2f32..3.0],
        prop::option::of(1u32..300),
        prop_oneof![Just(1.0f32), 0.05f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..0.5],
    );
    let penalties = (
        prop_oneof![Just(1.0f32), 0.5f32..2.0],
        prop_oneof![Just(0.0f32), -1.0f32..2.0],
        prop_oneof![Just(0.0f32), -1.0f32..2.0],
    );
    let token = || (0..VOCAB).prop_map(TokenId);
    let edits = (
        prop::collection::vec((token(), prop_oneof![Just(f32::NEG_INFINITY), -3.0f32..3.0]), 0..6),
        prop::option::weighted(0.3, prop::collection::vec(token(), 20..120)),
        prop::collection::vec(prop::collection::vec(token(), 1..3), 0..4),
    );
    let rest = (any::<bool>(), 0usize..12, prop::collection::vec(token(), 0..4));
    (filters, penalties, edits, rest).prop_map(|(filters, penalties, edits, rest)| {
        let (temperature, top_k, top_p, min_p) = filters;
        let (repetition_penalty, frequency_penalty, presence_penalty) = penalties;
        let (logit_bias, allowed, bad_words) = edits;
        let (is_processed, min_tokens, tokens) = rest;
        let mode = if is_processed { LogprobsMode::ProcessedLogprobs } else { LogprobsMode::RawLogprobs };
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            logit_bias,
            allowed,
            bad_words,
            ..SamplingParams::default()
        };
        (recorded(params, mode), Stop { max_tokens: 24, min_tokens, tokens, ..Stop::default() })
    })
}

/// Samples by `params`, then gives what was sampled to others, to be scored.
fn scored_as_sampled(mode: Mode, shape: Shape, config: EngineConfig, params: &SamplingParams, stop: &Stop) {
    let engine = mode.engine_of(shape, config);
    let root = engine.root(prompt(3, 25)).unwrap();
    let drawn: Vec<_> = engine.fork(root, 3).unwrap();
    let extends = (0..).zip(&drawn).map(|(i, &child)| draw(child, key("item", i), params.clone(), stop.clone()));
    let drawn = finishes(&engine, extends.collect());
    // Beside those that are scored by the model alone, on the same tokens.
    let ids = |finish: &Finish| finish.sampled_ids().into_owned();
    let (judges, plain) = (engine.fork(root, 3).unwrap(), engine.fork(root, 3).unwrap());
    let judged = judges.iter().zip(&drawn).map(|(&at, drawn)| Extend::given_as_sampled(at, ids(drawn), params, stop));
    let plain = plain.iter().zip(&drawn).map(|(&at, drawn)| Extend::given(at, ids(drawn), Some(2)));
    let scored = finishes(&engine, judged.chain(plain).collect());
    let (judged, plain) = scored.split_at(drawn.len());
    for ((drawn, judged), plain) in drawn.iter().zip(judged).zip(plain) {
        assert_eq!(judged.reason, FinishReason::Given);
        assert_eq!(all_of(judged), all_of(drawn), "{params:?} {stop:?}");
        assert_eq!(judged.logprob.to_bits(), drawn.logprob.to_bits());
        let model: Vec<f32> = drawn.sampled_records().map(|record| record.logprob).collect();
        assert_eq!(plain.logprobs(), model);
        assert!(plain.records.tops().iter().all(|top| top.len() == 2) && plain.records.drawn().is_empty());
        // The likeliest by the model, also where those by another distribution were recorded of the same tokens.
        for record in plain.sampled_records() {
            let own = record.top.iter().find(|(token, _)| *token == record.token);
            assert!(own.is_none_or(|&(_, logprob)| logprob == record.logprob), "{record:?}");
        }
    }
}

fn what_was_sampled_in_a_form_is_scored_alike(mode: Mode) {
    for (number, form) in (0..).zip(super::forms::forms()) {
        for of in [LogprobsMode::RawLogprobs, LogprobsMode::ProcessedLogprobs] {
            let penalised = SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.4, ..params() };
            let params = recorded(if number % 2 == 0 { params() } else { penalised }, of).form(form.clone());
            for (shape, step_rows) in [(Shape::Full, 64), (Shape::Full, 5), (Shape::Hybrid, 9), (Shape::Latent, 9)] {
                let config = EngineConfig { step_rows, ..roomy() };
                scored_as_sampled(mode, shape, config, &params, &Stop::max_tokens(24));
            }
        }
    }
}

#[test]
fn what_was_sampled_is_scored_alike() {
    let shapes = prop::sample::select(vec![Shape::Full, Shape::LongWindowed, Shape::Hybrid, Shape::Latent]);
    let modes = prop::sample::select(vec![in_turn(), run_ahead(), replicas()]);
    let cases = (any_params(), shapes, modes, 1usize..40);
    for_any(cases, |((params, stop), shape, mode, step_rows)| {
        // Some leave no token to sample.
        let eos = [EOS];
        let works = params.check(VOCAB as usize).is_ok() && stop.check_beside(&params, VOCAB as usize, &eos).is_ok();
        if works {
            scored_as_sampled(mode, shape, EngineConfig { step_rows, ..roomy() }, &params, &stop);
        }
        Ok(())
    });
}

fn a_record_is_of_the_distribution_drawn_from(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let warm = SamplingParams { temperature: 1.3, top_k: Some(40), ..SamplingParams::default() };
    let warm = recorded(warm, LogprobsMode::ProcessedLogprobs);
    let whole = finish(&engine, draw(root, key("item", 0), warm.clone(), length(12)));
    for (at, record) in whole.sampled_records().enumerate() {
        let drawn = record.drawn.expect("it was asked for");
        let ids = drawn.ids.as_ref().expect("40 of them are few");
        assert_eq!((drawn.kept, ids.len()), (40, 40));
        assert!(ids.is_sorted() && ids.contains(&record.token));
        // The likeliest are those that are kept, by the distribution that was drawn from.
        assert!(record.top.iter().all(|(token, _)| ids.contains(token)));
        let own = record.top.iter().find(|(token, _)| *token == record.token);
        assert!(own.is_none_or(|&(_, logprob)| logprob == drawn.logprob));
        assert!((0.0..(VOCAB as f32).ln()).contains(&record.entropy.expect("it was asked for")));
        // Each kept token given in this place: their probabilities sum to 1.
        if at == 3 {
            let before = [prompt(3, 18), whole.tokens[..at].to_vec()].concat();
            let branch = engine.root(before).unwrap();
            let each = engine.fork(branch, ids.len()).unwrap();
            let given = each
                .iter()
                .zip(ids)
                .map(|(&branch, &token)| Extend::given_as_sampled(branch, vec![token], &warm, &length(1)));
            let scored = finishes(&engine, given.collect());
            let shown =
                |finish: &Finish| finish.logprob_by(LogprobsMode::ProcessedLogprobs).expect("it was asked for").exp();
            let sum: f64 = scored.iter().map(shown).sum();
            assert!((sum - 1.0).abs() < 1e-5, "the kept tokens have {sum}");
        }
    }
    assert_ne!(whole.logprob_by(LogprobsMode::ProcessedLogprobs), whole.logprob_by(LogprobsMode::RawLogprobs));
}

fn what_could_not_be_drawn_has_no_probability(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let narrow = recorded(SamplingParams::default().allowed([TokenId(70), TokenId(71)]), LogprobsMode::RawLogprobs);
    let given = Extend::given_as_sampled(root, vec![TokenId(70), TokenId(72)], &narrow, &length(2));
    let scored = finish(&engine, given);
    let drawn = scored.records.drawn();
    let of = |at: usize| drawn[at].as_ref().expect("it was asked for");
    assert_eq!(of(0).ids, Some(vec![TokenId(70), TokenId(71)]));
    assert_eq!((of(1).logprob, of(1).kept), (f32::NEG_INFINITY, 2));
    assert!(scored.logprobs().iter().all(|logprob| logprob.is_finite()), "the model's own are numbers");
}

fn a_record_holds_what_was_asked_for(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let columns = |params: SamplingParams| {
        let branch = engine.fork(root, 1).unwrap()[0];
        let mut extension = engine.start(vec![draw(branch, key("item", 0), params, length(6))]).unwrap();
        let mut told: Vec<SampledToken> = Vec::new();
        while let Some(event) = extension.next() {
            match event {
                Event::Tokens { tokens, .. } => told.extend(tokens),
                Event::Finished { finish, .. } => {
                    assert_eq!(all_of(&finish), told, "events have the same records");
                    let records = &finish.records;
                    let has_ids = records.drawn().iter().flatten().any(|drawn| drawn.ids.is_some());
                    return [
                        !records.ranks().is_empty(),
                        !records.tops().is_empty(),
                        !records.drawn().is_empty(),
                        has_ids,
                        !records.entropies().is_empty(),
                        !records.confidences().is_empty(),
                    ];
                }
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
        panic!("it ends")
    };
    let plain = params();
    assert_eq!(columns(plain.clone()), [false; 6]);
    assert_eq!(columns(plain.clone().top_logprobs(3)), [true, true, false, false, false, false]);
    let processed = plain.clone().logprobs_mode(LogprobsMode::ProcessedLogprobs);
    assert_eq!(columns(processed), [false, false, true, false, false, false]);
    let entropy = Records { entropy: true, ..Records::default() };
    assert_eq!(columns(plain.clone().records(entropy)), [false, false, false, false, true, false]);
    let confidence = Records { confidence: NonZeroU16::new(3), ..Records::default() };
    assert_eq!(columns(plain.clone().records(confidence)), [false, false, false, false, false, true]);
    let ids = Records { kept_ids: true, ..Records::default() };
    assert_eq!(columns(plain.records(ids)), [false, false, true, true, false, false]);
    assert!(MOST_KEPT > VOCAB as usize, "all ids of this model are listed");
}

fn the_ending_token_is_recorded_whole(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(3, 18)).unwrap();
    let ending = SamplingParams { logit_bias: vec![(EOS, 9.0)], ..SamplingParams::default() };
    let ending = recorded(ending, LogprobsMode::ProcessedLogprobs);
    let ended = finish(&engine, draw(root, key("item", 1), ending, Stop::max_tokens(90)));
    assert_eq!(ended.reason, FinishReason::EndOfText);
    let (ids, records) = (ended.sampled_ids(), all_of(&ended));
    assert_eq!((ids.last(), ids.len(), records.len()), (Some(&EOS), ended.sampled(), ended.sampled()));
    let last = records.last().expect("the end of text");
    assert!(last.drawn.as_ref().is_some_and(|drawn| drawn.ids.is_some()) && last.entropy.is_some());
    assert!(last.rank.is_some() && !last.top.is_empty());
}

in_modes! {
    in_turn, run_ahead, replicas:
    a_record_is_of_the_distribution_drawn_from,
    what_could_not_be_drawn_has_no_probability,
    a_record_holds_what_was_asked_for,
    the_ending_token_is_recorded_whole,
    what_was_sampled_in_a_form_is_scored_alike,
}
