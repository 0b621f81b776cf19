//! One candidate's judging: the conversation between its process and the checker, relayed, and what its end means.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::checker::{Checker, Checkers};
use super::programs::{Program, Programs};
use super::stream::{self, Heard};
use super::{Extent, marshal, on_the_clock};
use crate::error::{Error, Result};
use crate::judge::message::last_line;
use crate::judge::problem::Limits;
use crate::judge::sandbox::{Ended, How, Running, Sandbox};
use crate::judge::{Judgement, TestVerdict, Verdict};

/// What the alarm sends that the runner sets for a single test.
const SIGPROF: i32 = 27;

/// What is to be run.
pub(super) struct Tests<'a> {
    /// What the checker is told; nonce and first test are added here.
    pub order: Value,
    /// The reference's answers, for a suite that has one.
    pub answers: Option<&'a [u8]>,
    pub count: usize,
    pub extent: Extent,
    /// Of one test; the first has the program's loading before it, which may take as much again.
    pub each: Limits,
}

impl Tests<'_> {
    /// The limits of a process that runs all.
    fn whole(&self) -> Limits {
        let runs = u32::try_from(self.count).unwrap_or(u32::MAX);
        let runs = if self.count > 1 { runs.saturating_add(1) } else { 1 };
        Limits { cpu: self.each.cpu.saturating_mul(runs), ..self.each }
    }
}

pub(super) struct Judging<'a> {
    pub sandbox: &'a Sandbox,
    pub programs: &'a Programs,
    pub checkers: &'a Checkers,
    pub program: &'a str,
    pub tests: Tests<'a>,
}

/// A word of the checker's on one test.
#[derive(Deserialize)]
struct Word {
    nonce: String,
    verdict: Code,
    message: Option<String>,
}

#[derive(Deserialize)]
enum Code {
    AC,
    WA,
    RE,
}

#[derive(Deserialize)]
struct Begins {
    seconds: f64,
}

#[derive(Deserialize)]
struct Done {
    nonce: String,
}

/// How a conversation ended.
enum End {
    /// The checker has said all it had to say.
    Done,
    /// The candidate said or did something that ends its judging.
    Said(Verdict, String),
    /// Its process has gone.
    Gone,
    /// A test took too long on the clock.
    Late,
    /// The tests themselves ended or hang; the checker cannot be used again.
    Tests(Verdict, String),
}

impl Judging<'_> {
    /// Runs the tests; after one that ended the candidate's process the others run in a new one where all are wanted.
    pub fn run(mut self) -> Result<Judgement> {
        let mut judgement = Judgement {
            verdict: Verdict::Accepted,
            message: None,
            tests: Vec::new(),
            wall: Duration::ZERO,
            cpu: Duration::ZERO,
            peak_bytes: 0,
        };
        loop {
            let before = judgement.tests.len();
            let loaded = self.run_process(&mut judgement)?;
            let ran = judgement.tests.len();
            let over = ran >= self.tests.count || self.tests.extent == Extent::FirstFailure || !loaded || ran == before;
            if over {
                break;
            }
        }
        let failed = judgement.tests.iter().enumerate().find(|(_, test)| test.verdict != Verdict::Accepted);
        if let Some((ix, test)) = failed {
            judgement.verdict = test.verdict;
            judgement.message = match &test.message {
                Some(message) if self.tests.count > 1 => Some(format!("test {}: {message}", ix + 1)),
                message => message.clone(),
            };
        }
        Ok(judgement)
    }

    /// One process of the candidate, from the first test that has no verdict on. Returns whether its program was loaded.
    fn run_process(&mut self, judgement: &mut Judgement) -> Result<bool> {
        let nonce = nonce();
        self.tests.order["nonce"] = json!(nonce);
        self.tests.order["first"] = json!(judgement.tests.len());
        let folder = self.sandbox.folder()?;
        let candidate =
            self.sandbox.start(self.programs.confined(Program::Runner, folder.path(), self.tests.whole()))?;
        let checker = self.checkers.begin(self.sandbox, self.programs, &self.tests.order)?;
        let mut talk = Talk {
            candidate,
            checker,
            nonce,
            most: self.tests.each.output_bytes,
            deadline: None,
            loaded: false,
            verdicts: &mut judgement.tests,
        };
        let end = talk.hold(self.program, &self.tests)?;
        let Talk { mut candidate, checker, loaded, .. } = talk;
        if !matches!(end, End::Gone) {
            candidate.kill();
        }
        let rested = !matches!(end, End::Tests(..)) && checker.rest();
        let ended = candidate.wait()?;
        if rested {
            self.checkers.give_back(checker);
        }
        judgement.wall += ended.wall;
        judgement.cpu += ended.cpu;
        judgement.peak_bytes = judgement.peak_bytes.max(ended.peak_bytes);
        let (verdict, message) = match end {
            End::Done => return Ok(true),
            End::Said(verdict, message) | End::Tests(verdict, message) => (verdict, message),
            End::Late => (Verdict::TimeLimit, "the time limit of a test is over".to_string()),
            End::Gone => of_end(&ended),
        };
        judgement.tests.push(TestVerdict { verdict, message: Some(message) });
        Ok(loaded)
    }
}

/// Both ends of a conversation.
struct Talk<'a> {
    candidate: Running,
    checker: Checker,
    nonce: String,
    /// The longest message of the candidate, in bytes.
    most: u64,
    /// Of the test that runs, where tests have limits of their own.
    deadline: Option<Instant>,
    loaded: bool,
    verdicts: &'a mut Vec<TestVerdict>,
}

impl Talk<'_> {
    fn hold(&mut self, program: &str, tests: &Tests) -> Result<End> {
        if let Some(answers) = tests.answers {
            // A checker that has died is noticed when it is heard.
            let _ = self.checker.say(b'V', answers);
        }
        if let Some(end) = self.load(program, until(tests.each.cpu)) {
            return Ok(end);
        }
        loop {
            // Tests that do not end are given what the candidate is.
            let (kind, payload) = match self.checker.hear(on_the_clock(tests.each.cpu)) {
                Heard::Frame { kind, payload } => (kind, payload),
                Heard::Late => return Ok(End::Tests(Verdict::TimeLimit, "the tests do not end".to_string())),
                Heard::End | Heard::TooLong => {
                    return Ok(End::Tests(
                        Verdict::RuntimeError,
                        "the process that runs the tests has died".to_string(),
                    ));
                }
            };
            match kind {
                b'C' => {
                    if let Some(end) = self.relay(&payload) {
                        return Ok(end);
                    }
                }
                b'T' => {
                    let begins: Begins = word(&payload)?;
                    self.deadline = until(Duration::try_from_secs_f64(begins.seconds).unwrap_or(Duration::MAX));
                }
                b'V' => {
                    let Word { nonce, verdict, message } = word(&payload)?;
                    self.same(&nonce)?;
                    let verdict = match verdict {
                        Code::AC => Verdict::Accepted,
                        Code::WA => Verdict::WrongAnswer,
                        Code::RE => Verdict::RuntimeError,
                    };
                    let message = message.and_then(|message| last_line(message.as_bytes()));
                    self.verdicts.push(TestVerdict { verdict, message });
                }
                b'D' => {
                    let Done { nonce } = word(&payload)?;
                    self.same(&nonce)?;
                    return Ok(End::Done);
                }
                b'F' => {
                    let why = String::from_utf8_lossy(&payload).into_owned();
                    return Err(Error::Unjudgeable { why: format!("its tests cannot be run: {why}") });
                }
                // The child has ended without a last word: a crash of the programs, or its memory.
                _ => {
                    return Ok(End::Tests(
                        Verdict::RuntimeError,
                        "the tests crash on what the candidate returns".to_string(),
                    ));
                }
            }
        }
    }

    /// Gives the candidate its program and waits until that has run.
    fn load(&mut self, program: &str, deadline: Option<Instant>) -> Option<End> {
        if stream::say(self.stream(), b'P', program.as_bytes()).is_err() {
            return Some(End::Gone);
        }
        match stream::hear(self.stream(), self.most, deadline) {
            Heard::Frame { kind: b'L', .. } => {
                self.loaded = true;
                None
            }
            heard => Some(last_words(heard)),
        }
    }

    /// Takes one question of the checker's to the candidate and its answer back.
    fn relay(&mut self, question: &[u8]) -> Option<End> {
        if stream::say(self.stream(), b'C', question).is_err() {
            return Some(End::Gone);
        }
        let heard = stream::hear(self.stream(), self.most, self.deadline);
        let Heard::Frame { kind: kind @ (b'R' | b'Q'), payload } = heard else { return Some(last_words(heard)) };
        if let Err(why) = marshal::check(&payload) {
            return Some(End::Said(Verdict::RuntimeError, format!("its answer is no data: it {why}")));
        }
        let _ = self.checker.say(kind, &payload);
        None
    }

    fn stream(&self) -> &std::os::unix::net::UnixStream {
        self.candidate.channel().expect("a candidate is started with a channel")
    }

    fn same(&self, nonce: &str) -> Result<()> {
        if nonce == self.nonce { Ok(()) } else { Err(Error::Internal("a verdict on another candidate".to_string())) }
    }
}

/// When a test that may take so much processor time must be over.
fn until(cpu: Duration) -> Option<Instant> {
    Instant::now().checked_add(on_the_clock(cpu))
}

fn word<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T> {
    serde_json::from_slice(payload).map_err(|error| Error::Internal(format!("a word of the checker's: {error}")))
}

/// What a frame of the candidate's means that is no answer.
fn last_words(heard: Heard) -> End {
    let (kind, payload) = match heard {
        Heard::Frame { kind, payload } => (kind, payload),
        Heard::End => return End::Gone,
        Heard::Late => return End::Late,
        Heard::TooLong => {
            return End::Said(Verdict::OutputLimit, "its answer is longer than the output limit".to_string());
        }
    };
    let words = last_line(&payload).unwrap_or_default();
    match kind {
        b'S' => End::Said(Verdict::CompileError, words),
        b'X' | b'E' => End::Said(Verdict::RuntimeError, words),
        b'M' => End::Said(Verdict::MemoryLimit, words),
        b'O' => End::Said(Verdict::OutputLimit, "it prints more than the output limit".to_string()),
        _ => End::Said(Verdict::RuntimeError, "it writes to the judge's channel".to_string()),
    }
}

/// What the end of a candidate's process means that came before the tests' end.
fn of_end(ended: &Ended) -> (Verdict, String) {
    match &ended.how {
        How::Exit(code) => (Verdict::RuntimeError, format!("it ends with exit code {code} before its tests do")),
        How::Signal(SIGPROF) => (Verdict::TimeLimit, "the time limit of a test is over".to_string()),
        How::Signal(signal) => (Verdict::RuntimeError, format!("it is killed by signal {signal}")),
        How::Limit(limit) => {
            let verdict = Verdict::from(*limit);
            let of = match verdict {
                Verdict::MemoryLimit => "memory",
                Verdict::OutputLimit => "output",
                _ => "time",
            };
            (verdict, format!("the {of} limit is reached"))
        }
        How::Sandbox(what) => (Verdict::Sandbox, what.clone()),
        How::Killed => (Verdict::RuntimeError, "it was ended".to_string()),
    }
}

/// Fresh for every process of a candidate, so that a late word on another is never taken for one on this.
fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}
