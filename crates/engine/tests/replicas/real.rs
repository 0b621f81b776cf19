//! Real engines on a tiny model, one of which ends after some steps: the others compute its branches again, and sample
//! what it would have sampled.

use std::num::{NonZeroU16, NonZeroUsize};

use offshoot_backend::Dtype;
use offshoot_core::ids::BranchId;
use offshoot_cpu::Cpu;
use offshoot_engine::replicas;
use offshoot_engine::{
    ConfidenceStop, Engine, EngineConfig, EngineHandle, Extend, FinishReason, ForkKind, Records, RootOptions,
    SamplingParams, Turn,
};
use offshoot_model::{Decoder, ModelConfig, OutputHead, ValueHead, ValueLayer};

use crate::patience::within_a_minute;

#[path = "../engine/bench.rs"]
#[allow(dead_code, unused_macros, reason = "the engine's suites use more of it")]
pub mod bench;

use bench::{
    CONTEXT, Shape, decoder, draw, finishes, give, in_turn, key, length, model, params, prompt, roomy, score, tokenizer,
};

fn build() -> (Engine, EngineHandle) {
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { max_branches: 6, ..roomy() };
    Engine::build(decoder.on(backend), Some(tokenizer()), config).expect("it fits")
}

/// An engine of a scorer.
fn scorer() -> (Engine, EngineHandle) {
    let mut backend = Cpu::open().expect("a processor");
    let last = ValueLayer { module: "score".to_owned(), outputs: 2, bias: false };
    let output = OutputHead::Values(ValueHead { inner: Vec::new(), last });
    let config = ModelConfig { output, ..model(Shape::Full, CONTEXT) };
    let decoder = Decoder::random(&mut backend, config, Dtype::F32, 7).expect("it is drawn");
    let config = EngineConfig { max_branches: 6, step_rows: 16, check_plans: true, ..roomy() };
    Engine::build(decoder.on(backend), None, config).expect("it fits")
}

/// An engine that is dropped after so many steps.
fn ends_after(steps: usize) -> EngineHandle {
    steps_until(steps, build())
}

fn steps_until(steps: usize, (mut engine, handle): (Engine, EngineHandle)) -> EngineHandle {
    std::thread::spawn(move || {
        let mut stepped = 0;
        while stepped < steps {
            match engine.turn().expect("nothing is wrong with it") {
                Turn::Stepped => stepped += 1,
                Turn::Idle => std::thread::sleep(std::time::Duration::from_millis(1)),
                Turn::Abandoned => return,
            }
        }
    });
    handle
}

fn lives() -> EngineHandle {
    in_turn().engine(EngineConfig { max_branches: 6, ..roomy() })
}

/// Everything that branches can do, twice over: sampled, forked, given, scored, and sampled again with penalties, which
/// depend on what was given and what was sampled before.
fn story(engine: &EngineHandle) -> Vec<String> {
    let mut told = Vec::new();
    let mut branches: Vec<BranchId> = Vec::new();
    for item in 0..3 {
        let root = engine.root(prompt(item % 2, 30 + item as usize)).expect("a prompt");
        branches.extend(engine.fork(root, 4).expect("it rests"));
    }
    let penalties =
        SamplingParams { frequency_penalty: 0.7, presence_penalty: 0.3, repetition_penalty: 1.2, ..params() };
    for (round, params) in [(0, params()), (1, penalties)] {
        let sampled = branches.iter().map(|&branch| {
            let uniforms = key("story", branch.0).child(ForkKind::Sample, round);
            draw(branch, uniforms, params.clone(), length(12))
        });
        told.extend(finishes(engine, sampled.collect()));
        let given: Vec<_> = branches.iter().step_by(2).map(|&branch| give(branch, prompt(20 + round, 5))).collect();
        told.extend(finishes(engine, given));
        let forks = engine.fork(branches[1], 2).expect("it rests");
        told.extend(finishes(engine, vec![score(forks[0], prompt(30 + round, 9))]));
        branches.extend(forks);
    }
    told.iter().map(|finish| format!("{finish:?}")).collect()
}

#[test]
fn branches_of_an_engine_that_ends_are_sampled_as_if_it_had_not() {
    let expected = within_a_minute(|| story(&lives()));
    assert_eq!(within_a_minute(|| story(&replicas::join(vec![lives(), lives(), lives()]).expect("alike"))), expected);
    for steps in [0, 1, 2, 5, 9, 14, 20, 27, 40] {
        let found = within_a_minute(move || story(&replicas::join(vec![ends_after(steps), lives()]).expect("alike")));
        assert_eq!(found, expected, "one ends after {steps} steps");
        let found = within_a_minute(move || {
            let engines = vec![ends_after(2 * steps), lives(), ends_after(steps)];
            story(&replicas::join(engines).expect("alike"))
        });
        assert_eq!(found, expected, "two end after {steps} and {} steps", 2 * steps);
    }
}

/// Samples end where they lose confidence, also where their windows go on with another engine.
#[test]
fn windows_of_confidences_go_on_where_an_engine_has_ended() {
    let samples = |engine: &EngineHandle| {
        let records = Records { confidence: NonZeroU16::new(5), ..Records::default() };
        let root = engine.root(prompt(1, 30)).expect("a prompt");
        let children = engine.fork(root, 6).expect("it rests");
        let stop = |below| {
            let window = NonZeroUsize::new(8).expect("from 1 up");
            length(30).at_confidence(ConfidenceStop { window, below })
        };
        let sampled = (0..).zip(children).map(|(ix, child)| {
            draw(child, key("confidence", ix), params().records(records), stop(3.55 + 0.05 * ix as f64))
        });
        finishes(engine, sampled.collect())
    };
    let expected = within_a_minute(move || samples(&lives()));
    let low = expected.iter().filter(|end| end.reason == FinishReason::LowConfidence).count();
    assert!((1..6).contains(&low), "{low} samples lose confidence");
    for steps in [1, 4, 9, 12, 20] {
        let found = within_a_minute(move || samples(&replicas::join(vec![ends_after(steps), lives()]).expect("alike")));
        assert_eq!(found, expected, "one ends after {steps} steps");
    }
}

/// Values of a scorer, one engine of which ends: the other one computes them again.
#[test]
fn values_are_those_of_an_engine_that_has_not_ended() {
    let values = |engine: &EngineHandle| {
        let mut told = Vec::new();
        let mut branches =
            vec![engine.root(prompt(1, 30)).expect("a prompt"), engine.root(prompt(2, 25)).expect("one")];
        let mut ends: Vec<u32> = vec![30, 25];
        for step in 0..6 {
            let forks: Vec<BranchId> =
                branches.iter().flat_map(|&branch| engine.fork(branch, 2).expect("it rests")).take(6).collect();
            ends = (0..forks.len()).map(|ix| ends[ix / 2] + 7).collect();
            let extends = forks.iter().zip(&ends).enumerate().map(|(ix, (&fork, &end))| {
                Extend::given_with_values(fork, prompt(10 * step + ix as u64 % 3, 7), [3, end - 1])
            });
            told.extend(finishes(engine, extends.collect()).into_iter().map(|finish| finish.values));
            branches = forks;
        }
        told
    };
    let lives = || {
        let (engine, handle) = scorer();
        engine.spawn().expect("it starts");
        handle
    };
    let expected = within_a_minute(move || values(&lives()));
    assert!(expected.iter().all(|values| values.len() == 2));
    for steps in [0, 1, 3, 5, 8, 12] {
        let found = within_a_minute(move || {
            values(&replicas::join(vec![steps_until(steps, scorer()), lives()]).expect("alike"))
        });
        assert_eq!(found, expected, "one ends after {steps} steps");
    }
}

#[test]
fn what_waits_for_an_engine_that_ended_while_it_had_nothing_goes_to_one_that_rests() {
    within_a_minute(|| {
        let (ends, of_ended) = build();
        let engine = replicas::join(vec![lives(), of_ended]).expect("alike");
        drop(ends);
        let place = RootOptions { home: Some(1), ..RootOptions::default() };
        let root = engine.root_with(prompt(1, 30), place).expect("a prompt");
        assert_eq!(finishes(&engine, vec![draw(root, key("rests", 0), params(), length(5))])[0].tokens.len(), 5);
    });
}

#[test]
fn pins_are_on_every_engine_and_stay_on_those_that_live() {
    within_a_minute(|| {
        let engine = replicas::join(vec![lives(), lives()]).expect("alike");
        let pin = engine.pin(prompt(1, 50)).expect("it fits");
        assert_eq!(engine.live().expect("it runs").pages.pinned, 8, "four pages on each");
        let before = engine.metrics().expect("it runs").prompt_tokens_computed;
        assert_eq!(before, 100);
        let roots = [2, 3, 4, 5].map(|salt| engine.root([prompt(1, 50), prompt(salt, 7)].concat()).expect("a prompt"));
        let sampled = roots.iter().map(|&root| draw(root, key("pins", root.0), params(), length(9)));
        finishes(&engine, sampled.collect());
        assert_eq!(engine.metrics().expect("it runs").prompt_tokens_computed - before, 28);
        let map = engine.cache_map(100).expect("it runs");
        assert!(map.iter().filter(|segment| segment.is_pinned).count() >= 2);
        for (at, segment) in map.iter().enumerate() {
            assert!(segment.parent.is_none_or(|parent| parent < at), "parents come first");
        }
        engine.prune(&roots);
        drop(pin);
        while engine.live().expect("it runs").pages.held > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(engine.evict().expect("it runs"));
        assert!(engine.cache_map(100).expect("it runs").is_empty(), "neither engine caches anything");
        let gone = replicas::join(vec![ends_after(3), lives()]).expect("alike");
        let _pin = gone.pin(prompt(1, 50)).expect("one of them has it");
        let root = gone.root([prompt(1, 50), prompt(2, 7)].concat()).expect("a prompt");
        finishes(&gone, vec![draw(root, key("pins", 0), params(), length(30))]);
    });
}
