//! Latent attention that is read from copies: whatever is read in which form, however few pages copies have and
//! whatever becomes of the latents, the draws are those of a model that reads latents alone, but for rounding.

use std::path::Path;

use offshoot_backend::ranks::Ranks;
use offshoot_backend::{Dtype, KvDtype};
use offshoot_core::dice::Dice;
use offshoot_cpu::Cpu;
use offshoot_engine::{
    CopySize, Engine, EngineConfig, EngineHandle, Extend, Finish, Metrics, PauseMode, PoolSize, PrefixStoreOptions,
    Stop, StoredPrefixes,
};
use offshoot_kv::plan::{LatentForm, LatentFormChoice, Planner};
use offshoot_model::{Decoder, LoadedRanks, ModelWeights, Sleep, SleepParts};

use super::bench::{
    CONTEXT, Mode, Shape, decoder, draw, finishes, in_turn, key, length, mislead, model, params, prompt, score,
    tokenizer, unsure,
};
use super::world::{Seeds, World};

/// Bytes of memory for keys and values in which nobody waits.
const ROOM: usize = 4 << 20;

const CHOICES: [LatentFormChoice; 4] = [
    LatentFormChoice::All(LatentForm::Kept),
    LatentFormChoice::All(LatentForm::Again),
    LatentFormChoice::Random(1),
    LatentFormChoice::Random(2),
];

fn config(copies: usize, latent_forms: LatentFormChoice) -> EngineConfig {
    EngineConfig {
        pool: PoolSize::Bytes(ROOM),
        copies: CopySize::Bytes(copies),
        latent_forms,
        planner: Planner::Tree,
        ..EngineConfig::default()
    }
}

fn engine(mode: Mode, config: EngineConfig) -> EngineHandle {
    mode.engine_of(Shape::Latent, config)
}

/// The bytes of one page of copies of each store.
fn one_page() -> usize {
    let (cpu, decoder) = decoder(Shape::Latent);
    decoder.copy_page_bytes(&cpu).iter().sum()
}

/// Samples and scores of a tree of two prompts that end inside a page, some of whose branches are pruned so that
/// others continue in their pages.
fn tree(engine: &EngineHandle) -> Vec<Finish> {
    let mut told = Vec::new();
    for (item, salt) in [("a", 1), ("b", 2)] {
        let root = engine.root(prompt(salt, 70)).unwrap();
        for round in 0..3 {
            let children = engine.fork(root, 4).unwrap();
            let draws = (0..)
                .zip(&children[..3])
                .map(|(i, &child)| draw(child, key(item, 10 * round + i), params(), unsure(20 + 3 * i as usize)));
            let given = score(children[3], prompt(30 + round, 40));
            told.extend(finishes(engine, draws.chain([given]).collect()));
            let below = engine.fork(children[0], 5).unwrap();
            let draws = (0..).zip(&below).map(|(i, &child)| draw(child, key(item, 100 + i), params(), length(30)));
            told.extend(finishes(engine, draws.collect()));
            engine.prune(&below);
            engine.prune(&children);
        }
        engine.prune(&[root]);
    }
    told
}

#[track_caller]
fn check_alike(found: &[Finish], expected: &[Finish], case: &str) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.tokens, expected.tokens, "{case}");
        for (a, b) in found.logprobs().iter().zip(expected.logprobs()) {
            assert!((a - b).abs() < 1e-3, "{case}: {a} beside {b}");
        }
    }
}

/// Whether latents were expanded to copies of each store.
fn expanded(metrics: &Metrics) -> [bool; 2] {
    [metrics.latent_tokens_expanded, metrics.latent_tokens_expanded_again].map(|tokens| tokens > 0)
}

/// The stores that a choice reads where there is room.
fn copied_by(choice: LatentFormChoice) -> [bool; 2] {
    match choice {
        LatentFormChoice::All(LatentForm::Kept) => [true, false],
        LatentFormChoice::All(LatentForm::Again) => [false, true],
        LatentFormChoice::Random(_) => [true, true],
        LatentFormChoice::All(LatentForm::Absorbed) | LatentFormChoice::Cheapest => [false, false],
    }
}

/// Copies were made of a store that `choice` reads, if it reads any, and of no other. Dice may not meet both stores.
#[track_caller]
fn assert_copied(choice: LatentFormChoice, metrics: &Metrics) {
    let (found, may_be) = (expanded(metrics), copied_by(choice));
    let is_some = found.contains(&true) == may_be.contains(&true);
    assert!(is_some && (0..2).all(|store| may_be[store] || !found[store]), "{choice:?}: {metrics:?}");
}

fn run(mode: Mode, config: EngineConfig) -> (Vec<Finish>, Metrics) {
    let engine = engine(mode, config);
    (tree(&engine), engine.metrics().unwrap())
}

fn all_forms_draw_alike(mode: Mode) {
    let (expected, metrics) = run(mode, config(0, LatentFormChoice::Cheapest));
    assert_eq!((expanded(&metrics), metrics.latent_copies_held), ([false; 2], 0));
    for choice in CHOICES {
        // Room for all; for what the first tile of one prompt takes; and for less than any item.
        for (bytes, copies, evicts) in
            [(ROOM / 2, true, false), (4 * one_page(), true, true), (one_page(), false, false)]
        {
            let (found, metrics) = run(mode, config(bytes, choice));
            check_alike(&found, &expected, &format!("{choice:?}, {bytes} bytes"));
            if copies && !evicts {
                assert_copied(choice, &metrics);
            }
            if choice == LatentFormChoice::All(LatentForm::Kept) {
                assert_eq!(metrics.latent_tokens_expanded > 0, copies, "{bytes} bytes: {metrics:?}");
                assert!(
                    (metrics.latent_copies_evicted > 0) == evicts || mode.replicas > 1,
                    "{bytes} bytes: {metrics:?}"
                );
            }
        }
    }
}

/// Three samples in each form of an answer below one prompt, and below another texts that are scored with the likeliest
/// tokens beside each of theirs.
fn answers_and_scores(engine: &EngineHandle) -> Vec<Finish> {
    let mut told = Vec::new();
    let root = engine.root(prompt(3, 70)).unwrap();
    for (number, form) in (0..).zip(super::forms::forms()) {
        let children = engine.fork(root, 3).unwrap();
        let params = params().form(form);
        let draws = (0..).zip(&children);
        let draws =
            draws.map(|(i, &child)| draw(child, key("form", 10 * number + i), params.clone(), Stop::max_tokens(24)));
        told.extend(finishes(engine, draws.collect()));
        engine.prune(&children);
    }
    let root = engine.root(prompt(4, 70)).unwrap();
    let texts = engine.fork(root, 4).unwrap();
    let given = (0..).zip(&texts).map(|(i, &text)| Extend::given(text, prompt(40 + i, 30), Some(3)));
    told.extend(finishes(engine, given.collect()));
    told
}

fn answers_in_a_form_and_scores_are_alike_in_every_form(mode: Mode) {
    let of = |copies, choice| {
        let engine = engine(mode, config(copies, choice));
        (answers_and_scores(&engine), engine.metrics().unwrap())
    };
    let (expected, metrics) = of(0, LatentFormChoice::Cheapest);
    assert!(metrics.tokens_forced > 20, "{metrics:?}");
    for choice in CHOICES {
        let (found, metrics) = of(ROOM / 2, choice);
        check_alike(&found, &expected, &format!("{choice:?}"));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((&found.reason, found.form_ended), (&expected.reason, expected.form_ended), "{choice:?}");
            assert_eq!(found.records.forced(), expected.records.forced(), "{choice:?}");
            let [found, expected] = [found, expected].map(|finish| finish.records.tops().iter().flatten());
            for (found, expected) in found.zip(expected) {
                assert!((found.1 - expected.1).abs() < 1e-3, "{choice:?}: {found:?} beside {expected:?}");
            }
        }
        assert_copied(choice, &metrics);
    }
}

fn deterministic_engines_read_latents_alone(mode: Mode) {
    let exact = |choice| run(mode, EngineConfig { deterministic: true, ..config(ROOM / 2, choice) });
    let (expected, _) = exact(LatentFormChoice::Cheapest);
    for form in [LatentForm::Kept, LatentForm::Again] {
        let (found, metrics) = exact(LatentFormChoice::All(form));
        assert_eq!(found, expected);
        assert_eq!(expanded(&metrics), [false; 2]);
    }
    assert!(engine(mode, config(0, LatentFormChoice::Cheapest)).facts().batch_invariant);
    assert!(!engine(mode, config(ROOM / 2, LatentFormChoice::Cheapest)).facts().batch_invariant);
}

/// Six samples of each of two prompts, started at once, by an engine that expects them to be short.
fn crowd(engine: &EngineHandle) -> Vec<Finish> {
    mislead(engine);
    let mut draws = Vec::new();
    for (item, salt) in [("a", 1), ("b", 2)] {
        let root = engine.root(prompt(salt, 70)).unwrap();
        let children = engine.fork(root, 6).unwrap();
        draws.extend((0..).zip(children).map(|(i, child)| draw(child, key(item, i), params(), unsure(70))));
    }
    finishes(engine, draws)
}

fn branches_that_yield_draw_alike(mode: Mode) {
    let expected = crowd(&engine(mode, config(0, LatentFormChoice::Cheapest)));
    let page_bytes = engine(mode, config(0, LatentFormChoice::Cheapest)).facts().page_bytes;
    for (choice, swap_bytes) in CHOICES.into_iter().flat_map(|choice| [(choice, 0), (choice, 1 << 20)]) {
        let copies = 8 * one_page();
        let few = EngineConfig {
            pool: PoolSize::Bytes(18 * page_bytes + copies),
            copies: CopySize::Bytes(copies),
            swap_bytes,
            swap_at_any_cost: true,
            ..config(copies, choice)
        };
        let engine = engine(mode, few);
        check_alike(&crowd(&engine), &expected, &format!("{choice:?}, {swap_bytes} bytes for swaps"));
        let metrics = engine.metrics().unwrap();
        assert!(metrics.preemptions > 0 || mode.replicas > 1, "{metrics:?}");
        assert_copied(choice, &metrics);
    }
}

fn store(folder: &Path) -> PrefixStoreOptions {
    PrefixStoreOptions {
        folder: folder.to_owned(),
        most_bytes: 1 << 30,
        weights: "the model".to_owned(),
        formats: String::new(),
        keeps: StoredPrefixes::Prompts,
    }
}

fn what_was_stored_is_read_alike(mode: Mode) {
    let world = World::new(Shape::Latent);
    let samples = |prefix_store, choice| {
        let engine = world.engine(mode, EngineConfig { prefix_store, ..config(ROOM / 2, choice) });
        let told = super::bench::sample(&engine, "item", prompt(1, offshoot_engine::CHUNK_TOKENS + 77), 3, length(9));
        assert_copied(choice, &engine.metrics().unwrap());
        told
    };
    let expected = samples(None, LatentFormChoice::All(LatentForm::Absorbed));
    let folder = tempfile::tempdir().unwrap();
    for choice in CHOICES {
        check_alike(&samples(Some(store(folder.path())), choice), &expected, &format!("{choice:?}"));
    }
}

fn copies_are_forgotten_with_what_they_were_made_of(mode: Mode) {
    let world = World::new(Shape::Latent);
    let short = |engine: &EngineHandle| super::bench::sample(engine, "item", prompt(1, 70), 3, length(20));
    let [first, second] = [Seeds::FIRST, Seeds::both(2)].map(|seeds| short(&world.fresh(seeds)));
    for choice in CHOICES {
        let engine = world.engine(mode, config(ROOM / 2, choice));
        check_alike(&short(&engine), &first, &format!("{choice:?}"));
        engine.sleep(Sleep { weights: None, kv: true }, PauseMode::Abort).unwrap();
        engine.wake(SleepParts::ALL).unwrap();
        check_alike(&short(&engine), &first, &format!("{choice:?}, after sleep"));
        engine.update_weights(world.whole(Seeds::both(2))).unwrap();
        check_alike(&short(&engine), &second, &format!("{choice:?}, after an update"));
        assert_copied(choice, &engine.metrics().unwrap());
    }
}

/// What an engine has counted, without times, what is about copies and what plans have read.
fn of_latents(engine: &EngineHandle) -> serde_json::Value {
    let counted = Metrics {
        latent_tokens_expanded: 0,
        latent_tokens_expanded_again: 0,
        latent_copies_evicted: 0,
        latent_copies_held: 0,
        kv_bytes_read: 0,
        ..engine.metrics().unwrap()
    };
    let mut counted = serde_json::to_value(counted).unwrap();
    counted.as_object_mut().unwrap().retain(|name, _| !name.starts_with("seconds_"));
    counted
}

/// Prompts, forks of them and of samples, and prunes, by dice.
fn random_script(engine: &EngineHandle, seed: u64) -> Vec<Finish> {
    mislead(engine);
    let mut dice = Dice::new(seed);
    let (mut told, mut alive) = (Vec::new(), Vec::new());
    for round in 0..dice.within(3, 4) {
        // From a prompt of its own, or from a branch that rests.
        let root = match alive.is_empty() || dice.within(0, 1) == 0 {
            true => engine.root(prompt(seed + u64::from(round), dice.within(20, 60) as usize)).unwrap(),
            false => alive[dice.within(0, alive.len() as u32 - 1) as usize],
        };
        let children = engine.fork(root, dice.within(6, 10) as usize).unwrap();
        let draws = (0..).zip(&children).map(|(i, &child)| {
            let (key, most) = (key("script", 10 * u64::from(round) + i), dice.within(30, 60) as usize);
            draw(child, key, params(), unsure(most))
        });
        told.extend(finishes(engine, draws.collect()));
        alive.extend(children);
        while alive.len() > 2 {
            let pruned = alive.swap_remove(dice.within(0, alive.len() as u32 - 1) as usize);
            engine.prune(&[pruned]);
        }
    }
    told
}

/// Copies take nothing from latents: in a pool with as many pages for latents, an engine with copies lets the same
/// branches in, frees, swaps and computes again the same ones, and holds the same bytes, as one without.
#[test]
fn an_engine_with_copies_counts_its_latents_as_one_without() {
    let page_bytes = engine(in_turn(), config(0, LatentFormChoice::Cheapest)).facts().page_bytes;
    let (mut preemptions, mut swapped, mut evicted) = (0, 0, 0);
    for seed in 0..12 {
        let mut dice = Dice::new(100 + seed);
        let (pages, swap_bytes) = (dice.within(20, 24) as usize, (seed as usize % 2) << 20);
        let run = |pages: usize, copies: usize, choice| {
            let pool = PoolSize::Bytes(pages * page_bytes + copies);
            let few = EngineConfig { pool, swap_bytes, swap_at_any_cost: true, ..config(copies, choice) };
            let engine = engine(in_turn(), few);
            let told = random_script(&engine, seed);
            (engine.facts().pool_pages, told, of_latents(&engine), engine.metrics().unwrap())
        };
        for choice in [LatentFormChoice::All(LatentForm::Kept), LatentFormChoice::Random(seed)] {
            let case = format!("seed {seed}, {choice:?}");
            let (pages, found, latents, metrics) = run(pages, dice.within(2, 6) as usize * one_page(), choice);
            let (all, expected, absorbed, _) = run(pages, 0, LatentFormChoice::Cheapest);
            assert_eq!((pages, &latents), (all, &absorbed), "{case}");
            check_alike(&found, &expected, &case);
            (preemptions, swapped) = (preemptions + metrics.preemptions, swapped + metrics.swapped_out_bytes);
            evicted += metrics.latent_copies_evicted;
        }
    }
    assert!(preemptions > 10 && swapped > 0 && evicted > 0, "{preemptions}, {swapped}, {evicted}");
}

#[test]
fn copies_that_were_evicted_are_made_again_and_no_token_is_computed_again() {
    // A tile of each of two prompts, which are read in turn. The first branch of each holds its pages.
    let turns = |copies: usize| {
        let engine = engine(in_turn(), config(copies, LatentFormChoice::All(LatentForm::Kept)));
        let roots = [1, 2].map(|salt| engine.root(prompt(salt, 70)).unwrap());
        for turn in 0..3 {
            for root in roots {
                let children = engine.fork(root, 3).unwrap();
                let draws = (0..).zip(&children);
                let draws = draws.map(|(i, &child)| draw(child, key("turn", 9 * turn + i), params(), length(5)));
                finishes(&engine, draws.collect());
                engine.prune(&children[usize::from(turn == 0)..]);
            }
        }
        engine.metrics().unwrap()
    };
    let [few, plenty] = [4 * one_page(), ROOM / 2].map(turns);
    assert_eq!((plenty.latent_tokens_expanded, plenty.latent_copies_evicted), (2 * 64, 0), "once for each prompt");
    assert_eq!(few.latent_tokens_expanded, 6 * 64, "in every turn");
    // 64 tokens are four pages: all but the first turn of all gives up the other prompt's.
    assert_eq!((few.latent_copies_evicted, few.latent_copies_held), (5 * 4, 4));
    for metrics in [&few, &plenty] {
        assert_eq!((metrics.prompt_tokens_computed, metrics.tokens_recomputed, metrics.preemptions), (2 * 70, 0, 0));
    }
}

/// The sizes of the files of a folder and of those below it, in the order of their paths.
fn sizes(folder: &Path) -> Vec<u64> {
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .flat_map(|path| if path.is_dir() { sizes(path) } else { vec![path.metadata().unwrap().len()] })
        .collect()
}

#[test]
fn a_store_of_prefixes_has_the_bytes_of_latents_alone() {
    let absorbed = engine(in_turn(), config(0, LatentFormChoice::Cheapest));
    let facts = absorbed.facts();
    let stored = |copies: usize, choice| {
        let folder = tempfile::tempdir().unwrap();
        let options = EngineConfig { prefix_store: Some(store(folder.path())), ..config(copies, choice) };
        let engine = engine(in_turn(), options);
        super::bench::sample(&engine, "item", prompt(1, offshoot_engine::CHUNK_TOKENS + 77), 3, length(9));
        let written = engine.metrics().unwrap().chunks_written;
        drop(engine);
        (written, sizes(folder.path()))
    };
    let (chunks, expected) = stored(0, LatentFormChoice::Cheapest);
    // A chunk has its pages of latents; what else the store has is no larger than one page.
    let latents = offshoot_engine::CHUNK_TOKENS / facts.page_tokens * facts.page_bytes;
    let all = expected.iter().sum::<u64>() as usize;
    assert!(chunks == 1 && all.abs_diff(latents) < facts.page_bytes, "{all} bytes for {latents} of latents");
    for choice in CHOICES {
        assert_eq!(stored(ROOM / 2, choice), (chunks, expected.clone()), "{choice:?}");
    }
}

/// An engine whose latents are fp8.
fn fp8_engine(config: EngineConfig) -> EngineHandle {
    let (mut backend, mut decoder) = decoder(Shape::Latent);
    decoder.set_kv_dtype(&mut backend, KvDtype::Fp8);
    let config = EngineConfig { check_plans: true, ..config };
    Engine::start(decoder.on(backend), Some(tokenizer()), config).unwrap()
}

/// Copies are made of the latents as they are stored; swaps and stores keep their codes.
#[test]
fn fp8_latents_draw_alike_in_every_form_and_wherever_they_were() {
    let absorbed = || config(0, LatentFormChoice::Cheapest);
    let wide = engine(in_turn(), absorbed());
    let page_bytes = fp8_engine(absorbed()).facts().page_bytes;
    assert_eq!(4 * page_bytes, wide.facts().page_bytes, "a byte for four of f32");
    let expected = tree(&fp8_engine(absorbed()));
    assert_ne!(expected, tree(&wide));
    for choice in CHOICES {
        check_alike(&tree(&fp8_engine(config(ROOM / 2, choice))), &expected, &format!("{choice:?}"));
    }

    let swapping = EngineConfig {
        pool: PoolSize::Bytes(18 * page_bytes),
        swap_bytes: 1 << 20,
        swap_at_any_cost: true,
        ..absorbed()
    };
    let engine = fp8_engine(swapping);
    check_alike(&crowd(&engine), &crowd(&fp8_engine(absorbed())), "swaps");
    let metrics = engine.metrics().unwrap();
    assert!(metrics.preemptions > 0, "{metrics:?}");

    let folder = tempfile::tempdir().unwrap();
    let samples = |prefix_store| {
        let engine = fp8_engine(EngineConfig { prefix_store, ..absorbed() });
        super::bench::sample(&engine, "item", prompt(1, offshoot_engine::CHUNK_TOKENS + 77), 3, length(9))
    };
    let expected = samples(None);
    for case in ["written", "read"] {
        check_alike(&samples(Some(store(folder.path()))), &expected, case);
    }
}

#[test]
fn ranks_draw_alike_in_every_form() {
    let run = |ranks: usize, choice| {
        let cpus = (0..ranks).map(|_| Cpu::open().unwrap().on_a_share_of_cores(ranks)).collect();
        let weights = ModelWeights::random(model(Shape::Latent, 4 * CONTEXT), Dtype::F32, 7);
        let ranks = Ranks::new(cpus, true).unwrap();
        let model = LoadedRanks::start(ranks, |rank| Decoder::of(rank, &weights)).unwrap();
        let config = EngineConfig { check_plans: true, ..config(ROOM / 2, choice) };
        let engine = Engine::start(model, Some(tokenizer()), config).unwrap();
        let told = tree(&engine);
        assert_copied(choice, &engine.metrics().unwrap());
        told
    };
    let expected = run(1, LatentFormChoice::All(LatentForm::Absorbed));
    assert_eq!(run(2, LatentFormChoice::All(LatentForm::Absorbed)), expected, "sums of ranks are exact");
    for choice in CHOICES {
        let found = run(2, choice);
        check_alike(&found, &expected, &format!("{choice:?}"));
        assert_eq!(found, run(1, choice), "{choice:?}");
    }
}

in_modes! {
    in_turn, run_ahead, replicas:
    all_forms_draw_alike,
    answers_in_a_form_and_scores_are_alike_in_every_form,
    branches_that_yield_draw_alike,
    copies_are_forgotten_with_what_they_were_made_of,
    deterministic_engines_read_latents_alone,
    what_was_stored_is_read_alike,
}
