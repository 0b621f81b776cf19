//! Judges programs that read standard input and write standard output: one process per test, connected by pipes. The
//! output is compared here; an expected output never enters a candidate's process.

use std::fs;
use std::time::Duration;

use super::compare::difference;
use super::judge::Judge;
use super::message::last_line;
use super::program::{CandidateProgram, CompiledCandidate};
use super::sandbox::{Confined, Ended, How, Limit};
use super::verdict::{Judgement, TestVerdict, Verdict};
use crate::fair_clock::RealTimeEnd;
use crate::language::Language;
use crate::problem::{Assembly, Compare, FileForm, Limits, Problem, StreamSuite, StreamTest};
use offshoot_core::error::{Error, Result};

pub(super) fn judge(
    judge: &Judge,
    problem: &Problem,
    streams: &StreamSuite,
    language: &Language,
    text: &str,
) -> Result<Judgement> {
    let Problem { limits, assembly, .. } = problem;
    // APPS's and LiveCodeBench's harnesses run a program as the body of a function, which may return.
    let may_return = *language == Language::Python && *assembly == Assembly::WithImports;
    let runs = u32::try_from(streams.tests.len()).unwrap_or(u32::MAX);
    let compiling = if *language == Language::Python { Duration::ZERO } else { CandidateProgram::COMPILING };
    let real = RealTimeEnd::after(judge.time.of(limits.wall.saturating_mul(runs).saturating_add(compiling)));
    let mut program = match CandidateProgram::prepare(judge, language, text, real)? {
        CompiledCandidate::Ready(program) => program,
        CompiledCandidate::Rejected(verdict, why) => return Ok(Judgement::untested(verdict, Some(why))),
    };
    let mut judgement = Judgement::untested(Verdict::Accepted, None);
    for test in &streams.tests {
        if real.is_over() {
            judgement.tests.push(out_of_real_time(real));
            break;
        }
        let mut ended = program.run(judge, test.input.as_bytes(), *limits, real)?;
        if may_return && returns_outside_functions(&ended) {
            program.make_function()?;
            ended = program.run(judge, test.input.as_bytes(), *limits, real)?;
        }
        let verdict = verdict(judge, streams, test, &ended, problem, language, real)?;
        let stop = verdict.verdict != Verdict::Accepted && (!judge.all_tests || real.is_over());
        judgement.add(ended.wall, ended.cpu, ended.peak_bytes);
        judgement.tests.push(verdict);
        if stop {
            break;
        }
    }
    Ok(judgement.decided(true))
}

fn verdict(
    judge: &Judge,
    streams: &StreamSuite,
    test: &StreamTest,
    ended: &Ended,
    Problem { limits, .. }: &Problem,
    language: &Language,
    real: RealTimeEnd,
) -> Result<TestVerdict> {
    let failed = |verdict, message| TestVerdict { verdict, message };
    Ok(match &ended.how {
        How::Exit(0) => {
            let wrong = match &streams.compare {
                Compare::Checker { program } => check(judge, program, test, &ended.stdout, real)?,
                compare => difference(compare, &ended.stdout, test.output.as_bytes()).map(wrong_answer),
            };
            wrong.unwrap_or_else(|| failed(Verdict::Accepted, None))
        }
        How::Exit(code) => {
            let said = last_line(&ended.stderr);
            match said {
                Some(line) if is_out_of_memory(&line) => failed(Verdict::MemoryLimit, Some(line)),
                Some(line) if *language == Language::Python && is_syntax(&line) => {
                    failed(Verdict::CompileError, Some(line))
                }
                said => failed(Verdict::RuntimeError, Some(said.unwrap_or_else(|| format!("exit code {code}")))),
            }
        }
        How::Signal(signal) => match last_line(&ended.stderr) {
            Some(line) if is_out_of_memory(&line) => failed(Verdict::MemoryLimit, Some(line)),
            _ => failed(Verdict::RuntimeError, Some(format!("ended by signal {signal}"))),
        },
        How::Limit(Limit::RealTime) if real.is_over() => out_of_real_time(real),
        How::Limit(limit) => failed((*limit).into(), Some(limit.passed(limits))),
        How::Sandbox(call) => failed(Verdict::Sandbox, Some(format!("called {call}"))),
        How::Killed => return Err(Error::Internal("a candidate was killed without a request".to_string())),
    })
}

/// Whether Python refuses a program for a `return` at its top. A program that merely prints this is run once more.
fn returns_outside_functions(ended: &Ended) -> bool {
    const COMPLAINT: &str = "SyntaxError: 'return' outside function";
    ended.how == How::Exit(1) && last_line(&ended.stderr).is_some_and(|line| line == COMPLAINT)
}

/// Whether a runtime reports that it is out of memory, which only the memory limit causes here. A program that merely
/// prints such a line has failed anyway.
fn is_out_of_memory(line: &str) -> bool {
    line.starts_with("MemoryError") || line.contains("std::bad_alloc")
}

/// Whether a line is a syntax error, which Python reports when it starts a program.
fn is_syntax(line: &str) -> bool {
    ["SyntaxError:", "IndentationError:", "TabError:"].iter().any(|name| line.starts_with(name))
}

fn out_of_real_time(real: RealTimeEnd) -> TestVerdict {
    TestVerdict { verdict: Verdict::TimeLimit, message: Some(real.passed()) }
}

fn wrong_answer(why: String) -> TestVerdict {
    TestVerdict { verdict: Verdict::WrongAnswer, message: Some(why) }
}

/// Runs the task's checker on input, output and expected output, until the candidate's real time ends. Returns `None`
/// if it accepts, else a verdict with its complaint (the last line of its output, if any).
fn check(
    judge: &Judge,
    checker: &str,
    test: &StreamTest,
    output: &[u8],
    real: RealTimeEnd,
) -> Result<Option<TestVerdict>> {
    let python = judge.interpreter()?;
    let folder = judge.sandbox.folder()?;
    let names = ["checker.py", "input", "output", "expected"];
    for (name, text) in
        names.into_iter().zip([checker.as_bytes(), test.input.as_bytes(), output, test.output.as_bytes()])
    {
        let path = folder.path().join(name);
        fs::write(&path, text).map_err(Error::io(&path, "write"))?;
    }
    let arguments = ["-I", "-B"].into_iter().chain(names).map(str::to_string).collect();
    let limits = Limits::of(FileForm::Programs);
    let confined = Confined::new(&python.path, arguments, folder.path(), limits).within(real.left());
    let running = judge.sandbox.start(Confined { readable: python.readable.clone(), ..confined })?;
    let ended = running.wait()?;
    let said = last_line(&ended.stderr).or_else(|| last_line(&ended.stdout));
    Ok(Some(match ended.how {
        How::Exit(0) => return Ok(None),
        How::Exit(code) => {
            wrong_answer(said.map_or(format!("the checker says {code}"), |said| format!("the checker says: {said}")))
        }
        How::Limit(Limit::RealTime) if real.is_over() => out_of_real_time(real),
        how => wrong_answer(format!("the checker failed: {how:?}")),
    }))
}
