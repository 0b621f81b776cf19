//! Which steps are planned anew, how many rows want logits, and what memory an engine takes.

use offshoot_backend::MOST_COUNTED;
use offshoot_core::Error;
use offshoot_core::ids::TokenId;
use offshoot_engine::{EngineConfig, PoolSize, SamplingParams, Stop};

use super::bench::{Mode, Shape, draw, finish, finishes, key, length, pages, params, prompt, roomy, sample, score};

fn a_step_that_only_goes_on_is_not_planned_anew(mode: Mode) {
    for shape in [Shape::Full, Shape::Windowed, Shape::Hybrid] {
        let engine = mode.engine_of(shape, roomy());
        sample(&engine, "item", prompt(1, 48), 8, length(49));
        let metrics = engine.metrics().unwrap();
        // The prompt, and the first token behind it, which begins a segment; not the pages that follow.
        assert_eq!((metrics.steps, metrics.steps_replanned), (49, 2), "{shape:?}");
    }
}

fn what_an_advanced_plan_reads_is_counted_as_if_it_were_new(mode: Mode) {
    // What is begun for one token is planned anew for each.
    let run = |tokens: usize| {
        let engine = mode.engine(roomy());
        let root = engine.root(prompt(1, 40)).unwrap();
        let children = engine.fork(root, 5).unwrap();
        let mut drawn = vec![Vec::new(); children.len()];
        for _ in 0..50 / tokens {
            let of = |(i, &child): (u64, &_)| draw(child, key("item", i), params(), length(tokens));
            let finishes = finishes(&engine, (0..).zip(&children).map(of).collect());
            drawn.iter_mut().zip(finishes).for_each(|(drawn, finish)| drawn.extend(finish.tokens));
        }
        (drawn, engine.metrics().unwrap())
    };
    let ((drawn, advanced), (same, planned)) = (run(50), run(1));
    assert_eq!(drawn, same);
    assert!(advanced.steps_replanned <= 3 && planned.steps_replanned == planned.steps);
    assert_eq!((advanced.rows, advanced.steps), (planned.rows, planned.steps));
    assert_eq!(advanced.kv_bytes_read, planned.kv_bytes_read);
    assert_eq!(advanced.kv_bytes_read_flat, planned.kv_bytes_read_flat);
    assert_eq!(advanced.kv_bytes_peak, planned.kv_bytes_peak);
}

fn a_step_with_penalties_goes_on_like_any_other(mode: Mode) {
    let replanned = |params: SamplingParams| {
        let engine = mode.engine(roomy());
        let root = engine.root(prompt(1, 16)).unwrap();
        let children = engine.fork(root, 6).unwrap();
        let extends = (0..).zip(children).map(|(i, child)| draw(child, key("item", i), params.clone(), length(140)));
        finishes(&engine, extends.collect());
        engine.metrics().unwrap().steps_replanned
    };
    let plain = replanned(params());
    for params in [
        SamplingParams { frequency_penalty: 0.01, ..params() },
        SamplingParams { presence_penalty: 0.5, ..params() },
        SamplingParams { repetition_penalty: 1.1, logit_bias: vec![(TokenId(9), 1.0)], ..params() },
    ] {
        // Once more where as many tokens are counted as a backend does by itself.
        assert_eq!(replanned(params), plain + 140 / MOST_COUNTED as u64);
    }
}

fn a_ban_that_ends_is_planned_anew(mode: Mode) {
    let engine = mode.engine(roomy());
    let ends = SamplingParams { logit_bias: vec![(super::bench::EOS, 1e4)], ..params() };
    let root = engine.root(prompt(1, 16)).unwrap();
    let stop = Stop { min_tokens: 7, ..Stop::max_tokens(30) };
    assert_eq!(finish(&engine, draw(root, key("item", 0), ends, stop)).tokens.len(), 7);
}

fn many_scores_share_out_the_rows_whose_logits_are_wanted(mode: Mode) {
    // 256 rows may want logits: fewer than all these ask for at once.
    let config = EngineConfig { max_branches: 300, step_rows: 4000, ..roomy() };
    let run = |config: EngineConfig| {
        let engine = mode.engine(config);
        let root = engine.root(prompt(1, 20)).unwrap();
        let children = engine.fork(root, 40).unwrap();
        let extends = (0..).zip(children).map(|(i, child)| match i % 4 {
            0 => draw(child, key("item", i), params(), length(20)),
            _ => score(child, prompt(i, 30)),
        });
        (finishes(&engine, extends.collect()), engine.metrics().unwrap().steps)
    };
    let ((few, few_steps), (many, many_steps)) = (run(EngineConfig { max_branches: 1, ..config.clone() }), run(config));
    assert_eq!(few, many);
    assert!(many_steps < few_steps && many_steps > 30 * 30 / 300);
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let refused = |pool: PoolSize| {
        let (backend, decoder) = super::bench::decoder(Shape::Full);
        let config = EngineConfig { pool, ..pages(1) };
        offshoot_engine::Engine::start(decoder.on(backend), None, config).err().expect("it cannot start")
    };
    let error = refused(PoolSize::Bytes(usize::MAX));
    assert!(matches!(error, Error::Value { .. }), "{error}");
    assert!(error.to_string().starts_with("free memory for keys and values"), "{error}");
    assert!(refused(PoolSize::Bytes(1)).to_string().contains("at least one page"));
    assert!(refused(PoolSize::Share { of_free: 1.5, at_most: 1 << 20 }).to_string().contains("from 0 to 1"));
}

in_modes! {
    in_turn, run_ahead:
    a_step_that_only_goes_on_is_not_planned_anew,
    what_an_advanced_plan_reads_is_counted_as_if_it_were_new,
    a_step_with_penalties_goes_on_like_any_other,
    a_ban_that_ends_is_planned_anew,
    many_scores_share_out_the_rows_whose_logits_are_wanted,
}
