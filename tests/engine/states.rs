//! States of delta-rule layers: whoever forks where, in whatever pool, computes what a fresh computation does, to the last
//! bit.

use std::collections::HashMap;
use std::sync::OnceLock;

use offshoot::backend::Pick;
use offshoot::engine::{EngineConfig, EngineHandle, Extend, PoolSize};
use offshoot::ids::{BranchId, TokenId};

use super::bench::{Shape, draw, engine_of, finishes, key, length, pages, params, prompt, roomy, score};
use super::plain::forward;
use offshoot::lab::check::dice::Dice;

const PROMPT: usize = 300;

/// A text that begins with the first `at` tokens of the prompt and goes on in its own way.
fn fork_at(at: usize, text: &[TokenId]) -> Vec<TokenId> {
    [&text[..at], &prompt(1000 + at as u64, 3)].concat()
}

/// Log-probabilities of the tokens of `text` from its second on, each from one fresh computation over all of it.
fn fresh(text: &[TokenId]) -> Vec<f32> {
    let picks: Vec<Pick> = text[1..].iter().map(|&token| Pick::Given(token)).collect();
    forward(Shape::Hybrid, &text[..text.len() - 1], &picks).iter().map(|sampled| sampled.logprob).collect()
}

/// Forks at every offset of the prompt, in groups of random size and order. Each scores three tokens of its own.
fn forks(engine: &EngineHandle, dice: &mut Dice, text: &[TokenId]) -> HashMap<usize, Vec<f32>> {
    let mut offsets: Vec<usize> = (1..=PROMPT).collect();
    let mut found = HashMap::new();
    let root = engine.root(text.to_vec()).unwrap();
    finishes(engine, vec![draw(root, key("prompt", 0), params(), length(2))]);
    while !offsets.is_empty() {
        let group = offsets.len().min(dice.within(1, 20) as usize);
        let mut any = || offsets.swap_remove(dice.within(1, offsets.len() as u32) as usize - 1);
        let some: Vec<usize> = (0..group).map(|_| any()).collect();
        let branches: Vec<BranchId> = some.iter().map(|&at| engine.root(text[..at].to_vec()).unwrap()).collect();
        let own = |at: usize| fork_at(at, text)[at..].to_vec();
        let extends: Vec<Extend> = branches.iter().zip(&some).map(|(&branch, &at)| score(branch, own(at))).collect();
        for (finish, &at) in finishes(engine, extends).into_iter().zip(&some) {
            found.insert(at, finish.logprobs);
        }
        let (kept, gone) = branches.split_at(dice.within(0, branches.len() as u32) as usize);
        engine.discard(gone);
        engine.release(kept);
    }
    found
}

#[test]
fn forks_at_every_offset_compute_what_a_fresh_computation_does() {
    static EXPECTED: OnceLock<HashMap<usize, Vec<f32>>> = OnceLock::new();
    let text = prompt(1, PROMPT);
    let of_fork = |at: usize| (at, fresh(&fork_at(at, &text))[at - 1..].to_vec());
    let expected = EXPECTED.get_or_init(|| (1..=PROMPT).map(of_fork).collect());
    let mut dice = Dice::new(11);
    for (step_rows, config) in [(256, roomy()), (64, roomy()), (37, pages(60)), (16, pages(45)), (5, pages(80))] {
        let config = EngineConfig { step_rows, max_branches: dice.within(2, 30) as usize, ..config };
        let engine = engine_of(Shape::Hybrid, config.clone());
        for (at, found) in forks(&engine, &mut dice, &text) {
            assert_eq!(found, expected[&at], "a fork at {at}, {config:?}");
        }
        assert!(engine.metrics().is_ok(), "its tree was sound whenever it rested");
    }
}

#[test]
fn fewer_branches_run_where_states_are_few_and_one_needs_room() {
    let facts = engine_of(Shape::Hybrid, roomy()).facts().clone();
    // Two layers of four heads of 8 x 12, and four inputs of 80 channels each; f32.
    assert_eq!(facts.state_bytes, 2 * (4 * 8 * 12 + 4 * (2 * 2 * 8 + 4 * 12)) * 4);
    let of = |states: usize| EngineConfig { pool: PoolSize::Bytes(2 * states * facts.state_bytes), ..roomy() };
    let few = engine_of(Shape::Hybrid, of(9));
    assert_eq!((few.facts().states, few.facts().max_branches), (9, 4));
    let (backend, decoder) = super::bench::decoder(Shape::Hybrid);
    let error = offshoot::engine::Engine::build(backend, decoder, None, of(1)).map(drop).unwrap_err().to_string();
    assert!(error.contains("for the states of one branch") && error.contains("in which no branch fits"), "{error}");
}
