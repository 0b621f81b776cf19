//! Programs that read standard input and write standard output: a process of its own for each test, real pipes, and the output
//! compared here. An expected output never enters a candidate's process.

use std::fs;
use std::time::Duration;

use super::compare::difference;
use super::message::last_line;
use super::program::{Prepared, Program};
use super::sandbox::{Confined, Ended, How, Input, Output};
use super::{Judge, Judgement, TestVerdict, Verdict};
use crate::error::{Error, Result};
use crate::judge::language::Language;
use crate::judge::problem::{Compare, Limits, StreamTest, Streams};

pub(super) fn judge(
    judge: &Judge,
    streams: &Streams,
    limits: Limits,
    language: &Language,
    text: &str,
) -> Result<Judgement> {
    let program = match Program::prepare(judge, language, text)? {
        Prepared::Ready(program) => program,
        Prepared::Rejected(complaint) => return Ok(rejected(complaint)),
    };
    let mut course = Course::default();
    for test in &streams.tests {
        let ended = program.run(judge, test.input.as_bytes(), limits)?;
        let verdict = verdict(judge, streams, test, &ended, language)?;
        let stop = verdict.verdict != Verdict::Accepted && !judge.all_tests;
        course.add(&ended, verdict);
        if stop {
            break;
        }
    }
    Ok(course.judgement())
}

fn rejected(complaint: String) -> Judgement {
    Judgement {
        verdict: Verdict::CompileError,
        message: Some(complaint),
        tests: Vec::new(),
        wall: Duration::ZERO,
        cpu: Duration::ZERO,
        peak_bytes: 0,
    }
}

/// The tests run so far and what they took together.
#[derive(Default)]
struct Course {
    tests: Vec<TestVerdict>,
    wall: Duration,
    cpu: Duration,
    peak_bytes: u64,
}

impl Course {
    fn add(&mut self, ended: &Ended, verdict: TestVerdict) {
        self.tests.push(verdict);
        self.wall += ended.wall;
        self.cpu += ended.cpu;
        self.peak_bytes = self.peak_bytes.max(ended.peak_bytes);
    }

    fn judgement(self) -> Judgement {
        let Course { tests, wall, cpu, peak_bytes } = self;
        let failed = tests.iter().enumerate().find(|(_, test)| test.verdict != Verdict::Accepted);
        let verdict = failed.map_or(Verdict::Accepted, |(_, test)| test.verdict);
        let message = failed.map(|(ix, test)| match &test.message {
            Some(message) => format!("test {}: {message}", ix + 1),
            None => format!("test {}", ix + 1),
        });
        Judgement { verdict, message, tests, wall, cpu, peak_bytes }
    }
}

fn verdict(
    judge: &Judge,
    streams: &Streams,
    test: &StreamTest,
    ended: &Ended,
    language: &Language,
) -> Result<TestVerdict> {
    let failed = |verdict, message| TestVerdict { verdict, message };
    Ok(match &ended.how {
        How::Exit(0) => {
            let wrong = match &streams.compare {
                Compare::Checker { program } => check(judge, program, test, &ended.stdout)?,
                compare => difference(compare, &ended.stdout, test.output.as_bytes()),
            };
            match wrong {
                None => failed(Verdict::Accepted, None),
                Some(why) => failed(Verdict::WrongAnswer, Some(why)),
            }
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
        How::Limit(limit) => failed((*limit).into(), None),
        How::Sandbox(call) => failed(Verdict::Sandbox, Some(format!("called {call}"))),
        How::Killed => return Err(Error::Internal("a candidate that nobody killed was killed".to_string())),
    })
}

/// How a runtime says that it was refused memory, which only a limit does here. Who says so without need fails all the same.
fn is_out_of_memory(line: &str) -> bool {
    line.starts_with("MemoryError") || line.contains("std::bad_alloc")
}

/// Python compiles a program when it starts it.
fn is_syntax(line: &str) -> bool {
    ["SyntaxError:", "IndentationError:", "TabError:"].iter().any(|name| line.starts_with(name))
}

/// Runs the task's checker on the three texts. What it finds wrong, in its own words where it has some.
fn check(judge: &Judge, checker: &str, test: &StreamTest, output: &[u8]) -> Result<Option<String>> {
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
    let running = judge.sandbox.start(Confined {
        program: python.path.clone(),
        arguments,
        environment: Vec::new(),
        readable: python.readable.clone(),
        folder: folder.path().to_path_buf(),
        limits: Limits::default(),
        stdin: Input::Null,
        stdout: Output::Capture,
        channel: false,
    })?;
    let ended = running.wait()?;
    let said = last_line(&ended.stderr).or_else(|| last_line(&ended.stdout));
    Ok(match ended.how {
        How::Exit(0) => None,
        How::Exit(code) => {
            Some(said.map_or(format!("the checker says {code}"), |said| format!("the checker says: {said}")))
        }
        how => Some(format!("the checker did not end well: {how:?}")),
    })
}
