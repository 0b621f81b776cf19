//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and returns a
//! contest judge's verdict. Verdicts are computed here and in our own checker processes, never taken from the
//! candidate. `eval` reads the problems; searches decide what a verdict is worth.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod answers;
mod compare;
mod fair_clock;
mod imports;
mod judge;
pub mod language;
mod limits;
mod message;
mod modules;
pub mod problem;
mod program;
pub mod python;
pub mod sandbox;
mod streams;
mod toolchain;
mod verdict;

use crate::problem::{Problem, TestSuite};
use offshoot_core::error::{Error, Result};

pub use crate::language::Language;
pub use judge::{Judge, JudgeSetup};
pub use modules::LackingModule;
pub use sandbox::Isolation;
pub use toolchain::{CppCompiler, Interpreter};
pub use verdict::{Judgement, TestVerdict, Verdict};

impl Judge {
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
        self.tell_lower_limits(&problem.limits);
        match (&problem.suite, language) {
            (TestSuite::Streams(streams), _) => streams::judge(self, problem, streams, language, program),
            (TestSuite::Script(script), Language::Python) => {
                self.python()?.script(self, program, script, problem.limits)
            }
            (TestSuite::Calls(calls), Language::Python) => self.python()?.calls(self, program, calls, problem.limits),
            (TestSuite::Reference(reference), Language::Python) => {
                self.python()?.reference(self, program, reference, problem.limits)
            }
            (_, Language::Cpp | Language::Command(_)) => {
                let expected = "python, the language of its tests";
                Err(Error::value(format!("language of {}", problem.id), expected, "another"))
            }
        }
    }

    /// The result of an example of [`language::EXAMPLES`]: `None` if a program that its commands name is not there.
    pub fn try_language(&self, commands: &str, program: &str) -> Result<Option<Judgement>> {
        let language = Language::parse("a language's example", commands)?;
        let Language::Command(named) = &language else { return Ok(None) };
        let words = named.compile.iter().chain([&named.run]).filter_map(|command| command.first());
        if !words.filter(|word| !word.contains('/')).all(|word| self.tools.find(word).is_ok()) {
            return Ok(None);
        }
        self.judge_program(&Problem::streams("example", [("2 3\n", "5\n")]), &language, program).map(Some)
    }
}
