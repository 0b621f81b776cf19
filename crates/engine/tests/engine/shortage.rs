//! Steps that the device has no memory for are taken in parts: the same results, and the engine lives on.

use offshoot_engine::{Engine, EngineConfig, EngineHandle, Extend, SamplingParams};

use super::bench::{
    Shape, decoder, draw, finish, finishes, give, key, length, outcomes, params, prompt, roomy, score, tokenizer,
};
use super::forms::forms;

/// An engine on a device that refuses steps of more rows.
fn engine_of_rows(shape: Shape, most_rows: usize, run_ahead: bool) -> EngineHandle {
    let (backend, decoder) = decoder(shape);
    let config = EngineConfig { check_plans: true, run_ahead, ..roomy() };
    Engine::start(decoder.on(backend.with_most_rows(most_rows)), Some(tokenizer()), config).unwrap()
}

/// Branches of two roots that draw, score and are given tokens side by side, and then go on.
fn story(engine: &EngineHandle) -> Vec<offshoot_engine::Finish> {
    let roots = [engine.root(prompt(1, 40)).unwrap(), engine.root(prompt(2, 23)).unwrap()];
    let branches: Vec<_> = roots.iter().flat_map(|&root| engine.fork(root, 5).unwrap()).collect();
    let penalties = SamplingParams { repetition_penalty: 1.2, ..params() };
    let extends = |round: u64| -> Vec<Extend> {
        let extend = |(i, &branch): (u64, &_)| match (i + round) % 5 {
            0 => score(branch, prompt(i, 11)),
            1 => give(branch, prompt(i, 7)),
            2 => draw(branch, key("penalised", i), penalties.clone(), length(12)),
            3 => {
                draw(branch, key("formed", i), penalties.clone().form(forms().swap_remove(i as usize % 5)), length(30))
            }
            _ => draw(branch, key("item", i), params(), length(9 + i as usize)),
        };
        (0..).zip(&branches).map(extend).collect()
    };
    (0..3).flat_map(|round| finishes(engine, extends(round))).collect()
}

#[test]
fn a_step_in_parts_computes_what_the_whole_one_would() {
    for shape in [Shape::Full, Shape::Windowed, Shape::Hybrid] {
        let expected = story(&engine_of_rows(shape, usize::MAX, false));
        for (most_rows, run_ahead) in [(1, false), (3, false), (3, true), (9, true), (40, true)] {
            let found = story(&engine_of_rows(shape, most_rows, run_ahead));
            assert!(found == expected, "{shape:?}, {most_rows} rows, ahead {run_ahead}");
        }
    }
}

/// Which steps fail, by their number and rows.
type Fails = fn(usize, usize) -> bool;

#[test]
fn a_step_that_fails_while_it_runs_is_computed_again_from_states_that_it_has_not_changed() {
    for shape in [Shape::Full, Shape::Hybrid] {
        let expected = story(&engine_of_rows(shape, usize::MAX, false));
        let cases: [(&str, Fails); 5] = [
            ("more than a row", |_, rows| rows > 1),
            ("more than 3 rows", |_, rows| rows > 3),
            ("more than 40 rows", |_, rows| rows > 40),
            // Also steps that repeat the one before.
            ("some steps", |number, rows| [9, 21, 30].contains(&number) && rows > 1),
            ("each seventh step at first", |number, rows| number < 40 && number % 7 == 6 && rows > 1),
        ];
        for (name, fails) in cases {
            for run_ahead in [false, true] {
                let (backend, decoder) = decoder(shape);
                let config = EngineConfig { check_plans: true, run_ahead, ..roomy() };
                let engine =
                    Engine::start(decoder.on(backend.failing_where(fails)), Some(tokenizer()), config).unwrap();
                assert!(story(&engine) == expected, "{shape:?}, {name} fail, ahead {run_ahead}");
            }
        }
    }
}

#[test]
fn branches_end_where_every_step_fails_while_it_runs() {
    for shape in [Shape::Full, Shape::Hybrid] {
        let (backend, decoder) = decoder(shape);
        let engine = Engine::start(decoder.on(backend.failing_where(|_, _| true)), Some(tokenizer()), roomy()).unwrap();
        let root = engine.root(prompt(1, 20)).unwrap();
        let children = engine.fork(root, 3).unwrap();
        let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(5)));
        for outcome in outcomes(&engine, extends.collect()) {
            assert!(outcome.expect_err("nothing is computed").is_shortage(), "{shape:?}");
        }
        engine.prune(&children);
        engine.prune(&[root]);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
    }
}

#[test]
fn a_device_without_memory_for_a_row_ends_branches_and_not_the_engine() {
    for run_ahead in [false, true] {
        let engine = engine_of_rows(Shape::Full, 0, run_ahead);
        let root = engine.root(prompt(1, 20)).unwrap();
        let children = engine.fork(root, 3).unwrap();
        let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(5)));
        for outcome in outcomes(&engine, extends.collect()) {
            let error = outcome.expect_err("there is no memory for it");
            assert!(error.is_shortage(), "{error}");
        }
        engine.prune(&children);
        engine.prune(&[root]);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
    }
}

#[test]
fn what_was_refused_once_goes_on_when_it_is_small_enough() {
    // Eight branches are more than a step of the device takes; one is not.
    let engine = engine_of_rows(Shape::Full, 4, true);
    let root = engine.root(prompt(1, 3)).unwrap();
    let children = engine.fork(root, 8).unwrap();
    let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(6)));
    finishes(&engine, extends.collect());
    let alone = finish(&engine, draw(children[0], key("on", 0), params(), length(30)));
    assert_eq!(alone.tokens.len(), 30);
}
