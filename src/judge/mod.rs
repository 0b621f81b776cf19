//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and returns a
//! contest judge's verdict. Verdicts are computed here and in our own checker processes, never taken from the
//! candidate. `eval` reads the problems; searches decide what a verdict is worth.

mod compare;
mod imports;
pub mod language;
mod message;
pub mod problem;
mod program;
pub mod python;
pub mod sandbox;
mod streams;
mod toolchain;
mod verdict;

use std::sync::OnceLock;

use python::{Extent, Python};
use sandbox::Sandbox;

use crate::error::{Error, Result};
use crate::judge::problem::{Problem, TestSuite};

pub use crate::judge::language::Language;
pub use sandbox::Isolation;
pub use toolchain::{CppCompiler, Interpreter};
pub use verdict::{Judgement, TestVerdict, Verdict};

/// Judges candidates; shared by the judging threads.
pub struct Judge {
    /// Located on first use.
    interpreter: OnceLock<Interpreter>,
    compiler: OnceLock<CppCompiler>,
    python: OnceLock<Python>,
    all_tests: bool,
    /// Dropped last: its server ends when none of its programs runs.
    sandbox: Sandbox,
}

impl Judge {
    /// Probes the sandbox. Fails if `isolation` requires it and files and network cannot be isolated.
    pub fn open(isolation: Isolation) -> Result<Judge> {
        Sandbox::probe(isolation).map(Judge::over)
    }

    /// A judge that uses an existing sandbox.
    pub fn over(sandbox: Sandbox) -> Judge {
        Judge {
            sandbox,
            interpreter: OnceLock::new(),
            compiler: OnceLock::new(),
            python: OnceLock::new(),
            all_tests: false,
        }
    }

    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// Continues after a failed test.
    pub fn with_all_tests(self) -> Judge {
        Judge { all_tests: true, ..self }
    }

    /// Judges the candidate in a sample's text. Blocks; may be called from several threads at once. Errors are never
    /// the candidate's fault: no interpreter, a full disk, a suite for another language; [`Error::Unjudgeable`] if the
    /// tests or the reference themselves fail.
    pub fn judge(&self, problem: &Problem, language: &Language, text: &str) -> Result<Judgement> {
        match language {
            Language::Python => self.judge_program(problem, language, &problem.assembly.program(text)),
            Language::Cpp | Language::Command(_) => self.judge_program(problem, language, text),
        }
    }

    /// Like [`Judge::judge`], for a complete program.
    pub fn judge_program(&self, problem: &Problem, language: &Language, program: &str) -> Result<Judgement> {
        match (&problem.suite, language) {
            (TestSuite::Streams(streams), _) => streams::judge(self, streams, problem.limits, language, program),
            (TestSuite::Script(script), Language::Python) => {
                self.python()?.script(&self.sandbox, program, script, problem.limits)
            }
            (TestSuite::Calls(calls), Language::Python) => {
                self.python()?.calls(&self.sandbox, program, calls, problem.limits, self.extent())
            }
            (TestSuite::Reference(reference), Language::Python) => {
                let python = self.python()?;
                Ok(python.reference(&self.sandbox, program, reference, problem.limits, self.extent())?.joined())
            }
            (_, Language::Cpp | Language::Command(_)) => {
                let expected = "python, the language of its tests";
                Err(Error::value(format!("language of {}", problem.id), expected, "another"))
            }
        }
    }

    /// The Python interpreter, located on first use.
    fn interpreter(&self) -> Result<&Interpreter> {
        found(&self.interpreter, Interpreter::find)
    }

    /// The judge of Python functions, set up on first use.
    fn python(&self) -> Result<&Python> {
        found(&self.python, || Python::set_up(self.interpreter()?.clone(), &self.sandbox))
    }

    fn extent(&self) -> Extent {
        if self.all_tests { Extent::All } else { Extent::FirstFailure }
    }

    fn compiler(&self) -> Result<&CppCompiler> {
        found(&self.compiler, CppCompiler::find)
    }
}

/// Initialises the cell once; threads that race get the same value.
fn found<T>(cell: &OnceLock<T>, find: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(found) => Ok(found),
        None => find().map(|found| cell.get_or_init(|| found)),
    }
}
