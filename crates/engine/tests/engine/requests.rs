//! What is refused, in which words, and what survives a mistake.

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;

use offshoot_core::Error;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{ConfidenceStop, Engine, EngineConfig, Event, Records, SamplingParams, Stop, Turn};

use super::bench::{
    CONTEXT, Mode, Shape, VOCAB, decoder, draw, finish, give, key, length, new_tokenizer, outcomes, params, prompt,
    roomy, score,
};

fn prompts_that_cannot_be_are_refused_at_once(mode: Mode) {
    let engine = mode.engine(roomy());
    let error = engine.root(prompt(1, CONTEXT + 1)).unwrap_err();
    assert_eq!(error.to_string(), "the prompt has 161 tokens; the model's context is 160");
    assert!(engine.root(Vec::new()).is_err());
    assert!(engine.root(vec![TokenId(VOCAB)]).is_err());
    let root = engine.root(prompt(1, CONTEXT)).unwrap();
    assert!(engine.fork(root, 0).is_err());
}

fn parameters_out_of_range_are_named(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 5)).unwrap();
    let base = SamplingParams::default;
    let bad = [
        ("temperature", SamplingParams { temperature: -0.1, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_k", SamplingParams { top_k: Some(0), ..base() }),
        ("top_logprobs", SamplingParams { top_logprobs: Some(offshoot_backend::MOST_TOP + 1), ..base() }),
        (
            "tokens of a confidence",
            base().records(Records {
                confidence: NonZeroU16::new(offshoot_backend::MOST_TOP as u16 + 1),
                ..Records::default()
            }),
        ),
        ("min_p", SamplingParams { min_p: 1.5, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("presence_penalty", SamplingParams { presence_penalty: 2.5, ..base() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: -99.0, ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(TokenId(1), f32::NAN)], ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(TokenId(VOCAB), 1.0)], ..base() }),
    ];
    for (name, params) in bad {
        let error = engine.start(vec![draw(root, key("item", 0), params, length(3))]).err().expect(name);
        assert!(error.to_string().starts_with(name), "{error}");
    }
    let bad = [
        ("max_tokens", Stop::max_tokens(0)),
        ("min_tokens", Stop { min_tokens: 9, ..length(3) }),
        ("stop tokens", Stop { tokens: vec![TokenId(VOCAB)], ..length(3) }),
        ("stop strings", Stop { strings: vec![String::new()], ..length(3) }),
        (
            "the lowest confidence",
            length(3).at_confidence(ConfidenceStop { window: NonZeroUsize::MIN, below: f64::NAN }),
        ),
    ];
    for (name, stop) in bad {
        let error = engine.start(vec![draw(root, key("item", 0), params(), stop)]).err().expect(name);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}

fn branches_that_cannot_be_extended_fail_alone(mode: Mode) {
    let engine = mode.engine(roomy());
    let roots: Vec<BranchId> = (0..3).map(|i| engine.root(prompt(i, 20)).unwrap()).collect();
    engine.release(&roots[..1]);
    let extends = roots.iter().map(|&root| draw(root, key("item", 0), params(), length(5)));
    let outcomes = outcomes(&engine, extends.collect());
    assert!(matches!(&outcomes[0], Err(Error::Value { .. })));
    assert!(outcomes[1..].iter().all(Result::is_ok));

    let both = [0, 1].map(|ordinal| draw(roots[1], key("item", ordinal), params(), length(5)));
    assert!(engine.start(both.to_vec()).is_err_and(|error| error.to_string().contains("one of them twice")));
}

fn a_branch_that_grows_is_not_extended_nor_its_forks(mode: Mode) {
    let (backend, decoder) = decoder(Shape::Full);
    // Driven by hand: on a thread of its own the engine may be done before this thread asks.
    let config = EngineConfig { run_ahead: mode.run_ahead, ..roomy() };
    let (mut engine, handle) = Engine::build(decoder.on(backend), None, config).unwrap();
    let root = handle.root(prompt(1, 20)).unwrap();
    let mut growing = handle.start(vec![draw(root, key("item", 0), params(), length(100))]).unwrap();
    while engine.occupancy().running == 0 {
        assert_eq!(engine.turn().unwrap(), Turn::Stepped);
    }
    let early = handle.fork(root, 1).unwrap()[0];
    let refused = [
        (draw(root, key("item", 0), params(), length(5)), "which is being extended"),
        (give(early, prompt(1, 3)), "or by a fork of a branch at rest"),
    ];
    for (extend, why) in refused {
        let mut extension = handle.start(vec![extend]).unwrap();
        assert_eq!(engine.turn().unwrap(), Turn::Stepped);
        let Some(Event::Failed { error, .. }) = extension.next() else { panic!("it fails") };
        assert!(error.to_string().contains(why), "{error}");
    }
    while engine.turn().unwrap() == Turn::Stepped {}
    let mut drawn = 0;
    while let Some(event) = growing.next() {
        drawn += if let Event::Tokens { tokens, .. } = event { tokens.len() } else { 0 };
    }
    assert_eq!(drawn, 100, "the branch itself goes on");
}

fn given_tokens_must_fit(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, CONTEXT - 10)).unwrap();
    for extend in [give(root, prompt(2, 11)), score(root, prompt(2, 11))] {
        let error = outcomes(&engine, vec![extend]).remove(0).unwrap_err();
        assert!(matches!(error, Error::ContextTooLong { tokens: 161, context: 160, .. }), "{error}");
    }
    assert!(outcomes(&engine, vec![give(root, vec![TokenId(VOCAB)])]).remove(0).is_err());
    assert_eq!(finish(&engine, score(root, prompt(2, 10))).logprobs().len(), 10);
}

fn a_shorter_context_than_the_models_bounds_every_sequence(mode: Mode) {
    let engine = mode.engine(offshoot_engine::EngineConfig { context: Some(30), ..roomy() });
    assert_eq!(engine.facts().context, 30);
    let error = engine.root(prompt(1, 31)).unwrap_err();
    assert!(matches!(error, Error::ContextTooLong { tokens: 31, context: 30, .. }), "{error}");
    let root = engine.root(prompt(1, 20)).unwrap();
    assert_eq!(finish(&engine, draw(root, key("item", 0), params(), length(100))).tokens.len(), 10);
}

fn a_dropped_extension_cancels_and_the_engine_goes_on(mode: Mode) {
    let engine = mode.engine(roomy());
    let root = engine.root(prompt(1, 20)).unwrap();
    drop(engine.start(vec![draw(root, key("item", 0), params(), length(100))]).unwrap());
    let on = finish(&engine, draw(root, key("item", 0), params(), length(3)));
    assert_eq!(on.tokens.len(), 3);
}

fn a_cancelled_score_keeps_what_was_scored(mode: Mode) {
    let engine = mode.engine(offshoot_engine::EngineConfig { step_rows: 1, ..roomy() });
    let root = engine.root(prompt(1, 20)).unwrap();
    let extension = engine.start(vec![score(root, prompt(2, 100))]).unwrap();
    let mut extension = extension;
    extension.cancel_all();
    let Some(Event::Finished { finish: cancelled, .. }) = extension.next() else { panic!("it ends") };
    assert_eq!(cancelled.tokens.len(), cancelled.logprobs().len());
    assert_eq!(cancelled.tokens, prompt(2, 100)[..cancelled.tokens.len()]);
    let rest = prompt(2, 100)[cancelled.tokens.len()..].to_vec();
    let rest = finish(&engine, score(root, rest));
    let whole = finish(&engine, score(engine.root(prompt(1, 20)).unwrap(), prompt(2, 100)));
    assert_eq!([cancelled.logprobs(), rest.logprobs()].concat(), whole.logprobs());
}

fn the_engine_is_gone_with_its_last_handle(mode: Mode) {
    let (backend, decoder) = decoder(Shape::Full);
    let text = new_tokenizer();
    let config = EngineConfig { run_ahead: mode.run_ahead, ..roomy() };
    let engine = Engine::start(decoder.on(backend), Some(text.clone()), config).unwrap();
    let root = engine.root(prompt(1, 20)).unwrap();
    let mut growing = engine.start(vec![draw(root, key("item", 0), params(), length(100))]).unwrap();
    drop(engine);
    assert!(matches!(growing.next(), Some(Event::Tokens { .. })), "it works as long as somebody listens");
    drop(growing);
    assert_eq!(Arc::strong_count(&text), 1, "its thread has dropped all that it had");
}

in_modes! {
    in_turn, run_ahead, replicas:
    prompts_that_cannot_be_are_refused_at_once,
    parameters_out_of_range_are_named,
    branches_that_cannot_be_extended_fail_alone,
    a_branch_that_grows_is_not_extended_nor_its_forks,
    given_tokens_must_fit,
    a_shorter_context_than_the_models_bounds_every_sequence,
    a_dropped_extension_cancels_and_the_engine_goes_on,
    a_cancelled_score_keeps_what_was_scored,
    the_engine_is_gone_with_its_last_handle,
}
