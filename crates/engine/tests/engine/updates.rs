//! Weights that change while branches are sampled, scored, forked, swapped, stored, cancelled and lost with their
//! engines: every record is that of an engine which never had other weights than those that it names.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{BranchId, WeightVersion};
use offshoot_engine::{
    CHUNK_TOKENS, Engine, EngineConfig, EngineHandle, Event, PauseMode, PrefixStoreOptions, Records, RootOptions,
    SamplingParams, StoredPrefixes, UniformKey, WeightSpan, WeightsUpdate, version_of_token,
};
use offshoot_kv::plan::Planner;

use super::bench::{
    Mode, Shape, draw, finish, in_turn, key, length, params, prompt, room_for, roomy, tokenizer, unsure,
};
use super::update_scripts::Script;
use super::versions::{How, Record};
use super::world::{Seeds, World};
use crate::full::some_or_full;

/// Random scripts. How many of their records are of several versions is a matter of time: `pauses` sees to it that some
/// are.
fn scripts(mode: Mode, shape: Shape, seeds: u64, longest: u32, config: impl Fn(&World, u64) -> EngineConfig) {
    let world = World::new(shape);
    for seed in 0..seeds {
        let mut script = Script::new(&world, mode, config(&world, seed), seed, longest);
        (0..80).for_each(|_| script.step());
        script.end();
    }
}

/// Small pools, with and without swaps, and a roomy one.
pub fn corner(world: &World, seed: u64, longest: usize) -> EngineConfig {
    let facts = world.fresh(Seeds::FIRST).facts().clone();
    let least = facts.path_pages(longest + 230, 0);
    let with = |more: usize| room_for(&facts, least + more * least / 10);
    match seed % 4 {
        0 => roomy(),
        1 => EngineConfig { step_rows: 5, max_branches: 3, pool: with(4), ..EngineConfig::default() },
        2 => EngineConfig { swap_bytes: 1 << 20, swap_at_any_cost: true, pool: with(6), ..EngineConfig::default() },
        _ => EngineConfig {
            step_rows: 32,
            max_branches: 9,
            planner: Planner::Tree,
            pool: with(20),
            ..EngineConfig::default()
        },
    }
}

fn every_record_is_that_of_engines_which_never_had_other_weights(mode: Mode) {
    let corner = |world: &World, seed| corner(world, seed, 60);
    scripts(mode, Shape::Full, some_or_full(4, 60), 60, corner);
}

fn windows_and_states_belong_to_weights_too(mode: Mode) {
    for shape in [Shape::LongMixed, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(2, 20), 60, |world, seed| corner(world, seed, 60));
    }
}

fn experts_belong_to_weights_too(mode: Mode) {
    scripts(mode, Shape::Mixture, some_or_full(2, 20), 60, |world, seed| corner(world, seed, 60));
}

fn what_a_prefix_store_has_belongs_to_weights_too(mode: Mode) {
    let folder = tempfile::tempdir().unwrap();
    let options = |seeds: Seeds| PrefixStoreOptions {
        folder: folder.path().to_owned(),
        most_bytes: 1 << 30,
        weights: seeds.identity(),
        formats: String::new(),
        keeps: StoredPrefixes::Prompts,
    };
    let longest = 2 * CHUNK_TOKENS + 40;
    for shape in [Shape::Full, Shape::Hybrid] {
        scripts(mode, shape, some_or_full(1, 12), longest as u32, |world, seed| EngineConfig {
            prefix_store: Some(options(Seeds::FIRST)),
            ..corner(world, seed, longest)
        });
    }
    // Engines that are started with the weights of an update find what was computed under it.
    let world = World::new(Shape::Full);
    let extend = |engine: &EngineHandle| {
        let root = engine.root(prompt(5, longest)).unwrap();
        finish(engine, draw(root, key("stored", 0), params(), length(9)))
    };
    let engine = world.engine(mode, EngineConfig { prefix_store: Some(options(Seeds::FIRST)), ..roomy() });
    let identity = Some(Seeds::both(2).identity());
    engine.update_weights(WeightsUpdate { identity, ..world.whole(Seeds::both(2)) }).unwrap();
    let first = extend(&engine);
    engine.update_weights(world.whole(Seeds::both(3))).unwrap();
    let nameless = extend(&engine);
    assert_eq!(engine.weights().identity, None);
    drop(engine);
    for (seeds, expected, stored) in [(Seeds::both(2), first, true), (Seeds::both(3), nameless, false)] {
        let config = EngineConfig { prefix_store: Some(options(seeds)), ..roomy() };
        let again = Engine::start(world.model(seeds), Some(tokenizer()), config).unwrap();
        let finish = extend(&again);
        assert_eq!((finish.tokens, finish.records), (expected.tokens, expected.records));
        assert_eq!(again.metrics().unwrap().prompt_tokens_stored > 0, stored, "{seeds:?}");
    }
}

/// Weights change a thousand times while samples run. How many of these are of several versions is a matter of time;
/// each says under which version it has sampled what.
fn nothing_grows_with_updates(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine = world.engine(mode, roomy());
    let updates: Vec<WeightsUpdate> = (1..=3).map(|seed| world.whole(Seeds::both(seed))).collect();
    let mut weights = vec![Seeds::FIRST];
    let (root, pages) = (engine.root(prompt(1, 40)).unwrap(), engine.live().unwrap().pages.total);
    let group = 8;
    for round in 0..some_or_full(50, 500) {
        let children = engine.fork(root, group).unwrap();
        let uniforms: Vec<UniformKey> = (0..group as u64).map(|at| key(&format!("{round}"), at)).collect();
        let extends = children.iter().zip(&uniforms).map(|(&child, &key)| draw(child, key, params(), unsure(40)));
        let mut receiver = engine.start(extends.collect()).unwrap();
        let (mut told, mut finishes) = (HashMap::<BranchId, Vec<WeightVersion>>::new(), HashMap::new());
        let mut note = |event: Option<Event>| match event {
            Some(Event::Finished { id, finish }) => drop(finishes.insert(id, finish)),
            Some(Event::Tokens { id, tokens, weights, .. }) => {
                told.entry(id).or_default().extend(tokens.iter().map(|_| weights));
            }
            Some(Event::Failed { error, .. }) => panic!("{error}"),
            None => {}
        };
        for half in 0..2 {
            for _ in 0..20 {
                if let Poll::Ready(event) = receiver.poll(Duration::from_millis(1)) {
                    note(event);
                }
            }
            let next = (2 * round + half) % 3;
            engine.update_weights(updates[next].clone()).unwrap();
            weights.push(Seeds::both(1 + next as u64));
        }
        while let Some(event) = receiver.next() {
            note(Some(event));
        }
        assert_eq!(finishes.len(), group, "every sample ends");
        for (&child, &uniforms) in children.iter().zip(&uniforms) {
            let finish = finishes.remove(&child).expect("every sample ends");
            let versions =
                (0..finish.tokens.len()).map(|at| version_of_token(&finish.weights, at).expect("it has one"));
            assert!(versions.eq(told[&child].iter().copied()), "{:?}", finish.weights);
            if round % 25 == 0 {
                let how = How::Drawn(uniforms, params(), unsure(40));
                Record { before: prompt(1, 40), how, finish }.hold(&world, &weights);
            }
        }
        engine.prune(&children);
    }
    engine.prune(&[root]);
    engine.evict().unwrap();
    engine.metrics().unwrap();
    let live = engine.live().unwrap();
    assert_eq!(engine.weights().version.0 as usize, weights.len() - 1);
    assert_eq!((live.branches, live.running, live.waiting), (0, 0, 0));
    assert_eq!((live.pages.free, live.pages.total), (pages, pages));
}

/// The first of two engines is lost during a pause, in which weights change.
#[test]
fn what_was_heard_of_a_lost_engine_is_of_the_weights_that_it_had() {
    let world = World::new(Shape::Full);
    let ((mut lost, first), second) = (world.by_hand(roomy()), world.engine(in_turn(), roomy()));
    let engine = offshoot_engine::replicas::join(vec![first, second]).unwrap();
    let records = Records { drawn: true, kept_ids: true, entropy: true, confidence: NonZeroU16::new(7) };
    let params = SamplingParams { frequency_penalty: 0.7, repetition_penalty: 1.2, records, ..params() };
    let (before, stop, uniforms) = (prompt(1, 40), unsure(30), key("lost", 0));
    let place = RootOptions { home: Some(0), ..RootOptions::default() };
    let root = engine.root_with(before.clone(), place).unwrap();
    let mut receiver = engine.start(vec![draw(root, uniforms, params.clone(), stop.clone())]).unwrap();
    let mut told = Vec::new();
    while told.len() < 5 {
        lost.turn().unwrap();
        if let Poll::Ready(Some(Event::Tokens { tokens, weights, .. })) = receiver.poll(Duration::from_millis(1)) {
            told.extend(tokens.into_iter().map(|sampled| (sampled.token, weights)));
        }
    }
    std::thread::scope(|scope| {
        let pause = scope.spawn(|| engine.pause(PauseMode::Keep));
        while !engine.is_paused() {
            std::thread::yield_now();
        }
        drop(lost);
        pause.join().unwrap().unwrap();
    });
    engine.update_weights(world.whole(Seeds::both(2))).unwrap();
    engine.resume().unwrap();
    let finish = loop {
        match receiver.next().expect("it ends") {
            Event::Tokens { tokens, weights, .. } => {
                told.extend(tokens.into_iter().map(|sampled| (sampled.token, weights)));
            }
            Event::Finished { finish, .. } => break finish,
            Event::Failed { error, .. } => panic!("{error}"),
        }
    };
    let [WeightSpan { from: 0, .. }, WeightSpan { from, .. }] = finish.weights[..] else { panic!("{finish:?}") };
    assert!((5..30).contains(&from) && finish.tokens.len() == 30, "{from} of {}", finish.tokens.len());
    let versions = (0..30).map(|at| version_of_token(&finish.weights, at).expect("it has one"));
    assert_eq!(told, finish.tokens.iter().copied().zip(versions).collect::<Vec<_>>(), "each token once");
    let how = How::Drawn(uniforms, params, stop);
    Record { before, how, finish }.hold(&world, &[Seeds::FIRST, Seeds::both(2)]);
}

in_modes! {
    in_turn, run_ahead, replicas:
    every_record_is_that_of_engines_which_never_had_other_weights,
    windows_and_states_belong_to_weights_too,
    experts_belong_to_weights_too,
    what_a_prefix_store_has_belongs_to_weights_too,
    nothing_grows_with_updates,
}
