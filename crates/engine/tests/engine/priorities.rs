//! What a priority promises: an urgent branch does not wait for less urgent ones, neither for a row, nor for pages, nor
//! for the rest of their prompts; they lose no more than it needs, and draw the same.

use std::task::Poll;
use std::time::Duration;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{
    Engine, EngineConfig, EngineHandle, Event, EventReceiver, Extend, Finish, Hear, Priority, RootOptions, Turn,
};

use super::bench::{Mode, Shape, decoder, draw, finish, key, length, pages, params, prompt, roomy};

const BATCH: Priority = Priority(1);
const URGENT: Priority = Priority(-1);

fn build(mode: Mode, config: EngineConfig) -> (Engine, EngineHandle) {
    let (backend, decoder) = decoder(Shape::Full);
    let run_ahead = mode.run_ahead;
    Engine::build(decoder.on(backend), None, EngineConfig { check_plans: true, run_ahead, ..config }).unwrap()
}

fn root(handle: &EngineHandle, priority: Priority, tokens: Vec<TokenId>) -> BranchId {
    handle.root_with(tokens, RootOptions { priority, ..RootOptions::default() }).unwrap()
}

/// `n` branches, each of a prompt of its own.
fn begin(handle: &EngineHandle, priority: Priority, n: u64, given: usize, draws: usize) -> EventReceiver {
    let mut receiver = handle.receiver(Hear::Tokens);
    receiver.start((0..n).map(|nth| sample(handle, priority, nth, given, draws)).collect()).unwrap();
    receiver
}

fn sample(handle: &EngineHandle, priority: Priority, nth: u64, given: usize, draws: usize) -> Extend {
    let salt = nth + 1000 * (priority.0 + 1) as u64;
    draw(root(handle, priority, prompt(salt, given)), key("item", salt), params(), length(draws))
}

/// What ends, and how many tokens are heard of.
fn hear(receiver: &mut EventReceiver) -> (Vec<(BranchId, Finish)>, usize) {
    let (mut ended, mut tokens) = (Vec::new(), 0);
    while let Poll::Ready(Some(event)) = receiver.poll(Duration::ZERO) {
        match event {
            Event::Tokens { tokens: run, .. } => tokens += run.len(),
            Event::Finished { id: branch, finish } => ended.push((branch, finish)),
            Event::Failed { error, .. } => panic!("{error}"),
        }
    }
    (ended, tokens)
}

/// Turns until something is heard.
fn turns_until_heard(engine: &mut Engine, receiver: &mut EventReceiver) -> usize {
    let mut turns = 0;
    while hear(receiver).1 == 0 {
        assert_eq!(engine.turn().unwrap(), Turn::Stepped, "it starves");
        turns += 1;
    }
    turns
}

/// Turns to a first token: the step that computes it, and ahead the one during which it is collected.
fn first_token(mode: Mode) -> usize {
    if mode.run_ahead { 2 } else { 1 }
}

fn an_urgent_branch_takes_the_row_of_the_last_one(mode: Mode) {
    let (mut engine, handle) = build(mode, EngineConfig { max_branches: 4, ..roomy() });
    let mut batch = begin(&handle, BATCH, 6, 20, 40);
    for _ in 0..10 {
        engine.turn().unwrap();
    }
    let before = engine.metrics().clone();
    let mut urgent = begin(&handle, URGENT, 2, 20, 10);
    assert_eq!(turns_until_heard(&mut engine, &mut urgent), first_token(mode));
    assert_eq!(engine.metrics().preemptions - before.preemptions, 2, "each took one row");
    assert_eq!((engine.occupancy().running, engine.occupancy().waiting), (4, 4));
    let mut finishes = Vec::new();
    while engine.turn().unwrap() == Turn::Stepped {
        finishes.extend(hear(&mut batch).0);
        hear(&mut urgent);
    }
    finishes.extend(hear(&mut batch).0);
    assert_eq!(engine.metrics().preemptions, 2, "and nobody was preempted again");
    // What they had computed stayed cached.
    let again = engine.metrics().tokens_recomputed;
    assert!(again <= 2 * 2, "{again} tokens were computed again");
    finishes.sort_by_key(|(branch, _)| *branch);
    let alone = mode.engine(roomy());
    for (nth, (_, drawn)) in (0..).zip(finishes) {
        assert_eq!(drawn.tokens, finish(&alone, sample(&alone, BATCH, nth, 20, 40)).tokens);
    }
}

fn equal_priorities_take_nothing_from_each_other(mode: Mode) {
    let (mut engine, handle) = build(mode, EngineConfig { max_branches: 2, ..pages(10) });
    let mut batch = begin(&handle, BATCH, 4, 20, 40);
    engine.turn().unwrap();
    let mut others = begin(&handle, BATCH, 2, 20, 40);
    while engine.turn().unwrap() == Turn::Stepped {
        hear(&mut batch);
        let left = batch.unfinished();
        assert!(hear(&mut others).1 == 0 || left < 2, "later ones began while {left} of the first were left");
    }
    assert_eq!(engine.metrics().preemptions, 0);
}

fn an_urgent_branch_takes_the_pages_it_needs_and_no_more(mode: Mode) {
    // Five branches of 5 pages each: two for the prompt, three for what they draw.
    let (mut engine, handle) = build(mode, pages(25));
    let mut batch = begin(&handle, BATCH, 5, 32, 49);
    for _ in 0..30 {
        engine.turn().unwrap();
    }
    assert_eq!((engine.occupancy().running, engine.metrics().preemptions), (5, 0));
    // Six pages: those of one branch do not suffice.
    let mut urgent = begin(&handle, URGENT, 1, 64, 33);
    assert_eq!(turns_until_heard(&mut engine, &mut urgent), first_token(mode));
    assert_eq!(engine.metrics().preemptions, 2);
    while engine.turn().unwrap() == Turn::Stepped {}
    assert_eq!((hear(&mut batch).0.len(), hear(&mut urgent).0.len()), (5, 1));
    assert_eq!(engine.metrics().preemptions, 2, "the two came back once there was room for them");
}

fn what_would_not_help_is_not_taken(mode: Mode) {
    // Nine of twelve pages are for an urgent branch; four more do not fit beside it, whoever gives way.
    let (mut engine, handle) = build(mode, pages(12));
    let mut first = begin(&handle, URGENT, 1, 100, 30);
    let mut batch = begin(&handle, BATCH, 1, 10, 6);
    for _ in 0..3 {
        engine.turn().unwrap();
    }
    assert_eq!(engine.occupancy().running, 2);
    let mut second = begin(&handle, Priority(0), 1, 32, 33);
    while engine.turn().unwrap() == Turn::Stepped {}
    assert_eq!(engine.metrics().preemptions, 0);
    for receiver in [&mut first, &mut batch, &mut second] {
        assert_eq!(hear(receiver).0.len(), 1);
    }
}

fn an_urgent_prompt_does_not_wait_for_the_rest_of_a_long_one(mode: Mode) {
    let (mut engine, handle) = build(mode, EngineConfig { step_rows: 16, ..roomy() });
    let mut batch = begin(&handle, BATCH, 4, 150, 4);
    for _ in 0..3 {
        engine.turn().unwrap();
    }
    let mut urgent = begin(&handle, URGENT, 1, 30, 4);
    // Two steps of prompt.
    assert_eq!(turns_until_heard(&mut engine, &mut urgent), first_token(mode) + 1);
    assert_eq!(hear(&mut batch).1, 0);
    assert_eq!(engine.metrics().preemptions, 0, "there are rows and pages for all");
}

fn an_urgent_branch_that_can_never_fit_fails_and_takes_nothing(mode: Mode) {
    let (mut engine, handle) = build(mode, pages(8));
    let mut batch = begin(&handle, BATCH, 1, 20, 40);
    engine.turn().unwrap();
    let mut urgent = begin(&handle, URGENT, 1, 140, 4);
    engine.turn().unwrap();
    let Poll::Ready(Some(Event::Failed { error, .. })) = urgent.poll(Duration::ZERO) else {
        panic!("it fails at once")
    };
    assert!(error.to_string().starts_with("9 pages of keys and values are needed"), "{error}");
    while engine.turn().unwrap() == Turn::Stepped {}
    assert_eq!((hear(&mut batch).0.len(), engine.metrics().preemptions), (1, 0));
}

in_modes! {
    in_turn, run_ahead:
    an_urgent_branch_takes_the_row_of_the_last_one,
    equal_priorities_take_nothing_from_each_other,
    an_urgent_branch_takes_the_pages_it_needs_and_no_more,
    what_would_not_help_is_not_taken,
    an_urgent_prompt_does_not_wait_for_the_rest_of_a_long_one,
    an_urgent_branch_that_can_never_fit_fails_and_takes_nothing,
}
