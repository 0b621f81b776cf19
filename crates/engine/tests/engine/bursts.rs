//! Commands that come by the thousand while branches grow: each step waits for a bounded part of them, and all are
//! obeyed in order.

use std::task::Poll;
use std::time::Duration;

use offshoot_engine::{Engine, EngineConfig, EngineHandle, Event, EventReceiver, FinishReason, Hear, Turn};

use super::bench::{Shape, decoder, draw, key, length, params, prompt, roomy};

const BURST: usize = 10_000;
/// As `Intake::for_step` says.
const BRANCHES_A_STEP: usize = 4 * MAX_BRANCHES + 1024;
const TOKENS_A_STEP: usize = 1 << 16;
const MAX_BRANCHES: usize = 4;

/// An engine in which one branch draws, for longer than any test here lasts.
fn growing() -> (Engine, EngineHandle, EventReceiver) {
    let (backend, decoder) = decoder(Shape::Full);
    let config = EngineConfig { max_branches: MAX_BRANCHES, ..roomy() };
    let (mut engine, handle) = Engine::build(decoder.on(backend), None, config).unwrap();
    let first = handle.root(prompt(1, 4)).unwrap();
    let extension = handle.start(vec![draw(first, key("first", 0), params(), length(150))]).unwrap();
    while engine.occupancy().running == 0 {
        assert_eq!(engine.turn().unwrap(), Turn::Stepped);
    }
    (engine, handle, extension)
}

fn drawn(extension: &mut EventReceiver) -> usize {
    let mut tokens = 0;
    while let Poll::Ready(Some(event)) = extension.poll(Duration::ZERO) {
        if let Event::Tokens { tokens: run, .. } = event {
            tokens += run.len();
        }
    }
    tokens
}

/// Begins `BURST` branches, each by two commands.
fn burst(handle: &EngineHandle) -> EventReceiver {
    let mut inbox = handle.receiver(Hear::Tokens);
    for nth in 0..BURST as u64 {
        let root = handle.root(prompt(nth, 3)).unwrap();
        inbox.start(vec![draw(root, key("burst", nth), params(), length(1))]).unwrap();
    }
    inbox
}

#[test]
fn a_burst_of_commands_delays_the_next_token_by_a_bounded_part_of_it() {
    let (mut engine, handle, mut extension) = growing();
    let mut inbox = burst(&handle);
    drawn(&mut extension);
    let mut known = 1;
    for _ in 0..2 * BURST / BRANCHES_A_STEP {
        let steps = engine.metrics().steps;
        assert_eq!(engine.turn().unwrap(), Turn::Stepped);
        assert_eq!(engine.metrics().steps, steps + 1, "a turn makes a step");
        assert_eq!(drawn(&mut extension), 1, "in which the branch that grows goes on");
        let (held, mut ended) = (engine.occupancy(), 0);
        while let Poll::Ready(Some(event)) = inbox.poll(Duration::ZERO) {
            ended += usize::from(matches!(event, Event::Finished { .. }));
        }
        let now = held.running + held.waiting + ended;
        assert!(now <= known + BRANCHES_A_STEP, "{} branches became known before one step", now - known);
        known = held.running + held.waiting;
    }
}

#[test]
fn long_prompts_are_taken_by_their_tokens() {
    const PROMPT: usize = 150;
    let (mut engine, handle, mut extension) = growing();
    let mut inbox = handle.receiver(Hear::Tokens);
    let prompts = 2 * TOKENS_A_STEP / PROMPT;
    assert!(2 * prompts > BRANCHES_A_STEP && prompts < BRANCHES_A_STEP);
    let roots: Vec<_> = (0..prompts).map(|nth| handle.root(prompt(nth as u64, PROMPT)).unwrap()).collect();
    inbox.start(vec![draw(roots[0], key("long", 0), params(), length(8))]).unwrap();
    drawn(&mut extension);
    assert_eq!(engine.turn().unwrap(), Turn::Stepped);
    assert_eq!(
        engine.occupancy().waiting + engine.occupancy().running,
        1,
        "what comes after the prompts is not known yet"
    );
    assert_eq!(drawn(&mut extension), 1);
    engine.turn().unwrap();
    assert_eq!(engine.occupancy().waiting + engine.occupancy().running, 2);
}

#[test]
fn all_commands_of_a_burst_are_obeyed_in_order() {
    let (mut engine, handle, extension) = growing();
    let mut inbox = handle.receiver(Hear::Tokens);
    for nth in 0..BURST as u64 {
        // Were the fork obeyed before the root, or the draw before the fork, the branch would fail.
        let root = handle.root(prompt(nth, 3)).unwrap();
        let child = handle.fork(root, 1).unwrap()[0];
        inbox.start(vec![draw(child, key("burst", nth), params(), length(150))]).unwrap();
        handle.release(&[root, child]);
    }
    extension.cancel_all();
    let mut cancelled = 0;
    while inbox.unfinished() > 0 {
        engine.turn().unwrap();
        while let Poll::Ready(Some(event)) = inbox.poll(Duration::ZERO) {
            match event {
                Event::Finished { finish, .. } => cancelled += usize::from(finish.reason == FinishReason::Cancelled),
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Tokens { .. } => {}
            }
        }
    }
    assert_eq!(cancelled, BURST, "each was released right after it was begun");
}
