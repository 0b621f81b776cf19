//! Random trees of roots, forks, samples, given tokens and releases: whatever the number of replicas, how many branches
//! each runs and which of them end, every branch has the same events, and its own engine.

use std::collections::{BTreeMap, HashMap, HashSet};

use offshoot_core::dice::Dice;
use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::{EngineHandle, Event, Extend, Finish, Hear, PrefixCosts, Priority, RootOptions};
use proptest::prelude::*;

use crate::patience::within_a_minute;
use crate::script::{Engines, Log, sampled};

/// What became of an extend: the tokens and the text that were heard, and its end.
#[derive(Debug, PartialEq)]
struct Heard {
    tokens: Vec<TokenId>,
    text: String,
    finish: Finish,
}

/// A prompt that shares a beginning of 0, 48 or 96 tokens with others.
fn prompt(dice: &mut Dice) -> Vec<TokenId> {
    let shared = 48 * dice.within(0, 2);
    let own = dice.within(1, 20);
    let letter = |n: u32| TokenId(97 + n % 26);
    let seed = dice.within(0, 25);
    (0..shared).map(letter).chain((0..own).map(|at| letter(seed + at * at))).collect()
}

/// A tree of `rounds`, by these dice: for each branch, what it heard of its extends, in order. Does not depend on time.
fn grow(engine: &EngineHandle, rounds: usize, mut dice: Dice) -> BTreeMap<BranchId, Vec<Heard>> {
    let mut resting: Vec<BranchId> = Vec::new();
    let mut heard: BTreeMap<BranchId, Vec<Heard>> = BTreeMap::new();
    let mut key = 0u64;
    for _ in 0..rounds {
        for _ in 0..dice.within(0, 3) {
            let home = dice.one_in(2).then(|| dice.within(0, 4) as usize);
            let place = RootOptions { priority: Priority(dice.within(0, 2) as i32), home, ..RootOptions::default() };
            let root = engine.root_with(prompt(&mut dice), place).expect("a prompt");
            resting.push(root);
            if dice.one_in(2) {
                resting.extend(engine.fork(root, dice.within(1, 9) as usize).expect("it rests"));
            }
        }
        if !resting.is_empty() {
            let at = resting[dice.within(0, resting.len() as u32 - 1) as usize];
            resting.extend(engine.fork(at, dice.within(1, 3) as usize).expect("it rests"));
        }
        let (chosen, others): (Vec<BranchId>, Vec<BranchId>) = resting.into_iter().partition(|_| dice.one_in(2));
        resting = others;
        let hear = if dice.one_in(2) { Hear::Tokens } else { Hear::Finishes };
        let (mut one, mut other) = (engine.receiver(hear), engine.receiver(Hear::Finishes));
        let half = chosen.len() / 2;
        let extends: Vec<Extend> = chosen
            .iter()
            .map(|&branch| {
                key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(dice.within(1, 1 << 20)));
                match dice.one_in(6) {
                    true => Extend::given(branch, vec![TokenId(dice.within(65, 90))], None),
                    false => sampled(branch, key),
                }
            })
            .collect();
        let second = extends[half..].to_vec();
        one.start(extends[..half].to_vec()).expect("it runs");
        other.start(second).expect("it runs");
        for (hears, receiver) in [(hear == Hear::Tokens, &mut one), (false, &mut other)] {
            let mut said: HashMap<BranchId, (Vec<TokenId>, String)> = HashMap::new();
            while let Some(event) = receiver.next() {
                match event {
                    Event::Tokens { id: branch, tokens, text, .. } => {
                        let so_far = said.entry(branch).or_default();
                        so_far.0.extend(tokens.iter().map(|sampled| sampled.token));
                        so_far.1.push_str(&text);
                    }
                    Event::Finished { id: branch, finish } => {
                        let (tokens, text) = said.remove(&branch).unwrap_or_default();
                        if hears && finish.reason != offshoot_engine::FinishReason::Given {
                            assert_eq!((&tokens, &text), (&finish.tokens, &finish.text), "{branch} was told all, once");
                        }
                        heard.entry(branch).or_default().push(Heard { tokens, text, finish });
                    }
                    Event::Failed { id: branch, error } => panic!("{branch} failed: {error}"),
                }
            }
            assert!(said.is_empty(), "nothing is heard after an end");
        }
        for branch in chosen {
            match dice.within(0, 5) {
                0 => engine.release(&[branch]),
                1 => engine.prune(&[branch]),
                _ => resting.push(branch),
            }
        }
    }
    heard
}

/// Each branch was sampled by one replica.
fn assert_one_engine_each(log: &Log) {
    let mut on: HashMap<BranchId, HashSet<usize>> = HashMap::new();
    for answered in log.lock().expect("nothing panics with it").iter() {
        on.entry(answered.branch).or_default().insert(answered.replica);
    }
    for (branch, replicas) in on {
        assert_eq!(replicas.len(), 1, "{branch} was on {replicas:?}");
    }
}

/// What each branch was sampled after; the same for all numbers of replicas.
fn inputs(log: &Log) -> BTreeMap<BranchId, Vec<Vec<TokenId>>> {
    let mut inputs: BTreeMap<BranchId, Vec<Vec<TokenId>>> = BTreeMap::new();
    for answered in log.lock().expect("nothing panics with it").iter() {
        inputs.entry(answered.branch).or_default().push(answered.tokens.clone());
    }
    inputs
}

/// In every second tree prefixes would be copied.
fn costs(seed: u64) -> PrefixCosts {
    PrefixCosts { computed_token: (seed % 2) as f64, ..PrefixCosts::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn trees_do_not_depend_on_the_number_of_replicas(
        seed in any::<u64>(), sizes in prop::collection::vec(1..20usize, 2..5)
    ) {
        let costs = costs(seed);
        within_a_minute(move || {
            let (alone, log) = Engines::equal(1, 128).start();
            let expected = grow(&alone, 8, Dice::new(seed));
            let expected_inputs = inputs(&log);
            let ends = vec![None; sizes.len()];
            let (joined, log) = Engines { ends, max_branches: sizes, costs, ..Engines::default() }.start();
            let found = grow(&joined, 8, Dice::new(seed));
            assert_eq!(found, expected);
            assert_eq!(inputs(&log), expected_inputs);
            assert_one_engine_each(&log);
            let (one, all) = (alone.metrics().expect("it runs"), joined.metrics().expect("it runs"));
            assert_eq!(all.tokens_sampled, one.tokens_sampled);
        });
    }

    #[test]
    fn trees_do_not_depend_on_engines_that_end(
        seed in any::<u64>(),
        sizes in prop::collection::vec((1..20usize, 0..40usize), 1..4),
    ) {
        let costs = costs(seed);
        within_a_minute(move || {
            let (alone, _) = Engines::equal(1, 128).start();
            let expected = grow(&alone, 8, Dice::new(seed));
            // The last one stays.
            let ends = sizes.iter().map(|&(_, end)| Some(end)).chain([None]).collect();
            let max_branches = sizes.iter().map(|&(branches, _)| branches).chain([7]).collect();
            let (joined, _) = Engines { max_branches, ends, costs, ..Engines::default() }.start();
            assert_eq!(grow(&joined, 8, Dice::new(seed)), expected);
        });
    }
}
