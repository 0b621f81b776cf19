//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and says what
//! a contest's judge says. A verdict is made here and in checker processes of our own, never from what a candidate
//! claims. Reading problems is `task`'s; what a verdict is worth to a search is the search's.

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

/// Judges candidates; shared by the threads that do.
pub struct Judge {
    sandbox: Sandbox,
    /// Looked for when first needed.
    interpreter: OnceLock<Interpreter>,
    compiler: OnceLock<CppCompiler>,
    python: OnceLock<Python>,
    all_tests: bool,
}

impl Judge {
    /// Probes the sandbox. Fails in one sentence where files and network cannot be isolated and `isolation` requires
    /// it.
    pub fn open(isolation: Isolation) -> Result<Judge> {
        Sandbox::probe(isolation).map(Judge::over)
    }

    /// Judges in a sandbox that is set up already.
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

    /// Goes on after a test that is not accepted.
    pub fn with_all_tests(self) -> Judge {
        Judge { all_tests: true, ..self }
    }

    /// Judges the candidate of a sample's text; blocks until that is done, and may be called from several threads at
    /// once. Fails for what is not the candidate's fault: no interpreter, a full disk, a suite that is not for this
    /// language, and
    /// [`Error::Unjudgeable`] for tests or a reference that fail by themselves.
    pub fn judge(&self, problem: &Problem, language: &Language, text: &str) -> Result<Judgement> {
        match language {
            Language::Python => self.judge_program(problem, language, &problem.assembly.program(text)),
            Language::Cpp | Language::Command(_) => self.judge_program(problem, language, text),
        }
    }

    /// As [`Judge::judge`] of a whole program.
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
                let expected = "python, which its tests are written in or call";
                Err(Error::value(format!("language of {}", problem.id), expected, "another"))
            }
        }
    }

    /// The Python interpreter, looked for when first needed.
    fn interpreter(&self) -> Result<&Interpreter> {
        found(&self.interpreter, Interpreter::find)
    }

    /// What judges Python functions, set up when first needed.
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

/// Finds it once; two threads that look at the same time find the same.
fn found<T>(cell: &OnceLock<T>, find: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(found) => Ok(found),
        None => find().map(|found| cell.get_or_init(|| found)),
    }
}
