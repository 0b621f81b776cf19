//! Values of a scorer: whatever comes when, and whoever computes them, those of a text are those of the text alone, bit
//! for bit, and what texts share is computed once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::Poll;
use std::time::Duration;

use offshoot_backend::{Dtype, RowToken, StepBatch};
use offshoot_core::dice::Dice;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_cpu::Cpu;
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, Finish, FinishReason, Metrics, PositionValues,
    RootOptions, StepGate, Stop, Turn,
};
use offshoot_kv::{CacheSalt, PromptTree};
use offshoot_model::{Decoder, ModelConfig, ModelFolder, OutputHead, RowValues, StepRunner, ValueHead, ValueLayer};
use proptest::prelude::*;

use super::any::for_any;
use super::bench::{
    CONTEXT, Mode, Shape, draw, finish, in_turn, key, length, model, outcomes, pages, params, prompt, room_for, roomy,
};
use super::runner::{Watch, Watched};
use super::world::{Seeds, World};

/// Values of a position.
const WIDTH: usize = 3;

/// A model of this shape with two layers behind its final norm.
fn scorer(shape: Shape, seed: u64) -> Box<dyn StepRunner> {
    scorer_on(Cpu::open().unwrap(), shape, seed)
}

fn scorer_on(mut backend: Cpu, shape: Shape, seed: u64) -> Box<dyn StepRunner> {
    let layer = |module: &str, outputs| ValueLayer { module: module.to_owned(), outputs, bias: true };
    let head = ValueHead { inner: vec![layer("score.0", 8)], last: layer("score.2", WIDTH) };
    let context = if matches!(shape, Shape::Full | Shape::Windowed) { CONTEXT } else { 4 * CONTEXT };
    let config = ModelConfig { output: OutputHead::Values(head), ..model(shape, context) };
    let decoder = Decoder::random(&mut backend, config, Dtype::F32, seed).unwrap();
    decoder.on(backend)
}

fn build(mode: Mode, shape: Shape, config: EngineConfig) -> (Engine, EngineHandle) {
    let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, ..config };
    Engine::build(scorer(shape, 7), None, config).unwrap()
}

fn start(mode: Mode, shape: Shape, config: EngineConfig) -> EngineHandle {
    let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, ..config };
    Engine::start(scorer(shape, 7), None, config).unwrap()
}

/// A text of which some values are asked for: those at `at`, behind its first `context` tokens or earlier.
#[derive(Clone, Debug)]
struct Text {
    /// The turn before which it comes, at the earliest.
    arrives: usize,
    /// The text that it goes on from, by a fork, once that has ended; else it is a root of its own.
    parent: Option<usize>,
    tokens: Vec<TokenId>,
    context: usize,
    at: Vec<u32>,
    /// How many turns after it has begun it is cancelled.
    cancelled: Option<usize>,
}

/// A text in an engine.
struct Begun {
    turn: usize,
    branch: BranchId,
    extension: EventReceiver,
    result: Option<Finish>,
}

/// Plays `texts`; those that end stay, so that others may go on from them. Returns what was found of each; `None` of
/// those whose parent was cancelled.
fn play((mut engine, handle): (Engine, EngineHandle), texts: &[Text]) -> (Vec<Option<Finish>>, Metrics) {
    let mut begun: Vec<Option<Begun>> = texts.iter().map(|_| None).collect();
    for turn in 0.. {
        for (ix, text) in texts.iter().enumerate() {
            if begun[ix].is_some() || text.arrives > turn {
                continue;
            }
            let branch = match text.parent {
                None => handle.root(text.tokens[..text.context].to_vec()).unwrap(),
                Some(parent) => match begun[parent]
                    .as_ref()
                    .and_then(|parent| Some((parent.branch, parent.result.as_ref()?)))
                {
                    Some((parent, ended)) if ended.reason == FinishReason::Given => handle.fork(parent, 1).unwrap()[0],
                    Some(_) | None => continue,
                },
            };
            let given = text.tokens[text.context..].to_vec();
            let extend = Extend::given_with_values(branch, given, text.at.clone());
            begun[ix] = Some(Begun { turn, branch, extension: handle.start(vec![extend]).unwrap(), result: None });
        }
        for (begun, text) in begun.iter_mut().zip(texts) {
            let Some(begun) = begun else { continue };
            if text.cancelled.is_some_and(|after| begun.turn + after == turn) {
                begun.extension.cancel(&[begun.branch]);
            }
            while let Poll::Ready(Some(event)) = begun.extension.poll(Duration::ZERO) {
                match event {
                    Event::Finished { finish, .. } => begun.result = Some(finish),
                    other => panic!("{other:?}"),
                }
            }
        }
        let idle = engine.turn().unwrap() != Turn::Stepped;
        let waits = |(ix, text): (usize, &Text)| {
            let is_open = begun[ix].as_ref().map(|begun| begun.result.is_none());
            let can_begin = || {
                text.parent.is_none_or(|parent| {
                    let ended = begun[parent].as_ref().and_then(|parent| parent.result.as_ref());
                    ended.is_some_and(|ended| ended.reason == FinishReason::Given)
                })
            };
            is_open.unwrap_or_else(can_begin)
        };
        if idle && !texts.iter().enumerate().any(waits) {
            break;
        }
        assert!(turn < 20_000, "somebody starves");
    }
    let metrics = engine.metrics().clone();
    (begun.into_iter().map(|begun| begun.and_then(|begun| begun.result)).collect(), metrics)
}

/// The values of all positions of the text alone, in an engine that has seen no other.
fn alone(shape: Shape, tokens: &[TokenId]) -> Arc<Vec<PositionValues>> {
    type Known = HashMap<(String, Vec<TokenId>), Arc<Vec<PositionValues>>>;
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let place = (format!("{shape:?}"), tokens.to_vec());
    let known = KNOWN.lock().unwrap().get(&place).cloned();
    known.unwrap_or_else(|| {
        let engine = start(in_turn(), shape, roomy());
        let branch = engine.root(tokens.to_vec()).unwrap();
        let at: Vec<u32> = (0..u32::try_from(tokens.len()).unwrap()).collect();
        let values = Arc::new(finish(&engine, Extend::given_with_values(branch, Vec::new(), at)).values);
        KNOWN.lock().unwrap().insert(place, values.clone());
        values
    })
}

fn bits(values: &[PositionValues]) -> Vec<(u32, Vec<u32>)> {
    values.iter().map(|of| (of.at, of.values.iter().map(|value| value.to_bits()).collect())).collect()
}

/// Each text has the values of the text alone; one that was cancelled, as far as it came.
fn assert_values(shape: Shape, texts: &[Text], found: &[Option<Finish>]) {
    for (text, found) in texts.iter().zip(found) {
        let Some(found) = found else { continue };
        let expected = alone(shape, &text.tokens);
        assert!(expected.iter().all(|of| of.values.len() == WIDTH));
        let expected: Vec<PositionValues> = text.at.iter().map(|&at| expected[at as usize].clone()).collect();
        let given = &text.tokens[text.context..];
        match found.reason {
            FinishReason::Given => {
                assert_eq!(found.tokens, given);
                assert_eq!(bits(&found.values), bits(&expected), "{text:?}");
            }
            FinishReason::Cancelled => {
                assert!(text.cancelled.is_some());
                assert_eq!(found.tokens, given[..found.tokens.len()]);
                assert_eq!(bits(&found.values), bits(&expected[..found.values.len()]), "{text:?}");
            }
            ref other => panic!("{other:?}"),
        }
    }
}

/// Tokens of a level of a tree of texts, each with an own first token; and where it ends.
fn levels(path: &[usize]) -> (Vec<TokenId>, Vec<u32>) {
    let (mut tokens, mut ends) = (Vec::new(), Vec::new());
    for (depth, &child) in path.iter().enumerate() {
        tokens.extend(prompt((3 * depth + child) as u64, 6 + 7 * depth));
        ends.push(u32::try_from(tokens.len()).unwrap() - 1);
    }
    (tokens, ends)
}

fn rising(mut at: Vec<u32>) -> Vec<u32> {
    at.sort_unstable();
    at.dedup();
    at
}

/// Roots whose texts begin alike, of which any positions are asked for.
fn roots(most: usize) -> impl Strategy<Value = Vec<Text>> {
    let path = prop::collection::vec(0..3usize, 1..5);
    let index = any::<prop::sample::Index>;
    let at = prop::collection::vec(index(), 0..6);
    let text = (path, 0..40usize, index(), at, prop::option::weighted(0.2, 0..12usize));
    let text = text.prop_map(|(path, arrives, context, at, cancelled)| {
        let (tokens, _) = levels(&path);
        let at = rising(at.iter().map(|at| u32::try_from(at.index(tokens.len())).unwrap()).collect());
        let context = 1 + context.index(tokens.len());
        Text { arrives, parent: None, tokens, context, at, cancelled }
    });
    prop::collection::vec(text, 1..most)
}

/// A random tree, each level a fork of the one before or a root of the whole text, whose last positions are asked for,
/// and some others.
fn trees(most: usize) -> impl Strategy<Value = Vec<Text>> {
    (any::<u64>(), 2..most).prop_map(|(seed, count)| {
        let mut dice = Dice::new(seed);
        let mut below = |end: usize| dice.within(0, u32::try_from(end).unwrap() - 1) as usize;
        let mut texts: Vec<Text> = Vec::new();
        for ix in 0..count {
            let parent = (ix > 0).then(|| below(ix));
            let before = parent.map_or_else(|| prompt(0, 11), |parent| texts[parent].tokens.clone());
            let given = prompt(1 + below(3) as u64, below(25).min(CONTEXT - 1 - before.len()));
            let (context, tokens) = (before.len(), [before, given].concat());
            let others = below(3);
            let at = [tokens.len() - 1].into_iter().chain((0..others).map(|_| below(tokens.len())));
            let at = rising(at.map(|at| u32::try_from(at).unwrap()).collect());
            let cancelled = (below(10) == 0).then(|| below(6));
            let parent = parent.filter(|_| below(4) > 0);
            texts.push(Text { arrives: below(30), parent, tokens, context, at, cancelled });
        }
        texts
    })
}

/// Step rows, branches, pages beside those of the longest text, pages in host memory.
fn corner() -> impl Strategy<Value = (usize, usize, usize, usize)> {
    (1..90usize, 1..20usize, 0..12usize, prop::sample::select(vec![0, 3, 1000]))
}

fn shapes() -> impl Strategy<Value = Shape> {
    prop::sample::select(vec![Shape::Full, Shape::Windowed, Shape::LongMixed, Shape::Hybrid, Shape::Latent])
}

/// In pools down to the smallest that hold one text, where branches are preempted and pages evicted.
fn hold(mode: Mode, texts: impl Strategy<Value = Vec<Text>>) {
    for_any((texts, corner(), shapes()), |(texts, (step_rows, max_branches, beside, swap), shape)| {
        let facts = build(mode, shape, roomy()).1.facts().clone();
        let longest = texts.iter().map(|text| facts.path_pages(text.tokens.len() + 3, 0)).max().unwrap_or(0);
        let (pool, swap_bytes) = (room_for(&facts, longest + 4 + beside), swap * facts.page_bytes);
        let config = EngineConfig {
            step_rows,
            max_branches,
            pool,
            swap_bytes,
            swap_at_any_cost: swap > 3,
            ..EngineConfig::default()
        };
        let (found, metrics) = play(build(mode, shape, config), &texts);
        assert_values(shape, &texts, &found);
        prop_assert_eq!((metrics.tokens_sampled, metrics.tokens_discarded, metrics.scores_reused), (0, 0, 0));
        Ok(())
    });
}

fn whatever_comes_when_values_are_those_of_the_text_alone(mode: Mode) {
    hold(mode, roots(12));
}

fn step_by_step_values_are_those_of_the_whole_text(mode: Mode) {
    hold(mode, trees(14));
}

/// Tokens up to the last position that is asked for, shared ones once.
fn distinct_tokens(texts: &[Text]) -> u64 {
    let needed = texts.iter().filter_map(|text| Some(&text.tokens[..*text.at.last()? as usize + 1]));
    PromptTree::new(&needed.collect::<Vec<_>>()[..]).distinct_tokens()
}

/// Texts that ask for the same positions of what they share, one value for each level, in a pool that holds them all:
/// their rows are their distinct tokens, and each value is computed once.
fn nothing_is_computed_twice(mode: Mode) {
    let shapes = prop::sample::select(vec![Shape::Full, Shape::Windowed, Shape::Hybrid, Shape::Latent]);
    let paths = prop::collection::vec((prop::collection::vec(0..3usize, 1..5), 0..40usize), 1..20);
    for_any((paths, corner(), shapes), |(paths, (step_rows, max_branches, ..), shape)| {
        let texts = paths.into_iter().map(|(path, arrives)| {
            let (tokens, at) = levels(&path);
            Text { arrives, parent: None, tokens, context: 1, at, cancelled: None }
        });
        let texts: Vec<Text> = texts.collect();
        let config = EngineConfig { step_rows, max_branches, ..roomy() };
        let (found, metrics) = play(build(mode, shape, config), &texts);
        assert_values(shape, &texts, &found);
        let positions = texts.iter().flat_map(|text| text.at.iter().map(|&at| text.tokens[..=at as usize].to_vec()));
        let (distinct, all) = (positions.collect::<HashSet<_>>().len() as u64, texts.iter().map(|text| text.at.len()));
        let all = all.sum::<usize>() as u64;
        prop_assert_eq!((metrics.values_read, metrics.values_reused), (distinct, all - distinct));
        prop_assert_eq!(metrics.prompt_tokens_computed, distinct_tokens(&texts));
        if !matches!(shape, Shape::Hybrid) {
            prop_assert_eq!(metrics.rows, distinct_tokens(&texts));
        }
        let logical: usize = texts.iter().map(|text| text.tokens.len()).sum();
        prop_assert_eq!((metrics.prompt_tokens_logical, metrics.tokens_recomputed), (logical as u64, 0));
        Ok(())
    });
}

/// A search by steps: 32 steps of 256 solutions below one prompt, of which each step keeps a quarter, each with four
/// continuations. A step's value is asked for at its last token.
fn steps_of_a_search_cost_their_own_tokens(mode: Mode) {
    const STEPS: u64 = 32;
    const LIVE: usize = 256;
    const EXPANSIONS: usize = 4;
    let config = EngineConfig { step_rows: 512, max_branches: LIVE, ..pages(8000) };
    let (mut engine, handle) = build(mode, Shape::LongMixed, config);
    let shared = prompt(0, 90);
    let root = handle.root(shared.clone()).unwrap();
    let mut live: Vec<(BranchId, Vec<TokenId>)> = vec![(root, shared)];
    let mut all: Vec<Vec<TokenId>> = Vec::new();
    for step in 0..STEPS {
        let mut next = Vec::new();
        let children = LIVE / live.len().min(LIVE / EXPANSIONS);
        for (at, (branch, tokens)) in live.iter().take(LIVE / EXPANSIONS).enumerate() {
            for (child, branch) in handle.fork(*branch, children).unwrap().into_iter().enumerate() {
                let given = prompt(1 + step * 1000 + (at * children + child) as u64, 3);
                next.push((branch, [&tokens[..], &given].concat()));
            }
        }
        handle.prune(&live.iter().map(|(branch, _)| *branch).collect::<Vec<_>>());
        let extends = next.iter().map(|(branch, tokens)| {
            let end = tokens.len();
            Extend::given_with_values(*branch, tokens[end - 3..].to_vec(), [u32::try_from(end).unwrap() - 1])
        });
        let mut extension = handle.start(extends.collect()).unwrap();
        while engine.turn().unwrap() == Turn::Stepped {}
        let mut ended = 0;
        while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
            assert!(matches!(event, Event::Finished { finish, .. } if finish.values.len() == 1));
            ended += 1;
        }
        assert_eq!(ended, LIVE);
        all.extend(next.iter().map(|(_, tokens)| tokens.clone()));
        live = next;
    }
    let distinct = PromptTree::new(&all[..]).distinct_tokens();
    let metrics = engine.metrics();
    assert!(distinct > 3 * STEPS * LIVE as u64 * 9 / 10, "{distinct} distinct tokens");
    assert!(metrics.rows as f64 <= 1.02 * distinct as f64, "{} rows of {distinct} tokens", metrics.rows);
}

/// A branch whose values another one is to compute computes them itself when that one is cancelled.
fn a_cancelled_twin_leaves_nobody_behind(mode: Mode) {
    for after in 0..6 {
        let text = |cancelled| Text {
            arrives: 0,
            parent: None,
            tokens: prompt(0, 100),
            context: 1,
            at: vec![20, 60, 99],
            cancelled,
        };
        let texts = [text(Some(after)), text(Some(after + 1)), text(None), text(None)];
        let config = EngineConfig { step_rows: 32, ..roomy() };
        let (found, _) = play(build(mode, Shape::Full, config), &texts);
        assert_values(Shape::Full, &texts, &found);
        assert!(found[2..].iter().all(|found| found.as_ref().unwrap().reason == FinishReason::Given));
    }
}

fn what_is_kept_costs_no_row(mode: Mode) {
    let engine = start(mode, Shape::Full, roomy());
    let tokens = prompt(3, 40);
    let first = engine.root(tokens[..30].to_vec()).unwrap();
    let values = |branch, given: &[TokenId], at: &[u32]| {
        let found = finish(&engine, Extend::given_with_values(branch, given.to_vec(), at.to_vec()));
        (bits(&found.values), engine.metrics().unwrap())
    };
    let (of_first, metrics) = values(first, &tokens[30..], &[9, 35]);
    assert_eq!((metrics.rows, metrics.prompt_tokens_computed, metrics.values_read), (36, 36, 2));
    // A fork, the branch itself and a root of equal tokens ask for them.
    let fork = engine.fork(first, 1).unwrap()[0];
    let again = engine.root(tokens.clone()).unwrap();
    for branch in [first, fork, again] {
        let (of_branch, metrics) = values(branch, &[], &[9, 35]);
        assert_eq!((of_branch, metrics.rows, metrics.values_read), (of_first.clone(), 36, 2));
    }
    // A value that nobody has asked for is one row, though its keys and values are kept.
    let (earlier, metrics) = values(again, &[], &[9, 20, 35]);
    assert_eq!((metrics.rows, metrics.prompt_tokens_computed, metrics.values_read), (37, 36, 3));
    assert_eq!([earlier[0].clone(), earlier[2].clone()], of_first[..]);
    assert_eq!(earlier, bits(&[9, 20, 35].map(|at| alone(Shape::Full, &tokens)[at].clone())));
    // The given tokens behind the last position are computed when something behind them is asked for.
    let (_, metrics) = values(fork, &prompt(4, 2), &[41]);
    assert_eq!((metrics.prompt_tokens_computed, metrics.values_reused), (42, 8));
    // No position at all is nothing to compute.
    let (none, metrics) = values(again, &prompt(5, 7), &[]);
    assert_eq!((none.len(), metrics.prompt_tokens_computed), (0, 42));
    engine.evict_held().unwrap();
    let (evicted, metrics) = values(first, &[], &[9, 35]);
    assert_eq!((evicted, metrics.prompt_tokens_computed), (of_first, 42 + 36));
}

/// A branch that has gone on asks for values of tokens that its windows have passed, and of tokens behind which it has
/// no state.
fn earlier_values_of_a_branch_that_has_gone_on(mode: Mode) {
    for shape in [Shape::Full, Shape::Windowed, Shape::LongMixed, Shape::Hybrid] {
        for (step_rows, beside) in [(256, 2000), (13, 2000), (13, 4), (13, 1)] {
            let config = EngineConfig { step_rows, ..roomy() };
            let facts = build(mode, shape, config.clone()).1.facts().clone();
            let pool = room_for(&facts, facts.path_pages(120, 1) + beside);
            let engine = start(mode, shape, EngineConfig { pool, ..config });
            let tokens = prompt(1, 120);
            let expected = alone(shape, &tokens);
            let branch = engine.root(tokens[..1].to_vec()).unwrap();
            for (from, upto, at) in [(1, 90, vec![89]), (90, 90, vec![4, 50, 89]), (90, 120, vec![0, 3, 50, 88, 119])] {
                let given = tokens[from..upto].to_vec();
                let found = finish(&engine, Extend::given_with_values(branch, given, &at[..]));
                let expected: Vec<PositionValues> = at.iter().map(|&at| expected[at as usize].clone()).collect();
                assert_eq!(bits(&found.values), bits(&expected), "{shape:?}, {step_rows} rows, {beside} pages, {at:?}");
            }
        }
    }
}

fn salts_share_nothing(mode: Mode) {
    let engine = start(mode, Shape::Full, roomy());
    let mut rows = Vec::new();
    for salt in [None, Some(1), Some(2), Some(1), None] {
        let options = RootOptions { salt: salt.map(|salt: u8| CacheSalt([salt; 16])), ..RootOptions::default() };
        let root = engine.root_with(prompt(1, 20), options).unwrap();
        let found = finish(&engine, Extend::given_with_values(root, prompt(2, 10), [29]));
        let expected = alone(Shape::Full, &[prompt(1, 20), prompt(2, 10)].concat());
        assert_eq!(bits(&found.values), bits(&expected[29..]));
        rows.push(engine.metrics().unwrap().rows);
    }
    assert_eq!(rows, [30, 60, 90, 90, 90]);
}

/// Makes the values of every row of one token no numbers.
struct Spoils {
    token: TokenId,
    /// For each step that was submitted and not collected, whether each of its rows of values is that token's.
    rows: Vec<Vec<bool>>,
}

impl Watch for Spoils {
    fn see(&mut self, batch: &StepBatch) {
        if batch.requests.are_values() {
            let is_spoilt = |&row: &u32| batch.tokens[row as usize] == RowToken::Known(self.token);
            self.rows.push(batch.logit_rows.iter().map(is_spoilt).collect());
        }
    }

    fn change_values(&mut self, values: &mut RowValues) {
        for (row, _) in self.rows.remove(0).iter().enumerate().filter(|(_, is_spoilt)| **is_spoilt) {
            values.data[row * WIDTH + 1] = f32::NAN;
        }
    }
}

fn values_that_are_no_numbers_fail_their_branch_alone(mode: Mode) {
    let bad = TokenId(200);
    let model = Watched { model: scorer(Shape::Full, 7), watch: Spoils { token: bad, rows: Vec::new() } };
    let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, ..roomy() };
    let engine = Engine::start(Box::new(model), None, config).unwrap();
    let root = engine.root(prompt(1, 20)).unwrap();
    let children = engine.fork(root, 3).unwrap();
    // The spoilt row is read by the second one alone, and only passed by the third one.
    let given = [prompt(2, 5), vec![TokenId(40), bad, TokenId(41)], vec![TokenId(40), bad, TokenId(41)]];
    let at = [vec![19, 24], vec![19, 21, 22], vec![19, 22]];
    let extends = children.iter().zip(given.iter().zip(&at));
    let extends: Vec<Extend> =
        extends.map(|(&child, (given, at))| Extend::given_with_values(child, given.clone(), at.clone())).collect();
    let outcomes = outcomes(&engine, extends);
    let error = outcomes[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("the scorer's values at position 21") && error.contains("finite numbers"), "{error}");
    for ix in [0, 2] {
        let expected = alone(Shape::Full, &[prompt(1, 20), given[ix].clone()].concat());
        let expected: Vec<PositionValues> = at[ix].iter().map(|&at| expected[at as usize].clone()).collect();
        assert_eq!(bits(&outcomes[ix].as_ref().unwrap().values), bits(&expected));
    }
    // It goes on without the tokens that have no values, and nothing of the kind is kept.
    let later = finish(&engine, Extend::given_with_values(children[1], prompt(2, 5), [24]));
    assert_eq!(bits(&later.values), bits(&outcomes[0].as_ref().unwrap().values[1..]));
    let again = engine.fork(root, 1).unwrap()[0];
    let again = super::bench::outcomes(&engine, vec![Extend::given_with_values(again, given[1].clone(), [21])]);
    assert!(again[0].is_err());
}

/// A scorer that reads the logits of two tokens, and whose weights change while values are computed: those of an extend
/// all follow from the weights in force when it ends.
fn weights_of_a_scorer_change(mode: Mode) {
    let world = World::new(Shape::Full);
    let engine_of = |seeds: Seeds| {
        let folder = ModelFolder::open_scorer(world.path(seeds), Some(&[TokenId(3), TokenId(11)])).unwrap();
        let mut backend = Cpu::open().unwrap();
        let model = Decoder::load(&mut backend, &folder).unwrap().on(backend);
        let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, step_rows: 16, ..roomy() };
        Engine::build(model, None, config).unwrap()
    };
    let tokens = prompt(1, 80);
    let at = [10, 30, 31, 60, 79];
    let ask = |handle: &EngineHandle| {
        let root = handle.root(tokens.clone()).unwrap();
        handle.start(vec![Extend::given_with_values(root, Vec::new(), at)]).unwrap()
    };
    let end = |engine: &mut Engine, events: &mut EventReceiver| {
        while engine.turn().unwrap() == Turn::Stepped {}
        match events.poll(Duration::ZERO) {
            Poll::Ready(Some(Event::Finished { finish, .. })) => bits(&finish.values),
            other => panic!("{other:?}"),
        }
    };
    let of_seeds = [1, 2].map(|seed| {
        let (mut engine, handle) = engine_of(Seeds::both(seed));
        end(&mut engine, &mut ask(&handle))
    });
    assert_ne!(of_seeds[0], of_seeds[1]);
    for turns in 0..8 {
        let (mut engine, handle) = engine_of(Seeds::both(1));
        let mut events = ask(&handle);
        let mut stepped = 0;
        while stepped < turns && engine.turn().unwrap() == Turn::Stepped {
            stepped += 1;
        }
        let new = world.whole(Seeds::both(2));
        std::thread::scope(|scope| {
            let update = scope.spawn(|| handle.update_weights(new));
            while !update.is_finished() {
                engine.turn().unwrap();
            }
            update.join().unwrap().unwrap();
        });
        let found = end(&mut engine, &mut events);
        assert!(of_seeds.contains(&found), "after {turns} turns");
        // What was computed by the old weights is not taken over.
        assert_eq!(end(&mut engine, &mut ask(&handle)), of_seeds[1]);
    }
}

/// Two engines on the same threads, a scorer and a generator, which take turns.
fn engines_on_one_team_take_turns(mode: Mode) {
    let gate = Arc::new(StepGate::default());
    let (backend, decoder) = super::bench::decoder(Shape::Full);
    let second = backend.beside();
    let config = EngineConfig { check_plans: true, run_ahead: mode.run_ahead, gate: Some(gate.clone()), ..roomy() };
    let generator = Engine::start(decoder.on(backend), None, config.clone()).unwrap();
    let scorer = Engine::start(scorer_on(second, Shape::Full, 7), None, config).unwrap();
    let tokens = prompt(1, 60);
    let root = generator.root(prompt(2, 20)).unwrap();
    let expected = {
        let alone = mode.engine(roomy());
        let root = alone.root(prompt(2, 20)).unwrap();
        finish(&alone, draw(root, key("item", 0), params(), length(100))).tokens
    };
    std::thread::scope(|scope| {
        let sampled = scope.spawn(|| finish(&generator, draw(root, key("item", 0), params(), length(100))));
        let mut branch = scorer.root(tokens[..1].to_vec()).unwrap();
        let mut found = Vec::new();
        for (at, &token) in (0..).zip(&tokens).skip(1) {
            branch = scorer.fork(branch, 1).unwrap()[0];
            let extend = Extend::given_with_values(branch, vec![token], [at]);
            found.extend(finish(&scorer, extend).values);
        }
        assert_eq!(bits(&found), bits(&alone(Shape::Full, &tokens)[1..]));
        assert_eq!(sampled.join().unwrap().tokens, expected);
    });
    assert_eq!(gate.queued(), 0);
}

/// What a scorer cannot do, and what a generator cannot, are errors that name it.
fn wrong_extends_are_named(mode: Mode) {
    let engine = start(mode, Shape::Full, roomy());
    let root = engine.root(prompt(1, 20)).unwrap();
    let refused = |engine: &EngineHandle, extend: Extend| match engine.start(vec![extend]) {
        Err(error) => error.to_string(),
        Ok(mut events) => match events.next() {
            Some(Event::Failed { error, .. }) => error.to_string(),
            other => panic!("{other:?}"),
        },
    };
    let as_sampled = Extend::given_as_sampled(root, prompt(2, 3), &params(), &Stop::default());
    let cases = [
        (draw(root, key("item", 0), params(), length(3)), "the model is a scorer"),
        (Extend::given(root, prompt(2, 3), Some(0)), "the model is a scorer"),
        (as_sampled, "the model is a scorer"),
        (Extend::given_with_values(root, prompt(2, 3), [23]), "positions below 23"),
        (Extend::given_with_values(root, Vec::new(), [3, 3]), "rising"),
        (Extend::given_with_values(root, Vec::new(), [5, 3]), "rising"),
        (Extend::given_with_values(root, prompt(2, CONTEXT), [3]), "context"),
    ];
    for (extend, named) in cases {
        let error = refused(&engine, extend.clone());
        assert!(error.contains(named), "{error}: {extend:?}");
    }
    let error = engine.pin(prompt(1, 4)).err().unwrap().to_string();
    assert!(error.contains("the model is a scorer"), "{error}");
    // None of them has changed the branch.
    let found = finish(&engine, Extend::given_with_values(root, prompt(2, 3), [22]));
    let expected = alone(Shape::Full, &[prompt(1, 20), prompt(2, 3)].concat());
    assert_eq!(bits(&found.values), bits(&expected[22..]));

    let generator = mode.engine(roomy());
    let root = generator.root(prompt(1, 20)).unwrap();
    let error = refused(&generator, Extend::given_with_values(root, prompt(2, 3), [22]));
    assert!(error.contains("the model generates"), "{error}");
}

in_modes! {
    in_turn, run_ahead:
    whatever_comes_when_values_are_those_of_the_text_alone,
    step_by_step_values_are_those_of_the_whole_text,
    nothing_is_computed_twice,
    steps_of_a_search_cost_their_own_tokens,
    a_cancelled_twin_leaves_nobody_behind,
    what_is_kept_costs_no_row,
    earlier_values_of_a_branch_that_has_gone_on,
    salts_share_nothing,
    values_that_are_no_numbers_fail_their_branch_alone,
    weights_of_a_scorer_change,
    engines_on_one_team_take_turns,
    wrong_extends_are_named,
}
