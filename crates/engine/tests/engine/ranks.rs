//! An engine whose model is divided among ranks: the same draws as on one rank, also where branches are swapped, and
//! sums that depend on nothing but the row.

use std::time::{Duration, Instant};

use offshoot_backend::Dtype;
use offshoot_backend::ranks::Ranks;
use offshoot_cpu::Cpu;
use offshoot_engine::{
    CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Finish, Metrics, PoolSize, PrefixStoreOptions, StoredPrefixes,
};
use offshoot_model::config::{Mixer, RecurrentSpec};
use offshoot_model::{Decoder, LoadedRanks, ModelConfig, ModelWeights};

use super::bench::{
    CONTEXT, Mode, Shape, draw, finishes, key, length, mislead, model, outcomes, pages, params, prompt, roomy, sample,
    tokenizer, unsure,
};

fn engine(mode: Mode, shape: Shape, ranks: usize, config: EngineConfig) -> EngineHandle {
    let cpus = (0..ranks).map(|_| Cpu::open().unwrap().on_a_share_of_cores(ranks)).collect();
    start(mode, Ranks::new(cpus, true).unwrap(), model(shape, 4 * CONTEXT), config)
}

fn start(mode: Mode, ranks: Ranks<Cpu>, model: ModelConfig, config: EngineConfig) -> EngineHandle {
    let weights = ModelWeights::random(model, Dtype::F32, 7);
    let model = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
    let run_ahead = config.run_ahead || mode.run_ahead;
    Engine::start(model, Some(tokenizer()), EngineConfig { check_plans: true, run_ahead, ..config }).unwrap()
}

/// An engine of four ranks; `divides`: those that have the same of two key heads divide its positions, or copy it.
fn four(mode: Mode, shape: Shape, divides: bool, config: EngineConfig) -> EngineHandle {
    let cpus = (0..4).map(|_| Cpu::open().unwrap().on_a_share_of_cores(4)).collect();
    let ranks = Ranks::new(cpus, false).unwrap().sharing_positions(if divides { 2 } else { 1 });
    start(mode, ranks, four_model(shape), config)
}

/// A model that four ranks divide.
fn four_model(shape: Shape) -> ModelConfig {
    let mut model = model(shape, 16 * CONTEXT);
    let delta_rules = model.layers.iter_mut().filter_map(|layer| match &mut layer.mixer {
        Mixer::Recurrent(RecurrentSpec::Delta(delta_rule)) => Some(delta_rule),
        Mixer::Recurrent(_) | Mixer::Attention(_) | Mixer::None => None,
    });
    for delta_rule in delta_rules {
        (delta_rule.heads.key_heads, delta_rule.heads.value_heads) = (4, 8);
    }
    assert!(model.check_ranks(4, false).is_ok());
    assert_eq!(model.shared_keys(4, false, true).members(), 2);
    model
}

/// Tokens, and whether log-probabilities are those of sums in another order.
fn are_alike(found: &[Finish], expected: &[Finish]) -> bool {
    let close = |(a, b): (&Finish, &Finish)| {
        let (a, b) = (a.logprobs(), b.logprobs());
        // f32 rounds scores below 16 by 2^-21 at most; two layers of sums of 48 products and fewer.
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4)
    };
    found.iter().zip(expected).all(|(a, b)| a.tokens == b.tokens) && found.iter().zip(expected).all(close)
}

fn draws_do_not_depend_on_how_ranks_hold_a_key_head(mode: Mode) {
    for shape in [Shape::Full, Shape::LongMixed, Shape::LongWindowed, Shape::Hybrid] {
        let (expected, _) = crowd(&four(mode, shape, false, roomy()));
        let (found, _) = crowd(&four(mode, shape, true, roomy()));
        assert!(are_alike(&found, &expected), "{shape:?}: {found:?}\nexpected {expected:?}");
    }
}

fn divided_positions_need_half_the_memory_of_copies(mode: Mode) {
    let [divided, copied] = [true, false].map(|divides| four(mode, Shape::Full, divides, roomy()).facts().clone());
    assert_eq!(divided.page_bytes, copied.page_bytes);
    assert_eq!((divided.page_tokens, copied.page_tokens), (32, 16));
    assert_eq!(2 * divided.kv_bytes_per_token, copied.kv_bytes_per_token);
    // So a pool holds twice as many tokens.
    assert_eq!(divided.pool_pages * divided.page_tokens, 2 * copied.pool_pages * copied.page_tokens);
}

fn what_members_swap_comes_back(mode: Mode) {
    for shape in [Shape::Full, Shape::LongMixed] {
        let (expected, roomy_metrics) = crowd(&four(mode, shape, true, roomy()));
        assert_eq!(roomy_metrics.preemptions, 0);
        let page_bytes = four(mode, shape, true, roomy()).facts().page_bytes;
        let few = EngineConfig {
            pool: PoolSize::Bytes(if matches!(shape, Shape::Full) { 14 } else { 24 } * page_bytes),
            swap_bytes: 1000 * page_bytes,
            ..roomy()
        };
        let engine = four(mode, shape, true, few);
        mislead(&engine);
        let (found, metrics) = crowd(&engine);
        assert_eq!(found, expected, "{shape:?}");
        assert!(metrics.preemptions > 0 && metrics.swapped_in > 0, "{shape:?}: {metrics:?}");
    }
}

/// Samples of two prompts, of which the second parts from the first inside of a page of the second chunk, on an engine
/// that has written so many chunks when this returns.
fn parted_prompts(
    mode: Mode,
    divides: bool,
    prefix_store: Option<PrefixStoreOptions>,
    chunks: u64,
) -> (Vec<Finish>, Metrics) {
    let engine = four(mode, Shape::Full, divides, EngineConfig { prefix_store, ..roomy() });
    let text = |tail: u64| [prompt(1, CHUNK_TOKENS + 300), prompt(tail, CHUNK_TOKENS)].concat();
    let found = [2, 3].map(|tail| sample(&engine, "item", text(tail), 3, length(5))).concat();
    let begun = Instant::now();
    // It hands them to its writer one a turn, also after its last step.
    while engine.metrics().unwrap().chunks_written < chunks {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", engine.metrics());
        std::thread::sleep(Duration::from_millis(1));
    }
    (found, engine.metrics().unwrap())
}

fn prefixes_of_members_are_kept_on_disk(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let store = || PrefixStoreOptions {
        folder: folder.path().to_owned(),
        most_bytes: 1 << 30,
        weights: "the model".to_owned(),
        formats: String::new(),
        keeps: StoredPrefixes::Prompts,
    };
    let (expected, _) = parted_prompts(mode, true, None, 0);
    let (first, written) = parted_prompts(mode, true, Some(store()), 3);
    let (second, read) = parted_prompts(mode, true, Some(store()), 0);
    assert_eq!((&first, &second), (&expected, &expected));
    // Two chunks of the first prompt, and the second of the other one; its first, too, if it came before the files.
    assert!(written.chunks_written >= 3 && read.chunks_written == 0, "{written:?} {read:?}");
    assert!(read.prompt_tokens_stored > 2 * CHUNK_TOKENS as u64, "{read:?}");
    // Pages of copies are others: nothing of these is read before they are written.
    let (_, of_copies) = parted_prompts(mode, false, Some(store()), 3);
    assert!(of_copies.chunks_written >= 3, "{of_copies:?}");
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

fn draws_do_not_depend_on_the_number_of_ranks(mode: Mode) {
    for shape in [Shape::Full, Shape::LongMixed, Shape::Hybrid] {
        let (expected, _) = crowd(&engine(mode, shape, 1, roomy()));
        let (found, _) = crowd(&engine(mode, shape, 2, roomy()));
        assert_eq!(found, expected, "{shape:?}");
    }
}

/// A step that one rank has no memory for is not begun by the others, and is taken in parts.
fn a_rank_that_lacks_memory_makes_steps_smaller(mode: Mode) {
    let (expected, _) = crowd(&engine(mode, Shape::Hybrid, 2, roomy()));
    for short in [0, 1] {
        let cpu = |rank| Cpu::open().unwrap().with_most_rows(if rank == short { 9 } else { usize::MAX });
        let ranks = Ranks::new((0..2).map(cpu).collect(), true).unwrap();
        let (found, _) = crowd(&start(mode, ranks, model(Shape::Hybrid, 4 * CONTEXT), roomy()));
        assert_eq!(found, expected, "rank {short}");
    }
}

/// Its error ends the others, which wait for it.
fn a_rank_that_fails_in_a_step_ends_the_engine(mode: Mode) {
    let cpu = |rank| Cpu::open().unwrap().failing_where(if rank == 1 { |step, _| step == 2 } else { |_, _| false });
    let ranks = Ranks::new((0..2).map(cpu).collect(), true).unwrap();
    let engine = start(mode, ranks, model(Shape::Full, 4 * CONTEXT), roomy());
    let branch = engine.root(prompt(1, 40)).unwrap();
    let outcome = outcomes(&engine, vec![draw(branch, key("a", 0), params(), unsure(70))]).remove(0);
    let error = outcome.expect_err("a rank fails").to_string();
    assert!(error.contains("end by it"), "{error}");
}

fn what_ranks_swap_comes_back(mode: Mode) {
    let (expected, roomy_metrics) = crowd(&engine(mode, Shape::Full, 2, roomy()));
    assert_eq!(roomy_metrics.preemptions, 0);
    let few = pages(16);
    let swap_bytes = 1000 * engine(mode, Shape::Full, 2, few.clone()).facts().page_bytes;
    let engine = engine(mode, Shape::Full, 2, EngineConfig { swap_bytes, ..few });
    mislead(&engine);
    let (found, metrics) = crowd(&engine);
    assert_eq!(found, expected);
    assert!(metrics.swapped_in > 0 && metrics.tokens_recomputed == 0, "{metrics:?}");
}

in_modes! {
    in_turn, run_ahead:
    draws_do_not_depend_on_how_ranks_hold_a_key_head,
    divided_positions_need_half_the_memory_of_copies,
    what_members_swap_comes_back,
    prefixes_of_members_are_kept_on_disk,
    draws_do_not_depend_on_the_number_of_ranks,
    a_rank_that_lacks_memory_makes_steps_smaller,
    a_rank_that_fails_in_a_step_ends_the_engine,
    what_ranks_swap_comes_back,
}
