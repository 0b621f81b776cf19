//! The judge's result on a candidate: a verdict, and the time and memory of its run.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Verdicts, as contest judges abbreviate them. The first failed test decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Verdict {
    #[serde(rename = "AC")]
    Accepted,
    #[serde(rename = "WA")]
    WrongAnswer,
    #[serde(rename = "TLE")]
    TimeLimit,
    #[serde(rename = "MLE")]
    MemoryLimit,
    #[serde(rename = "OLE")]
    OutputLimit,
    #[serde(rename = "RE")]
    RuntimeError,
    #[serde(rename = "CE")]
    CompileError,
    /// It made a forbidden system call (tracing, mounting, loading kernel code, ...).
    #[serde(rename = "SANDBOX")]
    Sandbox,
}

impl Verdict {
    pub const ALL: [Verdict; 8] = [
        Verdict::Accepted,
        Verdict::WrongAnswer,
        Verdict::TimeLimit,
        Verdict::MemoryLimit,
        Verdict::OutputLimit,
        Verdict::RuntimeError,
        Verdict::CompileError,
        Verdict::Sandbox,
    ];

    pub fn code(self) -> &'static str {
        match self {
            Verdict::Accepted => "AC",
            Verdict::WrongAnswer => "WA",
            Verdict::TimeLimit => "TLE",
            Verdict::MemoryLimit => "MLE",
            Verdict::OutputLimit => "OLE",
            Verdict::RuntimeError => "RE",
            Verdict::CompileError => "CE",
            Verdict::Sandbox => "SANDBOX",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// One test of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestVerdict {
    pub verdict: Verdict,
    /// Why it is not accepted, in one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The judge's result on one candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
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
    pub fn accepted(&self) -> bool {
        self.verdict == Verdict::Accepted
    }
}
