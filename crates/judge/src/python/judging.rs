//! Judges one candidate: relays messages between its process and the checker, and turns the end of their conversation
//! into verdicts.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::checker::{Checker, Checkers, PATIENCE};
use super::marshal;
use super::programs::Programs;
use super::stream::{self, StreamRead};
use crate::fair_clock::{Deadline, RealTimeEnd};
use crate::message::last_line;
use crate::problem::Limits;
use crate::sandbox::{Ended, How, Limit, Running, Sandbox};
use crate::verdict::{Judgement, TestVerdict, Verdict};
use offshoot_core::error::{Error, Result};

/// The signal of the alarm that the runner sets for a single test.
const SIGPROF: i32 = 27;

/// The tests of one candidate.
pub(super) struct CheckedTests<'a> {
    /// The order for the checker, without nonce and first test, which are added here.
    pub order: Value,
    /// The reference's answers, for a suite that has one.
    pub answers: Option<&'a [u8]>,
    pub count: usize,
    /// Whether those after the first failed one are run, too.
    pub all: bool,
    /// The limits of one test.
    pub each: Limits,
    /// The time of loading the program, before the first test.
    pub loading: Duration,
    /// The limits of a process that loads the program and runs all tests.
    pub whole: Limits,
    /// Longest time between two messages of the tests, other than on a reply.
    pub patience: Duration,
    /// The end of the candidate's real time.
    pub real: RealTimeEnd,
}

/// To read and compare one reply, tests may take as long as the candidate for the test. All replies of a test together
/// may take this many times as long: tests may compute between their calls.
const READING_IN_ALL: u32 = 10;

impl CheckedTests<'_> {
    /// In bytes: the output limit, or twice what the reference answers to all inputs if that is more.
    fn longest_reply(&self) -> u64 {
        let answered = self.answers.map_or(0, |answers| answers.len() as u64);
        self.each.output_bytes.max(2 * answered)
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

/// What the checker can say of a test. Other verdicts follow from what the candidate's process does and uses, which the
/// checker does not see.
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
    /// The candidate sent or did something that decides its verdict.
    Decided(Verdict, String),
    /// The candidate's process has ended.
    CandidateEnded,
    /// A test exceeded its limit of wall-clock time, or the candidate its real time.
    TimeOut,
    /// The tests' process died or hangs; the checker cannot be used again.
    TestsFailed(Verdict, String),
}

impl PythonJudging<'_> {
    /// Runs the tests. If a test ended the candidate's process and all tests are wanted, the others run in a new
    /// process.
    pub fn run(mut self) -> Result<Judgement> {
        let mut judgement = Judgement::untested(Verdict::Accepted, None);
        loop {
            let before = judgement.tests.len();
            let loaded = self.run_process(&mut judgement)?;
            let ran = judgement.tests.len();
            if ran >= self.tests.count || !self.tests.all || !loaded || ran == before || self.tests.real.is_over() {
                break;
            }
        }
        Ok(judgement.decided(self.tests.count > 1))
    }

    /// Runs one process of the candidate, from the first test without a verdict. Returns whether its program was
    /// loaded.
    fn run_process(&mut self, judgement: &mut Judgement) -> Result<bool> {
        let nonce = nonce();
        self.tests.order["nonce"] = json!(nonce);
        self.tests.order["first"] = json!(judgement.tests.len());
        let folder = self.sandbox.folder()?;
        let candidate = self.programs.start_runner(self.sandbox, folder.path(), self.tests.whole)?;
        let checker = self.checkers.begin(self.sandbox, self.programs, &self.tests.order)?;
        let mut talk = Conversation {
            clock: Deadline::new(candidate.clock(), self.tests.whole.wall).until(self.tests.real),
            reading: Deadline::new(checker.clock(), Duration::MAX).until(self.tests.real),
            real: self.tests.real,
            test: self.tests.each.wall,
            candidate,
            checker,
            nonce,
            most: self.tests.longest_reply(),
            loaded: false,
            verdicts: &mut judgement.tests,
        };
        let end = talk.hold(self.program, &self.tests)?;
        let Conversation { mut candidate, checker, loaded, .. } = talk;
        if !matches!(end, ConversationEnd::CandidateEnded) {
            candidate.kill();
        }
        let rested = !matches!(end, ConversationEnd::TestsFailed(..)) && checker.rest();
        let ended = candidate.wait()?;
        if rested {
            self.checkers.give_back(checker);
        }
        judgement.add(ended.wall, ended.cpu, ended.peak_bytes);
        let exceeded = matches!(ended.how, How::Limit(_));
        let (verdict, message) = match end {
            // What its processes used shows when they have ended: the last test decides, as it was not over before.
            ConversationEnd::Done if exceeded => {
                judgement.tests.pop();
                end_verdict(&ended, &self.tests.each)
            }
            ConversationEnd::Done => return Ok(true),
            ConversationEnd::Decided(verdict, message) => (verdict, message),
            ConversationEnd::TestsFailed(verdict, message) => (verdict, message),
            ConversationEnd::TimeOut if self.tests.real.is_over() => (Verdict::TimeLimit, self.tests.real.passed()),
            ConversationEnd::TimeOut => (Verdict::TimeLimit, Limit::Time.passed(&self.tests.each)),
            ConversationEnd::CandidateEnded => end_verdict(&ended, &self.tests.each),
        };
        judgement.began &= loaded;
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
    /// The time of the candidate's turns: together, and of its loading or the running test.
    clock: Deadline,
    /// The time of reading and comparing replies: of the running test's, and of one.
    reading: Deadline,
    real: RealTimeEnd,
    /// The limit of the running test.
    test: Duration,
    loaded: bool,
    verdicts: &'a mut Vec<TestVerdict>,
}

impl Conversation<'_> {
    fn hold(&mut self, program: &str, tests: &CheckedTests) -> Result<ConversationEnd> {
        if let Some(answers) = tests.answers {
            // A dead checker is noticed at the next read.
            let _ = self.checker.send(b'V', answers, &mut self.checker.patience(PATIENCE));
        }
        self.clock.begin_part(tests.loading);
        let end = self.load(program);
        self.clock.end_part();
        self.begin_reading();
        // Whatever the tests do before they ask the candidate for anything is their own doing.
        let mut next = self.checker.receive(&mut self.checker.patience(PATIENCE));
        match (&next, end) {
            (StreamRead::Frame { kind: b'F', payload }, _) => {
                return Err(cannot_run(&String::from_utf8_lossy(payload)));
            }
            (StreamRead::TimeOut, _) => return Err(cannot_run("they do not finish")),
            (StreamRead::End | StreamRead::TooLong | StreamRead::Frame { kind: b'Z', .. }, _) => {
                return Err(cannot_run("their process has died"));
            }
            (_, Some(end)) => return Ok(end),
            (_, None) => {}
        }
        loop {
            let (kind, payload) = match next {
                StreamRead::Frame { kind, payload } => (kind, payload),
                StreamRead::TimeOut => {
                    let why = if self.real.is_over() { self.real.passed() } else { "the tests do not finish".into() };
                    return Ok(ConversationEnd::TestsFailed(Verdict::TimeLimit, why));
                }
                StreamRead::End | StreamRead::TooLong => {
                    let died = "the process that runs the tests has died";
                    return Ok(ConversationEnd::TestsFailed(Verdict::RuntimeError, died.into()));
                }
            };
            match kind {
                b'C' => {
                    if let Some(end) = self.relay(&payload) {
                        return Ok(end);
                    }
                    next = match self.read_reply() {
                        Ok(word) => word,
                        Err(end) => return Ok(end),
                    };
                    continue;
                }
                b'T' => {
                    let begins: TestBegins = parse_message(&payload)?;
                    self.test = Duration::try_from_secs_f64(begins.seconds).unwrap_or(Duration::MAX);
                    self.clock.begin_part(self.test);
                    self.begin_reading();
                }
                b'V' => {
                    let CheckerVerdict { nonce, verdict, message } = parse_message(&payload)?;
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
                    let ConversationDone { nonce } = parse_message(&payload)?;
                    self.same(&nonce)?;
                    return Ok(ConversationEnd::Done);
                }
                b'F' => return Err(cannot_run(&String::from_utf8_lossy(&payload))),
                // The child ended without a message: it crashed or ran out of memory.
                _ => {
                    let crash = "the tests crash on what the candidate returns";
                    return Ok(ConversationEnd::TestsFailed(Verdict::RuntimeError, crash.into()));
                }
            }
            next = self.checker.receive(&mut self.checker.patience(tests.patience).until(self.real));
        }
    }

    /// Sends the candidate its program and waits until it has loaded.
    fn load(&mut self, program: &str) -> Option<ConversationEnd> {
        match self.ask(b'P', program.as_bytes()) {
            StreamRead::Frame { kind: b'L', .. } => {
                self.loaded = true;
                None
            }
            received => Some(final_frame(received)),
        }
    }

    /// Sends a frame to the candidate and receives its answer.
    fn ask(&mut self, kind: u8, payload: &[u8]) -> StreamRead {
        let stream = self.candidate.channel().expect("a candidate is started with a channel");
        match stream::send(stream, kind, payload, &mut self.clock) {
            Ok(()) => stream::receive(stream, self.most, &mut self.clock),
            Err(why) => why,
        }
    }

    /// Relays one request of the checker to the candidate, and the reply back.
    fn relay(&mut self, question: &[u8]) -> Option<ConversationEnd> {
        let (kind, payload) = match self.ask(b'C', question) {
            StreamRead::Frame { kind: kind @ (b'R' | b'Q'), payload } => (kind, payload),
            received => return Some(final_frame(received)),
        };
        if let Err(why) = marshal::check(&payload) {
            return Some(ConversationEnd::Decided(
                Verdict::RuntimeError,
                format!("its reply is not plain data: it {why}"),
            ));
        }
        self.reading.begin_part(self.test);
        match self.checker.send(kind, &payload, &mut self.reading) {
            Err(StreamRead::TimeOut) => Some(self.reply_takes_too_long()),
            _ => None,
        }
    }

    /// Begins to count the time that replies in this test take.
    fn begin_reading(&mut self) {
        self.reading.end_part();
        self.reading.begin_whole(self.test.saturating_mul(READING_IN_ALL));
    }

    /// The checker's next word after a reply, which the candidate may have made to be slow to read or to compare.
    fn read_reply(&mut self) -> Result<StreamRead, ConversationEnd> {
        match self.checker.receive(&mut self.reading) {
            StreamRead::TimeOut => Err(self.reply_takes_too_long()),
            word => Ok(word),
        }
    }

    fn reply_takes_too_long(&self) -> ConversationEnd {
        let message = match self.real.is_over() {
            true => self.real.passed(),
            false => format!("its reply takes longer than {} s to be read and compared", self.test.as_secs_f64()),
        };
        ConversationEnd::TestsFailed(Verdict::TimeLimit, message)
    }

    fn same(&self, nonce: &str) -> Result<()> {
        if nonce == self.nonce { Ok(()) } else { Err(Error::Internal("a verdict on another candidate".to_string())) }
    }
}

fn cannot_run(why: &str) -> Error {
    Error::Unjudgeable { why: format!("its tests cannot run: {why}") }
}

fn parse_message<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T> {
    serde_json::from_slice(payload)
        .map_err(|error| Error::Internal(format!("unreadable message of the checker: {error}")))
}

/// Interprets a frame of the candidate that is not a reply.
fn final_frame(received: StreamRead) -> ConversationEnd {
    let (kind, payload) = match received {
        StreamRead::Frame { kind, payload } => (kind, payload),
        StreamRead::End => return ConversationEnd::CandidateEnded,
        StreamRead::TimeOut => return ConversationEnd::TimeOut,
        StreamRead::TooLong => {
            return ConversationEnd::Decided(
                Verdict::OutputLimit,
                "its reply is longer than the output limit".to_string(),
            );
        }
    };
    let words = last_line(&payload).unwrap_or_default();
    match kind {
        b'S' => ConversationEnd::Decided(Verdict::CompileError, words),
        b'X' | b'E' => ConversationEnd::Decided(Verdict::RuntimeError, words),
        b'M' => ConversationEnd::Decided(Verdict::MemoryLimit, words),
        b'O' => ConversationEnd::Decided(Verdict::OutputLimit, "it prints more than the output limit".to_string()),
        _ => ConversationEnd::Decided(Verdict::RuntimeError, "it writes to the judge's channel".to_string()),
    }
}

/// The verdict if a candidate's process ends before its tests.
fn end_verdict(ended: &Ended, limits: &Limits) -> (Verdict, String) {
    match &ended.how {
        How::Exit(code) => (Verdict::RuntimeError, format!("it exits with code {code} before its tests finish")),
        How::Signal(SIGPROF) => (Verdict::TimeLimit, Limit::Time.passed(limits)),
        How::Signal(signal) => (Verdict::RuntimeError, format!("it is killed by signal {signal}")),
        How::Limit(limit) => (Verdict::from(*limit), limit.passed(limits)),
        How::Sandbox(what) => (Verdict::Sandbox, what.clone()),
        How::Killed => (Verdict::RuntimeError, "it was ended".to_string()),
    }
}

/// A new random value for each process of a candidate, so that a late message about another process is never accepted.
fn nonce() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_cannot_say_what_the_supervisor_alone_finds() {
        let message = |word: &str| json!({ "nonce": "0", "verdict": word, "message": null }).to_string();
        let is_read = |word: &str| parse_message::<CheckerVerdict>(message(word).as_bytes()).is_ok();
        for verdict in Verdict::ALL {
            let may_say = matches!(verdict, Verdict::Accepted | Verdict::WrongAnswer | Verdict::RuntimeError);
            assert_eq!(is_read(verdict.name()), may_say, "{verdict:?}");
        }
    }
}
