//! Judges Python candidates: their functions are called with data, and their results are compared as data, by test code
//! that runs in another process. The *candidate* process runs the program (`runner.py`); the *checker* process runs the
//! tests (`checker.py`), with proxies for the candidate's names; this module relays every message between them and lets
//! only plain data pass from the candidate. So a candidate can only return wrong values or exit; only a test that asks
//! a candidate's object for more than its identity has to trust the candidate. `sandbox` confines the processes; `eval`
//! reads the problems.

mod checker;
mod judging;
mod marshal;
mod programs;
mod stream;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;

use self::checker::{Checkers, PATIENCE, ReferenceAnswers, ReferenceError, ReferenceTimes};
use self::judging::{CheckedTests, PythonJudging};
use self::programs::Programs;
use super::judge::Judge;
use super::sandbox::Sandbox;
use super::toolchain::Interpreter;
use super::verdict::Judgement;
use crate::fair_clock::RealTimeEnd;
use crate::limits::with_margin;
use crate::problem::{CallSuite, Limits, ReferenceSuite, ScriptSuite};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::RawJson;

/// Number of problems whose reference results are kept.
const KEPT_ANSWERS: usize = 16;

/// A reference may take this many times a candidate's time limit per input.
const REFERENCE_SLOWER: u32 = 30;

/// EvalPlus's rules of time: a test may take so many times what the reference takes ...
const TIMES_THE_REFERENCE: f64 = 4.0;
/// ... loading and all tests of a list no longer than this, unless one test may ...
const MOST_IN_ALL: Duration = Duration::from_secs(60);
/// ... and what is added to that.
const BESIDE_TESTS: Duration = Duration::from_secs(2);

/// Time for the comparison of a result that the reference computes again for each candidate.
const COMPARING: Duration = Duration::from_secs(60);

/// Judges Python candidates; shared by the judging threads.
#[derive(Debug)]
pub struct Python {
    programs: Programs,
    checkers: Checkers,
    answers: Mutex<VecDeque<Arc<Answers>>>,
    /// Errors of references that failed, by the same key as the results: they are not run again.
    unanswered: Mutex<HashMap<blake3::Hash, String>>,
}

/// The results of a reference program for a list of inputs.
#[derive(Debug)]
struct Answers {
    key: blake3::Hash,
    reference: ReferenceAnswers,
}

impl Python {
    /// Fails if the interpreter cannot run our programs.
    pub fn set_up(interpreter: Interpreter, sandbox: &Sandbox) -> Result<Python> {
        let programs = Programs::compile(interpreter, sandbox)?;
        Ok(Python { programs, checkers: Checkers::default(), answers: Mutex::default(), unanswered: Mutex::default() })
    }

    /// Why an interpreter is started for each candidate, if candidates are not forked from one that is loaded once.
    pub fn started_for(&self) -> Option<&str> {
        self.programs.started_for()
    }

    /// One test: the whole script.
    pub(super) fn script(
        &self,
        judge: &Judge,
        program: &str,
        script: &ScriptSuite,
        limits: Limits,
    ) -> Result<Judgement> {
        let ScriptSuite { helpers, code, entry } = script;
        let order = json!({ "suite": "script", "helpers": helpers, "code": code, "entry": entry });
        let (each, whole, loading, patience) = (limits, limits, limits.wall, PATIENCE);
        let real = RealTimeEnd::after(judge.time.of(whole.wall));
        let tests = CheckedTests { order, answers: None, count: 1, all: false, each, loading, whole, patience, real };
        self.run(&judge.sandbox, program, tests)
    }

    /// `limits` apply to each test; loading the program counts as a test.
    pub(super) fn calls(&self, judge: &Judge, program: &str, calls: &CallSuite, limits: Limits) -> Result<Judgement> {
        let all = judge.all_tests;
        let tests = calls
            .tests
            .iter()
            .map(|test| json!({ "arguments": test.arguments.as_str(), "expected": texts(&test.expected) }));
        let tests: Vec<_> = tests.collect();
        let count = tests.len();
        let order = json!({
            "suite": "calls", "function": calls.function, "tests": tests, "all": all,
            "wall": limits.wall.as_secs_f64(), "cpu": limits.most_cpu().as_secs_f64(),
        });
        let runs = u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1);
        let whole = Limits { cpu: limits.cpu.saturating_mul(runs), wall: limits.wall.saturating_mul(runs), ..limits };
        let (each, loading, patience) = (limits, limits.wall, PATIENCE);
        let real = RealTimeEnd::after(judge.time.of(whole.wall));
        let tests = CheckedTests { order, answers: None, count, all, each, loading, whole, patience, real };
        self.run(&judge.sandbox, program, tests)
    }

    /// EvalPlus's two lists of tests, one after the other. `limits` apply to each test, or four times the reference's
    /// time if that is more; loading the program and all tests of a list have the time that EvalPlus gives them
    /// together. Fails with [`Error::Unjudgeable`] if the reference program fails.
    pub(super) fn reference(
        &self,
        judge: &Judge,
        program: &str,
        reference: &ReferenceSuite,
        limits: Limits,
    ) -> Result<Judgement> {
        let (sandbox, all) = (&judge.sandbox, judge.all_tests);
        let patience = limits.wall.saturating_mul(REFERENCE_SLOWER);
        let answers = |field, inputs| self.answers(sandbox, reference, field, inputs, patience);
        // Both are needed before judging.
        let (of_base, of_plus) = (answers("base_input", &reference.base)?, answers("plus_input", &reference.plus)?);
        let loading = |answers: &Answers| reference_whole(&answers.reference.took, limits);
        let real = RealTimeEnd::after(judge.time.of(loading(&of_base).saturating_add(loading(&of_plus))));
        let on = |inputs: &[RawJson], answers: &Answers| {
            let order = json!({
                "suite": "reference", "program": reference.program, "entry": reference.entry,
                "inputs": texts(inputs), "mbpp": reference.mbpp, "atol": reference.atol,
                "wall": limits.wall.as_secs_f64(), "cpu": limits.most_cpu().as_secs_f64(), "all": all,
                "slower": TIMES_THE_REFERENCE, "margin": with_margin(Duration::from_secs(1)).as_secs_f64(),
                "comparing": COMPARING.as_secs_f64(),
            });
            let loading = loading(answers);
            let (each, whole, patience) = (limits, limits.within(loading), patience.max(PATIENCE));
            let (answers, count) = (Some(&answers.reference.written[..]), inputs.len());
            let tests = CheckedTests { order, answers, count, all, each, loading, whole, patience, real };
            self.run(sandbox, program, tests)
        };
        let base = on(&reference.base, &of_base)?;
        Ok(if reference.plus.is_empty() { base } else { base.joined(on(&reference.plus, &of_plus)?) })
    }

    fn run(&self, sandbox: &Sandbox, program: &str, tests: CheckedTests<'_>) -> Result<Judgement> {
        PythonJudging { sandbox, programs: &self.programs, checkers: &self.checkers, program, tests }.run()
    }

    /// The reference's results for the inputs of a field, computed once for all candidates of a problem.
    fn answers(
        &self,
        sandbox: &Sandbox,
        reference: &ReferenceSuite,
        field: &str,
        inputs: &[RawJson],
        patience: Duration,
    ) -> Result<Arc<Answers>> {
        let order = json!({
            "suite": "expect", "nonce": "", "program": reference.program, "entry": reference.entry,
            "inputs": texts(inputs), "mbpp": reference.mbpp,
        });
        let key = blake3::hash(order.to_string().as_bytes());
        let unanswered = || self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = unanswered().get(&key) {
            return Err(Error::Unjudgeable { why: why.clone() });
        }
        let kept = || self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answers) = kept().iter().find(|answers| answers.key == key) {
            return Ok(answers.clone());
        }
        let checker = self.checkers.begin(sandbox, &self.programs, &order)?;
        let reference = checker.answers(patience).map_err(|ReferenceError { given, why }| {
            let why = match given.checked_sub(1).and_then(|ix| Some((ix, inputs.get(ix)?))) {
                Some((ix, input)) => format!("its reference fails on `{field}.{ix}`, {}: {why}", input.shown()),
                None => format!("its reference cannot be run: {why}"),
            };
            unanswered().insert(key, why.clone());
            Error::Unjudgeable { why }
        })?;
        self.checkers.give_back(checker);
        let answers = Arc::new(Answers { key, reference });
        let mut kept = kept();
        kept.truncate(KEPT_ANSWERS - 1);
        kept.push_front(answers.clone());
        Ok(answers)
    }
}

/// The time of loading a program and of all its tests, by EvalPlus's rule.
fn reference_whole(took: &ReferenceTimes, limits: Limits) -> Duration {
    let slower = |seconds: &f64| Duration::try_from_secs_f64(seconds * TIMES_THE_REFERENCE).unwrap_or(Duration::MAX);
    let tests = took.seconds.iter().map(|seconds| slower(seconds).max(limits.wall));
    let longest = tests.clone().max().unwrap_or_default();
    let all = tests.fold(Duration::ZERO, Duration::saturating_add).min(MOST_IN_ALL.max(longest));
    all.saturating_add(BESIDE_TESTS).saturating_add(COMPARING.saturating_mul(took.again))
}

/// The values as texts, for Python's `json`.
fn texts(values: &[RawJson]) -> Vec<&str> {
    values.iter().map(RawJson::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::FileForm;

    #[test]
    fn all_tests_of_eval_plus_have_its_time_together() {
        let limits = Limits::of(FileForm::EvalPlus);
        let whole = |seconds: &[f64]| {
            reference_whole(&ReferenceTimes { seconds: seconds.to_vec(), again: 0 }, limits).as_secs_f64()
        };
        assert_eq!(whole(&[0.01; 7]), 9.0);
        assert_eq!(whole(&[0.01, 0.5]), 5.0);
        assert_eq!(whole(&[0.01; 900]), 62.0);
        assert_eq!(whole(&[25.0, 0.01]), 102.0, "a test is never cut short by all of them");
    }
}
