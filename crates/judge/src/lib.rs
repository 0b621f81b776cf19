//! The judge: runs untrusted candidate programs against a problem's tests in an operating-system sandbox and returns a
//! contest judge's verdict. Verdicts are computed here and in our own checker processes, never taken from the
//! candidate. `eval` reads the problems; searches decide what a verdict is worth.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod answers;
mod compare;
mod fair_clock;
mod imports;
pub mod language;
mod message;
mod modules;
pub mod problem;
mod program;
pub mod python;
pub mod sandbox;
mod streams;
mod toolchain;
mod verdict;

use std::path::PathBuf;
use std::sync::OnceLock;

use python::Python;
use sandbox::{Sandbox, SandboxSetup};

use crate::problem::{Problem, TestSuite};
use offshoot_core::error::{Error, Result};

pub use crate::language::Language;
pub use modules::LackingModule;
pub use sandbox::Isolation;
use toolchain::Tools;
pub use toolchain::{CppCompiler, Interpreter};
pub use verdict::{Judgement, TestVerdict, Verdict};

/// How a judge is set up; by default isolation is required.
#[derive(Clone, Debug, Default)]
pub struct JudgeSetup {
    /// Whether candidates may run where files and network cannot be isolated.
    pub isolation: Isolation,
    /// The interpreter of candidates and tests, or the folder of a virtual environment; `None`: see
    /// [`Interpreter::find`].
    pub python: Option<PathBuf>,
    /// The program that becomes the sandbox's helper processes, which must begin with
    /// [`sandbox::enter_if_helper`]; `None`: this one.
    pub helper: Option<PathBuf>,
}

/// Judges candidates; shared by the judging threads.
pub struct Judge {
    hidden: Vec<PathBuf>,
    chosen_python: Option<PathBuf>,
    /// Located on first use.
    interpreter: OnceLock<Interpreter>,
    compiler: OnceLock<CppCompiler>,
    tools: Tools,
    python: OnceLock<Python>,
    all_tests: bool,
    forks: bool,
    /// Dropped last: its server ends when none of its programs runs.
    sandbox: Sandbox,
}

impl Judge {
    /// Probes the sandbox, which hides the files `withheld` (the problems, the run) and the places where this machine
    /// has answers of benchmarks. Fails if `setup` requires isolation and files and network cannot be isolated, or if
    /// the interpreter that it names does not work.
    pub fn open(setup: &JudgeSetup, withheld: &[PathBuf]) -> Result<Judge> {
        let mut interpreter = match Interpreter::find(setup.python.as_deref()) {
            Err(error) if setup.python.is_some() => return Err(error),
            found => found.ok(),
        };
        let places = answers::places(interpreter.as_ref());
        let hidden = answers::existing(places.into_iter().chain(withheld.iter().cloned()));
        // What is hidden is not shown as one of the folders where the interpreter looks for modules.
        if let Some(interpreter) = &mut interpreter {
            interpreter.readable.retain(|path| {
                let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
                !hidden.iter().any(|hidden| real.starts_with(hidden))
            });
        }
        let sandbox =
            SandboxSetup { hidden: hidden.clone(), helper: setup.helper.clone(), ..SandboxSetup::new(setup.isolation) };
        let judge = Judge { hidden, chosen_python: setup.python.clone(), ..Judge::over(Sandbox::set_up(&sandbox)?) };
        Ok(match interpreter {
            Some(interpreter) => Judge { interpreter: OnceLock::from(interpreter), ..judge },
            None => judge,
        })
    }

    /// A judge that uses an existing sandbox.
    pub fn over(sandbox: Sandbox) -> Judge {
        Judge {
            sandbox,
            hidden: Vec::new(),
            chosen_python: None,
            interpreter: OnceLock::new(),
            compiler: OnceLock::new(),
            tools: Tools::default(),
            python: OnceLock::new(),
            all_tests: false,
            forks: true,
        }
    }

    /// The sandbox that it uses.
    pub fn sandbox(&self) -> &Sandbox {
        &self.sandbox
    }

    /// The files and folders of this machine that may hold answers and that no candidate can read.
    pub fn hidden(&self) -> &[PathBuf] {
        &self.hidden
    }

    /// Continues after a failed test.
    pub fn with_all_tests(self) -> Judge {
        Judge { all_tests: true, ..self }
    }

    /// Starts an interpreter for each Python candidate, even if candidates could be forked from one that is loaded
    /// once.
    pub fn without_forks(self) -> Judge {
        Judge { forks: false, ..self }
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
            (TestSuite::Streams(streams), _) => streams::judge(self, problem, streams, language, program),
            (TestSuite::Script(script), Language::Python) => {
                self.python()?.script(&self.sandbox, program, script, problem.limits)
            }
            (TestSuite::Calls(calls), Language::Python) => {
                self.python()?.calls(&self.sandbox, program, calls, problem.limits, self.all_tests)
            }
            (TestSuite::Reference(reference), Language::Python) => {
                self.python()?.reference(&self.sandbox, program, reference, problem.limits, self.all_tests)
            }
            (_, Language::Cpp | Language::Command(_)) => {
                let expected = "python, the language of its tests";
                Err(Error::value(format!("language of {}", problem.id), expected, "another"))
            }
        }
    }

    /// The Python interpreter, located on first use.
    pub fn interpreter(&self) -> Result<&Interpreter> {
        found(&self.interpreter, || Interpreter::find(self.chosen_python.as_deref()))
    }

    /// The judge of Python functions, set up on first use.
    fn python(&self) -> Result<&Python> {
        found(&self.python, || {
            let mut interpreter = self.interpreter()?.clone();
            interpreter.library.take_if(|_| !self.forks);
            Python::set_up(interpreter, &self.sandbox)
        })
    }

    /// Why an interpreter is started for each Python candidate, if candidates are not forked from one that is loaded
    /// once. Fails if there is no interpreter that works.
    pub fn starts_python_for(&self) -> Result<Option<&str>> {
        Ok(self.python()?.started_for())
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

    /// The C++ compiler, located on first use.
    pub fn compiler(&self) -> Result<&CppCompiler> {
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
