//! Which replica gets what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use offshoot_core::ids::{BranchId, TokenId};
use offshoot_engine::replicas;
use offshoot_engine::{EngineFacts, EngineHandle, RootOptions, ScriptedReply};

use crate::patience::within_a_minute;
use crate::script::{Engines, Log, sampled};

/// `len` letters that differ with `salt` from the first on.
fn letters(salt: u8, len: usize) -> Vec<TokenId> {
    (0..len).map(|at| TokenId(u32::from(b'a' + (salt + (at as u8 % 3)) % 26))).collect()
}

/// Samples `n` of each of these prompts, all begun at once; the branches of each.
fn sample_all(
    engine: &EngineHandle,
    prompts: &[Vec<TokenId>],
    n: usize,
    home: impl Fn(usize) -> Option<usize>,
) -> Vec<Vec<BranchId>> {
    let branches: Vec<Vec<BranchId>> = prompts
        .iter()
        .enumerate()
        .map(|(at, prompt)| {
            let place = RootOptions { home: home(at), ..RootOptions::default() };
            let root = engine.root_with(prompt.clone(), place).expect("a prompt");
            let branches = engine.fork(root, n).expect("it rests");
            engine.release(&[root]);
            branches
        })
        .collect();
    let extends = branches.iter().flatten().map(|&branch| sampled(branch, branch.0)).collect();
    engine.finish(extends).expect("all are sampled");
    branches
}

/// The replicas on which each prompt was sampled.
fn replicas_of(branches: &[Vec<BranchId>], log: &Log) -> Vec<HashSet<usize>> {
    let log = log.lock().expect("nothing panics with it");
    let on: HashMap<BranchId, usize> = log.iter().map(|answered| (answered.branch, answered.replica)).collect();
    branches.iter().map(|branches| branches.iter().map(|branch| on[branch]).collect()).collect()
}

#[test]
fn parts_of_a_job_stay_on_their_replicas() {
    within_a_minute(|| {
        let (engine, log) = Engines::equal(3, 64).start();
        assert_eq!((engine.facts().replicas, engine.facts().max_branches), (3, 192));
        let prompts: Vec<Vec<TokenId>> = (0..12).map(|at| letters(at, 40)).collect();
        let branches = sample_all(&engine, &prompts, 4, |at| Some(at % 3));
        for (at, replicas) in replicas_of(&branches, &log).into_iter().enumerate() {
            assert_eq!(replicas, HashSet::from([at % 3]), "prompt {at}");
        }
    });
}

#[test]
fn prompts_that_begin_alike_stay_together_and_groups_are_divided() {
    within_a_minute(|| {
        let (engine, log) = Engines::equal(2, 64).start();
        // Four groups of four prompts, which share 320 tokens.
        let prompt = |group: u8, at: u8| [letters(group, 320), letters(20 + at, 20)].concat();
        let prompts: Vec<Vec<TokenId>> = (0..16).map(|at| prompt(4 * (at / 4), at % 4)).collect();
        let replicas = replicas_of(&sample_all(&engine, &prompts, 2, |_| None), &log);
        let group =
            |number: usize| -> HashSet<usize> { replicas[4 * number..][..4].iter().flatten().copied().collect() };
        let mut counts = BTreeMap::<usize, usize>::new();
        for number in 0..4 {
            assert_eq!(group(number).len(), 1, "group {number} is on {:?}", group(number));
            group(number).into_iter().for_each(|replica| *counts.entry(replica).or_default() += 1);
        }
        assert_eq!(counts, BTreeMap::from([(0, 2), (1, 2)]));
    });
}

#[test]
fn one_prompt_with_more_samples_than_its_share_is_divided() {
    within_a_minute(|| {
        let (engine, log) = Engines { pause: Duration::from_millis(1), ..Engines::equal(3, 256) }.start();
        let branches = sample_all(&engine, &[letters(0, 100)], 600, |_| None);
        let log = log.lock().expect("nothing panics with it");
        let on = |replica: usize| log.iter().filter(|answered| answered.replica == replica).count();
        let counts = [on(0), on(1), on(2)];
        assert_eq!(counts.iter().sum::<usize>(), branches[0].len());
        // The 100 tokens of the prompt weigh as much as 8 samples of 12 tokens.
        assert!(counts.iter().all(|count| (150..=250).contains(count)), "{counts:?}");
    });
}

#[test]
fn few_samples_of_a_long_prompt_are_not_divided() {
    within_a_minute(|| {
        let (engine, log) = Engines::equal(2, 64).start();
        let branches = sample_all(&engine, &[letters(0, 2000)], 16, |_| None);
        assert_eq!(replicas_of(&branches, &log)[0].len(), 1);
    });
}

#[test]
fn a_prompt_goes_where_its_beginning_is_until_others_have_much_less_to_do() {
    within_a_minute(|| {
        let (engine, log) = Engines::equal(2, 64).start();
        let document = letters(3, 640);
        for at in 0..6 {
            let prompts = [[document.clone(), letters(at, 20)].concat()];
            sample_all(&engine, &prompts, 1, |_| None);
        }
        let log = log.lock().expect("nothing panics with it");
        let replicas: HashSet<usize> = log.iter().map(|answered| answered.replica).collect();
        assert_eq!(replicas.len(), 1, "one after the other they all find the document computed");
    });
}

#[test]
fn what_a_branch_becomes_stays_with_it() {
    within_a_minute(|| {
        let (engine, log) = Engines::equal(2, 8).start();
        let branches = sample_all(&engine, &[letters(0, 50), letters(1, 50)], 30, |_| None);
        let all: Vec<BranchId> = branches.into_iter().flatten().collect();
        let mut parents = HashMap::new();
        for &branch in &all {
            let forks = engine.fork(branch, 2).expect("it rests");
            parents.extend(forks.iter().map(|&fork| (fork, branch)));
            engine.finish(forks.iter().map(|&fork| sampled(fork, fork.0)).collect()).expect("sampled");
            engine.finish(vec![sampled(branch, branch.0 + 1)]).expect("sampled");
        }
        let log = log.lock().expect("nothing panics with it");
        let mut on: HashMap<BranchId, usize> = HashMap::new();
        for answered in log.iter() {
            let before = parents.get(&answered.branch).or(Some(&answered.branch)).and_then(|branch| on.get(branch));
            assert!(before.is_none_or(|&before| before == answered.replica), "{answered:?}");
            on.insert(answered.branch, answered.replica);
        }
    });
}

#[test]
fn engines_of_different_arithmetic_are_not_joined() {
    let engine = |arithmetic: &str| {
        let arithmetic = arithmetic.to_owned();
        let facts = |facts| EngineFacts { arithmetic, ..facts };
        EngineHandle::scripted_with(facts, |_| ScriptedReply::text(""))
    };
    let Err(error) = replicas::join(vec![engine("A"), engine("B")]) else { panic!("they differ") };
    let error = error.to_string();
    assert!(error.contains("of one kind") && error.contains('A') && error.contains('B'), "{error}");
    assert!(replicas::join(Vec::new()).is_err());
    assert_eq!(replicas::join(vec![engine("A")]).expect("one").facts().replicas, 1);
}
