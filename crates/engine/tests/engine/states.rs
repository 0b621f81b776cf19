//! States of recurrent layers: whoever forks where, in whatever pool, computes what a fresh computation does, to the
//! last bit.

use std::collections::HashMap;
use std::sync::OnceLock;

use offshoot_backend::Pick;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{EngineConfig, EngineHandle, Extend, PoolSize};

use super::bench::{Mode, Shape, draw, finishes, key, length, pages, params, prompt, roomy, score};
use super::plain::forward;
use crate::full::some_or_full;
use offshoot_core::dice::Dice;

const PROMPT: usize = 300;

/// Tokens that a fork scores, and of these the ones at first.
const OWN: usize = 5;
const AT_FIRST: usize = 3;

/// A text that begins with the first `at` tokens of the prompt and goes on in its own way.
fn fork_at(at: usize, text: &[TokenId]) -> Vec<TokenId> {
    [&text[..at], &prompt(1000 + at as u64, OWN)].concat()
}

/// Log-probabilities of the tokens of `text` from its second on, each from one fresh computation over all of it.
fn fresh(text: &[TokenId]) -> Vec<f32> {
    let picks: Vec<Pick> = text[1..].iter().map(|&token| Pick::given(token)).collect();
    forward(Shape::Hybrid, &text[..text.len() - 1], &picks).iter().map(|sampled| sampled.logprob).collect()
}

/// Forks at every offset of the prompt, in groups of random size and order. Each scores tokens of its own, some of them
/// later, when others have been there.
fn forks(engine: &EngineHandle, dice: &mut Dice, text: &[TokenId]) -> HashMap<usize, Vec<f32>> {
    let mut offsets: Vec<usize> = (1..=PROMPT).collect();
    let mut resting: Vec<(usize, BranchId)> = Vec::new();
    let mut found: HashMap<usize, Vec<f32>> = HashMap::new();
    let root = engine.root(text.to_vec()).unwrap();
    finishes(engine, vec![draw(root, key("prompt", 0), params(), length(2))]);
    let own = |at: usize| fork_at(at, text)[at..].to_vec();
    while !offsets.is_empty() || !resting.is_empty() {
        let group = offsets.len().min(dice.within(1, 20) as usize);
        let mut any = || offsets.swap_remove(dice.within(1, offsets.len() as u32) as usize - 1);
        let fresh: Vec<usize> = (0..group).map(|_| any()).collect();
        let fresh: Vec<_> = fresh.into_iter().map(|at| (at, engine.root(text[..at].to_vec()).unwrap())).collect();
        let resumed = if group == 0 { resting.len() } else { dice.within(0, resting.len() as u32) as usize };
        let resumed = resting.split_off(resting.len() - resumed);
        let first = fresh.iter().map(|&(at, branch)| score(branch, own(at)[..AT_FIRST].to_vec()));
        let then = resumed.iter().map(|&(at, branch)| score(branch, own(at)[AT_FIRST..].to_vec()));
        let extends: Vec<Extend> = first.chain(then).collect();
        for (finish, (at, _)) in finishes(engine, extends).into_iter().zip(fresh.iter().chain(&resumed)) {
            found.entry(*at).or_default().extend(finish.logprobs());
        }
        let (kept, gone) = resumed.split_at(dice.within(0, resumed.len() as u32) as usize);
        let ids = |of: &[(usize, BranchId)]| of.iter().map(|&(_, branch)| branch).collect::<Vec<_>>();
        engine.prune(&ids(gone));
        engine.release(&ids(kept));
        resting.splice(0..0, fresh);
    }
    found
}

fn forks_at_every_offset_compute_what_a_fresh_computation_does(mode: Mode) {
    static EXPECTED: OnceLock<HashMap<usize, Vec<f32>>> = OnceLock::new();
    let text = prompt(1, PROMPT);
    let of_fork = |at: usize| (at, fresh(&fork_at(at, &text))[at - 1..].to_vec());
    let expected = EXPECTED.get_or_init(|| (1..=PROMPT).map(of_fork).collect());
    for seed in some_or_full(11..13, 11..15) {
        let mut dice = Dice::new(seed);
        for (step_rows, config) in [
            (256, roomy()),
            (64, roomy()),
            (37, pages(60)),
            (16, EngineConfig { swap_bytes: 1 << 20, ..pages(45) }),
            (5, pages(80)),
        ] {
            let config = EngineConfig { step_rows, max_branches: dice.within(2, 30) as usize, ..config };
            let engine = mode.engine_of(Shape::Hybrid, config.clone());
            for (at, found) in forks(&engine, &mut dice, &text) {
                assert_eq!(found, expected[&at], "a fork at {at}, seed {seed}, {config:?}");
            }
            assert!(engine.metrics().is_ok(), "its tree was sound whenever it rested");
        }
    }
}

/// 20 problems below one few-shot prompt, 1,024 leaves in all, which all run at once.
fn a_wide_tree_holds_a_state_for_each_leaf_and_each_fork_and_few_more(mode: Mode) {
    let (problems, leaves) = (20, 1024);
    let config = EngineConfig { max_branches: leaves, ..pages(12_000) };
    let engine = mode.engine_of(Shape::Hybrid, config);
    assert_eq!(engine.facts().max_branches, leaves);
    let shots = prompt(1, 90);
    let mut extends = Vec::new();
    for problem in 0..problems {
        let root = engine.root([&shots[..], &prompt(100 + problem, 40)].concat()).unwrap();
        let share = leaves as u64 / problems + u64::from(problem < leaves as u64 % problems);
        let leaves = engine.fork(root, share as usize).unwrap();
        let own = (0..).zip(leaves).map(|(i, leaf)| draw(leaf, key(&problem.to_string(), i), params(), length(6)));
        extends.extend(own);
    }
    finishes(&engine, extends);
    let peak = engine.metrics().unwrap().states_peak as usize;
    let forks = problems as usize + 1;
    assert!(peak >= leaves, "all ran at once: {peak} states");
    assert!(peak * 100 <= 105 * (leaves + forks), "{peak} states for {leaves} leaves and {forks} forks");
}

/// 40 prompts, of which four run at a time: each begins from the state where it parts from those before.
fn a_state_is_kept_where_the_next_prompts_part(mode: Mode) {
    let (prompts, shared, own, drawn) = (40, 200, 30, 3);
    for step_rows in [256, 64, 33] {
        let config = EngineConfig { max_branches: 4, step_rows, ..roomy() };
        let engine = mode.engine_of(Shape::Hybrid, config);
        let extend = |number: u64| {
            let root = engine.root([prompt(1, shared), prompt(10 + number, own)].concat()).unwrap();
            draw(root, key("part", number), params(), length(drawn))
        };
        finishes(&engine, (0..prompts as u64).map(extend).collect());
        let rows = engine.metrics().unwrap().rows as usize;
        // The last row of a prompt is computed again where others begin with it.
        assert!(rows <= shared + prompts * (own + drawn + 1), "{rows} rows in steps of {step_rows}");
    }
}

fn fewer_branches_run_where_states_are_few_and_one_needs_room(mode: Mode) {
    let facts = mode.engine_of(Shape::Hybrid, roomy()).facts().clone();
    // Two layers of four heads of 8 x 12, and four inputs of 80 channels each; f32.
    assert_eq!(facts.state_bytes, 2 * (4 * 8 * 12 + 4 * (2 * 2 * 8 + 4 * 12)) * 4);
    let of = |states: usize| EngineConfig { pool: PoolSize::Bytes(2 * states * facts.state_bytes), ..roomy() };
    let few = mode.engine_of(Shape::Hybrid, of(9));
    assert_eq!((few.facts().states, few.facts().max_branches), (9, 4));
    let (backend, decoder) = super::bench::decoder(Shape::Hybrid);
    let error = offshoot_engine::Engine::build(decoder.on(backend), None, of(1)).map(drop).unwrap_err().to_string();
    assert!(error.contains("for the states of one branch") && error.contains("in which no branch fits"), "{error}");
}

in_modes! {
    in_turn, run_ahead:
    forks_at_every_offset_compute_what_a_fresh_computation_does,
    a_wide_tree_holds_a_state_for_each_leaf_and_each_fork_and_few_more,
    a_state_is_kept_where_the_next_prompts_part,
    fewer_branches_run_where_states_are_few_and_one_needs_room,
}
