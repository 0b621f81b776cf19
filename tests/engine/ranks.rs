//! An engine whose model is divided among ranks: the same draws as on one rank, also where branches are swapped, and
//! sums that depend on nothing but the row.

use offshoot::backend::Dtype;
use offshoot::backend::cpu::Cpu;
use offshoot::backend::ranks::Ranks;
use offshoot::engine::{Engine, EngineConfig, EngineHandle, Finish, Metrics};
use offshoot::model::Decoder;

use super::bench::{
    CONTEXT, Shape, draw, finishes, key, mislead, model, pages, params, prompt, roomy, tokenizer, unsure,
};

fn engine(shape: Shape, ranks: usize, config: EngineConfig) -> EngineHandle {
    let cpus = (0..ranks).map(|_| Cpu::open().unwrap().on_a_share_of_cores(ranks)).collect();
    let mut backend = Ranks::new(cpus, true).unwrap();
    let decoder = Decoder::random(&mut backend, model(shape, 4 * CONTEXT), Dtype::F32, 7).unwrap();
    let run_ahead = config.run_ahead || super::RUN_AHEAD;
    Engine::start(backend, decoder, Some(tokenizer()), EngineConfig { check_plans: true, run_ahead, ..config }).unwrap()
}

/// Six samples of 70 tokens of each of two prompts that begin alike.
fn crowd(engine: &EngineHandle) -> (Vec<Finish>, Metrics) {
    let mut extends = Vec::new();
    for (item, tail) in [("a", 11), ("b", 12)] {
        let root = engine.root([prompt(1, 40), prompt(tail, 9)].concat()).unwrap();
        let children = engine.fork(root, 6).unwrap();
        extends.extend((0..).zip(children).map(|(i, child)| draw(child, key(item, i), params(), unsure(70))));
    }
    (finishes(engine, extends), engine.metrics().unwrap())
}

#[test]
fn draws_do_not_depend_on_the_number_of_ranks() {
    for shape in [Shape::Full, Shape::LongMixed, Shape::Hybrid] {
        let (expected, _) = crowd(&engine(shape, 1, roomy()));
        let (found, _) = crowd(&engine(shape, 2, roomy()));
        assert_eq!(found, expected, "{shape:?}");
    }
}

#[test]
fn what_ranks_swap_comes_back() {
    let (expected, roomy_metrics) = crowd(&engine(Shape::Full, 2, roomy()));
    assert_eq!(roomy_metrics.preemptions, 0);
    let few = pages(16);
    let swap_bytes = 1000 * engine(Shape::Full, 2, few.clone()).facts().page_bytes;
    let engine = engine(Shape::Full, 2, EngineConfig { swap_bytes, ..few });
    mislead(&engine);
    let (found, metrics) = crowd(&engine);
    assert_eq!(found, expected);
    assert!(metrics.swapped_in > 0 && metrics.tokens_recomputed == 0, "{metrics:?}");
}
