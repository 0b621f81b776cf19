//! Prefixes that stay, branches that are kept, and what can be seen of both while the engine works.

use std::task::Poll;
use std::time::Duration;

use offshoot_core::Error;
use offshoot_core::ids::BranchId;
use offshoot_engine::{Engine, EngineConfig, EngineHandle, Event, Hear, Turn};

use super::bench::{
    Mode, Shape, decoder, draw, finish, finishes, key, length, outcomes, pages, params, prompt, roomy, sample,
};

/// Needs more pages than a pool of 14 has beside a prefix of 50 tokens.
fn churn(engine: &EngineHandle) {
    (50..60).for_each(|salt| drop(sample(engine, "churn", prompt(salt, 60), 4, length(40))));
}

/// Prompt tokens computed for a branch that begins with `prompt(1, 50)`.
fn computed(engine: &EngineHandle) -> u64 {
    let before = engine.metrics().unwrap().prompt_tokens_computed;
    let root = engine.root([prompt(1, 50), prompt(2, 7)].concat()).unwrap();
    finish(engine, draw(root, key("item", 0), params(), length(20)));
    engine.prune(&[root]);
    engine.metrics().unwrap().prompt_tokens_computed - before
}

fn a_pinned_prefix_stays_until_the_last_clone_is_dropped(mode: Mode) {
    let engine = mode.engine(pages(14));
    let pin = engine.pin(prompt(1, 50)).unwrap();
    let clone = pin.clone();
    assert_eq!(pin.tokens(), 50);
    for _ in 0..3 {
        churn(&engine);
        assert_eq!(computed(&engine), 7, "only what follows the prefix");
    }
    drop(pin);
    churn(&engine);
    assert_eq!(computed(&engine), 7);
    let pinned = || engine.live().unwrap().pages.pinned;
    assert_eq!(pinned(), 4);
    drop(clone);
    churn(&engine);
    assert_eq!(computed(&engine), 57);
    assert_eq!((engine.metrics().unwrap().kv_bytes_held, pinned()), (0, 0));
}

fn what_does_not_fit_beside_pins_says_so_and_holds_up_nobody(mode: Mode) {
    let engine = mode.engine(pages(8));
    let _pin = engine.pin(prompt(1, 64)).unwrap();
    let (at_once, later, fits) = (prompt(2, 90), prompt(3, 20), prompt(4, 20));
    let roots = [at_once, later, fits].map(|tokens| engine.root(tokens).unwrap());
    let extends = roots.iter().zip([4, 90, 9]).map(|(&root, draws)| draw(root, key("x", 0), params(), length(draws)));
    let outcomes = outcomes(&engine, extends.collect());
    for outcome in &outcomes[..2] {
        let Err(error @ Error::OutOfPages { capacity: 8, .. }) = outcome else { panic!("{outcome:?}") };
        assert!(error.to_string().contains("pinned prefixes take part of it"), "{error}");
    }
    assert_eq!(outcomes[2].as_ref().unwrap().tokens.len(), 9);
    let Err(error) = engine.pin(prompt(5, 80)) else { panic!("four pages are left") };
    assert!(error.to_string().contains("pin fewer"), "{error}");
    assert!(engine.pin(prompt(5, 160)).is_err(), "the context has room for nothing after it");
}

fn kept_branches_go_on_after_their_pages_were_taken(mode: Mode) {
    const KEPT: u64 = 200;
    let (narrow, wide) = (mode.engine(pages(40)), mode.engine(roomy()));
    let story = |engine: &EngineHandle| {
        let root = engine.root(prompt(1, 40)).unwrap();
        let kept = engine.fork(root, KEPT as usize).unwrap();
        let on = |branches: &[BranchId], item: &str, draws| {
            let extend = |(nth, &branch)| draw(branch, key(item, nth), params(), length(draws));
            finishes(engine, (0..).zip(branches).map(extend).collect())
        };
        let mut told = on(&kept, "first", 9);
        // Each is forked, and goes on itself, again and again.
        for round in 0..2 {
            let forks: Vec<BranchId> = kept.iter().rev().flat_map(|&branch| engine.fork(branch, 1).unwrap()).collect();
            told.extend(on(&forks, &format!("forks {round}"), 5));
            engine.release(&forks);
            told.extend(on(&kept, &format!("round {round}"), 5));
        }
        engine.prune(&kept);
        engine.prune(&[root]);
        assert_eq!(engine.metrics().unwrap().kv_bytes_held, 0);
        told
    };
    assert_eq!(story(&narrow), story(&wide));
}

fn what_is_live_is_current_after_each_turn(mode: Mode) {
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { max_branches: 2, run_ahead: mode.run_ahead, check_plans: true, ..pages(20) };
    let (mut engine, handle) = Engine::build(decoder.on(backend), None, config).unwrap();
    assert_eq!(handle.live().unwrap().pages.free, 20);
    let mut receiver = handle.receiver(Hear::Finishes);
    let roots: Vec<BranchId> = (0..3).map(|nth| handle.root(prompt(nth, 30)).unwrap()).collect();
    receiver.start(roots.iter().map(|&root| draw(root, key("item", 0), params(), length(12))).collect()).unwrap();
    loop {
        let turn = engine.turn().unwrap();
        let (live, held) = (handle.live().unwrap(), engine.occupancy());
        assert_eq!((&live.metrics, live.branches), (engine.metrics(), 3));
        assert_eq!((live.running, live.waiting, live.pages.held), (held.running, held.waiting, held.pages));
        assert_eq!(live.pages.held + live.pages.cached + live.pages.free, 20);
        if turn == Turn::Idle {
            break;
        }
    }
    let mut map = |most| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let asked = handle.clone();
        std::thread::spawn(move || sender.send(asked.cache_map(most).unwrap()));
        loop {
            engine.turn().unwrap();
            if let Ok(map) = receiver.recv_timeout(Duration::from_millis(1)) {
                return map;
            }
        }
    };
    let (page_bytes, live) = (handle.facts().page_bytes, handle.live().unwrap());
    let whole = map(usize::MAX);
    let bytes: usize = whole.iter().map(|segment| segment.bytes).sum();
    assert_eq!(bytes, (live.pages.held + live.pages.cached) * page_bytes);
    for (at, segment) in whole.iter().enumerate() {
        assert!(segment.parent.is_none_or(|parent| parent < at));
        let beneath = whole.iter().filter(|other| other.parent == Some(at));
        assert_eq!(segment.bytes_beneath, beneath.map(|other| other.bytes + other.bytes_beneath).sum::<usize>());
        assert!(segment.begin.len() <= 16 && segment.computed <= segment.tokens && !segment.is_pinned);
    }
    assert_eq!(map(1), whole[..1]);
    handle.prune(&roots);
    engine.turn().unwrap();
    let live = handle.live().unwrap();
    assert_eq!((live.branches, live.pages.free), (0, 20), "also while it is idle");
}

fn the_map_shows_what_is_pinned(mode: Mode) {
    let engine = mode.engine(roomy());
    let _pin = engine.pin(prompt(1, 40)).unwrap();
    sample(&engine, "item", [prompt(1, 20), prompt(2, 30)].concat(), 2, length(9));
    let map = engine.cache_map(100).unwrap();
    let pinned: Vec<_> = map.iter().filter(|segment| segment.is_pinned).collect();
    assert_eq!(pinned.iter().map(|segment| segment.tokens).sum::<usize>(), 40);
    assert_eq!(pinned[0].begin, prompt(1, 16));
}

fn what_is_cached_can_be_given_up(mode: Mode) {
    let engine = mode.engine(roomy());
    let pin = engine.pin(prompt(1, 40)).unwrap();
    let computed = || {
        let before = engine.metrics().unwrap().prompt_tokens_computed;
        let root = engine.root(prompt(2, 30)).unwrap();
        finish(&engine, draw(root, key("item", 0), params(), length(9)));
        engine.release(&[root]);
        engine.metrics().unwrap().prompt_tokens_computed - before
    };
    assert_eq!(computed(), 30);
    assert!(computed() < 30, "most of it is cached");
    assert!(!engine.evict().unwrap(), "the pin is held");
    let pages = engine.live().unwrap().pages;
    assert_eq!((pages.cached, pages.held), (0, pages.pinned));
    assert_eq!(computed(), 30, "anew");
    drop(pin);
    assert!(engine.evict().unwrap());
    let pages = engine.live().unwrap().pages;
    assert_eq!(pages.free, pages.total);
}

fn thousands_that_go_at_once_free_their_rows_before_the_next_step(mode: Mode) {
    const GONE: u64 = 5000;
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { max_branches: 64, run_ahead: mode.run_ahead, check_plans: true, ..pages(1000) };
    let (mut engine, handle) = Engine::build(decoder.on(backend), None, config).unwrap();
    let root = handle.root(prompt(1, 40)).unwrap();
    let children = handle.fork(root, GONE as usize).unwrap();
    let mut receiver = handle.receiver(Hear::Tokens);
    receiver
        .start((0..).zip(&children).map(|(i, &child)| draw(child, key("x", i), params(), length(100))).collect())
        .unwrap();
    while engine.occupancy().running < 64 {
        engine.turn().unwrap();
    }
    let rows = engine.metrics().rows;
    handle.prune(&children);
    handle.prune(&[root]);
    while engine.turn().unwrap() == Turn::Stepped {}
    assert_eq!(engine.metrics().rows, rows, "no row is computed for them");
    let live = handle.live().unwrap();
    assert_eq!((live.running, live.waiting, live.branches, live.pages.held), (0, 0, 0, 0));
    let mut cancelled = 0;
    while let Poll::Ready(Some(event)) = receiver.poll(Duration::ZERO) {
        cancelled += u64::from(matches!(event, Event::Finished { .. }));
    }
    assert_eq!(cancelled, GONE);
}

in_modes! {
    in_turn, run_ahead:
    a_pinned_prefix_stays_until_the_last_clone_is_dropped,
    what_does_not_fit_beside_pins_says_so_and_holds_up_nobody,
    kept_branches_go_on_after_their_pages_were_taken,
    what_is_live_is_current_after_each_turn,
    the_map_shows_what_is_pinned,
    what_is_cached_can_be_given_up,
    thousands_that_go_at_once_free_their_rows_before_the_next_step,
}
