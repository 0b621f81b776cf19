//! Judges one candidate: relays the messages between its process and the checker, and turns the end of this
//! conversation into verdicts.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::checker::{Checker, Checkers};
use super::programs::{Programs, PythonProgram};
use super::stream::{self, StreamRead};
use super::{Extent, marshal, on_the_clock};
use crate::error::{Error, Result};
use crate::judge::message::last_line;
use crate::judge::problem::Limits;
use crate::judge::sandbox::{Ended, How, Running, Sandbox};
use crate::judge::{Judgement, TestVerdict, Verdict};

/// The signal of the alarm that the runner sets for a single test.
const SIGPROF: i32 = 27;

/// The tests of one candidate.
pub(super) struct CheckedTests<'a> {
    /// The order to the checker; nonce and first test are added here.
    pub order: Value,
    /// The reference's answers, for a suite that has one.
    pub answers: Option<&'a [u8]>,
    pub count: usize,
    pub extent: Extent,
    /// The limits of one test. The program loads before the first test and may take as much again for that.
    pub each: Limits,
}

impl CheckedTests<'_> {
    /// The limits of a process that runs all tests.
    fn whole(&self) -> Limits {
        let runs = u32::try_from(self.count).unwrap_or(u32::MAX);
        let runs = if self.count > 1 { runs.saturating_add(1) } else { 1 };
        Limits { cpu: self.each.cpu.saturating_mul(runs), ..self.each }
    }
}

pub(super) struct PythonJudging<'a> {
    pub sandbox: &'a Sandbox,
    pub programs: &'a Programs,
    pub checkers: &'a Checkers,
    pub program: &'a str,
    pub tests: CheckedTests<'a>,
}

/// The checker's message on one test.
#[derive(Deserialize)]
struct CheckerVerdict {
    nonce: String,
    verdict: VerdictCode,
    message: Option<String>,
}

#[derive(Deserialize)]
enum VerdictCode {
    AC,
    WA,
    RE,
}

#[derive(Deserialize)]
struct TestBegins {
    seconds: f64,
}

#[derive(Deserialize)]
struct ConversationDone {
    nonce: String,
}

/// How a conversation ended.
enum ConversationEnd {
    /// The checker has reported on all tests.
    Done,
    /// The candidate said or did something that ends its judging.
    Said(Verdict, String),
    /// The candidate's process has ended.
    Gone,
    /// A test exceeded its limit of wall-clock time.
    Late,
    /// The tests themselves ended or hang; the checker cannot be used again.
    Tests(Verdict, String),
}

impl PythonJudging<'_> {
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

    /// One process of the candidate, from the first test that has no verdict on. Returns whether its program was
    /// loaded.
    fn run_process(&mut self, judgement: &mut Judgement) -> Result<bool> {
        let nonce = nonce();
        self.tests.order["nonce"] = json!(nonce);
        self.tests.order["first"] = json!(judgement.tests.len());
        let folder = self.sandbox.folder()?;
        let candidate =
            self.sandbox.start(self.programs.confined(PythonProgram::Runner, folder.path(), self.tests.whole()))?;
        let checker = self.checkers.begin(self.sandbox, self.programs, &self.tests.order)?;
        let mut talk = Conversation {
            candidate,
            checker,
            nonce,
            most: self.tests.each.output_bytes,
            deadline: None,
            loaded: false,
            verdicts: &mut judgement.tests,
        };
        let end = talk.hold(self.program, &self.tests)?;
        let Conversation { mut candidate, checker, loaded, .. } = talk;
        if !matches!(end, ConversationEnd::Gone) {
            candidate.kill();
        }
        let rested = !matches!(end, ConversationEnd::Tests(..)) && checker.rest();
        let ended = candidate.wait()?;
        if rested {
            self.checkers.give_back(checker);
        }
        judgement.wall += ended.wall;
        judgement.cpu += ended.cpu;
        judgement.peak_bytes = judgement.peak_bytes.max(ended.peak_bytes);
        let (verdict, message) = match end {
            ConversationEnd::Done => return Ok(true),
            ConversationEnd::Said(verdict, message) | ConversationEnd::Tests(verdict, message) => (verdict, message),
            ConversationEnd::Late => (Verdict::TimeLimit, "the time limit of a test is over".to_string()),
            ConversationEnd::Gone => of_end(&ended),
        };
        judgement.tests.push(TestVerdict { verdict, message: Some(message) });
        Ok(loaded)
    }
}

/// Both ends of a conversation.
struct Conversation<'a> {
    candidate: Running,
    checker: Checker,
    nonce: String,
    /// The longest message of the candidate, in bytes.
    most: u64,
    /// The deadline of the running test, where each test has its own limit.
    deadline: Option<Instant>,
    loaded: bool,
    verdicts: &'a mut Vec<TestVerdict>,
}

impl Conversation<'_> {
    fn hold(&mut self, program: &str, tests: &CheckedTests) -> Result<ConversationEnd> {
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
                StreamRead::Frame { kind, payload } => (kind, payload),
                StreamRead::Late => {
                    return Ok(ConversationEnd::Tests(Verdict::TimeLimit, "the tests do not end".to_string()));
                }
                StreamRead::End | StreamRead::TooLong => {
                    return Ok(ConversationEnd::Tests(
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
                    let begins: TestBegins = word(&payload)?;
                    self.deadline = until(Duration::try_from_secs_f64(begins.seconds).unwrap_or(Duration::MAX));
                }
                b'V' => {
                    let CheckerVerdict { nonce, verdict, message } = word(&payload)?;
                    self.same(&nonce)?;
                    let verdict = match verdict {
                        VerdictCode::AC => Verdict::Accepted,
                        VerdictCode::WA => Verdict::WrongAnswer,
                        VerdictCode::RE => Verdict::RuntimeError,
                    };
                    let message = message.and_then(|message| last_line(message.as_bytes()));
                    self.verdicts.push(TestVerdict { verdict, message });
                }
                b'D' => {
                    let ConversationDone { nonce } = word(&payload)?;
                    self.same(&nonce)?;
                    return Ok(ConversationEnd::Done);
                }
                b'F' => {
                    let why = String::from_utf8_lossy(&payload).into_owned();
                    return Err(Error::Unjudgeable { why: format!("its tests cannot be run: {why}") });
                }
                // The child has ended without a last word: a crash of the programs, or its memory.
                _ => {
                    return Ok(ConversationEnd::Tests(
                        Verdict::RuntimeError,
                        "the tests crash on what the candidate returns".to_string(),
                    ));
                }
            }
        }
    }

    /// Gives the candidate its program and waits until that has run.
    fn load(&mut self, program: &str, deadline: Option<Instant>) -> Option<ConversationEnd> {
        if stream::say(self.stream(), b'P', program.as_bytes()).is_err() {
            return Some(ConversationEnd::Gone);
        }
        match stream::hear(self.stream(), self.most, deadline) {
            StreamRead::Frame { kind: b'L', .. } => {
                self.loaded = true;
                None
            }
            heard => Some(last_words(heard)),
        }
    }

    /// Takes one question of the checker's to the candidate and its answer back.
    fn relay(&mut self, question: &[u8]) -> Option<ConversationEnd> {
        if stream::say(self.stream(), b'C', question).is_err() {
            return Some(ConversationEnd::Gone);
        }
        let heard = stream::hear(self.stream(), self.most, self.deadline);
        let StreamRead::Frame { kind: kind @ (b'R' | b'Q'), payload } = heard else { return Some(last_words(heard)) };
        if let Err(why) = marshal::check(&payload) {
            return Some(ConversationEnd::Said(Verdict::RuntimeError, format!("its answer is no data: it {why}")));
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
fn last_words(heard: StreamRead) -> ConversationEnd {
    let (kind, payload) = match heard {
        StreamRead::Frame { kind, payload } => (kind, payload),
        StreamRead::End => return ConversationEnd::Gone,
        StreamRead::Late => return ConversationEnd::Late,
        StreamRead::TooLong => {
            return ConversationEnd::Said(
                Verdict::OutputLimit,
                "its answer is longer than the output limit".to_string(),
            );
        }
    };
    let words = last_line(&payload).unwrap_or_default();
    match kind {
        b'S' => ConversationEnd::Said(Verdict::CompileError, words),
        b'X' | b'E' => ConversationEnd::Said(Verdict::RuntimeError, words),
        b'M' => ConversationEnd::Said(Verdict::MemoryLimit, words),
        b'O' => ConversationEnd::Said(Verdict::OutputLimit, "it prints more than the output limit".to_string()),
        _ => ConversationEnd::Said(Verdict::RuntimeError, "it writes to the judge's channel".to_string()),
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
