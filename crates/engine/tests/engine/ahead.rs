//! Steps that run ahead change nothing but time: the same events with and without, and commands may come at any moment.

use std::num::{NonZeroU16, NonZeroUsize};

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    ConfidenceStop, EngineConfig, EngineHandle, Event, Extend, Finish, FinishReason, Records, SamplingParams, Stop,
};

use super::bench::{EOS, draw, finish, finishes, give, in_turn, key, length, pages, params, prompt, roomy, score};
use super::forms::forms;
use offshoot_core::dice::Dice;

/// Which runs ahead where `config` says so.
fn engine(config: EngineConfig) -> EngineHandle {
    in_turn().engine(config)
}

fn ahead(config: EngineConfig) -> EngineConfig {
    EngineConfig { run_ahead: true, ..config }
}

/// Everything told of one branch, by its place among the extends.
fn told(engine: &EngineHandle, extends: Vec<Extend>) -> Vec<Vec<String>> {
    let branches: Vec<BranchId> = extends.iter().map(|extend| extend.branch).collect();
    let mut told = vec![Vec::new(); branches.len()];
    let mut extension = engine.start(extends).unwrap();
    while let Some(event) = extension.next() {
        let place = branches.iter().position(|&branch| branch == event.id()).unwrap();
        told[place].push(match event {
            Event::Tokens { tokens, text, .. } => format!("{tokens:?} {text:?}"),
            Event::Finished { finish, .. } => format!("{finish:?}"),
            Event::Failed { error, .. } => error.to_string(),
        });
    }
    told
}

/// A draw that may end in any way.
fn any_draw(dice: &mut Dice, branch: BranchId, ordinal: u64) -> Extend {
    let any_text = |dice: &mut Dice| vec![char::from(dice.within(97, 122) as u8).to_string()];
    let max_tokens = dice.within(1, 40) as usize;
    let stop = Stop {
        max_tokens,
        min_tokens: dice.within(0, 3).min(max_tokens as u32) as usize,
        strings: if dice.one_in(2) { any_text(dice) } else { Vec::new() },
        tokens: if dice.one_in(2) { (40..60).map(TokenId).collect() } else { Vec::new() },
        ignore_eos: dice.one_in(2),
        include_stop: dice.one_in(2),
        show_special: false,
        confidence: dice.one_in(3).then(|| ConfidenceStop {
            window: NonZeroUsize::MIN.saturating_add(dice.within(0, 5) as usize),
            below: dice.pick(&[3.0, 4.0, 4.5, 5.0, 6.0]),
        }),
    };
    let params = match dice.within(1, 8) {
        6 => params().form(forms().swap_remove(dice.within(0, 4) as usize)),
        7 => SamplingParams { frequency_penalty: 0.5, logit_bias: vec![(EOS, -9.0)], ..params() }
            .form(forms().swap_remove(dice.within(0, 4) as usize))
            .bad_word([TokenId(98)]),
        4 => params().allowed((97..123).map(TokenId)),
        5 => (97..123).fold(params().bad_word([EOS]), |params, at| params.bad_word([at, at + 1].map(TokenId))),
        1 => SamplingParams { repetition_penalty: 1.4, frequency_penalty: 0.3, ..params() },
        2 => SamplingParams { presence_penalty: 2.0, top_logprobs: Some(3), ..SamplingParams::greedy() },
        3 => SamplingParams { logit_bias: vec![(EOS, 4.0)], ..params() },
        _ => params(),
    };
    let confidence = stop.confidence.and(NonZeroU16::new(5));
    let params = params.records(Records { confidence, ..Records::default() });
    draw(branch, key("any", ordinal), params, stop)
}

fn any_story(engine: &EngineHandle, seed: u64) -> Vec<Vec<String>> {
    let mut dice = Dice::new(seed);
    let roots: Vec<BranchId> = (0..3).map(|i| engine.root(prompt(1, 20 + 9 * i)).unwrap()).collect();
    let mut branches: Vec<BranchId> = roots.iter().flat_map(|&root| engine.fork(root, 4).unwrap()).collect();
    let mut story = Vec::new();
    for _ in 0..3 {
        let extends = (0u64..).zip(&branches).map(|(ordinal, &branch)| match dice.within(1, 6) {
            1 => score(branch, prompt(ordinal, 9)),
            2 => give(branch, prompt(ordinal, 5)),
            _ => any_draw(&mut dice, branch, ordinal),
        });
        story.extend(told(engine, extends.collect()));
        let again = branches[dice.within(0, 11) as usize];
        let forks = engine.fork(again, 2).unwrap();
        engine.prune(&branches[..2]);
        branches.splice(..2, forks);
    }
    story
}

#[test]
fn the_same_events_with_and_without() {
    for seed in 0..10 {
        let expected = any_story(&engine(roomy()), seed);
        let page_bytes = engine(pages(1)).facts().page_bytes;
        for config in [
            roomy(),
            EngineConfig { step_rows: 7, max_branches: 5, ..roomy() },
            pages(18),
            EngineConfig { swap_bytes: 8 * page_bytes, ..pages(18) },
            EngineConfig { joins_forced: false, ..roomy() },
        ] {
            assert_eq!(any_story(&engine(config.clone()), seed), expected, "seed {seed}, {config:?}");
            assert_eq!(any_story(&engine(ahead(config.clone())), seed), expected, "seed {seed}, ahead, {config:?}");
        }
    }
}

#[test]
fn a_branch_that_stops_costs_one_token() {
    let end = SamplingParams { logit_bias: vec![(EOS, 1e4)], ..params() };
    let run = |config: EngineConfig, stop: Stop| {
        let engine = engine(config);
        let root = engine.root(prompt(1, 20)).unwrap();
        let children = engine.fork(root, 5).unwrap();
        finishes(
            &engine,
            (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), end.clone(), stop.clone())).collect(),
        );
        let metrics = engine.metrics().unwrap();
        engine.prune(&children);
        engine.prune(&[root]);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
        (metrics.tokens_sampled, metrics.tokens_discarded)
    };
    let by_itself = Stop { min_tokens: 3, ..Stop::max_tokens(9) };
    assert_eq!(run(roomy(), by_itself.clone()), (20, 0));
    assert_eq!(run(ahead(roomy()), by_itself), (20, 5));
    assert_eq!(run(ahead(roomy()), Stop { min_tokens: 4, ..Stop::max_tokens(4) }), (20, 0), "that end was foreseen");
}

#[test]
fn a_full_context_and_a_full_pool_end_a_branch_as_they_do_without() {
    let run = |config: EngineConfig| {
        let engine = engine(config);
        let root = engine.root(prompt(1, 140)).unwrap();
        told(&engine, vec![draw(root, key("item", 0), params(), length(100))])
    };
    for config in [roomy(), pages(9)] {
        assert_eq!(run(ahead(config.clone())), run(config));
    }
}

/// Extends that are cancelled, released, forked and begun again while steps are in flight. Whatever is cut short is the
/// beginning of the whole, and what goes on from it goes on as from its tokens.
#[test]
fn commands_may_come_while_steps_are_in_flight() {
    let quiet = engine(roomy());
    for seed in 0..30 {
        let mut dice = Dice::new(seed);
        let engine = engine(ahead(if seed % 3 == 0 { pages(24) } else { roomy() }));
        let root = engine.root(prompt(1, 30)).unwrap();
        let children = engine.fork(root, 6).unwrap();
        let extends = (0..).zip(&children).map(|(i, &child)| draw(child, key("item", i), params(), length(60)));
        let mut extension = engine.start(extends.collect()).unwrap();
        for _ in 0..dice.within(1, 40) {
            extension.next();
        }
        let (kept, gone) = children.split_at(4);
        extension.cancel(&kept[..2]);
        engine.prune(&gone[..1]);
        engine.release(&gone[1..]);
        let mut cut: Vec<Option<Finish>> = vec![None; 6];
        while let Some(event) = extension.next() {
            let place = children.iter().position(|&child| child == event.id()).unwrap();
            if let Event::Finished { finish, .. } = event {
                cut[place] = Some(finish);
            }
        }
        // At once again, and forks of it at once.
        let more: Vec<BranchId> = engine.fork(kept[0], 2).unwrap();
        let on = |(i, &branch)| draw(branch, key("on", i), params(), length(12));
        let went_on = finishes(&engine, (0..).zip([kept, &more].concat().iter()).map(on).collect());
        for (i, cut) in (0..).zip(cut) {
            let Some(cut) = cut else { continue };
            let whole = engine_story(&quiet, i, 60);
            assert_eq!(cut.tokens, whole[..cut.tokens.len()], "seed {seed}, sample {i}");
            let ended = cut.reason == FinishReason::Cancelled;
            assert!(ended || cut.tokens.len() == 60, "seed {seed}, sample {i}");
            let same_path: &[(usize, u64)] = if i == 0 { &[(0, 0), (4, 4), (5, 5)] } else { &[(i as usize, i)] };
            for &(place, ordinal) in same_path.iter().filter(|&&(place, _)| place < 4 || i == 0) {
                if place >= went_on.len() || i >= 4 {
                    continue;
                }
                let again = quiet.root([prompt(1, 30), cut.tokens.clone()].concat()).unwrap();
                let expected = finish(&quiet, draw(again, key("on", ordinal), params(), length(12)));
                assert_eq!(went_on[place], expected, "seed {seed}, sample {i} went on");
            }
        }
        engine.prune(&[kept, &more, &[root]].concat());
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0, "seed {seed}");
    }
}

/// Sample `i` of the prompt above.
fn engine_story(engine: &EngineHandle, i: u64, tokens: usize) -> Vec<TokenId> {
    let root = engine.root(prompt(1, 30)).unwrap();
    finish(engine, draw(root, key("item", i), params(), length(tokens))).tokens
}
