//! The judge as the assessor of a search, as a program that uses the library has it. Needs a sandbox and `python3`;
//! skips, and says so, where there is none.
#![cfg(target_os = "linux")]

use offshoot::judge::{Judge, JudgeSetup, JudgedBy, Language, Problem};
use offshoot::search::{BestBy, BestOfN, Outcome, SearchJob, best_of_n};
use offshoot::{Result, SamplingParams, SamplingTree, Stop};
use offshoot_engine::scripted::tokens_of;
use offshoot_engine::{EngineHandle, ScriptedReply};

use crate::HELPER;
use crate::judging::can_judge;

/// Chooses the best of three programs by a judge's verdicts on `problem`.
fn best(problem: &Problem, language: &Language, programs: [&'static str; 3]) -> Result<Outcome> {
    let setup = JudgeSetup { helper: Some(HELPER.into()), ..JudgeSetup::default() };
    let judge = Judge::open(&setup, &[]).expect("the doctor found a sandbox");
    // Branches are numbered from the root (0) on.
    let engine = EngineHandle::scripted(move |call| ScriptedReply::text(programs[call.branch.0 as usize - 1]));
    let mut tree = SamplingTree::new(engine, tokens_of("Q").into()).expect("a script takes any prompt");
    let (root, how, stop) = (tree.root(), SamplingParams::default(), Stop::default());
    let mut job = SearchJob::new(&how, &stop).assessed_by(JudgedBy::new(&judge, problem, language));
    best_of_n(&mut tree, root, &BestOfN::new(3, BestBy::Grade), &mut job)
}

#[test]
fn the_candidate_that_passes_is_chosen() {
    if !can_judge() {
        return;
    }
    let sums = Problem::streams("sum", [("1 2\n", "3\n"), ("20 22\n", "42\n")]);
    let programs = ["print(3)", "print(sum(map(int, input().split())))", "1 / 0"];
    let outcome = best(&sums, &Language::Python, programs).expect("each is judged");
    assert_eq!((outcome.chosen, outcome.correct), (Some(1), Some(true)));
    let verdicts = outcome.samples.iter().map(|sample| sample.detail.as_ref().expect("judged")["verdict"].clone());
    assert_eq!(verdicts.collect::<Vec<_>>(), ["WA", "AC", "RE"]);
}

#[test]
fn what_cannot_be_judged_ends_the_search() {
    if !can_judge() {
        return;
    }
    let asserts = Problem::script("double", "assert double(2) == 4");
    let outcome = best(&asserts, &Language::Python, ["def double(x): return 2 * x", "double = 4", "double = abs"]);
    assert_eq!(outcome.expect("Python is the script's language").chosen, Some(0));
    let error = best(&asserts, &Language::Cpp, ["int main() {}"; 3]).expect_err("no script is in C++");
    assert!(error.to_string().contains("language of double"), "{error}");
}
