//! Where the attention of drawn tokens falls, by levels of the path: as in a plain forward pass, whatever the batch, the plan and
//! the pool; and asking for it changes no draw.

use offshoot::backend::LevelMass;
use offshoot::engine::{
    Engine, EngineConfig, EngineHandle, Finish, LevelBorders, LevelMasses, Metrics, SamplingParams,
};
use offshoot::plan::Planner;

use crate::bench::{
    Shape, decoder, draw, engine, engine_of, finish, finishes, key, length, mislead, pages, params, prompt, roomy,
    score, unsure,
};
use crate::plain::forward_in_levels;

/// Inside pages, which have 16 tokens.
fn borders() -> LevelBorders {
    LevelBorders::behind(&[5, 23, 40]).unwrap()
}

#[test]
fn masses_are_those_of_a_plain_forward() {
    for shape in [Shape::Full, Shape::Windowed] {
        let engine = engine_of(shape, roomy());
        let root = engine.root_in_levels(prompt(3, 40), Some(borders())).unwrap();
        let drawn = finish(&engine, draw(root, key("greedy", 0), SamplingParams::greedy(), length(20)));
        let mut tokens = prompt(3, 40);
        let mut expected = LevelMasses::default();
        for &token in &drawn.tokens {
            let plain: LevelMass = forward_in_levels(shape, &tokens, borders());
            assert!((plain.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{plain:?}");
            // The window of 21 leaves the first levels behind; without one, all are seen.
            let seen: Vec<bool> = plain[..4].iter().map(|&mass| mass > 0.0).collect();
            match shape {
                Shape::Full => assert_eq!(seen, [true, true, true, tokens.len() > 40]),
                Shape::Windowed => assert_eq!(seen, [false, tokens.len() < 23 + 21, true, tokens.len() > 40]),
            }
            expected.add(&plain);
            tokens.push(token);
        }
        assert_eq!(drawn.masses, Some(expected), "{shape:?}");
    }
}

/// Samples of a prompt in levels, of one without, and scores of a third, started at once.
fn crowd(engine: &EngineHandle, borders: Option<LevelBorders>) -> Vec<Finish> {
    mislead(engine);
    let in_levels = engine.root_in_levels(prompt(1, 40), borders).unwrap();
    let others = [engine.root(prompt(2, 30)).unwrap(), engine.root_in_levels(prompt(3, 30), borders).unwrap()];
    let children = engine.fork(in_levels, 5).unwrap();
    let mut extends: Vec<_> =
        (0..).zip(&children).map(|(i, &child)| draw(child, key("a", i), params(), unsure(70))).collect();
    extends
        .extend((0..).zip(engine.fork(others[0], 4).unwrap()).map(|(i, c)| draw(c, key("b", i), params(), length(50))));
    extends.push(score(others[1], prompt(30, 40)));
    finishes(engine, extends)
}

fn run(config: EngineConfig) -> (Vec<Finish>, Metrics) {
    let engine = engine(config);
    (crowd(&engine, Some(borders())), engine.metrics().unwrap())
}

#[test]
fn neither_batch_nor_plan_nor_pool_changes_them() {
    let (expected, _) = run(roomy());
    let mut preemptions = 0;
    for config in [
        EngineConfig { planner: Planner::Flat, ..roomy() },
        EngineConfig { planner: Planner::Tree, max_branches: 3, ..roomy() },
        EngineConfig { step_rows: 7, has_levels: true, ..roomy() },
        EngineConfig { swap_bytes: 1 << 20, ..pages(16) },
        pages(12),
    ] {
        let (drawn, metrics) = run(config);
        assert_eq!(drawn, expected);
        preemptions += metrics.preemptions;
    }
    assert!(preemptions > 0, "nobody had to yield");
}

#[test]
fn only_who_asks_is_told_and_draws_the_same() {
    let (told, silent) = (crowd(&engine(roomy()), Some(borders())), crowd(&engine(roomy()), None));
    for (ix, (told, silent)) in told.iter().zip(silent).enumerate() {
        assert_eq!(silent.masses, None);
        assert_eq!(told.masses.is_some(), ix < 5, "drawn below the root in levels");
        let means = told.masses.as_ref().and_then(|masses| masses.mean(4));
        assert!(means.is_none_or(|means| (means.iter().sum::<f32>() - 1.0).abs() < 1e-5));
        assert_eq!(Finish { masses: None, ..told.clone() }, silent);
    }
}

#[test]
fn a_second_extend_tells_of_its_own_tokens() {
    let engine = engine(roomy());
    let begin = |tokens| {
        let root = engine.root_in_levels(prompt(1, 40), Some(borders())).unwrap();
        let first = finish(&engine, draw(root, key("a", 0), params(), length(tokens)));
        (root, first.masses.unwrap())
    };
    let (_, whole) = begin(30);
    let (root, mut parts) = begin(12);
    let second = finish(&engine, draw(root, key("a", 0), params(), length(18)));
    parts.join(&second.masses.unwrap());
    let difference = |(a, b): (f32, f32)| (a - b).abs();
    let off = whole.mean(4).unwrap().into_iter().zip(parts.mean(4).unwrap()).map(difference).fold(0.0, f32::max);
    assert!(off < 1e-6, "{whole:?}, {parts:?}");
}

#[test]
fn what_telling_reads_is_counted_apart() {
    let read = |borders| {
        let engine = engine_of(Shape::Full, roomy());
        let root = engine.root_in_levels(prompt(3, 40), borders).unwrap();
        finish(&engine, draw(root, key("a", 0), params(), length(20)));
        engine.metrics().unwrap()
    };
    let (told, silent) = (read(Some(borders())), read(None));
    // The first draw sees 40 tokens, the last one 59. Two layers have two heads of 8 values, of 4 bytes each.
    let keys: u64 = (40..60).sum();
    assert_eq!(told.kv_bytes_read_levels, keys * 2 * 2 * 8 * 4);
    assert_eq!((silent.kv_bytes_read_levels, silent.kv_bytes_read), (0, told.kv_bytes_read));
}

#[test]
fn room_for_levels_is_asked_for_at_the_start() {
    let refused = |has_levels| {
        let (backend, decoder) = decoder(Shape::Full);
        let config = EngineConfig { max_branches: 1 << 40, has_levels, ..roomy() };
        let Err(error) = Engine::build(backend, decoder, None, config) else { panic!("no machine has so much memory") };
        error.to_string()
    };
    // 32 sums of a row, 256 logits and, for 4 heads, 8 levels; 4 bytes each.
    assert!(refused(false).contains("at least 1152 TiB for a step"), "{}", refused(false));
    assert!(refused(true).contains("at least 1280 TiB for a step"), "{}", refused(true));
}
