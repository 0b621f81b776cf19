//! The judge's result on a candidate: a verdict, and the time and memory of its run.
#![warn(missing_docs)]

use std::time::Duration;

use serde::{Deserialize, Serialize};

use offshoot_core::named;

/// Verdicts, as contest judges abbreviate them. The first failed test decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// It passed all tests.
    #[serde(rename = "AC")]
    Accepted,
    /// A result is not the expected one.
    #[serde(rename = "WA")]
    WrongAnswer,
    /// It took more time than [`Limits::cpu`](crate::problem::Limits::cpu) or
    /// [`Limits::wall`](crate::problem::Limits::wall), or its reply took the tests as long to read and compare.
    #[serde(rename = "TLE")]
    TimeLimit,
    /// It took more memory than [`Limits::memory_bytes`](crate::problem::Limits::memory_bytes).
    #[serde(rename = "MLE")]
    MemoryLimit,
    /// It wrote more than [`Limits::output_bytes`](crate::problem::Limits::output_bytes).
    #[serde(rename = "OLE")]
    OutputLimit,
    /// It raised an exception, was killed by a signal, or exited with a code other than 0.
    #[serde(rename = "RE")]
    RuntimeError,
    /// It does not compile.
    #[serde(rename = "CE")]
    CompileError,
    /// It made a forbidden system call (tracing, mounting, loading kernel code, ...).
    #[serde(rename = "SANDBOX")]
    Sandbox,
}

named!(Verdict {
    Accepted = "AC",
    WrongAnswer = "WA",
    TimeLimit = "TLE",
    MemoryLimit = "MLE",
    OutputLimit = "OLE",
    RuntimeError = "RE",
    CompileError = "CE",
    Sandbox = "SANDBOX",
});

/// One test of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestVerdict {
    /// How the candidate did on this test.
    pub verdict: Verdict,
    /// Why it is not accepted, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The judge's result on one candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// That of the first failed test, else accepted.
    pub verdict: Verdict,
    /// Why it is not accepted, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Whether its program was compiled and loaded, so that its tests began.
    #[serde(skip)]
    pub began: bool,
    /// One verdict per test that was run; a script of asserts is one test.
    pub tests: Vec<TestVerdict>,
    /// Wall-clock time from the start to the end of its processes; includes the time that the tests themselves compute.
    pub wall: Duration,
    /// Processor time of all its processes.
    pub cpu: Duration,
    /// The most memory its processes held at once.
    pub peak_bytes: u64,
}

impl Judgement {
    /// Whether the candidate passed all tests.
    pub fn accepted(&self) -> bool {
        self.verdict == Verdict::Accepted
    }

    /// The judgement of a candidate before any of its tests has run.
    pub(crate) fn untested(verdict: Verdict, message: Option<String>) -> Judgement {
        let (began, none) = (verdict == Verdict::Accepted, Duration::ZERO);
        Judgement { verdict, message, began, tests: Vec::new(), wall: none, cpu: none, peak_bytes: 0 }
    }

    /// Adds what one more of its processes used.
    pub(crate) fn add(&mut self, wall: Duration, cpu: Duration, peak_bytes: u64) {
        self.wall += wall;
        self.cpu += cpu;
        self.peak_bytes = self.peak_bytes.max(peak_bytes);
    }

    /// With the verdict of the first failed test, whose number its message begins with if there are `several`.
    pub(crate) fn decided(mut self, several: bool) -> Judgement {
        let failed = self.tests.iter().enumerate().find(|(_, test)| test.verdict != Verdict::Accepted);
        if let Some((ix, test)) = failed {
            let numbered = |message: &String| format!("test {}: {message}", ix + 1);
            self.verdict = test.verdict;
            self.message = if several { test.message.as_ref().map(numbered) } else { test.message.clone() };
        }
        self
    }

    /// With the tests of `next` behind its own: accepted if both are.
    pub(crate) fn joined(mut self, next: Judgement) -> Judgement {
        if self.accepted() {
            (self.verdict, self.message) = (next.verdict, next.message);
        }
        self.began &= next.began;
        self.tests.extend(next.tests);
        self.add(next.wall, next.cpu, next.peak_bytes);
        self
    }
}
